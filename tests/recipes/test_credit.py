"""Step-level credit as options of recipes: what is composed, what it reduces to, and what is refused with a reason."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.batch.boost import BOOST
from jaxagent.errors import ConfigError
from jaxagent.recipes.table import RECIPES
from jaxagent.train import credit
from jaxagent.types import Group
from tests.made_episodes import make_step, make_task, make_trajectory
from tests.recipes.test_stages import materials, scored

# Four rollouts: actions, how each step ran, and the tests passed of 4.
ROLLOUTS = [
    (["login", "search", "buy"], ["ok", "ok", "ok"], 4),
    (["login", "search", "quit"], ["ok", "runtime_error", "ok"], 0),
    (["login", "guess", "quit"], ["ok", "ok", "runtime_error"], 0),
    (["login", "search", "buy"], ["ok", "ok", "ok"], 4),
]


def group(rollouts=ROLLOUTS, task_id="a"):
    task = make_task(task_id)
    made = []
    for i, (actions, statuses, passed) in enumerate(rollouts):
        steps = [
            replace(make_step(k, code=code, status=status), observation_after=f"after {code}", anchor=code)
            for k, (code, status) in enumerate(zip(actions, statuses))
        ]
        made.append(
            make_trajectory(task=task, rollout=i, steps=steps, success=passed == 4, tests=(passed, 4))
        )
    return Group(task, tuple(made))


def advantages(recipe, groups=None, **options):
    """Of one iteration before the filter."""
    stage = RECIPES[recipe].stage(RECIPES[recipe].options.parse(options), materials())
    try:
        credited = credit(stage, stage.reward(groups or [group()]))
    finally:
        stage.close()
    return [item.advantage_K for item in credited]


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


SALT_RLOO = [[0, 2 / 9, 2 / 3], [0, 2 / 9, -2 / 3], [0, -2 / 3, -2 / 3], [0, 2 / 9, 2 / 3]]


def test_salt_over_each_estimator():
    close(advantages("loop", salt={}), SALT_RLOO)
    close(advantages("reinforce", baseline="leave_one_out", salt={}), SALT_RLOO)
    close(advantages("reinforce", baseline="batch_mean", salt={}), [np.array(a) * 3 / 4 for a in SALT_RLOO])
    mean_only = [np.array(a) * 3 / 4 for a in SALT_RLOO]
    close(advantages("grpo", std=False, salt={}), mean_only)
    close(advantages("grpo", salt={}), [a / np.sqrt(1 / 3) for a in mean_only])
    close(advantages("gvpo", shape="none", salt={}), mean_only)


def test_the_correction_of_failed_steps_over_salt_and_without():
    """By the step's own advantage: the failed search, +2/9 on average of those who searched, gets 0."""
    corrected = [SALT_RLOO[0], [0, 0, -2 / 3], [0, -2 / 3, -0.8], SALT_RLOO[3]]
    close(advantages("loop", salt={}, gvpo={}), corrected)
    close(advantages("gvpo", base="leave_one_out", salt={}), corrected)
    close(advantages("loop", gvpo={"shape": "add"})[1:2], [[-2 / 3, -2 / 3 - 0.2, -2 / 3]])
    close(advantages("grpo", std=False, gvpo={}), advantages("gvpo"))


def test_an_error_as_data_fails_where_it_is_asked_for():
    """Every step ran and told its agent of an error: A = 2/3, 0, -2/3, 0 are 0, -.2, -.8, -.2."""
    made = group([(["go"], ["ok"], passed) for passed in (4, 2, 0, 2)])
    told = [
        replace(t, steps=tuple(replace(s, observation_after='{"error": "no"}') for s in t.steps))
        for t in made.trajectories
    ]
    told = replace(made, trajectories=tuple(told))
    for recipe, options in (
        ("gvpo", {"base": "leave_one_out"}),
        ("reinforce", {"baseline": "leave_one_out"}),
    ):
        plain, strict = (
            advantages(recipe, [told], **(options | more if recipe == "gvpo" else options | {"gvpo": more}))
            for more in ({}, {"api_error_is_fail": True})
        )
        close(plain, [[2 / 3], [0], [-2 / 3], [0]])
        close(strict, [[0], [-0.2], [-0.8], [-0.2]])


