"""SAGE and rejection sampling as stages: what the options make of groups, demonstrations and evaluations."""

import json
from dataclasses import replace

import numpy as np
import pytest

from jaxagent.chat.render import Renderer
from jaxagent.chat.train_tokenizer import train_tokenizer
from jaxagent.envs.world.spec import world_spec
from jaxagent.envs.world.tasks import tasks
from jaxagent.errors import ConfigError, DataError
from jaxagent.recipes.rft import again
from jaxagent.recipes.table import RECIPES
from jaxagent.skills.functions import used
from jaxagent.types import Dropped, Group
from tests.made_episodes import make_step, make_task, make_trajectory
from tests.recipes.test_stages import group, materials, run_host_half

PLAIN = Renderer(train_tokenizer(["print(apis.book.show(name=1)) def return apis.bank.pay"], 300), "plain")
Q1, Q2 = make_task("q1", scenario="s"), make_task("q2", scenario="s")


def chains():
    """(1,1,1), (1,1,0), (0,1,1), (1,0,0) as the example has them."""
    facts = [(1, 1, 1), (1, 1, 0), (0, 1, 1), (1, 0, 0)]
    first = [
        make_trajectory(task=Q1, rollout=j, success=bool(a), steps=[make_step(0, code="def f(): pass")])
        for j, (a, _, _) in enumerate(facts)
    ]
    second = [
        make_trajectory(
            task=Q2, rollout=j, success=bool(b), steps=[make_step(0, code="f()" if u else "x = 1", tokens=3)]
        )
        for j, (_, b, u) in enumerate(facts)
    ]
    return [Group(Q1, tuple(first)), Group(Q2, tuple(second), position=1)]


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({}, [1, 0, -1, 0], [0.75, -0.25, 0.75, -1.25]),
        ({"advantage": "chain"}, [1.75, -0.25, -0.25, -1.25], [1.75, -0.25, -0.25, -1.25]),
        ({"bonus": 0.0}, [0.25, 0.25, -0.75, 0.25], [0.25, 0.25, 0.25, -0.75]),
        ({"gen_bonus_requires_r1": False}, [0.75, -0.25, -0.25, -0.25], [0.75, -0.25, 0.75, -1.25]),
    ],
)
def test_advantages_of_the_example_and_its_ablations(options, first, second):
    credited, packed = run_host_half("sage", chains(), **options)
    for task, expected in ((Q1, first), (Q2, second)):
        found = {c.trajectory.rollout: c.advantage_K[0] for c in credited if c.trajectory.task is task}
        np.testing.assert_allclose([found[j] for j in range(4)], expected, atol=1e-6)
    assert packed[0].batch.count["pg"] == 4 * 2 + 4 * 3  # a mean over the tokens of both positions


def test_options_that_do_not_fit_are_refused():
    options = RECIPES["sage"].options
    with pytest.raises(ConfigError, match="adds its bonuses to an outcome"):
        options.parse({"reward": {"outcome": "success", "format": 0.1}})
    with pytest.raises(ConfigError, match=r"retriever\.by=ngram has none"):
        options.parse({"retrieval": "skill_emb", "retriever": {"by": "ngram"}})
    with pytest.raises(ConfigError, match="chain_len"):
        options.parse({"chain_len": 1})
    with pytest.raises(ConfigError, match="at most 2"):
        RECIPES["sage"].stage(options.parse({"chain_len": 3}), materials())
    rft = RECIPES["rft"].options
    with pytest.raises(ConfigError, match="tries are for single tasks"):
        rft.parse({"tries": 40, "chain_len": 2})
    with pytest.raises(ConfigError, match="below group_size"):
        rft.parse({"tries": 4, "group_size": 8})


@pytest.mark.parametrize("kind", ["none", "same_scenario", "query_ngram", "query_emb", "skill_emb"])
def test_every_kind_of_retrieval_gives_an_evaluation_of_its_own(kind):
    given = {"retrieval": kind} | ({} if kind == "none" else {"order_seed": 3})
    options = RECIPES["sage"].options.parse(given)
    stage = RECIPES["sage"].stage(options, materials())
    assert list(stage.ways) == ([] if kind == "none" else ["library"])
    assert [content()["seed"] for content in stage.shown.values()] == ([] if kind == "none" else [3])


# --- rejection sampling ----------------------------------------------------------------------------------------


def test_rft_learns_from_successes_alone_and_leaves_failed_steps_out():
    credited, packed = run_host_half("rft", [group([4, 2, 4, 0])], mask_errors=True)
    assert [c.trajectory.rollout for c in credited] == [0, 2]
    assert packed[0].batch.count["ce"] == 2 * (2 + 2)  # two steps of three, of two tokens each
    _, packed = run_host_half("rft", [group([4, 2, 4, 0])], weigh="trajectory")
    assert packed[0].batch.count["ce"] == 2
    credited, packed = run_host_half("rft", [group([4, 4, 4, 0])], max_per_task=1)
    assert len(credited) == 1
    assert run_host_half("rft", [group([0, 1, 2, 3])])[1] == []


