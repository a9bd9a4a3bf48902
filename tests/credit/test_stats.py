from dataclasses import replace

import numpy as np
import pytest

from jaxagent.credit.group import group_mean, per_group
from jaxagent.credit.gvpo import gvpo
from jaxagent.credit.stats import credit_metrics, group_metrics, lost_metrics
from jaxagent.types import Credited, Dropped, Group
from tests.made_episodes import make_group, make_step, make_task, make_trajectory


def test_group_metrics():
    groups = [make_group([1.0, 1.0]), make_group([0.0, 0.0]), make_group([1.0, 0.0]), make_group([0.5])]
    out = group_metrics(groups)
    assert out["group/zero_std_frac"] == 0.75
    assert out["group/all_pass_frac"] == 0.25
    assert out["group/all_fail_frac"] == 0.5
    assert out["group/singleton_frac"] == 0.25
    assert out["group/std_mean"] == pytest.approx(0.125)
    assert out["reward/mean"] == pytest.approx(3.5 / 7)
    assert out["reward/success"] == pytest.approx(3 / 7)


def test_credit_metrics_weigh_tokens_and_show_the_drift_of_shaping():
    steps = [make_step(0, tokens=3), make_step(1, tokens=1, status="timeout")]
    group = Group(make_task(), tuple(make_trajectory(0.5, steps=steps, rollout=i) for i in range(2)))
    plain, shaped = per_group(group_mean), gvpo(per_group(group_mean))
    assert credit_metrics(plain([group]))["adv/mean"] == 0
    out = credit_metrics(shaped([group]))
    assert out["adv/mean"] == pytest.approx(-0.05)
    assert out["adv/zero_frac"] == pytest.approx(0.75)
    assert out["step/fail_rate"] == 0.5
    assert out["step/fail_token_frac"] == 0.25


def test_what_the_reward_drops_is_counted_by_its_reason():
    """Dropped by the rollout already: counted there (rollout/dropped), not again."""
    early = Dropped("t0", 2, "hang")
    before = [replace(make_group([1.0, 0.0]), dropped=(early,))]
    late = (early, Dropped("t0", 0, "unjudged"), Dropped("t0", 1, "unjudged"))
    after = [replace(before[0], trajectories=(), dropped=late)]
    assert lost_metrics(before, after) == {"reward/dropped": 2.0, "reward/dropped/unjudged": 2.0}
    assert lost_metrics(before, before) == {}


def test_nothing_to_measure_is_no_crash():
    assert group_metrics([]) == {"group/count": 0.0}
    assert group_metrics([Group(make_task(), ())]) == {"group/count": 0.0}
    assert credit_metrics([]) == {"adv/trajectories": 0.0}
    empty = Credited(make_trajectory(steps=[]), np.zeros(0, np.float32))
    assert credit_metrics([empty]) == {"adv/trajectories": 1.0}


def with_parts(success, **parts):
    return replace(make_trajectory(0.5, success=success), extra={"reward_parts": parts})


def test_the_share_of_shaping_is_by_size():
    """Outcomes 1 and 0, terms +.2 and -.3: .5 of 1.5 in all, though they nearly cancel."""
    group = Group(
        make_task(),
        (with_parts(True, outcome=1.0, shaping=0.2), with_parts(False, outcome=0.0, shaping=-0.3)),
    )
    assert group_metrics([group])["reward/shaping_share"] == pytest.approx(0.5 / 1.5)
    assert "reward/shaping_share" not in group_metrics([make_group([1.0, 0.0])])


def test_a_judge_is_compared_with_the_verdict():
    group = Group(make_task(), (with_parts(True, judge=0.9), with_parts(False, judge=0.7)))
    assert group_metrics([group])["reward/judge_gap"] == pytest.approx((0.9 - 1 + 0.7) / 2)
