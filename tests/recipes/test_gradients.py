"""What each recipe asks of the policy, as d loss / d log-prob of every token: methods that must coincide do."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.batch.pack import pack, unpack
from jaxagent.learn.loss import Scores
from jaxagent.learn.objective import total_loss
from jaxagent.recipes.table import RECIPES
from jaxagent.train import credit
from jaxagent.types import Group, Status
from tests.made_episodes import make_step, make_task, make_trajectory
from tests.recipes.test_stages import materials

RETURNS = (1.0, 0.5, 0.0, 0.5)
LENGTHS = ((2, 3), (4, 1), (1, 1), (3, 5))  # tokens sampled in the two steps of each rollout: 5, 5, 2, 8
TEACHER = -1.7


def group(status, cut=None):
    """Four rollouts of unequal length; `status` is how their second steps ended. Rollout `cut` ran out of steps."""
    task = make_task()
    rollouts = []
    for i, (reward, (first, second)) in enumerate(zip(RETURNS, LENGTHS)):
        steps = [make_step(0, tokens=first), make_step(1, tokens=second, status=status)]
        tests = (int(4 * reward), 4)
        ended = Status.STEP_LIMIT if i == cut else Status.DONE
        made = make_trajectory(
            task=task, rollout=i, steps=steps, success=reward == 1, tests=tests, status=ended
        )
        rollouts.append(made)
    return Group(task, tuple(rollouts))


def taught(item, *, sampled=False):
    """With the teacher's log-probs; sampled: the teacher is also who sampled."""
    names = ("teacher", "old") if sampled else ("teacher",)
    segments = tuple(
        replace(
            segment,
            logprobs={
                **segment.logprobs,
                **dict.fromkeys(names, np.full(segment.ids_T.shape, TEACHER, np.float32)),
            },
        )
        for segment in item.trajectory.segments
    )
    return replace(item, trajectory=replace(item.trajectory, segments=segments))


def gradient(recipe, *, status="ok", teacher=False, sampled=False, cut=None, **options):
    """Per rollout: (its log-probs, the gradient with respect to them), over its sampled tokens."""
    stage = RECIPES[recipe].stage(RECIPES[recipe].options.parse(options), materials())
    credited = credit(stage, stage.reward([group(status, cut)]))
    credited = [taught(item, sampled=sampled) for item in credited] if teacher else credited
    packed = pack(stage.samples(credited), stage.terms, rows=4, length=32)
    (batch,) = (part.batch for part in packed)
    names = ("turn_BS", "trajectory_BS", "advantage_BS", "logprobs", "weight", "count")
    arrays = jax.tree.map(jnp.asarray, {name: getattr(batch, name) for name in names})
    logprob_BS = jax.random.normal(jax.random.key(0), batch.advantage_BS.shape) - 2.0
    grad_BS = jax.grad(lambda lp: total_loss(Scores(lp, jnp.zeros_like(lp)), arrays, stage.terms)[0])(
        logprob_BS
    )
    sampled = [item.trajectory.segments[0].mask_T for item in credited]
    return [
        np.stack([lp[mask], grad[mask]])
        for lp, grad, mask in zip(
            unpack(packed, [np.asarray(logprob_BS)]), unpack(packed, [np.asarray(grad_BS)]), sampled
        )
    ]


def assert_same(left, right):
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_allclose(one[1], other[1], atol=1e-7)


def test_loop_with_one_epoch_one_minibatch_and_no_filter_is_rloo():
    """- A_i / (n_i N) on each of the n_i tokens of a rollout; A = 2/3, 0, -2/3, 0."""
    options = {"epochs": 1, "minibatch": 0, "min_advantage": 0.0, "tasks": 1, "group_size": 4}
    found = gradient("loop", **options)
    for (_, grad), advantage, n in zip(found, (2 / 3, 0, -2 / 3, 0), (5, 5, 2, 8)):
        np.testing.assert_allclose(grad, np.full(n, -advantage / n / 4), atol=1e-7)
    assert_same(gradient("loop", **options, clip=0.5), found)  # at ratio 1 no clip matters
    # A ratio of the whole rollout has the gradient of the sum of its tokens: without the division by length.
    for (_, grad), advantage in zip(gradient("loop", **options, ratio="trajectory"), (2 / 3, 0, -2 / 3, 0)):
        np.testing.assert_allclose(grad, np.full(len(grad), -advantage / 4), atol=1e-7)