def test_rft_of_chains_keeps_those_that_were_solved_by_reuse():
    credited, _ = run_host_half("rft", chains(), chain_len=2)
    assert [(c.trajectory.task.task_id, c.trajectory.rollout) for c in credited] == [("q1", 0), ("q2", 0)]


def test_rft_takes_the_optimisers_options():
    options = {
        "tasks": 4,
        "group_size": 4,
        "max_per_task": 2,
        "epochs": 3,
        "minibatch": 3,
        "schedule": "linear",
    }
    update = RECIPES["rft"].stage(RECIPES["rft"].options.parse(options), materials()).update
    assert update.steps_per_iteration == 9  # at most 8 episodes in minibatches of 3, three times
    assert (update.epochs, update.minibatch, update.schedule) == (3, 3, "linear")


def test_tasks_without_a_success_are_tried_again_until_they_have_one_or_were_tried_so_often():
    assert again(4, 0) is None
    assert again(4, 4) is None
    follow_up = again(4, 10)
    failed, solved = group([0, 0, 0, 0], "a"), group([0, 4, 0, 0], "b")
    lost = replace(failed, trajectories=failed.trajectories[:1], dropped=(Dropped("a", 1, "hang"),) * 3)
    assert [(p.task.task_id, p.n, p.first) for p in follow_up([failed, solved])] == [("a", 4, 4)]
    assert [(p.n, p.first) for p in follow_up([lost, solved, failed])] == [(2, 8)]
    assert follow_up([failed, failed, group([0, 0], "a")]) == []
    assert follow_up([failed, group([0, 4], "a")]) == []


def demonstrations(**options):
    spec = world_spec("easy")
    values = {"chain_len": 2, "demonstrations": 60, "library_text": "plain"} | options
    found = materials(spec=spec, tasks=tasks("easy", "train")[:45], renderer=PLAIN, row=4096)
    stage = RECIPES["sft"].stage(RECIPES["sft"].options.parse(values), found)
    episodes = [t for _ in range(4) for group in stage.source.next(0) for t in group.trajectories]
    return stage, {t.traj_id: t for t in episodes}


def test_the_cold_start_plays_chains_and_keeps_those_that_reuse():
    stage, clean = demonstrations(keep="success")
    assert len(clean) == 60
    assert all(t.success for t in clean.values())
    second = [t for t in clean.values() if t.before]
    assert len(second) == 30
    assert all(t.prompt.messages[0].content.startswith("def ") for t in second)
    assert not any("def " in step.text for t in second for step in t.steps)
    kept = stage.measure([], [])["select/kept_frac"]
    assert kept == 1
    sloppy, fewer = demonstrations(keep="success", sloppiness=0.8)
    assert 0 < sloppy.measure([], [])["select/kept_frac"] < 1
    assert all(t.success for t in fewer.values())
    everything, all_of_them = demonstrations(sloppiness=0.8)
    assert "select/kept_frac" not in everything.measure([], [])
    assert len(all_of_them) == 60
    assert not all(t.success for t in all_of_them.values())


def test_only_assistant_turns_after_the_prompt_are_trained():
    """The signature that opens the second task is context."""
    _, clean = demonstrations(keep="success")
    episode = next(t for t in clean.values() if t.before)
    (segment,) = episode.segments
    trained = PLAIN.tokenizer.decode(segment.ids_T[segment.mask_T])
    assert trained == "".join(f"{step.text}<|end|>" for step in episode.steps)
    assert used(episode, ()) == ()


def test_an_environment_without_an_expert_for_chains_says_so():
    bare = replace(world_spec("easy"), chain_expert=None)
    found = materials(spec=bare, tasks=tasks("easy", "train")[:6], renderer=PLAIN, row=4096)
    with pytest.raises(ConfigError, match="no scripted expert for chains"):
        RECIPES["sft"].stage(RECIPES["sft"].options.parse({"chain_len": 2}), found)
    with pytest.raises(ConfigError, match="without slips"):
        RECIPES["sft"].options.parse({"chain_len": 2, "slips": 0.1, "mask_errors": True})


def talk(task, success, **more):
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": f"{task}!"}]
    return {"messages": messages, "task": task, "success": success, **more}


def stored(folder, *lines, **options):
    path = folder / "talks.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    values = {"file": str(path), "keep": "success", "batch": 1} | options
    return RECIPES["sft"].stage(RECIPES["sft"].options.parse(values), materials(renderer=PLAIN, row=512))


def test_stored_episodes_are_rejected_by_what_their_line_says(tmp_path):
    lines = [talk("a", True), talk("a", True), talk("a", True), talk("b", False), talk("c", True)]
    stage = stored(tmp_path, *lines, max_per_task=2)
    names = sorted(stage.source.next(i)[0].task.task_id for i in range(3))
    assert names == ["a", "a", "c"]
    metrics = stage.measure([], [])
    assert metrics["select/kept_frac"] == pytest.approx(3 / 5)
    assert metrics["select/tasks_frac"] == pytest.approx(2 / 3)
    with pytest.raises(DataError, match="not one of 1 demonstrations is kept"):
        stored(tmp_path, talk("a", False))
