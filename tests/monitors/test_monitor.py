"""Each alarm with a history that sets it off and one that must not; numbers of examples are the specification's."""

import pytest

from jaxagent.monitors.monitor import QUIET, Monitor
from jaxagent.monitors.rules import RULES
from jaxagent.monitors.settings import AlarmConfig, AlarmThresholds

# What an iteration of a healthy run looks like: every number that a rule reads.
HEALTHY = {
    "reward/max": 1.0,
    "reward/mean": 0.5,
    "length/at_limit": 0.1,
    "length/action_tokens": 40.0,
    "length/reward_corr": 0.1,
    "rollout/truncated": 0.1,
    "rollout/turns": 4.0,
    "rollout/exec_fail": 0.2,
    "mask/obs_leak": 0.0,
    "mask/trained_equals_sampled": 1.0,
    "policy/entropy": 1.0,
    "ratio/approx_kl": 0.01,
    "ratio/approx_kl_max": 0.02,
    "ratio/clip_frac_hi": 0.1,
    "ratio/max": 1.4,
    "kl/reference_k3": 0.01,
    "mismatch/kl": 0.001,
    "skip/nonfinite": 0.0,
    "skip/empty_batch": 0.0,
    "group/zero_std_frac": 0.5,
    "group/all_pass_frac": 0.3,
    "group/all_fail_frac": 0.2,
    "group/singleton_frac": 0.0,
    "tools/entropy_share": 0.817,
    "tools/unknown": 0.0,
    "loop/run_mean": 1.5,
    "loop/looping_frac": 0.1,
    "reward/shaping_share": 0.2,
    "reward/judge_gap": 0.0,
    "update/grad_norm": 1.0,
}


def names(alarms):
    return [alarm.name for alarm in alarms]


def history(metric, *values):
    """The monitor after each of the values of one metric, the rest healthy, and the alarms of the last."""
    monitor, alarms = Monitor(), []
    for value in values:
        alarms = monitor.check({**HEALTHY, metric: value})
    return alarms


@pytest.mark.parametrize(
    ("name", "metric", "quiet", "off"),
    [
        ("no_reward", "reward/max", (0.01,), (0.0,)),
        ("length_limit", "length/at_limit", (0.3,), (0.31,)),
        ("truncation", "rollout/truncated", (0.3,), (0.4,)),
        ("length_explosion", "length/action_tokens", (40.0, 80.0), (40.0, 81.0)),
        ("turns_explosion", "rollout/turns", (3.0, 6.0), (3.0, 6.1)),
        ("mask_leak", "mask/obs_leak", (0.0,), (1.0,)),
        ("mask_mismatch", "mask/trained_equals_sampled", (1.0,), (0.0,)),
        ("entropy_collapse", "policy/entropy", (2.0, 0.21), (2.0, 0.19)),
        ("kl", "ratio/approx_kl_max", (0.094535,), (0.11,)),  # k3 of a ratio of 1.5 is no alarm yet
        ("reference_kl", "kl/reference_k3", (0.1,), (0.2,)),
        ("mismatch", "mismatch/kl", (0.1,), (0.2,)),
        ("clip", "ratio/clip_frac_hi", (0.3,), (0.31,)),
        ("skipped", "skip/nonfinite", (0.0,), (2.0,)),
        ("nonfinite", "adv/mean", (0.0,), (float("nan"),)),
        ("empty_batch", "skip/empty_batch", (0.0,), (1.0,)),
        ("equal_rewards", "group/zero_std_frac", (0.5,), (1.0,)),
        ("zero_variance", "group/zero_std_frac", (0.7,), (0.75,)),
        ("singletons", "group/singleton_frac", (0.5,), (1.0,)),
        ("failed_steps", "rollout/exec_fail", (0.9,), (0.95,)),
        ("tool_collapse", "tools/entropy_share", (0.817345,), (0.19,)),
        ("unknown_tools", "tools/unknown", (0.1,), (0.2,)),
        ("loops", "loop/run_mean", (2.9,), (3.0,)),
        ("shaping_share", "reward/shaping_share", (0.5,), (0.6,)),
        ("judge_gap", "reward/judge_gap", (0.3,), (0.4,)),
        ("grad_norm", "update/grad_norm", (1.0, 1.1) * 5 + (1.3,), (1.0, 1.1) * 5 + (5.0,)),
        ("reward_collapse", "reward/mean", (0.8,) * 5 + (0.1,) * 2, (0.8,) * 5 + (0.1,) * 3),
    ],
)
def test_each_alarm(name, metric, quiet, off):
    assert history(metric, *quiet) == []
    assert names(history(metric, *off)) == [name]


def test_every_alarm_has_a_threshold_and_every_threshold_an_alarm():
    assert {*RULES, "grad_norm", "reward_hacking", "reward_collapse"} == set(AlarmThresholds.model_fields)


def test_quiet_on_a_healthy_run():
    monitor = Monitor()
    assert all(monitor.check(HEALTHY) == [] for _ in range(20))
    assert monitor.sounding == 0


def evaluated(rewards, successes, config=None):
    """Two iterations and an evaluation for each pair."""
    monitor, alarms = Monitor(config), []
    for reward, success in zip(rewards, successes):
        for _ in range(2):
            monitor.check({**HEALTHY, "reward/mean": reward})
        alarms = monitor.evaluated(success)
    return alarms


RISING = (0.3, 0.4, 0.5, 0.6, 0.7)