def test_rloo_is_loop_on_policy_without_the_division_by_length():
    """- A_i / N on every token; LOOP's are the same over n_i. Both use the means of GRPO if they are told to."""
    rloo = gradient("reinforce", baseline="leave_one_out")
    for (_, grad), advantage in zip(rloo, (2 / 3, 0, -2 / 3, 0)):
        np.testing.assert_allclose(grad, np.full(len(grad), -advantage / 4), atol=1e-7)
    loop = gradient("loop", epochs=1, minibatch=0, min_advantage=0.0, tasks=1, group_size=4)
    assert_same([np.stack([lp, grad / len(grad)]) for lp, grad in rloo], loop)
    same = gradient("reinforce", baseline="leave_one_out", aggregate="seq_mean_token_mean")
    assert_same(same, loop)


def test_reinforce_without_and_with_a_baseline():
    for baseline, advantages in (("none", (1, 0.5, 0, 0.5)), ("batch_mean", (0.5, 0, -0.5, 0))):
        for (_, grad), advantage in zip(gradient("reinforce", baseline=baseline), advantages):
            np.testing.assert_allclose(grad, np.full(len(grad), -advantage / 4), atol=1e-7)


def test_dr_grpo_divides_by_a_constant_only():
    options = {"std": False, "aggregate": "fixed_len_sum", "max_length": 10}
    for (_, grad), advantage in zip(gradient("grpo", **options), (0.5, 0, -0.5, 0)):
        np.testing.assert_allclose(grad, np.full(len(grad), -advantage / 40), atol=1e-7)


def test_on_policy_every_group_method_is_grpo_up_to_its_average():
    """At ratio 1 no clip, weight or level of the ratio matters: GSPO is GRPO, DAPO and CISPO its token mean."""
    assert_same(gradient("gspo"), gradient("grpo"))
    token_mean = gradient("grpo", aggregate="token_mean")
    assert_same(gradient("dapo"), token_mean)
    assert_same(gradient("cispo"), token_mean)
    assert_same(gradient("grpo", dual_clip=3.0, clip_high=0.28), gradient("grpo"))
    for (_, grad), advantage in zip(token_mean, np.array([0.5, 0, -0.5, 0]) / np.sqrt(0.5 / 3)):
        np.testing.assert_allclose(grad, np.full(len(grad), -advantage / 20), atol=1e-6)


def test_reinforce_pp_weighs_long_rollouts_more():
    """R = 1, .5, 0, .5 on 5, 5, 2, 8 tokens: mu .575, and a zero sum over tokens."""
    x = np.repeat([1, 0.5, 0, 0.5], [5, 5, 2, 8])
    advantage = (x - x.mean()) / x.std(ddof=1)
    got = np.concatenate([grad for _, grad in gradient("rpp")])
    np.testing.assert_allclose(got, -advantage / 20, atol=1e-6)
    assert got.sum() == pytest.approx(0, abs=1e-6)


def test_imitation_of_solved_episodes_adds_its_mean():
    """-1/5 of its weight on each of the 5 tokens of the solved rollout."""
    plain, more = gradient("dapo"), gradient("dapo", solved_nll=0.1)
    for index, ((_, before), (_, after)) in enumerate(zip(plain, more)):
        np.testing.assert_allclose(after - before, -0.1 / 5 if index == 0 else 0.0, atol=1e-7)


