"""The host half of every recipe that rolls out: its own reward, credit, filter, samples, terms and packing together."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.batch.pack import pack
from jaxagent.recipes.base import Materials
from jaxagent.recipes.table import RECIPES
from jaxagent.train import credit
from jaxagent.types import Group, Sampling
from tests.made_episodes import make_task, make_trajectory

STEPS = ["ok", "runtime_error", "ok"]


def materials(**changes):
    values = {
        "name": "rl",
        "spec": None,
        "tasks": [make_task("a"), make_task("b")],
        "renderer": None,
        "sampling": Sampling(max_tokens=8),
        "row": 64,
        "seed": 0,
        "demonstrate": lambda tasks, sloppiness: [],
    }
    return Materials(**values | changes)


def group(passed, task_id="a"):
    """One rollout for each number of passed tests, of 4."""
    task = make_task(task_id)
    rollouts = [
        make_trajectory(task=task, rollout=i, steps=STEPS, success=n == 4, tests=(n, 4))
        for i, n in enumerate(passed)
    ]
    return Group(task, tuple(rollouts))


def scored(group, names):
    """The group with log-prob streams of these names, as the learner adds them."""
    return replace(
        group,
        trajectories=tuple(
            replace(
                t,
                segments=tuple(
                    replace(s, logprobs=dict.fromkeys(names, s.logprobs["behaviour"]) | s.logprobs)
                    for s in t.segments
                ),
            )
            for t in group.trajectories
        ),
    )


def run_host_half(recipe, groups, **options):
    """(credited, packed micro-batches) of one iteration, without a device."""
    stage = RECIPES[recipe].stage(RECIPES[recipe].options.parse(options), materials())
    credited = credit(stage, stage.reward([scored(group, stage.needs) for group in groups]))
    credited = stage.filter(credited) if stage.filter else credited
    stage.close()
    return credited, pack(stage.samples(credited), stage.terms, rows=4, length=32)


# R = 1, .5, 0, .5: mean .5; the second step failed
EXPECTED = {
    ("grpo", "std", False): [[0.5] * 3, [0] * 3, [-0.5] * 3, [0] * 3],
    ("loop", "min_advantage", 0.0): [[2 / 3] * 3, [0] * 3, [-2 / 3] * 3, [0] * 3],
    ("loop", "min_advantage", 0.01): [[2 / 3] * 3, [-2 / 3] * 3],
    ("gvpo", "b", 0.2): [[0.5, 0, 0.5], [0, -0.2, 0], [-0.5, -0.6, -0.5], [0, -0.2, 0]],
    ("gvpo", "base", "leave_one_out"): [
        [2 / 3, 0, 2 / 3],
        [0, -0.2, 0],
        [-2 / 3, -0.8, -2 / 3],
        [0, -0.2, 0],
    ],
    ("skill_sd", "lambda_", 0.01): [[x] * 3 for x in np.array([0.5, 0, -0.5, 0]) / np.sqrt(0.5 / 3)],
}


@pytest.mark.parametrize(
    ("case", "advantages"), EXPECTED.items(), ids=lambda value: "-".join(map(str, value))[:24]
)
def test_advantages_of_a_group(case, advantages):
    recipe, option, value = case
    credited, packed = run_host_half(recipe, [group([4, 2, 0, 2])], **{option: value})
    assert len(credited) == len(advantages)
    for item, advantage_K in zip(credited, advantages):
        np.testing.assert_allclose(item.advantage_K, advantage_K, atol=1e-5)
    assert len(packed) == 1


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"sft"}))
def test_a_batch_holds_every_stream_that_a_term_reads(recipe):
    """Before the first skill nobody has a teacher: its stream is there, and its term weighs nothing."""
    _, packed = run_host_half(recipe, [group([4, 2, 0, 2])])
    stage = RECIPES[recipe].stage(RECIPES[recipe].options(), materials())
    for name, term in stage.terms.items():
        assert set(getattr(term.loss, "needs", ())) <= set(packed[0].batch.logprobs)
        assert packed[0].batch.weight[name].any() == (name not in ("distill", "pg_boosted"))


def test_a_group_without_variance_teaches_failed_steps_under_gvpo_only():
    equal = [group([2, 2, 2], "b")]
    (first, *_), packed = run_host_half("gvpo", equal)
    np.testing.assert_allclose(first.advantage_K, [0, -0.2, 0], atol=1e-6)
    assert len(packed) == 1
    credited, packed = run_host_half("loop", equal)
    assert credited == packed == []


def test_loop_divides_by_the_nominal_minibatch_whatever_the_filter_left():
    credited, packed = run_host_half("loop", [group([4, 2, 0, 2])], minibatch=32)
    assert len(credited) == 2
    assert packed[0].batch.count["pg"] == 32
    _, packed = run_host_half("loop", [group([4, 2, 0, 2])], minibatch=0, tasks=5, group_size=4)
    assert packed[0].batch.count["pg"] == 20


@pytest.mark.parametrize(
    ("recipe", "options", "needs"),
    [
        ("loop", {"epochs": 1, "minibatch": 0}, ()),
        ("loop", {"epochs": 2, "minibatch": 0}, ("old",)),
        ("grpo", {}, ()),
        ("grpo", {"minibatch": 4}, ("old",)),
        ("grpo", {"kl_in": "loss"}, ("reference",)),
        ("grpo", {"kl_in": "reward"}, ("old", "reference")),
        ("gvpo", {"epochs": 2}, ("old",)),
        ("gigpo", {}, ("reference",)),
        ("gigpo", {"kl_coef": 0.0, "minibatch": 4}, ("old",)),
        ("skill_sd", {"teacher": "frozen"}, ()),
    ],
)
def test_streams_that_are_scored_before_credit(recipe, options, needs):
    stage = RECIPES[recipe].stage(RECIPES[recipe].options.parse(options), materials())
    assert stage.needs == needs
    assert stage.keeps_reference == ("reference" in needs or options.get("teacher") == "frozen")


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"sft"}))
def test_every_option_of_the_optimiser_reaches_the_update(recipe):
    options = {
        "tasks": 4,
        "group_size": 4,
        "epochs": 3,
        "minibatch": 6,
        "learning_rate": 0.25,
        "schedule": "linear",
        "warmup_steps": 7,
        "weight_decay": 0.5,
        "max_grad_norm": 2.0,
    }
    update = RECIPES[recipe].stage(RECIPES[recipe].options.parse(options), materials()).update
    for name in (
        "epochs",
        "minibatch",
        "learning_rate",
        "schedule",
        "warmup_steps",
        "weight_decay",
        "max_grad_norm",
    ):
        assert getattr(update, name) == options[name], name
    assert update.steps_per_iteration == 9  # 16 rollouts in minibatches of 6 are 3 steps an epoch
