"""AgentEvolver's attribution at the specification's numbers, and what it must reduce to."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from jaxagent.credit.attribution import (
    Attribution,
    Fusion,
    Labelled,
    attribution_channel,
    cosine_alpha,
    fused,
    outcome_channel,
    outcome_labels,
)
from jaxagent.credit.group import group_std, per_group
from jaxagent.credit.stats import credit_metrics
from jaxagent.errors import ConfigError
from jaxagent.rewards.step_rewards import discounted
from jaxagent.types import Group, Status
from tests.made_episodes import make_task, make_trajectory

LABELS = [np.array([1.0, -1.0]), np.array([1.0, 1.0, -1.0])]  # GB, GGB


@dataclass
class Given:
    """A labeller that answers by rollout, and remembers what it was asked about."""

    by_rollout: dict = field(default_factory=lambda: dict(enumerate(LABELS)))
    asked: list = field(default_factory=list)

    def __call__(self, trajectories):
        self.asked += [t.rollout for t in trajectories]
        return Labelled(tuple(self.by_rollout[t.rollout] for t in trajectories), (False,) * len(trajectories))

    def close(self):
        self.asked.append("closed")


def total(reward_K):
    """Sum from each step on."""
    return discounted(reward_K, 1.0)


def group(returns=(1.0, 0.0), lengths=(2, 3)):
    task = make_task()
    made = [
        make_trajectory(r, steps=["ok"] * n, rollout=i, task=task)
        for i, (r, n) in enumerate(zip(returns, lengths))
    ]
    return Group(task, tuple(made))


def advantages(*groups, label=None, alpha=0.1, **fusion):
    return [
        item.advantage_K for item in Attribution(label or Given(), lambda: alpha, Fusion(**fusion))(groups)
    ]


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_channels():
    """mu .166667 over trajectories, not steps (.2); sigma .986013, the paper's .166667."""
    attr, measured = attribution_channel(LABELS)
    close(attr, [[0.845154, -1.183216], [0.845154, 0.845154, -1.183216]])
    assert measured["attribution/mu"] == pytest.approx(0.166667, abs=1e-6)
    assert measured["attribution/sigma"] == pytest.approx(0.986013, abs=1e-6)
    pooled = np.concatenate(LABELS)  # over all steps, where the longer episode would count for more
    assert [pooled.mean(), pooled.std()] == pytest.approx([0.2, 0.979796], abs=1e-6)
    assert [labels.mean() for labels in LABELS] == pytest.approx([0.0, 0.333333], abs=1e-6)
    paper, measured = attribution_channel(LABELS, sigma="traj_mean_std")
    assert measured["attribution/sigma"] == pytest.approx(0.166667, abs=1e-6)
    assert paper[0] == pytest.approx([5, -7])
    assert outcome_channel(np.array([1.0, 0.0])) == pytest.approx([1, -1])


def test_fusion_then_the_sum_from_each_step_on():
    attr, _ = attribution_channel(LABELS)
    steps = [fused(0.1 * a, out, Fusion()) for a, out in zip(attr, (1.0, -1.0))]
    close(steps, [[0.084515, 0.881678], [0.084515, 0.084515, -1.118322]])
    expected = [[0.966194, 0.881678], [-0.949291, -1.033806, -1.118322]]
    close([total(reward_K) for reward_K in steps], expected)
    close(advantages(group()), expected)


def test_without_labels_it_is_the_outcomes_z_score_for_every_step():
    found = advantages(group(), alpha=0.0)
    close(found, [[1, 1], [-1, -1, -1]])
    z_score = per_group(group_std(ddof=0, eps=1e-8))([group()])
    close(found, [item.advantage_K for item in z_score])


def test_at_alpha_0_nobody_is_asked():
    label = Given()
    advantages(group(), label=label, alpha=0.0)
    assert label.asked == []


def test_equal_labels_say_nothing_and_equal_returns_leave_the_labels():
    same = Given({0: np.ones(2), 1: np.ones(3)})
    close(advantages(group(), label=same), [[1, 1], [-1, -1, -1]])
    flat = advantages(group(returns=(1.0, 1.0)))
    close(flat, [[-0.033806, -0.118322], [0.050709, -0.033806, -0.118322]])


