"""An evaluation run in other ways."""

import asyncio

from jaxagent.eval.ways import opened_by
from jaxagent.plan import Plan
from jaxagent.types import Message, Prompt, Sampling
from tests.made_episodes import make_task


def test_an_evaluation_is_repeated_with_another_opening():
    """Every plan gets the opening of its own task; the plain evaluation's plans are not touched."""
    plans = [Plan(make_task("a"), 1), Plan(make_task("b"), 1)]
    seen = []

    async def rollout(plans, sampling):
        seen.extend(plan.prompt(Prompt((Message("user", "?"),))).messages[0].content for plan in plans)
        return []

    def opening(task, prompt):
        return Prompt((Message("user", f"{task.task_id}{prompt.messages[0].content}"),))

    asyncio.run(opened_by(opening)(rollout)(plans, Sampling(4)))
    assert seen == ["a?", "b?"]
    assert plans[0].prompt is None
