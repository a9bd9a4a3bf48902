"""Aggregations with the numbers of the specification, and samples from trajectories."""

import numpy as np
import pytest

from jaxagent.batch import targets
from jaxagent.errors import ConfigError
from jaxagent.types import (
    Action,
    Credited,
    ExecStatus,
    Prompt,
    Sample,
    Segment,
    Status,
    Step,
    Stop,
    Task,
    Trajectory,
)
from tests.made_episodes import make_step, make_trajectory


def sample(trajectory, loss, step=None, include=None):
    """A sample whose tokens 1.. carry `loss`; token 0 is never scored. Returns (sample, loss [T])."""
    T = len(loss) + 1
    include = np.ones(T) if include is None else np.array([1, *include])
    step = np.zeros(len(loss)) if step is None else np.array(step)
    built = Sample(
        trajectory=trajectory,
        ids_T=np.arange(T),
        step_T=np.array([-1, *step], np.int32),
        advantage_T=np.ones(T, np.float32),
        include={"pg": include.astype(np.float32)},
    )
    return built, np.array([99.0, *loss])


def value(aggregate, pairs):
    samples, losses = zip(*pairs)
    weights, count = aggregate(samples, "pg")
    return sum(float((w * loss).sum()) for w, loss in zip(weights, losses)) / count


TWO = [sample(0, [1, 3]), sample(1, [2, 2, 2, 6])]
MODES = [
    (targets.token_mean, 2.666667),
    (targets.seq_mean_token_mean, 2.5),
    (targets.seq_mean_token_sum, 8.0),
    (targets.fixed_len_sum(8), 1.0),
    (targets.verl_sum_norm(8), 2.0),
    (targets.constant_count(targets.seq_mean_token_mean, 4), 1.25),
]
NAMES = ["token", "seq_mean", "seq_sum", "fixed", "verl", "constant"]


@pytest.mark.parametrize(("aggregate", "expected"), MODES, ids=NAMES)
def test_two_sequences(aggregate, expected):
    assert value(aggregate, TWO) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("aggregate", "expected"), MODES, ids=NAMES)
def test_a_fully_masked_third_sequence_changes_nothing(aggregate, expected):
    masked = sample(2, [7, 7], include=[0, 0])
    assert value(aggregate, [*TWO, masked]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("aggregate", "expected"), MODES, ids=NAMES)
def test_order_and_segments_change_nothing(aggregate, expected):
    # the second trajectory rewritten once: two segments, still one sequence
    split = [sample(1, [2, 6]), sample(0, [1, 3]), sample(1, [2, 2])]
    assert value(aggregate, split) == pytest.approx(expected, abs=1e-6)


def test_weight_per_token():
    pairs = [sample(0, [0] * 2), sample(1, [0] * 10)]
    samples = [s for s, _ in pairs]

    def per_token(aggregate):
        weights, count = aggregate(samples, "pg")
        return [float(w[1]) / count for w in weights]

    np.testing.assert_allclose(per_token(targets.seq_mean_token_mean), [0.25, 0.05], rtol=1e-6)
    np.testing.assert_allclose(per_token(targets.token_mean), [1 / 12, 1 / 12], rtol=1e-6)
    np.testing.assert_allclose(per_token(targets.fixed_len_sum(10)), [0.05, 0.05], rtol=1e-6)
    np.testing.assert_allclose(per_token(targets.seq_mean_token_sum), [0.5, 0.5], rtol=1e-6)


def test_turn_mean_averages_turns_then_trajectories():
    # turns (1, 3), (5) -> 2, 5 -> 3.5; one turn (2, 4) -> 3; mean 3.25
    pairs = [sample(0, [1, 3, 5], step=[0, 0, 1]), sample(1, [2, 4])]
    assert value(targets.turn_mean, pairs) == pytest.approx(3.25)


def test_masked_errors_in_the_supervised_loss():
    # nll 1, 2, 4, 1 on steps ok, err, err, ok: (1 + 1) / 2 = 1
    assert value(targets.token_mean, [sample(0, [1, 2, 4, 1], include=[1, 0, 0, 1])]) == pytest.approx(1.0)


def test_nothing_included_counts_zero():
    samples = [sample(0, [1, 1], include=[0, 0])[0]]
    for aggregate, _ in MODES:
        weights, count = aggregate(samples, "pg")
        assert not weights[0].any()
        assert count in (0.0, 8.0)  # verl_sum_norm's constant


