"""The host side on the embedded world: worker processes, sandbox, renderer; the expert as the policy."""

import asyncio
from functools import partial
from random import Random

import numpy as np
import pytest

from jaxagent.chat.render import Renderer
from jaxagent.chat.train_tokenizer import train_tokenizer
from jaxagent.envs.pool import EnvPool
from jaxagent.envs.world.spec import world_spec
from jaxagent.plan import Plan
from jaxagent.rollout.demonstrate import play, tokens
from jaxagent.rollout.episode import Setup, run_episode, task_key
from jaxagent.rollout.limits import EpisodeLimits
from jaxagent.rollout.plans import run_plans
from jaxagent.types import Completion, GenerateRequest, Sampling, Status, Stop


class Replay:
    """Says what a demonstration said, by task and step."""

    def __init__(self, demonstrations):
        self.ids = {
            (task_key(d.task.task_id), step.k): step.ids_T for d in demonstrations for step in d.steps
        }

    async def __call__(self, request: GenerateRequest) -> Completion:
        ids_T = self.ids[request.key.task, request.key.step]
        return Completion(ids_T, np.full(len(ids_T), -0.1, np.float32), Stop.STOP, 0)

    async def release(self, session: str) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("sloppiness", [0.0, 1.0])
def test_replayed_demonstrations_give_the_same_tokens_observations_and_verdicts(sloppiness):
    """Worker and sandbox against the in-process player; rollout tokens against rendered demonstrations."""
    spec = world_spec("easy")
    tasks = spec.tasks("train")[:10]
    played = [play(spec, task, rng=Random(task.task_id), sloppiness=sloppiness) for task in tasks]
    texts = [message.content for item in played for message in item.messages(spec)]
    renderer = Renderer(train_tokenizer(texts, 300), "plain")
    demonstrations = [tokens(item, spec, renderer) for item in played]

    async def run():
        async with EnvPool(2) as pool:
            policy, limits = Replay(demonstrations), EpisodeLimits(context=4000)
            setup = Setup(spec, policy, pool, renderer, Sampling(max_tokens=400), limits, seed=0)
            return await run_plans([Plan(task, 1) for task in tasks], partial(run_episode, setup))

    groups, metrics = asyncio.run(run())
    for group, demonstration in zip(groups, demonstrations, strict=True):
        (trajectory,) = group.trajectories
        for mine, theirs in zip(trajectory.steps, demonstration.steps, strict=True):
            assert (mine.text, mine.action) == (theirs.text, theirs.action)
            assert (mine.observation_after, mine.exec_status) == (
                theirs.observation_after,
                theirs.exec_status,
            )
            assert mine.anchor == theirs.anchor
        np.testing.assert_array_equal(trajectory.segments[0].ids_T, demonstration.segments[0].ids_T)
        np.testing.assert_array_equal(trajectory.segments[0].mask_T, demonstration.segments[0].mask_T)
        assert trajectory.evaluation == demonstration.evaluation
        assert trajectory.status is demonstration.status
    if not sloppiness:
        assert metrics["rollout/success"] == 1.0
        assert all(group.trajectories[0].status is Status.DONE for group in groups)
    else:
        assert metrics["rollout/success"] < 1.0
