"""What the presets are, by the numbers of their losses: the last stage of a run file against its published set-up.

A clip is told by the loss of two tokens: ratio 5 with advantage 1, ratio .2 with advantage -1. An average by the worked
example: token losses 1, 3 and 2, 2, 2, 6. A divergence by its value at a log-ratio of .5.
"""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.learn.loss import Scores, Streams
from jaxagent.recipes.table import find_recipe
from jaxagent.run_file import read_run
from tests.batch.test_targets import TWO, value
from tests.recipes.test_stages import group, materials, scored

RUNS = Path(__file__).parents[2] / "configs" / "runs"
LN5 = float(np.log(5.0))
UNCLIPPED = (-5.0, 0.2)  # on policy, where both ratios are 1, it has the gradient of -A lp
SYMMETRIC, HIGHER, LOG_SYMMETRIC = (-1.2, 0.8), (-1.28, 0.8), (-1.1, 1 / 1.1)
CISPO = (-1.28 * LN5, -0.2 * LN5)
TOKENS, SEQUENCES, SUMS = 16 / 6, 2.5, 8.0
NONE, K2, K3 = None, 0.125, float(np.exp(-0.5) - 0.5)

# preset: (run file, level of the ratio, clip, average, (place of the KL, coefficient, value), other terms)
PRESETS = {
    "reinforce": ("world_reinforce", "token", UNCLIPPED, SUMS, NONE, {}),
    "rloo": ("world_rloo", "token", UNCLIPPED, SUMS, NONE, {}),
    "rpp": ("world_rpp", "token", SYMMETRIC, TOKENS, ("reward", 0.001, None), {}),
    "rpp_baseline": ("world_rpp_baseline", "token", SYMMETRIC, TOKENS, ("loss", 0.001, K2), {}),
    "ppo_token": ("world_ppo_token", "token", SYMMETRIC, TOKENS, NONE, {"value": 0.5}),
    "ppo_step": ("world_ppo_step", "token", SYMMETRIC, TOKENS, NONE, {"value": 0.5}),
    "grpo": ("world_grpo", "token", SYMMETRIC, SEQUENCES, NONE, {}),
    "grpo_kl": ("world_grpo_kl", "token", SYMMETRIC, SEQUENCES, ("loss", 0.001, K3), {}),
    "dr_grpo": ("world_dr_grpo", "token", SYMMETRIC, 16 / (2 * 480), NONE, {}),
    "dapo": ("world_dapo", "token", HIGHER, TOKENS, NONE, {}),
    "gspo": ("world_gspo", "trajectory_geo", (-1.0004, 0.9997), SEQUENCES, NONE, {}),
    "cispo": ("world_cispo", "token", CISPO, TOKENS, NONE, {}),
    "vapo": ("world_vapo", "token", HIGHER, TOKENS, NONE, {"value": 0.5, "solved": 0.1}),
    "loop": ("appworld_loop", "token", LOG_SYMMETRIC, 5 / 32, NONE, {}),
    "loop_turn": ("appworld_loop_turn", "turn", LOG_SYMMETRIC, 5 / 32, NONE, {}),
    "loop_traj": ("appworld_loop_traj", "trajectory", LOG_SYMMETRIC, 5 / 32, NONE, {}),
    "loop_rwnorm": ("appworld_loop_rwnorm", "token", LOG_SYMMETRIC, 5 / 32, NONE, {}),
    "gvpo": ("appworld_gvpo", "token", HIGHER, SEQUENCES, NONE, {}),
    "gigpo_alfworld": ("alfworld_gigpo", "token", SYMMETRIC, SEQUENCES, ("loss", 0.01, K3), {}),
    "gigpo_webshop": ("webshop_gigpo", "token", SYMMETRIC, SEQUENCES, ("loss", 0.01, K3), {}),
    "grpo_salt": ("world_grpo_salt", "token", SYMMETRIC, SEQUENCES, NONE, {}),
    "rloo_salt": ("world_rloo_salt", "token", UNCLIPPED, SUMS, NONE, {}),
    "starpo_s": ("sokoban_starpo_s", "token", HIGHER, TOKENS, NONE, {"value": 0.5, "entropy": 0.001}),
    "skill_sd": ("appworld_skill_sd", "token", SYMMETRIC, SEQUENCES, NONE, {"distill": 0.001}),
    "siri": ("alfworld_siri", "token", SYMMETRIC, SEQUENCES, ("loss", 0.01, K3), {"internal": 1.0}),
    "sage": ("appworld_sage", "token", SYMMETRIC, TOKENS, NONE, {}),
    "agentevolver": (
        "appworld_agentevolver",
        "token",
        HIGHER,
        TOKENS,
        ("loss", 0.001, K3),
        {"pg_boosted": 1.0},
    ),
    "coevolve": ("appworld_coevolve", "token", SYMMETRIC, SEQUENCES, ("loss", 0.001, K3), {}),
    "search_r1": ("search_qa_grpo", "token", SYMMETRIC, TOKENS, ("loss", 0.001, K3), {}),
}


def last_stage(run):
    """The last stage of a run file, and the options it was made of."""
    entry = read_run(RUNS / f"{run}.yaml").stages[-1]
    recipe = find_recipe(entry.recipe)
    retriever = (
        {"retriever": {"by": "hashed"}} if entry.recipe == "siri" else {}
    )  # a local model is no part of a test
    options = recipe.options.parse({**entry.options, **retriever})
    return recipe.stage(options, materials()), options