def test_equal_trajectory_means_do_not_explode_under_the_papers_sigma():
    mirrored = [np.array([1.0, -1.0]), np.array([-1.0, 1.0])]
    attr, measured = attribution_channel(mirrored, sigma="traj_mean_std")
    close(attr, mirrored)
    assert measured["attribution/sigma"] == 0


def test_the_outcome_at_every_step_and_division_by_the_root_of_the_length():
    attr, _ = attribution_channel(LABELS)
    everywhere = [total(0.1 * a + out) for a, out in zip(attr, (1.0, -1.0))]
    close(advantages(group(), orm_distribution="all_steps"), everywhere)
    rooted = [a / np.sqrt(a.size) for a in advantages(group())]
    close(advantages(group(), sqrt_length=True), rooted)
    close(advantages(group(), beta=0.0), [total(0.1 * a) for a in attr])


def test_labels_against_the_outcome_may_count_less():
    """.2: the BAD of the success and the two GOOD of the failure."""
    weak = [np.array([1.0, -0.2]), np.array([0.2, 0.2, -1.0])]
    attr, _ = attribution_channel(weak)
    expected = [total(fused(0.1 * a, out, Fusion())) for a, out in zip(attr, (1.0, -1.0))]
    close(advantages(group(), inconsistent=0.2), expected)


def test_who_is_asked():
    label = Given()
    found = advantages(group(), label=label, skip="failed")
    assert label.asked == [0]
    close(found[1:], [[-1, -1, -1]])  # without labels the outcome's part alone
    close(found[:1], [total(fused(0.1 * np.array([1.0, -1.0]), 1.0, Fusion()))])  # mu 0, sigma 1
    label = Given()
    middle = group(returns=(1.0, 0.5, 0.0), lengths=(2, 3, 1))
    label.by_rollout[2] = np.ones(1)
    advantages(middle, label=label, skip="no_advantage")
    assert label.asked == [0, 2]


def test_dropped_members_empty_groups_and_single_steps():
    lost = make_trajectory(1.0, steps=["ok"], rollout=7, status=Status.ENV_FAILED)
    made = group()
    with_lost = Group(made.task, (lost, *made.trajectories))
    close(advantages(with_lost), advantages(made))
    assert advantages() == advantages(Group(made.task, ())) == []
    single = Given({0: np.ones(1), 1: -np.ones(1)})
    close(advantages(group(lengths=(1, 1)), label=single), [[1.1], [-1.1]])
    empty = Given({0: np.zeros(0), 1: np.ones(1)})
    found = advantages(group(lengths=(0, 1)), label=empty)
    assert [a.shape for a in found] == [(0,), (1,)]


def test_several_groups_are_asked_about_at_once_and_never_mixed():
    alone, both = advantages(group()), advantages(group(), group(returns=(0.0, 1.0)))
    close(both[:2], alone)
    close(both[2:], advantages(group(returns=(0.0, 1.0))))


def test_alpha_decays_to_nothing():
    values = {t: cosine_alpha(0.1, t, 40) for t in (0, 10, 20, 40, 50)}
    assert values == pytest.approx({0: 0.1, 10: 0.085355, 20: 0.05, 40: 0.0, 50: 0.0}, abs=1e-6)


def test_what_is_logged():
    out = credit_metrics(Attribution(Given(), lambda: 0.1)([group()]))
    assert out["attribution/good_frac"] == 0.6
    assert out["attribution/failures"] == 0
    assert out["attribution/asked"] == 2
    assert out["attribution/label_return_corr"] == pytest.approx(-1)
    assert out["attribution/out_abs"] == pytest.approx(1)
    assert out["attribution/attr_abs"] == pytest.approx((0.2028370 + 0.2873524) / 2, abs=1e-6)
    assert out["attribution/mu"] == pytest.approx(1 / 6)
    assert out["attribution/seconds"] >= 0


def test_outcome_labels_and_closing():
    assert outcome_labels(make_trajectory(1.0, steps=["ok"] * 3)).tolist() == [1, 1, 1]
    assert outcome_labels(make_trajectory(0.5, steps=["ok"] * 2)).tolist() == [-1, -1]
    label = Given()
    Attribution(label, lambda: 0.1).close()
    assert label.asked == ["closed"]


@pytest.mark.parametrize("wrong", [{"beta": -1.0}, {"inconsistent": 2.0}])
def test_bad_options_are_refused(wrong):
    with pytest.raises(ConfigError, match="beta >= 0 and a factor"):
        Fusion(**wrong)
