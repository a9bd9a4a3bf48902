"""Loss terms against the numbers of the specification: values, clips, ratio levels, KL gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.errors import ConfigError
from jaxagent.learn import loss as ratios
from jaxagent.learn import sums, terms
from jaxagent.learn.loss import Scores, Streams

LEVELS = ("token", "turn", "trajectory", "turn_geo", "trajectory_geo")


def streams(advantage, *, turn=None, weight=None, **logprobs):
    advantage_BS = jnp.asarray(advantage, jnp.float32)[None]
    zeros_BS = jnp.zeros(advantage_BS.shape, jnp.int32)
    return Streams(
        advantage_BS=advantage_BS,
        turn_BS=zeros_BS if turn is None else jnp.asarray(turn, jnp.int32)[None],
        trajectory_BS=zeros_BS,
        weight_BS=jnp.ones_like(advantage_BS) if weight is None else jnp.asarray(weight, jnp.float32)[None],
        logprobs={name: jnp.asarray(value, jnp.float32)[None] for name, value in logprobs.items()},
    )


def scores(logprob, entropy=None):
    logprob_BS = jnp.asarray(logprob, jnp.float32)[None]
    return Scores(logprob_BS, jnp.zeros_like(logprob_BS) if entropy is None else jnp.asarray(entropy)[None])


def loss_and_gradient(loss, logprob, given):
    """Per-token loss and d (sum of weight * loss) / d logprob."""

    def total(logprob_BS):
        loss_BS, metrics = loss(Scores(logprob_BS, jnp.zeros_like(logprob_BS)), given)
        return jnp.where(given.mask_BS, given.weight_BS * loss_BS, 0.0).sum(), (loss_BS, metrics)

    grad, (loss_BS, metrics) = jax.grad(total, has_aux=True)(jnp.asarray(logprob, jnp.float32)[None])
    return np.asarray(loss_BS[0]), np.asarray(grad[0]), sums.finish(metrics)


RHO, A = np.array([1.5, 1.5, 0.5, 0.5, 1.1, 5.0]), np.array([1, -1, 1, -1, 1, -1.0])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (terms.clipped_pg(0.2), [-1.2, 1.5, -0.5, 0.8, -1.1, 5]),
        (terms.clipped_pg(0.2, 0.28), [-1.28, 1.5, -0.5, 0.8, -1.1, 5]),
        (terms.clipped_pg(0.2, dual=3.0), [-1.2, 1.5, -0.5, 0.8, -1.1, 3]),
        (terms.clipped_pg(0.1, log_symmetric=True), [-1.1, 1.5, -0.5, 0.909091, -1.1, 5]),
    ],
    ids=["symmetric", "higher", "dual", "log-symmetric"],
)
def test_clip_table(loss, expected):
    got, grad, _ = loss_and_gradient(loss, np.log(RHO), streams(A, old=np.zeros(6)))
    np.testing.assert_allclose(got, expected, atol=1e-6)
    clipped = np.isclose(expected, -RHO * A)
    np.testing.assert_array_equal(grad != 0, clipped)  # gradient exactly where the loss is not clipped


def test_clip_fractions_and_kl():
    _, _, metrics = loss_and_gradient(
        terms.clipped_pg(0.2, dual=3.0), np.log(RHO), streams(A, old=np.zeros(6))
    )
    assert metrics["ratio/clip_frac_hi"] == pytest.approx(1 / 6)
    assert metrics["ratio/clip_frac_lo"] == pytest.approx(1 / 6)
    assert metrics["ratio/dual_frac"] == pytest.approx(1 / 6)
    assert metrics["ratio/max"] == pytest.approx(5.0)
    assert metrics["ratio/mean"] == pytest.approx(RHO.mean())
    assert metrics["ratio/approx_kl"] == pytest.approx((RHO - 1 - np.log(RHO)).mean(), rel=1e-5)


D = np.array([0.1, -0.05, 0.2, 0.05])
TURN = [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [1.105171, 0.951229, 1.221403, 1.051271]),
        ("turn", [1.051271, 1.051271, 1.284025, 1.284025]),
        ("turn_geo", [1.025315, 1.025315, 1.133148, 1.133148]),
        ("trajectory", [1.349859] * 4),
        ("trajectory_geo", [1.077884] * 4),
    ],
)
def test_ratio_levels(level, expected):
    given = streams(np.ones(4), turn=TURN, old=np.zeros(4))
    np.testing.assert_allclose(ratios.ratio(scores(D), given, level)[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("level", "weight", "expected"),
    [
        ("token", [0.25] * 4, 1.050625),
        ("turn", [0.25] * 4, 1.075636),
        ("trajectory", [0.25] * 4, 1.1),
    ],
)
def test_objective_at_each_level(level, weight, expected):
    loss = terms.clipped_pg(0.1, log_symmetric=True, level=level)
    given = streams(np.ones(4), turn=TURN, weight=weight, old=np.zeros(4))
    loss_S, _, _ = loss_and_gradient(loss, D, given)
    assert -(np.array(weight) * loss_S).sum() == pytest.approx(expected, abs=1e-6)


def test_gspo_spreads_its_gradient_evenly():
    loss = terms.clipped_pg(1.0, 10.0, level="trajectory_geo")
    _, grad, _ = loss_and_gradient(loss, D, streams(np.ones(4), weight=[0.25] * 4, old=np.zeros(4)))
    np.testing.assert_allclose(grad, [-0.269471] * 4, atol=1e-6)


def test_gspo_clips_at_its_narrow_range():
    loss = terms.clipped_pg(3e-4, 4e-4, level="trajectory_geo")
    loss_S, grad, _ = loss_and_gradient(loss, D, streams(np.ones(4), old=np.zeros(4)))
    np.testing.assert_allclose(loss_S, -1.0004, atol=1e-6)
    assert not grad.any()
    loss_S, grad, _ = loss_and_gradient(loss, -D, streams(-np.ones(4), old=np.zeros(4)))
    np.testing.assert_allclose(loss_S, 0.9997, atol=1e-6)
    assert not grad.any()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("options", [{}, {"log_symmetric": True}, {"dual": 3.0}, {"high": 0.28}])
def test_on_policy_all_variants_agree(level, options):
    """At rho = 1 the gradient of every clip and level is -A, averaged over what shares the ratio."""
    given = streams(np.ones(4) * 0.7, turn=TURN, old=D)
    _, grad, _ = loss_and_gradient(terms.clipped_pg(0.1, level=level, **options), D, given)
    size = {"token": 1, "turn": 2, "trajectory": 4, "turn_geo": 1, "trajectory_geo": 1}[level]
    np.testing.assert_allclose(grad, -0.7 * size * np.ones(4), rtol=1e-5)


def test_without_an_old_stream_the_ratio_is_one_with_a_gradient():
    loss, grad, metrics = loss_and_gradient(terms.clipped_pg(0.2), D, streams([2, -1, 1, 1]))
    np.testing.assert_allclose(loss, [-2, 1, -1, -1])
    np.testing.assert_allclose(grad, [-2, 1, -1, -1])
    assert metrics["ratio/mean"] == 1.0


def test_cispo_coefficients_and_full_gradient():
    """Every token with an advantage keeps a gradient, on either side of the bounds and of either sign."""
    rho = np.array([0.5, 1.0, 1.28, 5.0])
    _, negative, _ = loss_and_gradient(terms.cispo(), np.log(rho), streams(-np.ones(4), old=np.zeros(4)))
    np.testing.assert_allclose(negative, [0.5, 1.0, 1.28, 1.28], rtol=1e-5)
    _, grad, _ = loss_and_gradient(terms.cispo(), np.log(rho), streams(np.ones(4), old=np.zeros(4)))
    np.testing.assert_allclose(-grad, [0.5, 1.0, 1.28, 1.28], rtol=1e-5)


def test_tokens_without_weight_reach_nothing():
    """Poisoned streams at weight 0: no loss, gradient or metric may see them."""
    weight = [1, 1, 0, 0]
    clean = streams(
        [1, -1, 0, 0],
        turn=TURN,
        weight=weight,
        old=[0.1, 0, 0, 0],
        reference=[0.2, 0, 0, 0],
        mismatch=[1.5, 1, 1, 1],
    )
    dirty = streams(
        [1, -1, np.inf, np.nan],
        turn=[0, 0, 0, 0],
        weight=weight,
        old=[0.1, 0, -np.inf, np.nan],
        reference=[0.2, 0, np.nan, 1e9],
        mismatch=[1.5, 1, np.inf, np.nan],
    )
    lp_clean, lp_dirty = [0.3, -0.2, 0, 0], [0.3, -0.2, 500.0, -300.0]
    for loss in (
        terms.clipped_pg(0.2),
        terms.clipped_pg(0.2, level="trajectory"),
        terms.clipped_pg(0.2, level="trajectory_geo"),
        terms.clipped_pg(0.2, dual=3.0),
        terms.cispo(),
        terms.policy_gradient(),
        terms.policy_gradient("turn"),
        terms.corrected(terms.clipped_pg(0.2)),
        terms.pulled(terms.cispo(), 0.1),
        terms.kl("k3"),
        terms.kl("k2"),
    ):
        a, b = (loss_and_gradient(loss, lp, s) for lp, s in ((lp_clean, clean), (lp_dirty, dirty)))
        np.testing.assert_array_equal(a[0][:2], b[0][:2])
        np.testing.assert_array_equal(a[1][:2], b[1][:2])
        assert a[2] == b[2]


P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])


def expected_gradient(loss, sampled_from, old=None):
    """d E_{v ~ sampled_from}[loss(v)] / d logits of a 3-way softmax at P, by summing over all tokens."""
    given = streams(
        np.ones(3), teacher=np.log(Q), reference=np.log(Q), old=np.log(sampled_from if old is None else old)
    )

    def expected(logits):
        loss_BS, _ = loss(scores(jnp.zeros(3))._replace(logprob_BS=jax.nn.log_softmax(logits)[None]), given)
        return (jnp.asarray(sampled_from, jnp.float32) * loss_BS[0]).sum()

    return np.asarray(jax.grad(expected)(jnp.log(jnp.asarray(P, jnp.float32))))


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", [0.916291, -0.510826, -0.405465], [0, 0, 0]),
        ("k2", [0.419794, 0.130471, 0.082201], [0.346243, -0.220389, -0.125854]),
        ("k3", [0.316291, 0.155841, 0.094535], [0.3, -0.2, -0.1]),
        ("k3+", [0.316291, 0.155841, 0.094535], [0.346243, -0.220389, -0.125854]),
    ],
)
def test_kl_values_and_expected_gradients(estimator, value, gradient):
    got, _, _ = loss_and_gradient(terms.kl(estimator), np.log(P), streams(np.ones(3), reference=np.log(Q)))
    np.testing.assert_allclose(got, value, atol=1e-6)
    np.testing.assert_allclose(expected_gradient(terms.kl(estimator), P), gradient, atol=1e-6)


@pytest.mark.parametrize("loss", [terms.clipped_pg(0.2), terms.cispo(), terms.policy_gradient()])
def test_a_mismatch_weight_multiplies_loss_and_gradient_but_not_the_metrics(loss):
    """TIS at C = 2 on rho 1.2214, 1, 3.3201. A rejected token keeps its place among the tokens that are counted."""
    old = [-1, -0.5, -2]
    given = streams(np.ones(3), old=old, mismatch=[1.221403, 1.0, 2.0])
    plain, _, metrics = loss_and_gradient(loss, old, given)
    got, grad, same = loss_and_gradient(terms.corrected(loss), old, given)
    np.testing.assert_allclose(got, plain * [1.221403, 1.0, 2.0], atol=1e-6)
    np.testing.assert_allclose(-grad, [1.221403, 1.0, 2.0], atol=1e-6)
    assert same == metrics
    assert terms.corrected(loss).needs == (*loss.needs, "mismatch")
    rejected = streams(np.ones(3), old=np.zeros(3), mismatch=[1, 0, 1])
    _, grad, metrics = loss_and_gradient(
        terms.corrected(terms.clipped_pg(0.2)), np.log([1, 1.1, 1]), rejected
    )
    np.testing.assert_allclose(grad, [-1, 0, -1], atol=1e-6)
    assert metrics["ratio/mean"] == pytest.approx(3.1 / 3)


def test_the_plain_policy_gradient_has_no_ratio_unless_it_is_asked_for():
    """-A lp and its gradient -A; with a ratio -rho A, unclipped at 5, and the same gradient at rho = 1."""
    given = streams([2.0, -1.0], old=[0.0, 0.0])
    loss, grad, _ = loss_and_gradient(terms.policy_gradient(), [-0.5, -3.0], given)
    np.testing.assert_allclose(loss, [1.0, -3.0])
    np.testing.assert_allclose(grad, [-2.0, 1.0])
    weighted, grad, metrics = loss_and_gradient(terms.policy_gradient("token"), np.log([5.0, 1.0]), given)
    np.testing.assert_allclose(weighted, [-10.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(grad, [-10.0, 1.0], rtol=1e-6)
    assert metrics["ratio/max"] == pytest.approx(5.0)


def test_a_pull_in_the_advantage_is_a_constant():
    """A .5, log-ratio .2, coefficient .1: A = .48. The pull itself has no gradient: rho (.48) and no more."""
    given = streams([0.5], old=[-1.0])
    loss, grad, _ = loss_and_gradient(terms.pulled(terms.clipped_pg(0.5), 0.1), [-0.8], given)
    np.testing.assert_allclose(loss, [-0.48 * np.exp(0.2)], rtol=1e-5)
    np.testing.assert_allclose(grad, [-0.48 * np.exp(0.2)], rtol=1e-5)
    assert terms.pulled(terms.clipped_pg(0.5), 0.1).needs == ("old",)
    with pytest.raises(ConfigError, match="push away"):
        terms.pulled(terms.clipped_pg(0.5), -0.1)


def test_cross_entropy_and_entropy():
    loss, grad, metrics = loss_and_gradient(
        terms.cross_entropy(), [-1, -2, -4], streams(np.ones(3), weight=[1, 0, 1])
    )
    np.testing.assert_allclose(loss[[0, 2]], [1, 4])
    np.testing.assert_allclose(grad, [-1, 0, -1])
    assert metrics["ce/nll"] == 2.5
    bonus, _ = terms.entropy_bonus()(scores([0.0], [1.029653]), streams([0.0]))
    np.testing.assert_allclose(bonus, [[-1.029653]])


def test_log_ratios_are_bounded():
    loss, grad, _ = loss_and_gradient(terms.clipped_pg(0.2), [200.0, -200.0], streams([-1, 1], old=[0, 0]))
    assert np.isfinite(loss).all()
    assert np.isfinite(grad).all()


def test_wrong_settings_are_refused():
    for call in (
        lambda: terms.clipped_pg(-0.1),
        lambda: terms.clipped_pg(1.5),
        lambda: terms.clipped_pg(0.2, dual=1.0),
        lambda: terms.clipped_pg(0.2, level="sentence"),
        lambda: terms.policy_gradient("sentence"),
        lambda: terms.kl("k4"),
    ):
        with pytest.raises((ConfigError, TypeError)):
            call()


def test_sums_reduce_exactly():
    a = {"m": sums.mean_of(jnp.array([1.0, 5.0]), jnp.array([True, False])), "x": sums.Max(jnp.float32(2))}
    b = {"m": sums.mean_of(jnp.array([2.0, 6.0]), jnp.array([True, True])), "x": sums.Max(jnp.float32(1))}
    assert sums.finish(sums.add(a, b)) == {"m": 3.0, "x": 2.0}
    nothing = {
        "m": sums.mean_of(jnp.zeros(2), jnp.zeros(2, bool)),
        "x": sums.max_of(jnp.zeros(0), jnp.zeros(0, bool)),
    }
    assert sums.finish(nothing) == {"x": 0.0}


def test_what_the_kl_estimators_are_in_expectation():
    """KL(p || q) .223805, KL(q || p) .193794: E_p of k1 and k3 is the first, of k2 .265479."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    assert [(p * np.log(p / q)).sum(), (q * np.log(q / p)).sum()] == pytest.approx(
        [0.223805, 0.193794], abs=1e-6
    )
    for estimator, expected in (("k1", 0.223805), ("k2", 0.265479), ("k3", 0.223805), ("k3+", 0.223805)):
        value_S, _, _ = loss_and_gradient(
            terms.kl(estimator), np.log(p), streams(np.ones(3), reference=np.log(q))
        )
        assert (p * value_S).sum() == pytest.approx(expected, abs=1e-6)
    value_S, _, _ = loss_and_gradient(terms.kl("k3"), np.log(q), streams(np.ones(3), reference=np.log(p)))
    assert (q * value_S).sum() == pytest.approx(0.193794, abs=1e-6)
