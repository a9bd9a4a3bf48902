"""ProST's schedule at the specification's numbers, and that its last epoch is training with failed steps masked."""

import numpy as np
import pytest

from jaxagent.batch.targets import imitation_samples
from jaxagent.data.subtasks import subtask_weights, trained_subtasks
from jaxagent.errors import ConfigError
from jaxagent.types import Credited, ExecStatus
from tests.made_episodes import make_step, make_trajectory

OK, ERROR = ExecStatus.OK, ExecStatus.RUNTIME_ERROR
SUBTASKS = (1, 1, 2, 2, 2, 3, 3)
STEPS = [make_step(k, status=ERROR if k == 3 else OK) for k in range(7)]


@pytest.mark.parametrize(
    ("n", "epochs", "expected"),
    [
        (5, 3, [{2, 3}, {1, 2, 3, 4}, {1, 2, 3, 4, 5}]),
        (4, 3, [{2, 3}, {1, 2, 3}, {1, 2, 3, 4}]),
        (3, 2, [{2, 3}, {1, 2, 3}]),
        (2, 3, [{1, 2}] * 3),
        (1, 1, [{1}]),
        (5, 1, [{1, 2, 3, 4, 5}]),
    ],
)
def test_the_schedule(n, epochs, expected):
    assert [trained_subtasks(n, epoch=epoch, epochs=epochs) for epoch in range(epochs)] == expected


def test_earlier_sub_tasks_come_backwards_and_before_later_ones():
    sets = [trained_subtasks(6, epoch=epoch, epochs=5, start=(3, 4)) for epoch in range(5)]
    assert sets == [{3, 4}, {2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5, 6}]


def test_the_weights_of_the_example():
    def weights(epoch):
        return subtask_weights(STEPS, SUBTASKS, trained_subtasks(3, epoch=epoch, epochs=3)).tolist()

    assert weights(0) == [0, 0, 1, 0, 1, 1, 1]
    assert weights(2) == [1, 1, 1, 0, 1, 1, 1]


def test_the_last_epoch_is_training_with_failed_steps_masked():
    """The same tokens have the same weight, through the samples of supervised training."""
    credited = [Credited(make_trajectory(steps=STEPS), np.ones(7, np.float32))]
    masked = imitation_samples(credited, mask_errors=True)
    weight_K = subtask_weights(STEPS, SUBTASKS, trained_subtasks(3, epoch=4, epochs=5))

    def by_step(trajectory, segment):
        return np.where(segment.step_T >= 0, weight_K[np.maximum(segment.step_T, 0)], 0)

    (last,) = imitation_samples(credited, token_weight=by_step)
    np.testing.assert_array_equal(last.include["ce"], masked[0].include["ce"])
    assert last.include["ce"].sum() == 12


def test_wrong_epochs_and_numbers_are_refused():
    with pytest.raises(ConfigError, match="epoch=3 of 3"):
        trained_subtasks(4, epoch=3, epochs=3)
    with pytest.raises(ConfigError, match="6 sub-task numbers for 7 steps"):
        subtask_weights(STEPS, SUBTASKS[:6], {1})
