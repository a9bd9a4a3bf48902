"""AgentEvolver with guided rollouts: what the stage is made of, and what cannot go together."""

from dataclasses import replace

import pytest

from jaxagent.errors import ConfigError
from jaxagent.recipes.table import RECIPES
from jaxagent.skills.guided import GuidedSource
from jaxagent.train import credit
from jaxagent.types import Evaluation, Group
from tests.batch.test_internal import PLAIN_PROMPT, RENDERER, episode
from tests.recipes.test_stages import materials, scored

RECIPE = RECIPES["agentevolver"]


def stage(**options):
    return RECIPE.stage(RECIPE.options.parse(options), materials(renderer=RENDERER))


def test_stripped_rollouts_are_trained_by_the_wide_clip_and_share_the_baseline():
    """A guided success and a plain failure: advantages 1 and -1 of one group, each behind the plain opening."""
    made = stage(navigating={}, attribution={"alpha": 0.0}, reward="success")
    solved = episode("go")
    solved = replace(solved, extra={**solved.extra, "label": "guided"}, evaluation=Evaluation(True, 1, 1))
    failed = replace(episode("go", opening=PLAIN_PROMPT), rollout=1, evaluation=Evaluation(False, 0, 1))
    groups = made.reopen([Group(solved.task, (solved, failed))])
    groups = made.reward([scored(group, made.needs) for group in groups])
    credited = credit(made, groups)
    made.close()
    assert [item.advantage_K.tolist() for item in credited] == [[1.0], [-1.0]]
    guided, plain = made.samples(credited)
    assert guided.ids_T.tolist() == plain.ids_T.tolist()
    assert (guided.include["pg"].sum(), plain.include["pg_boosted"].sum()) == (0, 0)
    assert guided.include["pg_boosted"].sum() == plain.include["pg"].sum() == 3
    assert made.terms["pg"].aggregate([guided, plain], "pg")[1] == 6


def test_old_log_probs_are_the_trainers_and_the_pool_is_measured():
    made, plain = stage(navigating={"eta": 0.25, "top_k": 2, "pool": 7}), stage()
    assert made.needs == ("old", "reference")
    assert plain.needs == ("reference",)
    assert isinstance(made.source, GuidedSource)
    assert (made.source.rules.eta, made.source.rules.top_k, made.source.pool.capacity) == (0.25, 2, 7)
    assert set(made.openings) == set(made.shown) == {"experiences"}
    assert plain.reopen is None
    assert plain.openings == {}
    made.close()
    plain.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"boost": 0.5}, "boost is read with navigating"),
        ({"navigating": {}, "mismatch": {"mode": "token_trunc"}}, "drop mismatch and replay"),
        ({"navigating": {}, "replay": {}}, "drop mismatch and replay"),
        ({"navigating": {}, "rollouts_from": "runs/a"}, "stored ones were played without"),
        ({"navigating": {"eta": 2}}, "eta"),
        ({"navigating": {"writer": "me"}}, "writer"),
    ],
)
def test_what_does_not_go_together(options, reason):
    with pytest.raises(ConfigError, match=reason):
        RECIPE.options.parse(options)