def test_bad_inclusion_and_constants_are_refused():
    with pytest.raises(ConfigError, match="finite weight"):
        targets.token_mean([sample(0, [1], include=[-1])[0]], "pg")
    with pytest.raises(ConfigError, match="length=0"):
        targets.fixed_len_sum(0)


# --- samples from trajectories ------------------------------------------------------------


def trajectory(statuses, teacher=False):
    """The 12-token example: 3 prompt, 3 action, 3 observation, 2 action (cut), 1 padding of the template."""
    mask = np.array([0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0], bool)
    step = np.array([-1, -1, -1, 0, 0, 0, -1, -1, -1, 1, 1, -1], np.int32)
    streams = {"behaviour": mask * -1.0} | ({"teacher": mask * -2.0} if teacher else {})
    steps = tuple(
        Step(k, "", "", np.arange(3), np.zeros(3, np.float32), 0, Stop.STOP, Action(), status, "")
        for k, status in enumerate(statuses)
    )
    task = Task("t", "env", "train")
    segment = Segment(np.arange(12), mask, step, streams)
    return Trajectory("x", task, 0, Status.DONE, Prompt(()), steps, (segment,))


OK, ERROR = ExecStatus.OK, ExecStatus.RUNTIME_ERROR


def test_advantages_land_on_their_own_steps():
    credited = [Credited(trajectory([OK, OK]), np.array([0.5, -2.0], np.float32))]
    (built,) = targets.policy_samples(credited)
    np.testing.assert_array_equal(built.advantage_T, [0, 0, 0, 0.5, 0.5, 0.5, 0, 0, 0, -2, -2, 0])
    np.testing.assert_array_equal(built.include["pg"], [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0])
    assert built.include["pg"].sum() == 5


def test_excluded_trajectories_and_missing_teachers():
    credited = [Credited(trajectory([OK, OK], teacher=t), np.ones(2, np.float32)) for t in (False, True)]
    plain, taught = targets.policy_samples(credited, terms=("pg",), teacher_terms=("sdl",))
    assert (plain.include["sdl"].sum(), taught.include["sdl"].sum()) == (0, 5)
    out = targets.policy_samples(credited, excluded=lambda t: True)
    assert all(not s.include["pg"].any() for s in out)


def test_imitation_masks_failed_steps_and_weighs_tokens():
    credited = [Credited(trajectory([ERROR, OK]), np.ones(2, np.float32))]
    (built,) = targets.imitation_samples(credited, mask_errors=True)
    np.testing.assert_array_equal(built.include["ce"], [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0])
    (built,) = targets.imitation_samples(credited, token_weight=lambda t, s: np.where(s.ids_T == 4, 4.0, 1.0))
    np.testing.assert_array_equal(built.include["ce"], [0, 0, 0, 1, 4, 1, 0, 0, 0, 1, 1, 0])
    everything = [Credited(trajectory([ERROR, ERROR]), np.ones(2, np.float32))]
    assert targets.imitation_samples(everything, mask_errors=True) == []


def test_the_loss_of_failed_steps_is_masked_and_that_of_their_correction_is_not():
    """Negative log-likelihoods 1, 2, 4, 1 of steps ok, error, error, ok: (1 + 1) / 2."""
    statuses = [ExecStatus.OK, ERROR, ERROR, ExecStatus.OK]
    episode = make_trajectory(steps=[make_step(k, tokens=1, status=s) for k, s in enumerate(statuses)])
    credited, nll_T = [Credited(episode, np.ones(4, np.float32))], np.array([0.0, 1.0, 2.0, 4.0, 1.0])
    for mask_errors, loss in ((True, 1.0), (False, 2.0)):
        samples = targets.imitation_samples(credited, mask_errors=mask_errors)
        weights, count = targets.token_mean(samples, "ce")
        assert (weights[0] * nll_T).sum() / count == pytest.approx(loss)


def test_credit_finer_than_a_step_rules():
    whole = trajectory([ExecStatus.OK, ExecStatus.OK])
    finer_T = np.arange(len(whole.segments[0].ids_T)) + 0.5
    (built,) = targets.policy_samples([Credited(whole, np.array([5.0, 6.0]), (finer_T,))])
    assert built.advantage_T.tolist() == np.where(whole.segments[0].mask_T, finer_T, 0).tolist()