@pytest.mark.parametrize(
    ("rewards", "successes", "expected"),
    [
        (RISING, (0.5, 0.5, 0.45, 0.4, 0.4), ["reward_hacking"]),
        (RISING, (0.5, 0.5, 0.5, 0.5, 0.5), ["reward_hacking"]),
        (RISING, (0.3, 0.35, 0.4, 0.5, 0.5), []),  # success rises with it
        (RISING[:4], (0.5, 0.5, 0.45, 0.4), []),  # too few evaluations
        ((0.5, 0.4, 0.5, 0.4, 0.5), (0.5, 0.5, 0.5, 0.5, 0.5), []),  # nothing rises
        (RISING, (0.98, 0.98, 0.98, 0.97, 0.98), []),  # solved: success has nowhere to go
    ],
)
def test_reward_hacking(rewards, successes, expected):
    assert names(evaluated(rewards, successes)) == expected


def test_reward_hacking_sounds_once_and_can_be_switched_off():
    assert names(evaluated((*RISING, 0.8), (0.5,) * 6)) == []  # it has sounded at the fifth
    off = AlarmConfig.parse({"thresholds": {"reward_hacking": "off"}})
    assert evaluated(RISING, (0.5,) * 5, off) == []


def test_an_alarm_is_told_once_until_it_was_over_for_long():
    monitor = Monitor()
    bad, good = {"rollout/truncated": 0.4}, {"rollout/truncated": 0.1}
    assert [len(monitor.check(m)) for m in (bad, bad, good, bad)] == [1, 0, 0, 0]
    assert monitor.sounding == 1  # though it is no news
    assert [len(monitor.check(m)) for m in [good] * (QUIET - 1) + [bad]] == [0] * QUIET
    assert [len(monitor.check(m)) for m in [good] * QUIET + [bad, bad]] == [0] * QUIET + [1, 0]


def test_a_resumed_monitor_knows_what_was_heard():
    one, two = Monitor(), Monitor()
    for metrics in ({"rollout/truncated": 0.4}, {"rollout/truncated": 0.1}):
        one.check(metrics)
    two.restore(one.state())
    assert two.check({"rollout/truncated": 0.4}) == []


def test_words_say_what_since_when_why_and_what_to_try():
    monitor = Monitor()
    monitor.check({})
    (alarm,) = monitor.check({"rollout/truncated": 0.4})
    assert alarm.since == 2
    for part in ("40%", "since iteration 2", "Usual causes: ", "Try: raise rollout.max_tokens"):
        assert part in alarm.message


def test_the_order_is_that_of_finding_faults():
    bad = {"rollout/exec_fail": 1.0, "group/zero_std_frac": 1.0, "mask/obs_leak": 2.0, "reward/max": 0.0}
    assert names(Monitor().check(bad)) == ["no_reward", "mask_leak", "equal_rewards", "failed_steps"]


def test_a_fallen_return_began_with_the_window():
    monitor = Monitor()
    alarms = [monitor.check({"reward/mean": value}) for value in (0.8,) * 5 + (0.1,) * 5]
    assert [names(found) for found in alarms] == [[]] * 7 + [["reward_collapse"]] + [[]] * 2
    assert alarms[7][0].since == 4  # the mean is that of iterations 4 to 8


def test_a_return_that_was_never_positive_has_nothing_to_fall_from():
    monitor = Monitor()
    assert all(monitor.check({"reward/mean": value}) == [] for value in (-0.1,) * 5 + (-1.0,) * 9)


def test_thresholds_and_off():
    def off(value):
        config = AlarmConfig.parse({"thresholds": {"truncation": value}})
        return names(Monitor(config).check({"rollout/truncated": 0.4}))

    assert off(0.5) == off(False) == off("off") == off(None) == []
    assert off(0.0) == ["truncation"]


def test_a_collapse_needs_patience_and_is_given_once():
    monitor = Monitor(AlarmConfig.parse({"patience": 2}))
    found = []
    for entropy in (1.0, 0.05, 0.5, 0.05, 0.05, 0.05):
        monitor.check({"policy/entropy": entropy})
        alarm = monitor.collapse()
        found.append(alarm and (alarm.name, alarm.since))
    assert found == [None, None, None, None, ("entropy_collapse", 4), None]


def test_only_what_the_run_file_names_is_a_collapse():
    monitor = Monitor(AlarmConfig.parse({"patience": 1, "collapse": ["truncation"]}))
    monitor.check({"skip/nonfinite": 1.0})
    assert monitor.collapse() is None
    monitor.check({"rollout/truncated": 1.0})
    assert monitor.collapse().name == "truncation"


def test_state_goes_on():
    """A resumed monitor says the same at every later iteration, evaluations included."""
    one, two = Monitor(), Monitor()
    bad = [{**HEALTHY, "policy/entropy": 1 / (i + 1), "reward/mean": 0.9 / (i + 1)} for i in range(16)]
    said = []
    for i, metrics in enumerate(bad):
        if i == 7:
            two.begin(rolls_out=False)
            two.restore(one.state())
        said.append((one.check(metrics), one.evaluated(0.5), one.collapse()))
        if i >= 7:
            assert (two.check(metrics), two.evaluated(0.5), two.collapse()) == said[-1]
    assert {name for alarms, _, _ in said for name in names(alarms)} == {
        "entropy_collapse",
        "reward_collapse",
    }


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
    broken = {"skip/nonfinite": 1.0, "grad_norm": float("inf")}
    assert names(monitor.check(broken)) == ["skipped", "nonfinite", "grad_norm"]
