"""The host half of every recipe that rolls out: its own reward, credit, filter, samples, terms and packing together."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.batch.pack import pack
from jaxagent.chat.train_tokenizer import train_tokenizer
from jaxagent.errors import ConfigError, DataError, DivergenceError
from jaxagent.learn.loss import Scores, Streams
from jaxagent.recipes.base import Materials
from jaxagent.recipes.opd import check_teacher
from jaxagent.recipes.policy import PolicyOptions
from jaxagent.recipes.table import RECIPES
from jaxagent.rollout.settings import RolloutConfig
from jaxagent.run import check_lag
from jaxagent.skills.bank import Skill
from jaxagent.train import credit
from jaxagent.types import Group, Sampling
from tests.made_episodes import make_task, make_trajectory

STEPS = ["ok", "runtime_error", "ok"]
POLICY = sorted(name for name, recipe in RECIPES.items() if issubclass(recipe.options, PolicyOptions))
WITH_PG = [name for name in POLICY if name not in ("opd", "critic")]  # these have no policy term
CORRECTED = [name for name in WITH_PG if name != "vtrace"]  # its credit holds the correction


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
    ("grpo", "std_ddof", 0): [[x] * 3 for x in np.array([0.5, 0, -0.5, 0]) / np.sqrt(0.5 / 4)],
    ("gspo", "std", True): [[x] * 3 for x in np.array([0.5, 0, -0.5, 0]) / np.sqrt(0.5 / 3)],
    ("cispo", "std", True): [[x] * 3 for x in np.array([0.5, 0, -0.5, 0]) / np.sqrt(0.5 / 3)],
    ("dapo", "informative", "success"): [[x] * 3 for x in np.array([0.5, 0, -0.5, 0]) / np.sqrt(0.5 / 3)],
    ("loop", "norm", "group_std"): [[x] * 3 for x in np.array([0.5, -0.5]) / np.sqrt(0.5 / 3)],
    ("loop", "positive_only", True): [[2 / 3] * 3],
    ("reinforce", "baseline", "none"): [[1] * 3, [0.5] * 3, [0] * 3, [0.5] * 3],
    ("reinforce", "baseline", "batch_mean"): [[0.5] * 3, [0] * 3, [-0.5] * 3, [0] * 3],
    ("reinforce", "baseline", "running_mean"): [
        [1] * 3,
        [0.5] * 3,
        [0] * 3,
        [0.5] * 3,
    ],  # nothing has been seen yet
    ("reinforce", "baseline", "leave_one_out"): [[2 / 3] * 3, [0] * 3, [-2 / 3] * 3, [0] * 3],
    ("reinforce", "baseline", "leave_none_out"): [[0.5] * 3, [0] * 3, [-0.5] * 3, [0] * 3],
    # whitened over 4 x 6 tokens: var 3 / 23
    ("rpp", "group_baseline", True): [[x] * 3 for x in np.array([0.5, 0, -0.5, 0]) / np.sqrt(3 / 23)],
    ("rpp", "norm_scope", "domain"): [[x] * 3 for x in np.array([0.5, 0, -0.5, 0]) / np.sqrt(3 / 23)],
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


def test_opd_learns_nothing_before_the_first_skill():
    credited, packed = run_host_half("opd", [group([4, 2, 0, 2])])
    assert len(credited) == 4
    assert packed == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "none"}, "teaches nothing"),
        ({"teacher": "ema", "context": "none"}, "teaches nothing"),
        ({"teacher": "checkpoint"}, "a folder goes with"),
        ({"checkpoint": "somewhere"}, "a folder goes with"),
        ({"entropy_coef": 0.1}, "there is none here"),
        ({"solved_nll": 0.1}, "there is none here"),
        ({"estimator": "k1"}, "estimator"),
        ({"summariser": "endpoint"}, "summariser"),
        ({"summariser": {"model": "m"}}, "base_url"),
    ],
)
def test_impossible_distillation(options, message):
    with pytest.raises(ConfigError, match=message):
        RECIPES["opd"].options.parse(options)


def test_the_options_of_a_skill_bank_reach_it():
    endpoint = {"base_url": "http://127.0.0.1:1/v1", "model": "m", "retries": 5}
    options = {
        "summariser": endpoint,
        "summary_wait_s": 0,
        "scope": "type",
        "skill_chars": 7,
        "ucb_c": 0.2,
        "buffer_max": 3,
    }
    for recipe in ("skill_sd", "skill_grpo", "opd"):
        source = RECIPES[recipe].stage(RECIPES[recipe].options.parse(options), materials()).source
        aux = source.pool._background.aux
        assert (aux.backend.config.model, aux.limits.retries, aux.limits.timeout_s) == ("m", 5, 120.0)
        assert (source.pool.patience_s, source.bank.capacity, source.rules.c) == (0, 3, 0.2)
        assert source.rules.scope(make_task("a", type="mail")) == "mail"
        assert source.rules.lesson(Skill("", True, success_analysis="long")) == "A lesson"[:7]
        assert source.rules.in_rollouts == (recipe == "skill_grpo")
        source.close()
    plain = RECIPES["skill_sd"].stage(RECIPES["skill_sd"].options(), materials()).source
    assert plain.rules.scope(make_task("a", type="mail", scenario="s")) == "a"
    assert plain.pool.patience_s is None


def test_a_teacher_of_other_tokens_is_refused(tmp_path):
    mine = train_tokenizer(["print(1) and print(2)"] * 4, 300)
    train_tokenizer(["something else entirely, with other merges"] * 4, 310).save(tmp_path)
    with pytest.raises(ConfigError, match="other ids for"):
        check_teacher(str(tmp_path), mine)
    with pytest.raises(DataError, match="does not exist"):
        check_teacher(str(tmp_path / "nowhere"), mine)


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"sft", "opd"}))
def test_a_batch_holds_every_stream_that_a_term_reads(recipe):
    """Before the first skill nobody has a teacher and nothing is internalised: these terms weigh nothing."""
    _, packed = run_host_half(recipe, [group([4, 2, 0, 2])])
    stage = RECIPES[recipe].stage(RECIPES[recipe].options(), materials())
    for name, term in stage.terms.items():
        assert set(getattr(term.loss, "needs", ())) <= set(packed[0].batch.logprobs)
        assert packed[0].batch.weight[name].any() == (name not in ("distill", "internal", "pg_boosted"))


def test_a_group_without_variance_teaches_failed_steps_under_gvpo_only():
    equal = [group([2, 2, 2], "b")]
    (first, *_), packed = run_host_half("gvpo", equal)
    np.testing.assert_allclose(first.advantage_K, [0, -0.2, 0], atol=1e-6)
    assert len(packed) == 1
    credited, packed = run_host_half("loop", equal)
    assert credited == packed == []


def test_groups_are_kept_by_how_much_their_returns_vary():
    """Standard deviations 0, .408, .5: only what varies, the most varied third, the least."""
    groups = [group([2, 2, 2], "a"), group([4, 2, 0, 2], "b"), group([4, 0, 4, 0], "c")]

    def kept(**options):
        credited, _ = run_host_half("grpo", groups, **options)
        return list(dict.fromkeys(item.trajectory.task.task_id for item in credited))

    assert kept() == ["a", "b", "c"]
    assert kept(keep_groups="varied") == ["b", "c"]
    assert kept(keep_groups="std", keep_share=0.34) == ["c"]
    assert kept(keep_groups="std_rev", keep_share=0.34) == ["a"]


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
        ("grpo", {"kl_in": "loss", "kl_reference": "ema"}, ("reference",)),
        ("grpo", {"kl_in": "loss", "kl_reference": "iter_start", "epochs": 2}, ("old",)),
        ("grpo", {"kl_in": "advantage", "epochs": 2}, ("old",)),
        ("reinforce", {"kl_in": "reward"}, ("old", "reference")),
        ("rpp", {"kl_in": "reward"}, ("old", "reference")),
        ("rpp", {"kl_in": "loss"}, ("reference",)),
        ("dapo", {"minibatch": 4}, ("old",)),
        ("grpo", {"mismatch": {"mode": "token_trunc"}}, ("old",)),
        ("grpo", {"mismatch": {"mode": "geo_mask"}, "kl_in": "loss"}, ("old", "reference")),
        ("grpo", {"mismatch": {"mode": "bypass"}, "minibatch": 4}, ()),
        ("grpo", {"mismatch": {"mode": "bypass"}, "kl_in": "reward"}, ("reference",)),
        ("gvpo", {"epochs": 2}, ("old",)),
        ("gigpo", {}, ("reference",)),
        ("gigpo", {"kl_coef": 0.0, "minibatch": 4}, ("old",)),
        ("skill_sd", {"teacher": "frozen"}, ()),
        ("skill_sd", {"epochs": 2}, ("old",)),
        ("skill_sd", {"sampling": "teacher"}, ("old",)),
        ("skill_sd", {"sampling": "teacher", "teacher": "frozen"}, ("old", "reference")),
        ("skill_grpo", {}, ()),
        ("opd", {"teacher": "ema", "minibatch": 4}, ("old",)),
        ("opd", {"teacher": "frozen"}, ()),
    ],
)
def test_streams_that_are_scored_before_credit(recipe, options, needs):
    stage = RECIPES[recipe].stage(RECIPES[recipe].options.parse(options), materials())
    assert stage.needs == needs
    assert stage.keeps_reference == ("reference" in needs or options.get("teacher") == "frozen")


@pytest.mark.parametrize("recipe", POLICY)
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
    } | ({} if recipe == "critic" else {"kl_stop": 3.0})
    options |= {"grad_outlier_sigma": 5.0}
    update = RECIPES[recipe].stage(RECIPES[recipe].options.parse(options), materials()).update
    assert update.outlier_sigma == 5.0
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
    assert update.kl_stop == options.get("kl_stop", 0.0)
    # 16 rollouts in minibatches of 6 are 3 steps an epoch; chains of two tasks have twice as many
    assert update.steps_per_iteration == (18 if recipe == "sage" else 9)


# --- what every policy recipe obeys -----------------------------------------------------------------------------


def behaving(group, behaviour):
    """The group as if the sampler had given every token this log-prob; the trainer says 0."""
    return replace(
        group,
        trajectories=tuple(
            replace(
                t,
                segments=tuple(
                    replace(s, logprobs={"behaviour": np.full(s.ids_T.shape, behaviour, np.float32)})
                    for s in t.segments
                ),
            )
            for t in group.trajectories
        ),
    )


def valued(group):
    """The group as if the trainer had scored it: old log-probs and values of 0."""
    zeros = {name: np.zeros(7, np.float32) for name in ("old", "value")}
    return replace(
        group,
        trajectories=tuple(
            replace(t, segments=tuple(replace(s, logprobs={**s.logprobs, **zeros}) for s in t.segments))
            for t in group.trajectories
        ),
    )


@pytest.mark.parametrize("recipe", CORRECTED)
def test_every_policy_recipe_corrects_its_policy_term(recipe):
    """rho = e^.5 on every token, capped at 1.5: weights on the loss, the same counts, the metrics of the correction."""
    options = {"mismatch": {"mode": "token_trunc", "cap": 1.5}}
    stage = RECIPES[recipe].stage(RECIPES[recipe].options.parse(options), materials())
    plain = RECIPES[recipe].stage(RECIPES[recipe].options(), materials())
    groups = stage.reward([scored(behaving(group([4, 2, 0, 2]), -0.5), [])])
    old = {name: np.zeros(7, np.float32) for name in ("old", "reference", "value")}
    groups = [
        replace(g, trajectories=tuple(
            replace(t, segments=tuple(replace(s, logprobs={**s.logprobs, **old}) for s in t.segments))
            for t in g.trajectories
        ))
        for g in groups
    ]  # fmt: skip
    samples = stage.samples(credit(stage, groups))
    trained = np.concatenate([s.logprobs["mismatch"][s.include["pg"] != 0] for s in samples])
    assert trained.size
    np.testing.assert_allclose(trained, 1.5)
    assert "mismatch" in stage.terms["pg"].loss.needs
    assert "old" in stage.needs
    before, after = plain.terms["pg"].aggregate(samples, "pg"), stage.terms["pg"].aggregate(samples, "pg")
    assert before[1] == after[1]
    metrics = stage.measure(groups, samples)
    assert metrics["is/trunc_frac"] == 1.0
    assert metrics["is/ratio_mean"] == pytest.approx(np.exp(0.5), rel=1e-6)


@pytest.mark.parametrize("recipe", CORRECTED)
def test_every_policy_recipe_takes_the_sampler_for_the_old_policy(recipe):
    options = {"mismatch": {"mode": "bypass"}, "minibatch": 2}
    stage = RECIPES[recipe].stage(RECIPES[recipe].options.parse(options), materials())
    (found,) = stage.reward([behaving(group([4, 2, 0, 2]), -0.5)])
    for trajectory in found.trajectories:
        for segment in trajectory.segments:
            np.testing.assert_array_equal(segment.logprobs["old"], segment.logprobs["behaviour"])
    assert "old" not in stage.needs
    assert "mismatch" not in stage.terms["pg"].loss.needs


@pytest.mark.parametrize("recipe", WITH_PG)
def test_every_policy_recipe_can_imitate_solved_episodes(recipe):
    """Only the tokens of the one solved rollout, whatever their advantage; 6 of them."""
    stage = RECIPES[recipe].stage(RECIPES[recipe].options.parse({"solved_nll": 0.1}), materials())
    credited = credit(stage, stage.reward([valued(group([4, 2, 0, 2]))]))
    samples = stage.samples(credited)
    assert [float(s.include["solved"].sum()) for s in samples] == [6, 0, 0, 0]
    assert stage.terms["solved"].coef == 0.1
    assert stage.terms["solved"].aggregate(samples, "solved")[1] == 6.0
    assert stage.terms["solved"].aggregate(samples[1:], "solved")[1] == 0.0  # nothing solved: no term


@pytest.mark.parametrize(
    "options", [{"mismatch": {"mode": "token_trunc"}}, {"mismatch": {"mode": "bypass"}}, {"solved_nll": 0.1}]
)
def test_without_a_policy_term_there_is_nothing_to_correct_or_to_stand_beside(options):
    with pytest.raises(ConfigError, match="policy term"):
        RECIPES["opd"].stage(RECIPES["opd"].options.parse(options), materials())


@pytest.mark.parametrize("recipe", WITH_PG)
def test_every_policy_recipe_can_hold_its_entropy_up(recipe):
    """The same tokens and the same average as the policy term."""
    stage = RECIPES[recipe].stage(RECIPES[recipe].options.parse({"entropy_coef": 0.01}), materials())
    samples = stage.samples(credit(stage, stage.reward([valued(group([4, 2, 0, 2]))])))
    terms = stage.terms
    assert terms["entropy"].coef == 0.01
    (policy, count), (entropy, same) = (terms[n].aggregate(samples, n) for n in ("pg", "entropy"))
    assert count == same > 0
    np.testing.assert_array_equal(np.concatenate(policy), np.concatenate(entropy))


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("grpo", {"mismatch": {"mode": "bypass", "cap": 2}}, "does not read cap .*twice"),
        ("grpo", {"mismatch": {"mode": "bypass", "normalise": True}}, "does not read normalise"),
        ("grpo", {"mismatch": {"normalise": True}}, "mode=none does not read normalise"),
        ("grpo", {"mismatch": {"mode": "seq_trunc", "low": 0.1}}, "does not read low"),
        ("grpo", {"mismatch": {"mode": "token_mask", "low": 3}}, "low=3.0 must be below high"),
        ("grpo", {"keep_share": 0.5}, "keep_share is read with"),
        ("grpo", {"kl_in": "advantage"}, "0 in its only step"),
        ("grpo", {"kl_in": "loss", "kl_reference": "iter_start"}, "0 in its only step"),
        ("grpo", {"kl_in": "reward", "kl_reference": "iter_start", "epochs": 2}, "no distance from itself"),
        ("grpo", {"kl_reference": "ema"}, "read by nothing"),
        ("gspo", {"aggregate": "token_mean"}, "share one ratio"),
        ("rpp", {"group_baseline": True, "gamma": 0.9}, "keep gamma: 1"),
        ("reinforce", {"baseline": "leave_one_out", "group_size": 1}, "set group_size to 2"),
        ("reinforce", {"baseline": "leave_none_out", "gamma": 0.9}, "keep gamma: 1"),
        ("reinforce", {"rewards": "environment", "kl_in": "reward"}, "does not read"),
        ("dapo", {"informative": "reward", "kl_in": "reward"}, "informative=reward"),
        ("skill_sd", {"sampling": "teacher", "replay": {}}, "stored rollouts do not say"),
        ("grpo", {"kl_coef": 0.1}, "kl_coef is read with kl_in only"),
        ("grpo", {"kl_in": "reward", "kl_estimator": "k2"}, "kl_estimator is read with kl_in: loss only"),
        ("grpo", {"kl_in": "loss", "kl_ema": 0.5}, "kl_ema is read with kl_reference: ema"),
        ("grpo", {"std": False, "eps": 0.1, "std_floor": 0.1}, "eps, std_floor are read with std: true"),
        ("grpo", {"max_length": 8}, "max_length is read with aggregate fixed_len_sum"),
        ("grpo", {"gvpo": {"shape": "mask", "b": 0.1}}, "b is read with shape mult"),
        ("grpo", {"replay": {"priority": "uniform", "alpha": 0.5}}, "alpha is read with priority advantage"),
        ("grpo", {"reward": {"subgoal_cap": 0.1}}, "subgoal_cap is read with subgoals"),
        ("grpo", {"curriculum": {"window": 4}}, "window: read with start_difficulty"),
        ("grpo", {"rollouts_from": "runs/a", "pool": 4}, "pool is read with rollouts of its own"),
        ("gvpo", {"shape": "none", "b": 0.1}, "b is read with shape mult"),
        ("gvpo", {"shape": "none", "api_error_is_fail": True}, "api_error_is_fail is read with a shape"),
        ("dapo", {"dynamic": False, "draw": 4}, "draw is read with dynamic: true"),
        ("reinforce", {"decay": 0.5}, "decay is read with baseline: running_mean"),
        ("reinforce", {"singleton": "raw"}, "singleton is read with baseline leave_one_out"),
        ("ppo", {"gamma_turn": 0.9}, "gamma_turn is read with level: bilevel"),
        ("ppo", {"kl_coef": 0.1}, "kl_coef is read with kl_in only"),
        ("critic", {"gamma_turn": 0.9}, "gamma_turn is read with level: bilevel"),
        ("critic", {"kl_stop": 1.0}, "kl_stop is read with a policy term"),
        ("starpo", {"advantage": "group", "lam": 0.9}, "lam is read with advantage: token or bilevel"),
        ("starpo", {"advantage": "group", "value_clip": 0.1}, "value_clip is read with advantage"),
        ("starpo", {"rank_by": "std_rev"}, "rank_by is read with keep_frac below 1"),
        ("starpo", {"normalise_by": "batch"}, "normalise_by is read with normalise"),
        ("vtrace", {"mismatch": {"mode": "bypass"}}, "hold the ratio of trainer and sampler already"),
        ("vtrace", {"mismatch": {"mode": "token_trunc"}}, "hold the ratio of trainer and sampler already"),
        ("vtrace", {"replay": {}}, "V-trace's loss has none"),
        ("opd", {"decay": 0.5}, "decay is read with teacher: ema"),
        ("opd", {"estimator": "k2", "rho_max": 2}, "rho_max is read with estimator: iw_k3"),
        ("opd", {"clip_low": 0.1}, "clip_low is read with estimator: pg"),
        (
            "opd",
            {"teacher": "checkpoint", "checkpoint": "a", "context": "none", "ucb_c": 2},
            "ucb_c is read with",
        ),
        ("opd", {"replay": {}}, "distillation reads none"),
        ("sage", {"curriculum": {}}, "curriculum is read with"),
        ("sage", {"top_k": 2}, "top_k is read with retrieval"),
        ("sage", {"retrieval": "none", "order_seed": 2}, "order_seed is read with a retrieval"),
        ("siri", {"rollouts_from": "runs/a"}, "paired rollouts of its own"),
        ("siri", {"miner": "script", "mine_tokens": 8}, "mine_tokens is read with miner: policy"),
        ("siri", {"retriever": {"model": "m"}}, "model is read with by: sentence_transformers"),
        ("skill_grpo", {"rollouts_from": "runs/a"}, "stored ones were played without"),
        ("skillrl", {"rollouts_from": "runs/a"}, "stored ones were played without"),
        ("rft", {"library_text": "plain"}, "library_text is read with chain_len"),
        ("sft", {"library_text": "plain"}, "library_text is read with chain_len"),
        ("skill_sd", {"sampling": "teacher", "rollouts_from": "runs/a"}, "stored rollouts do not say"),
    ],
)
def test_options_that_contradict_each_other_are_refused(recipe, options, message):
    with pytest.raises(ConfigError, match=message):
        RECIPES[recipe].options.parse(options)


def test_a_moving_reference_and_a_fixed_one():
    for options, keep in (
        ({}, 1.0),
        ({"kl_in": "loss"}, 1.0),
        ({"kl_in": "loss", "kl_reference": "ema"}, 0.99),
    ):
        stage = RECIPES["grpo"].stage(RECIPES["grpo"].options.parse(options), materials())
        assert stage.reference_ema == keep
    start = RECIPES["grpo"].options.parse({"kl_in": "loss", "kl_reference": "iter_start", "epochs": 2})
    assert RECIPES["grpo"].stage(start, materials()).terms["kl"].loss.needs == ("old",)


def test_dapo_asks_for_more_until_it_has_enough_groups():
    """One group of two differs in success: another batch, then, at the limit, what there is or an end of the run."""
    differs, same = group([4, 0, 0, 0]), group([4, 4, 4, 4], "b")

    def stage(**options):
        options = {"tasks": 2, "group_size": 4, "max_gen_batches": 2, **options}
        return RECIPES["dapo"].stage(RECIPES["dapo"].options.parse(options), materials())

    found = stage()
    assert [plan.n for plan in found.follow_up([differs, same])] == [4, 4]
    assert found.follow_up([differs, same, differs, same]) == ()
    assert found.follow_up([differs, same] * 2) == ()
    surplus = [differs, same, differs, differs]
    assert len(credit(found, found.reward(surplus))) == 8
    metrics = found.measure(surplus, [])
    assert (metrics["refill/batches"], metrics["refill/surplus"]) == (2.0, 1.0)
    with pytest.raises(DivergenceError, match="gave 1 of 2 groups"):
        stage(on_exhausted="error").follow_up([differs, same, same, same])
    plain = RECIPES["dapo"].options.parse({"dynamic": False})
    assert RECIPES["dapo"].stage(plain, materials()).follow_up is None
    parts = stage(informative="reward", reward="test_fraction")
    graded = group([2, 1, 1, 0])  # nobody solves it, some pass more tests
    assert parts.follow_up([graded, graded]) == ()
    assert len(stage().follow_up([graded, graded])) == 2


def test_kl_in_the_reward_is_per_token_for_rpp_and_in_the_return_with_a_group_baseline():
    per_token, summed = (
        RECIPES["rpp"].stage(
            RECIPES["rpp"].options.parse({"kl_in": "reward", "kl_coef": 0.1, **more}), materials()
        )
        for more in ({}, {"group_baseline": True})
    )
    apart = behaving(group([4, 2, 0, 2]), 0.0)
    streams = {"old": np.full(7, -1.0, np.float32), "reference": np.full(7, -1.5, np.float32)}
    apart = replace(
        apart,
        trajectories=tuple(
            replace(t, segments=tuple(replace(s, logprobs={**s.logprobs, **streams}) for s in t.segments))
            for t in apart.trajectories
        ),
    )
    (plain,), (less,) = per_token.reward([apart]), summed.reward([apart])
    assert [t.reward for t in plain.trajectories] == [1, 0.5, 0, 0.5]
    assert [t.reward for t in less.trajectories] == pytest.approx([0.7, 0.2, -0.3, 0.2])  # 6 tokens of .05
    fine = credit(per_token, [plain])[0].advantage_T[0][1:]
    assert np.diff(fine) == pytest.approx(np.full(5, np.diff(fine)[0]))  # each token less far from the end
    assert fine[0] < fine[-1]


def test_presets_of_dr_grpo_and_dual_clip():
    options = {"std": False, "aggregate": "fixed_len_sum", "max_length": 8, "dual_clip": 3.0}
    credited, packed = run_host_half("grpo", [group([4, 2, 0, 2])], **options)
    assert [float(item.advantage_K[0]) for item in credited] == [0.5, 0, -0.5, 0]
    assert packed[0].batch.count["pg"] == 32.0  # 4 trajectories of constant length 8
    stage = RECIPES["grpo"].stage(RECIPES["grpo"].options.parse(options), materials())
    _, sums = stage.terms["pg"].loss(*one_token(log_ratio=np.log(5.0), advantage=-1.0))
    assert float(sums["ratio/dual_frac"].total) == 1.0


def one_token(*, log_ratio, advantage):
    """Scores and streams of a single token."""
    one, none = jnp.ones((1, 1)), jnp.zeros((1, 1), jnp.int32)
    scores = Scores(one * log_ratio, one)
    return scores, Streams(one * advantage, none, none, one, {"old": one * 0})


# --- recipes with a value function ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "options", "needs"),
    [
        ("ppo", {}, ("value",)),
        ("ppo", {"epochs": 2, "kl_in": "loss"}, ("old", "value", "reference")),
        ("ppo", {"kl_in": "reward", "bootstrap_truncated": True}, ("value", "bootstrap", "old", "reference")),
        ("vapo", {"minibatch": 4}, ("old", "value")),
        ("vtrace", {"bootstrap_truncated": True}, ("old", "value", "bootstrap")),
        ("starpo", {}, ("value", "reference")),
        ("starpo", {"advantage": "group", "kl_coef": 0.0}, ()),
        ("starpo_s", {}, ("value",)),
        ("critic", {}, ()),
    ],
)
def test_streams_of_value_functions(recipe, options, needs):
    chosen = RECIPES[recipe].options.parse(options)
    assert RECIPES[recipe].stage(chosen, materials()).needs == needs
    assert RECIPES[recipe].critic(chosen) == (options.get("advantage") != "group")
    assert RECIPES[recipe].spare(chosen) == ("bootstrap" in needs)


def test_recipes_without_a_value_function_ask_for_no_head():
    assert not any(RECIPES[name].critic(RECIPES[name].options()) for name in ("grpo", "loop", "sft"))


@pytest.mark.parametrize(
    ("level", "trained"), [("token", [0, 1, 1, 1, 1, 1, 1]), ("step", [0, 1, 0, 1, 0, 1, 0])]
)
def test_where_values_are_learnt(level, trained):
    """Three steps of two tokens each; values are 0, so the advantage is the return of 1."""
    for recipe in ("critic", "ppo"):
        options = {"level": level, "gamma": 1.0, **({"whiten": False} if recipe == "ppo" else {})}
        stage = RECIPES[recipe].stage(RECIPES[recipe].options.parse(options), materials())
        credited = credit(stage, stage.reward([scored(group([4]), stage.needs)]))
        (sample,) = stage.samples(credited)
        assert sample.include["value"].tolist() == trained
        assert sample.logprobs["return"].tolist() == [0, 1, 1, 1, 1, 1, 1]
        if recipe == "ppo":
            assert sample.include["pg"].tolist() == [0, 1, 1, 1, 1, 1, 1]
            assert sample.advantage_T.tolist() == [0, 1, 1, 1, 1, 1, 1]
        else:
            assert (stage.trains, set(stage.terms)) == ("critic/", {"value"})


def test_vapo_imitates_what_was_solved_and_holds_lambda_to_the_length():
    credited, packed = run_host_half("vapo", [group([4, 2])], lam_alpha=1 / 3, value_min=0.0)
    stage = RECIPES["vapo"].stage(RECIPES["vapo"].options(), materials())
    solved, failed = stage.samples(credited)
    assert solved.include["solved"].tolist() == solved.include["pg"].tolist() == [0, 1, 1, 1, 1, 1, 1]
    assert not failed.include["solved"].any()
    assert failed.include["pg"].sum() == 6
    assert packed[0].batch.count["solved"] == 6
    assert packed[0].batch.count["pg"] == 12
    np.testing.assert_allclose(solved.advantage_T[1:], 0.5 ** np.arange(5, -1, -1))  # lam 1 - 3/6
    np.testing.assert_allclose(solved.logprobs["return"][1:], 1)  # lam 1


def test_starpo_s_trains_on_the_groups_that_vary_most():
    groups = [
        group(passed, name) for name, passed in zip("abcd", ([4, 0, 4, 0], [4] * 4, [0] * 4, [4, 0, 0, 0]))
    ]
    credited, _ = run_host_half("starpo_s", groups)
    assert [item.trajectory.task.task_id for item in credited] == ["a"] * 4
    credited, _ = run_host_half("starpo_s", groups, keep_frac=1.0)
    assert len(credited) == 16


def test_starpo_s_clips_higher_and_has_no_kl():
    plain, stable = (
        set(RECIPES[name].stage(RECIPES[name].options(), materials()).terms)
        for name in ("starpo", "starpo_s")
    )
    assert plain - stable == {"kl"}
    assert RECIPES["starpo_s"].options().clip_high == 0.28
    with pytest.raises(ConfigError, match="use rewards: outcome"):
        RECIPES["starpo"].options.parse({"normalise": "mean", "rewards": "environment"})
    with pytest.raises(ConfigError, match="group_size=1 gives every trajectory advantage 0"):
        RECIPES["starpo"].options.parse({"advantage": "group", "group_size": 1})


def test_the_value_coefficient_may_decay_over_the_stage():
    options = {"iterations": 5, "tasks": 2, "group_size": 4, "minibatch": 4, "epochs": 2, "value_coef": 0.1}
    term = (
        RECIPES["ppo"]
        .stage(RECIPES["ppo"].options.parse(options | {"value_coef_last": 0.02}), materials())
        .terms["value"]
    )
    assert [term.coef(step) for step in (0, 10, 20)] == pytest.approx([0.1, 0.06, 0.02])


@pytest.mark.parametrize("recipe", WITH_PG)
def test_what_an_older_policy_sampled_is_weighted_or_credited_by_the_ratio_in_the_only_step_too(recipe):
    """Rollouts may run ahead: the loop then gives the sampler's log-probs as old ones. A ratio of e^.1 moves every
    recipe's gradient, unless its credit has read the sampler already (V-trace)."""
    stage = RECIPES[recipe].stage(RECIPES[recipe].options(), materials())
    if recipe == "vtrace":
        assert "old" in stage.needs  # scored beside "behaviour", which credit reads
        return
    loss = stage.terms["pg"].loss
    one = jnp.ones((1, 1))
    zero = jnp.zeros((1, 1), jnp.int32)

    def gradient(old):
        logprobs = dict.fromkeys((*loss.needs, "reference", "teacher"), one * 0) | {"old": one * old}
        streams = Streams(one, zero, zero, one, logprobs)
        return jax.grad(lambda lp: loss(Scores(lp * one, one), streams)[0].sum())(-1.0)

    assert float(gradient(-1.0)) == pytest.approx(-1.0)
    assert float(gradient(-0.9)) != pytest.approx(-1.0)