def test_salt_options_reach_it():
    """Without history buying after another search is the same; the action alone decides."""
    other = [*ROLLOUTS[:3], (["login", "guess", "buy"], ["ok"] * 3, 0)]
    deep, flat = (advantages("loop", [group(other)], salt={"history": h}) for h in (3, 0))
    assert deep[0][2] == pytest.approx(1)
    assert flat[0][2] == pytest.approx(1 / 3)
    masked = [(["open 1"], ["ok"], 4), (["open 2"], ["ok"], 0)]
    close(advantages("loop", [group(masked)], salt={"mask_numbers": True}), [[0], [0]])
    close(advantages("loop", [group(masked)], salt={"key_post": True}), [[1], [-1]])


@pytest.mark.parametrize("recipe", ["loop", "grpo"])
def test_without_options_nothing_changes(recipe):
    """Neutral settings are the base: identical advantages with no failed step to correct."""
    fine = [(actions, ["ok"] * 3, passed) for actions, _, passed in ROLLOUTS]
    close(advantages(recipe, [group(fine)], gvpo={}), advantages(recipe, [group(fine)]))
    close(advantages(recipe, gvpo={"shape": "none"}), advantages(recipe))


def test_gigpo_without_its_step_part_is_grpo():
    reward = {"reward": "test_fraction"}
    for mode, std in (("mean_std", True), ("mean", False)):
        close(advantages("gigpo", w=0.0, mode=mode, **reward), advantages("grpo", std=std))


def test_gigpo_credits_a_subgoal_at_its_step():
    """Searching pays .2 at the second step: alone it changes that step's return and those before it, not later ones."""
    subgoals = [{"name": "searched", "message": "x", "observation": "after search", "weight": 0.2}]
    reward = {"outcome": "success", "subgoals": subgoals}
    options = {"mode": "mean", "gamma": 1.0, "reward": reward}
    found = advantages("gigpo", **options)
    # returns 1.2, 0, 0, 1.2 (the failed search reaches nothing); "buy" is reached from one state alone: both pay 1
    close([found[0]], [[0.6 + 0.6, 0.6 + (1.2 - 0.8), 0.6 + 0]])


def test_step_returns_of_subgoals_and_potentials():
    subgoals = [{"name": "searched", "observation": "after search", "weight": 0.2}]
    options = {"gamma": 1.0, "base": "group_mean"}
    paid = advantages("step_returns", reward={"outcome": "success", "subgoals": subgoals}, **options)
    close(paid, [[0.6, 0.6, 0.5], [-0.6, -0.6, -0.5], [-0.6, -0.6, -0.5], [0.6, 0.6, 0.5]])
    shaped = advantages("step_returns", reward="success", progress={"subgoals": subgoals}, **options)
    close(shaped, [[0.5, 0.5, 0.4], [-0.5, -0.5, -0.4], [-0.5, -0.5, -0.4], [0.5, 0.5, 0.4]])


def test_agentevolver_labels_by_script_and_without_weight_is_the_z_score():
    """Labels GGG, GBG, GGB, GGG: mu 2/3, sigma sqrt(5)/3; outcomes 1, -1, -1, 1."""
    good, bad = (1 - 2 / 3) / (np.sqrt(5) / 3), (-1 - 2 / 3) / (np.sqrt(5) / 3)
    steps = [[good] * 3, [good, bad, good], [good, good, bad], [good] * 3]
    rewards = [0.1 * np.array(a) + np.array([0, 0, out]) for a, out in zip(steps, (1, -1, -1, 1))]
    close(advantages("agentevolver"), [np.cumsum(r[::-1])[::-1] for r in rewards])
    close(advantages("agentevolver", attribution={"alpha": 0.0}), [[1] * 3, [-1] * 3, [-1] * 3, [1] * 3])


def test_alpha_along_a_stage():
    options = RECIPES["agentevolver"].options.parse(
        {"iterations": 40, "attribution": {"decay": "cosine", "steps": 30}}
    )
    asked = options.attribution
    assert [asked.alpha_at(t, 40) for t in (0, 10, 20, 30)] == pytest.approx(
        [0.1, 0.085355, 0.05, 0], abs=1e-6
    )
    stage = RECIPES["agentevolver"].stage(options, materials())
    stage.source.next(20)
    measured = credit(stage, stage.reward([group()]))[0].measured
    stage.close()
    assert measured["attribution/alpha"] == pytest.approx(0.05)


