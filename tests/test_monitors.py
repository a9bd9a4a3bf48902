import pytest

from jaxagent.errors import ConfigError
from jaxagent.monitors import Monitor


def names(alarms):
    return [alarm.name for alarm in alarms]


@pytest.mark.parametrize(
    ("metrics", "name"),
    [
        ({"group/zero_std_frac": 1.0}, "equal_rewards"),
        ({"group/zero_std_frac": 0.75}, "zero_variance"),
        ({"group/singleton_frac": 1.0}, "singletons"),
        ({"rollout/truncated": 0.4}, "truncation"),
        ({"mismatch/kl": 0.2}, "mismatch"),
        ({"pg/ratio/clip_frac_hi": 0.31}, "clip"),
        ({"mask/obs_leak": 1.0}, "mask_leak"),
        ({"metrics/nonfinite": 1.0}, "nonfinite"),
        ({"grad_norm": float("nan")}, "grad_norm"),
    ],
)
def test_each_alarm(metrics, name):
    assert names(Monitor().check(metrics)) == [name]


def test_quiet_on_a_healthy_iteration():
    healthy = {
        "group/zero_std_frac": 0.5,
        "rollout/truncated": 0.1,
        "mismatch/kl": 0.001,
        "entropy": 0.4,
        "grad_norm": 1.0,
        "mask/obs_leak": 0.0,
        "rollout/sampled_tokens": 40.0,
    }
    monitor = Monitor()
    assert all(monitor.check(healthy) == [] for _ in range(20))


def test_relative_to_the_start():
    monitor = Monitor()
    assert monitor.check({"entropy": 1.0, "rollout/sampled_tokens": 40.0}) == []
    assert names(monitor.check({"entropy": 0.09, "rollout/sampled_tokens": 90.0})) == [
        "length_explosion",
        "entropy_collapse",
    ]


def test_an_alarm_sounds_once_until_it_is_over():
    monitor = Monitor()
    bad, good = {"rollout/truncated": 0.4}, {"rollout/truncated": 0.1}
    assert [len(monitor.check(m)) for m in (bad, bad, good, bad)] == [1, 0, 0, 1]


def test_gradient_outlier():
    monitor = Monitor()
    for i in range(10):
        assert monitor.check({"grad_norm": 1.0 + 0.1 * (i % 2)}) == []
    assert names(monitor.check({"grad_norm": 5.0})) == ["grad_norm"]


def test_words_carry_the_number():
    (alarm,) = Monitor().check({"rollout/truncated": 0.4})
    assert "40%" in alarm.message


def test_thresholds_and_off():
    assert Monitor({"truncation": 0.5}).check({"rollout/truncated": 0.4}) == []
    assert Monitor({"truncation": 0.0}).check({"rollout/truncated": 1.0}) == []
    with pytest.raises(ConfigError, match="known alarms: equal_rewards"):
        Monitor({"truncated": 0.5})


def test_state_goes_on():
    one = Monitor()
    one.check({"entropy": 1.0, "grad_norm": 1.0})
    two = Monitor()
    two.begin(rolls_out=False)
    two.restore(one.state())
    assert names(two.check({"entropy": 0.05})) == ["entropy_collapse"]


def test_a_stage_is_compared_with_its_own_start():
    monitor = Monitor()
    monitor.check({"entropy": 6.0, "rollout/truncated": 0.4})
    monitor.begin(rolls_out=True)
    assert names(monitor.check({"entropy": 0.3, "rollout/truncated": 0.4})) == ["truncation"]
    assert names(monitor.check({"entropy": 0.02})) == ["entropy_collapse"]


def test_a_supervised_stage_is_watched_for_faults_only():
    monitor = Monitor()
    monitor.begin(rolls_out=False)
    for norm in [1.0] * 10 + [50.0]:
        assert monitor.check({"entropy": 6.0 / norm, "grad_norm": norm}) == []
    broken = {"skip/nonfinite": 1.0, "grad_norm": float("inf"), "metrics/nonfinite": 2.0}
    assert names(monitor.check(broken)) == ["skipped", "nonfinite", "grad_norm"]