def loss_at(term, logprob, advantage):
    """The loss of one token whose streams are all 0."""
    one, none = jnp.ones((1, 1)), jnp.zeros((1, 1), jnp.int32)
    names = ("old", "reference", "teacher", "mismatch")
    streams = Streams(one * advantage, none, none, one, dict.fromkeys(names, one * 0.0))
    return float(term.loss(Scores(one * logprob, one), streams)[0][0, 0])


def averaged(term):
    """The worked example's losses; a term that shares its count with another one finds nothing of that."""

    def aggregate(samples, name):
        none = [{"pg_boosted": np.zeros(len(sample.ids_T), np.float32)} for sample in samples]
        whole = [replace(sample, include=sample.include | more) for sample, more in zip(samples, none)]
        return term.aggregate(whole, name)

    return value(aggregate, TWO)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_losses_of_a_preset(preset):
    run, level, clip, average, kl, more = PRESETS[preset]
    stage, options = last_stage(run)
    policy = stage.terms["pg"]
    assert policy.loss.level == level
    assert (loss_at(policy, LN5, 1.0), loss_at(policy, -LN5, -1.0)) == pytest.approx(clip, abs=1e-5)
    assert averaged(policy) == pytest.approx(average, rel=1e-6)
    terms = set(stage.terms) - {"pg"}
    if kl is not None and kl[0] == "reward":
        assert (options.kl_in, options.kl_coef) == ("reward", kl[1])
    elif kl is not None:
        assert stage.terms["kl"].coef == kl[1]
        assert loss_at(stage.terms["kl"], 0.5, 1.0) == pytest.approx(kl[2], abs=1e-6)
        terms.discard("kl")
    assert {name: stage.terms[name].coef for name in terms} == more


UPDATES = {
    "loop": (2, 32),
    "loop_turn": (2, 32),
    "loop_traj": (2, 32),
    "loop_rwnorm": (2, 32),
    "sage": (1, 0),
}


@pytest.mark.parametrize("preset", UPDATES)
def test_epochs_and_minibatches(preset):
    stage, _ = last_stage(PRESETS[preset][0])
    assert (stage.update.epochs, stage.update.minibatch) == UPDATES[preset]


# R = 1, .5, 0, .5 of one group: mean, leave-one-out, standard deviation of ddof 1
MEAN, OTHERS = np.array([0.5, 0, -0.5, 0]), np.array([2 / 3, 0, -2 / 3, 0])
DEVIATIONS = MEAN / np.sqrt(0.5 / 3)
ADVANTAGES = {
    "grpo": DEVIATIONS,
    "grpo_kl": DEVIATIONS,
    "dr_grpo": MEAN,
    "gspo": DEVIATIONS,
    "cispo": DEVIATIONS,
    "rloo": OTHERS,
    "loop": OTHERS[[0, 2]],  # an advantage below .01 is not trained on
    "loop_rwnorm": DEVIATIONS[[0, 2]],
    "skill_sd": DEVIATIONS,
    "sage": MEAN,
    "coevolve": DEVIATIONS,
    "search_r1": DEVIATIONS,
}


@pytest.mark.parametrize("preset", ADVANTAGES)
def test_the_advantages_of_a_preset(preset):
    """As fractions of tests, whatever the preset's own reward is."""
    entry = read_run(RUNS / f"{PRESETS[preset][0]}.yaml").stages[-1]
    recipe = find_recipe(entry.recipe)
    stage = recipe.stage(recipe.options.parse({**entry.options, "reward": "test_fraction"}), materials())
    assert stage.reward is not None
    assert stage.credit is not None
    credited = stage.credit(stage.reward([scored(group([4, 2, 0, 2]), stage.needs)]))
    kept = stage.filter(credited) if stage.filter else credited
    assert [float(item.advantage_K[0]) for item in kept] == pytest.approx(ADVANTAGES[preset], abs=1e-5)


def test_what_else_the_presets_fix():
    """GVPO's b, GiGPO's weights and reward, SALT's history, the filters of LOOP and StarPO-S, AgentEvolver's alpha."""
    of = {name: last_stage(run)[1] for name, (run, *_) in PRESETS.items()}
    assert (of["gvpo"].b, of["gvpo"].shape, of["gvpo"].base) == (0.2, "mult", "group_mean")
    for name, mode, minibatch in (("gigpo_alfworld", "mean_std", 32), ("gigpo_webshop", "mean", 16)):
        gigpo = of[name]
        assert (gigpo.gamma, gigpo.w, gigpo.mode, gigpo.minibatch) == (0.95, 1.0, mode, minibatch)
        assert (gigpo.reward.scale, gigpo.reward.invalid_action) == (10.0, -0.1)
    assert of["grpo_salt"].salt.history == of["rloo_salt"].salt.history == 3
    assert [of[name].min_advantage for name in ("loop", "loop_turn", "loop_traj", "loop_rwnorm")] == [
        0.01
    ] * 4
    assert (of["starpo_s"].keep_frac, of["starpo_s"].advantage, of["starpo_s"].gamma_turn) == (
        0.25,
        "bilevel",
        0.95,
    )
    assert (of["ppo_token"].level, of["ppo_token"].gamma, of["ppo_token"].lam) == ("token", 1.0, 1.0)
    assert (of["ppo_step"].level, of["ppo_step"].gamma, of["ppo_step"].lam) == ("step", 0.95, 0.95)
    assert (of["dapo"].dynamic, of["dapo"].reward.overlong.kind) == (True, "linear")
    assert (of["sage"].chain_len, of["sage"].no_code, of["sage"].advantage) == (2, -1.0, "position")
    evolver = of["agentevolver"]
    assert (evolver.attribution.alpha, evolver.boost, evolver.attribution.beta) == (0.1, 0.6, 1.0)