def test_weights_that_a_run_ahead_cannot_lend_are_refused_before_a_device_starts():
    """The decoder holds one network: a teacher of other weights that samples cannot play beside an update."""
    ahead = RolloutConfig(max_steps=2, max_tokens=4, context=16, max_lag=1)
    recipe = RECIPES["skill_sd"]
    for teacher, sampling, refused in (
        ("frozen", "teacher", True),
        ("dynamic", "teacher", False),
        ("frozen", "student", False),
    ):
        chosen = recipe.options.parse({"teacher": teacher, "sampling": sampling})
        stage = recipe.stage(chosen, materials())
        check_lag(stage, ahead.model_copy(update={"max_lag": 0}))
        if refused:
            with pytest.raises(ConfigError, match="stage rl samples from other weights"):
                check_lag(stage, ahead)
        else:
            check_lag(stage, ahead)
        stage.close()


@pytest.mark.parametrize("recipe", [name for name in POLICY if name != "sage"])  # SAGE's return is its own
def test_a_stage_closes_the_judge_of_its_reward_whatever_stands_around_it(recipe, monkeypatch):
    closed = []
    monkeypatch.setattr("jaxagent.rewards.judge.Judge.close", lambda self: closed.append(self))
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    reward = {"judge": {"models": [endpoint], "rubric": [{"name": "done", "question": "Is it done?"}]}}
    RECIPES[recipe].stage(RECIPES[recipe].options.parse({"reward": reward}), materials()).close()
    assert len(closed) == 1