def test_a_boosted_trajectory_is_trained_by_the_other_term():
    stage = RECIPES["agentevolver"].stage(RECIPES["agentevolver"].options(), materials())
    made = group()
    flagged = replace(made.trajectories[0], extra={BOOST: True})
    credited = credit(stage, stage.reward([replace(made, trajectories=(flagged, *made.trajectories[1:]))]))
    stage.close()
    samples = stage.samples(credited)
    assert [bool(s.include["pg_boosted"].any()) for s in samples] == [True, False, False, False]
    assert [bool(s.include["pg"].any()) for s in samples] == [False, True, True, True]
    assert all(s.include["kl"].any() for s in samples)
    counts = {name: term.aggregate(samples, name)[1] for name, term in stage.terms.items()}
    assert counts == {"pg": 24, "pg_boosted": 24, "kl": 24}


def test_a_correction_for_the_sampler_is_that_of_boosted_trajectories_too():
    options = RECIPES["agentevolver"].options.parse({"mismatch": {"mode": "token_trunc", "cap": 1.5}})
    stage = RECIPES["agentevolver"].stage(options, materials())
    made = group()
    flagged = replace(made.trajectories[0], extra={BOOST: True})
    groups = [scored(replace(made, trajectories=(flagged, *made.trajectories[1:])), stage.needs)]
    samples = stage.samples(credit(stage, stage.reward(groups)))
    stage.close()
    assert samples[0].include["pg_boosted"].any()
    assert all("mismatch" in sample.logprobs for sample in samples)
    assert "mismatch" in stage.terms["pg_boosted"].loss.needs


@pytest.mark.parametrize(
    ("recipe", "options", "reason"),
    [
        (
            "gigpo",
            {"salt": {}},
            "salt averages the one advantage that a trajectory has, and gigpo gives every step",
        ),
        ("gigpo", {"gvpo": {}}, "gvpo corrects failed steps by the sign of the trajectory's advantage"),
        ("step_returns", {"salt": {"history": 3}}, "and step_returns gives every step its own; drop salt"),
        ("agentevolver", {"salt": {}}, "and agentevolver gives every step its own"),
        ("agentevolver", {"gvpo": {"b": 0.1}}, "drop gvpo, or use it with recipe grpo, loop or gvpo"),
        ("loop", {"salt": {"histroy": 1}}, "did you mean 'history'"),
        ("loop", {"salt": {"history": -1}}, "greater than or equal to 0"),
        ("grpo", {"gvpo": {"shape": "multiply"}}, "options.gvpo.shape='multiply'"),
        ("gvpo", {"gvpo": {}}, "unknown key"),
        ("loop", {"ratio": "trajectory", "salt": {}}, "takes one advantage for it"),
        ("loop", {"ratio": "trajectory", "gvpo": {}}, "use ratio: token or turn"),
        ("dapo", {"gvpo": {}}, "dynamic sampling leaves these groups out; drop one of the two"),
        ("grpo", {"gvpo": {}, "keep_groups": "varied"}, "keep_groups=varied leaves these groups out"),
        ("reinforce", {"salt": {}, "gamma": 0.9}, "keep gamma: 1 and rewards: outcome with it"),
        ("reinforce", {"salt": {}, "rewards": "environment"}, "keep gamma: 1 and rewards: outcome with it"),
        ("agentevolver", {"attribution": {"judge": "endpoint"}}, "judge: endpoint goes with `endpoint`"),
        (
            "agentevolver",
            {"attribution": {"endpoint": {"base_url": "http://x/v1", "model": "m"}}},
            "judge: script with none",
        ),
        (
            "reinforce",
            {"salt": {}, "reward": {"invalid_action": -0.1}},
            "credits invalid_action and subgoals to their steps",
        ),
        (
            "step_returns",
            {
                "progress": {"subgoals": [{"name": "a", "message": "b"}]},
                "reward": {"subgoals": [{"name": "a", "message": "b"}]},
            },
            "keep one of the two",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(recipe, options, reason):
    with pytest.raises(ConfigError) as refused:
        RECIPES[recipe].options.parse(options, "options")
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("dapo", {"gvpo": {}, "dynamic": False}),
        ("dapo", {"gvpo": {"shape": "mask"}}),  # teaches nothing in a group without variance
        ("dapo", {"salt": {}}),
        ("grpo", {"salt": {}, "keep_groups": "std"}),
        ("loop", {"salt": {}, "ratio": "turn"}),
        ("gspo", {"salt": {}}),
        ("cispo", {"salt": {}, "gvpo": {}}),
    ],
)
def test_what_makes_sense_is_not(recipe, options):
    parsed = RECIPES[recipe].options.parse(options)
    assert RECIPES[recipe].stage(parsed, materials()).credit is not None
