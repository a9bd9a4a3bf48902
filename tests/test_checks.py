"""Decoder against trainer, before the first update."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.batch.mismatch import difference_metrics
from jaxagent.checks import Tolerance, check_parity, own
from jaxagent.errors import ParityError
from jaxagent.types import Group
from tests.made_episodes import make_task, make_trajectory


def group(old, *, rollout=0, **extra):
    """One step: a prompt token, then sampled ones of which the sampler said -1."""
    trajectory = make_trajectory(1, task=make_task("a"), rollout=rollout, steps=["ok"])
    (segment,) = trajectory.segments
    streams = {"old": np.float32([0, *old]), "behaviour": np.float32([0, *[-1] * len(old)])}
    segment = replace(
        segment,
        ids_T=np.arange(len(old) + 1, dtype=np.int32),
        mask_T=np.array([False] + [True] * len(old)),
        step_T=np.array([-1] + [0] * len(old), np.int32),
        logprobs=streams,
    )
    return Group(make_task("a"), (replace(trajectory, segments=(segment,), extra=extra),))


def test_the_difference_of_sampler_and_trainer():
    """Differences .5, -.25, 0, 0: k3 is e^d - 1 - d, .148721, .028801, 0, 0."""
    found = difference_metrics([group([-0.5, -1.25]), group([-1, -1])])
    assert found["mismatch/abs_mean"] == pytest.approx(0.75 / 4)
    assert found["mismatch/abs_max"] == pytest.approx(0.5)
    assert found["mismatch/kl"] == pytest.approx((0.148721 + 0.028801) / 4, abs=1e-6)
    assert difference_metrics([]) == {}


def test_the_worst_token_is_named():
    groups = [group([-1, -1]), group([-1, -1, -1.5])]
    check_parity(groups, Tolerance(mean=0.2, single=0.6))
    for tolerance in (Tolerance(0.05, 0.6), Tolerance(0.2, 0.4)):
        with pytest.raises(ParityError, match=r"token 3 \(id 3\): sampler -1\.0000, trainer -1\.5000"):
            check_parity(groups, tolerance)
    check_parity([], Tolerance(0.0, 0.0))


def test_what_other_weights_have_sampled_need_not_agree():
    assert own([group([-3], weights="reference")])[0].trajectories == ()
    assert len(own([group([-3])])[0].trajectories) == 1
