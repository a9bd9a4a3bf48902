"""Stored rollouts as a source: the same groups, in seeded epochs, as their sampler left them."""

from dataclasses import replace

import pytest

from jaxagent.data.rollout_store import FILE, Origin, RolloutStore, RolloutWriter
from jaxagent.data.stored import StoredSource
from jaxagent.errors import ConfigError, DataError
from jaxagent.recipes.stored import with_stored
from jaxagent.recipes.table import RECIPES
from jaxagent.types import Group
from tests.made_episodes import make_group, make_task
from tests.recipes.test_stages import materials, scored

ORIGIN = Origin(tokenizer="abc", template="plain", model="tiny", temperature=1.0)


@pytest.fixture
def folder(tmp_path):
    """A run folder with five groups of two iterations, one of them without survivors."""
    writer = RolloutWriter(tmp_path / FILE, ORIGIN)
    for iteration, names in enumerate(("abc", "dex")):
        groups = [scored(make_group([1, 0], task=make_task(name)), ("old", "reference")) for name in names]
        groups = [Group(g.task, ()) if g.task.task_id == "x" else g for g in groups]
        writer.write(groups, iteration=iteration, stage="rl")
    writer.close()
    return tmp_path


def tasks(groups):
    return [group.task.task_id for group in groups]


def test_every_group_comes_once_an_epoch_and_a_resumed_source_goes_on(folder):
    def source(seed=3):
        return StoredSource(RolloutStore(folder), groups=2, seed=seed, row=16)

    whole, before = source(), source()
    order = [tasks(whole.next(i)) for i in range(10)]
    flat = [name for names in order for name in names]
    for epoch in range(4):
        assert sorted(flat[5 * epoch : 5 * epoch + 5]) == list("abcde")
    assert whole.observe([])["data/epoch"] == 4.0
    assert flat[:5] != flat[5:10]
    assert [tasks(before.next(i)) for i in range(3)] == order[:3]
    resumed = source()
    resumed.restore(before.state())
    assert [tasks(resumed.next(i)) for i in range(3, 10)] == order[3:]
    with pytest.raises(DataError, match="data seed 3"):
        source(seed=4).restore(before.state())


def test_streams_of_the_trainer_of_that_time_are_left_behind(folder):
    """Else old log-probs of other parameters would be taken for those of now."""
    (group, *_) = StoredSource(RolloutStore(folder), groups=1, seed=0, row=16).next(0)
    assert [set(s.logprobs) for t in group.trajectories for s in t.segments] == [{"behaviour"}] * 2


def test_what_cannot_be_trained_on_is_refused_before_training(folder, tmp_path):
    with pytest.raises(DataError, match="has 3 tokens, a training row holds 2"):
        StoredSource(RolloutStore(folder), groups=1, seed=0, row=2)
    with pytest.raises(DataError, match=r"sampled 2 tokens, a training row scores 1; raise pack\.scored"):
        StoredSource(RolloutStore(folder), groups=1, seed=0, row=16, scored=1)
    RolloutWriter(tmp_path / "new" / FILE, ORIGIN).close()
    with pytest.raises(DataError, match="holds no trajectory"):
        StoredSource(RolloutStore(tmp_path / "new"), groups=1, seed=0, row=16)


# --- as an option of a recipe ---------------------------------------------------------------------------------


def offline(recipe, folder, *, origin=ORIGIN, row=64, **options):
    chosen = RECIPES[recipe].options.parse({"rollouts_from": str(folder), "tasks": 2, **options})
    made = materials(origin=origin, row=row, spare=RECIPES[recipe].spare(chosen))
    return with_stored(RECIPES[recipe].stage(chosen, made), chosen, made)


@pytest.mark.parametrize("recipe", ["grpo", "loop", "gvpo", "gigpo", "skill_sd"])
def test_another_method_trains_on_the_same_groups(folder, recipe):
    stage = offline(recipe, folder)
    groups = stage.source.next(0)
    assert len(groups) == 2
    assert not stage.rolls_out
    credited = stage.credit(stage.reward(groups))
    assert sorted(float(item.advantage_K[0]) > 0 for item in credited) == [False, False, True, True]
    stage.close()


def test_log_probs_are_those_of_the_distribution_that_was_sampled_from(folder):
    from jaxagent.learner import temperature
    from jaxagent.types import Sampling

    chosen = RECIPES["gvpo"].options.parse({"rollouts_from": str(folder)})
    made = materials(sampling=Sampling(max_tokens=8, temperature=0.7))
    assert temperature(with_stored(RECIPES["gvpo"].stage(chosen, made), chosen, made)) == 0.7


def test_the_rows_of_a_value_function_have_room_for_the_token_behind_a_cut_episode(folder):
    options = {"bootstrap_truncated": True}
    offline("ppo", folder, row=4, **options)
    with pytest.raises(DataError, match="has 3 tokens, and 1 more"):
        offline("ppo", folder, row=3, **options)
    offline("ppo", folder, row=3)


def test_a_recipe_with_rollouts_of_its_own_is_refused(folder):
    """Else the option would be ignored in silence. A source that wraps the store's is none of those."""
    with pytest.raises(ConfigError, match="plans its own rollouts"):
        offline("dapo", folder)
    assert offline("dapo", folder, dynamic=False).stored
    assert offline("reinforce", folder, baseline="running_mean").stored
    chosen = RECIPES["gvpo"].options.parse({"rollouts_from": str(folder)})
    own = RECIPES["gvpo"].stage(RECIPES["gvpo"].options(), materials())
    with pytest.raises(ConfigError, match="plans its own rollouts"):
        with_stored(own, chosen, materials())


def test_another_tokenizer_or_model_is_refused(folder):
    with pytest.raises(ConfigError, match="another model"):
        offline("gvpo", folder, origin=replace(ORIGIN, model="other"))


def test_a_missing_store_and_replay_beside_a_store_are_refused(folder):
    with pytest.raises(DataError, match="keep_rollouts: 1"):
        offline("gvpo", folder / "nowhere")
    with pytest.raises(ConfigError, match="drop one of the two"):
        offline("gvpo", folder, replay={})
