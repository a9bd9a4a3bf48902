from dataclasses import replace

import numpy as np
import pytest

from jaxagent.credit.filters import zero_std
from jaxagent.credit.group import group_mean, group_std, leave_one_out, per_group
from jaxagent.credit.gvpo import answers_error, failed_step, gvpo, shape_failed
from jaxagent.errors import ConfigError
from jaxagent.types import ExecStatus, Group
from tests.made_episodes import make_group, make_step, make_task, make_trajectory

OK, BAD = ExecStatus.OK, ExecStatus.RUNTIME_ERROR
BASE = per_group(group_mean)


def table(shape, b=0.2):
    """[A of the ok step, A of the failed step] for base advantages .5, 0, -.5."""
    out = gvpo(BASE, shape=shape, b=b)([make_group([1.0, 0.5, 0.0, 0.5], steps=[OK, BAD])])
    return [item.advantage_K.tolist() for item in out[:3]]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("mult", [[0.5, 0.0], [0.0, -0.2], [-0.5, -0.6]]),
        ("add", [[0.5, 0.0], [0.0, -0.2], [-0.5, -0.7]]),
        ("add_all", [[0.5, 0.3], [0.0, -0.2], [-0.5, -0.7]]),
        ("mask", [[0.5, 0.0], [0.0, 0.0], [-0.5, 0.0]]),
        ("none", [[0.5, 0.5], [0.0, 0.0], [-0.5, -0.5]]),
    ],
)
def test_hand_numbers(shape, expected):
    assert np.array(table(shape)) == pytest.approx(np.array(expected), abs=1e-7)


def test_sequence_means_of_the_worked_example():
    """3 ok and 2 failed tokens: sequence-mean advantage .3, -.08, -.54."""
    steps = [make_step(0, tokens=3), make_step(1, tokens=2, status=BAD)]
    task = make_task()
    group = Group(
        task, tuple(make_trajectory(r, steps=steps, rollout=i) for i, r in enumerate((1, 0.5, 0, 0.5)))
    )
    tokens = np.array([3, 2])
    means = [float((item.advantage_K * tokens).sum() / 5) for item in gvpo(BASE)([group])]
    assert means[:3] == pytest.approx([0.3, -0.08, -0.54], abs=1e-7)


@pytest.mark.parametrize("reward", [1 / 3, 5 / 6, 1.0])
def test_failed_steps_of_a_zero_variance_group_get_minus_b(reward):
    out = gvpo(BASE)([make_group([reward] * 8, steps=[OK, BAD])])
    assert all(item.advantage_K.tolist() == [0.0, np.float32(-0.2)] for item in out)


def test_one_ulp_of_noise_counts_as_zero():
    noise = np.array([2.9802e-08, -5.9605e-08], np.float32)
    fail = np.array([True, True])
    assert shape_failed(noise, fail, b=0.2, shape="mult").tolist() == [np.float32(-0.2)] * 2
    without = shape_failed(noise, fail, b=0.2, shape="mult", tolerance=0.0)
    assert without == pytest.approx(np.array([0.0, -7.1526e-08]), rel=1e-4)


def test_no_failed_step_leaves_the_base_alone():
    group = make_group([1.0, 0.25, 0.0], steps=[OK, OK])
    for base in (BASE, per_group(leave_one_out), per_group(group_std())):
        for shape in ("mult", "add", "add_all", "mask", "none"):
            plain = [item.advantage_K.tolist() for item in base([group])]
            assert [item.advantage_K.tolist() for item in gvpo(base, shape=shape)([group])] == plain


def test_filtering_first_would_lose_the_signal():
    group = make_group([1.0, 1.0], steps=[BAD])
    assert len(gvpo(BASE)([group])) == 2
    assert gvpo(zero_std(BASE))([group]) == []


@pytest.mark.parametrize(
    ("status", "fails"),
    [
        ("ok", False),
        ("none", False),
        ("syntax_error", True),
        ("runtime_error", True),
        ("timeout", True),
        ("invalid", True),
    ],
)
def test_what_counts_as_failed(status, fails):
    assert failed_step(make_step(0, status=status)) is fails


def test_invalid_can_be_excused():
    group = make_group([0.5, 0.5], steps=["invalid", "timeout"])
    out = gvpo(BASE, invalid_is_fail=False)([group])
    assert out[0].advantage_K == pytest.approx(np.array([0.0, -0.2]))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ('{"error": "no such song"}', True),
        ("{'status': 'error', 'message': 'x'}", True),
        ('done\n {"success": false}\n', True),
        ('{\n "errors": ["a"]\n}', True),
        ('{"error": null}', False),
        ('{"errors": []}', False),
        ('{"success": true, "status": "ok"}', False),
        ("an error", False),
        ("{error}", False),
        ('["error"]', False),
        ("{" * 5000 + "}" * 5000, False),
        ("", False),
    ],
)
def test_what_answers_an_error_as_data(answer, error):
    assert answers_error(answer) is error


def test_an_error_as_data_is_no_failure_unless_it_is_asked_for():
    """Both steps ran; the second one was told that it did wrong."""
    steps = [make_step(0), replace(make_step(1), observation_after='{"error": "no such song"}')]
    group = make_group([0.5, 0.5], steps=steps)
    plain, strict = (gvpo(BASE, api_error_is_fail=asked)([group])[0] for asked in (False, True))
    assert plain.advantage_K.tolist() == [0.0, 0.0]
    assert strict.advantage_K == pytest.approx(np.array([0.0, -0.2]))
    excused = replace(steps[1], exec_status=ExecStatus.INVALID)
    assert not failed_step(excused, invalid_is_fail=False, api_error_is_fail=True)


def test_bad_arguments_are_refused():
    with pytest.raises(ConfigError, match="'mult'"):
        gvpo(BASE, shape="multiply")
    with pytest.raises(ConfigError, match="reward failed steps"):
        gvpo(BASE, b=-0.1)