@pytest.mark.parametrize("recipe", ["reinforce", "rpp", "grpo", "dapo", "gspo", "cispo", "loop"])
def test_masked_episodes_have_no_gradient_and_a_say_in_the_baseline(recipe):
    """The last rollout ran out of steps: its return counts, its tokens do not."""
    reward = {"outcome": "test_fraction", "on_step_limit": "mask"}
    options = {"min_advantage": 0.0} if recipe == "loop" else {}
    plain = gradient(recipe, cut=3, **options)
    masked = gradient(recipe, cut=3, reward=reward, **options)
    assert all(np.any(grad) for _, grad in (masked[0], masked[2]))
    assert not np.any(masked[3][1])
    ratio = [m[1][0] / p[1][0] for m, p in zip((masked[0], masked[2]), (plain[0], plain[2]))]
    if recipe != "rpp":  # whose moments are those of the tokens that are trained
        assert ratio[0] == pytest.approx(ratio[1], rel=1e-5)  # the same advantages, over fewer episodes


def test_gvpo_without_failed_steps_is_dr_grpo_with_the_means_of_grpo():
    dr_grpo = gradient("grpo", std=False)
    for (_, grad), advantage, n in zip(dr_grpo, (0.5, 0, -0.5, 0), (5, 5, 2, 8)):
        np.testing.assert_allclose(grad, np.full(n, -advantage / n / 4), atol=1e-7)
    assert_same(gradient("gvpo"), dr_grpo)
    failed = gradient("gvpo", status="runtime_error")
    np.testing.assert_allclose(failed[1][1], np.array([0, 0, 0, 0, 0.2]) / 5 / 4, atol=1e-7)  # A = 0: -b


@pytest.mark.parametrize(
    ("teacher", "weight"), [(True, 0.0), (False, 0.001)], ids=["lambda is 0", "no skill was written yet"]
)
def test_skill_sd_without_distillation_is_grpo(teacher, weight):
    assert_same(gradient("skill_sd", teacher=teacher, lambda_=weight), gradient("grpo"))


def test_skill_augmented_grpo_is_grpo_under_another_prompt():
    assert_same(gradient("skill_grpo"), gradient("grpo"))


def test_off_policy_skill_sd_weighs_by_the_ratio_to_the_teacher():
    """rho l / 20 with l = log p - log p_teacher, rho = e^l; GRPO's ratio is to the teacher too, and clipped."""
    options = {"teacher": True, "sampled": True, "lambda_": 0.5}
    with_both = gradient("skill_sd", **options)
    without = gradient("skill_sd", **{**options, "lambda_": 0.0})
    for (logprob, grad), (_, plain) in zip(with_both, without, strict=True):
        ell = logprob - TEACHER
        np.testing.assert_allclose(grad - plain, 0.5 * np.exp(ell) * ell / 20, atol=1e-6)
    advantages = np.array([0.5, 0, -0.5, 0]) / np.sqrt(0.5 / 3)
    for (logprob, grad), advantage, n in zip(without, advantages, (5, 5, 2, 8), strict=True):
        rho = np.exp(logprob - TEACHER)
        stopped = (rho > 1.2) if advantage > 0 else (rho < 0.8)
        np.testing.assert_allclose(grad, np.where(stopped, 0, -rho * advantage / n / 4), atol=1e-5)


@pytest.mark.parametrize("estimator", ["iw_k3", "k2", "k3+", "pg", "k3_direct"])
def test_opd_is_the_log_ratio_and_reads_no_return(estimator):
    """l / 20 on each of 20 tokens; the direct k3 has (1 - e^-l) / 20, the forward KL."""
    for logprob, grad in gradient("opd", teacher=True, estimator=estimator):
        ell = logprob - TEACHER
        coefficient = 1 - np.exp(-ell) if estimator == "k3_direct" else ell
        np.testing.assert_allclose(grad, coefficient / 20, atol=1e-6)


def test_skill_sd_adds_the_log_ratio_to_the_teacher():
    """On-policy the gradient of rho * k3 is log p - log p_teacher; 20 tokens share lambda."""
    for (logprob, grad), (_, plain) in zip(
        gradient("skill_sd", teacher=True, lambda_=0.5), gradient("grpo"), strict=True
    ):
        np.testing.assert_allclose(grad - plain, 0.5 * (logprob - TEACHER) / 20, atol=1e-6)
