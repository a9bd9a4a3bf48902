import numpy as np
import pytest

from jaxagent.credit.batch import reinforce, reinforce_pp, whiten
from jaxagent.types import Group
from tests.made_episodes import make_group, make_step, make_task, make_trajectory


def scalars(items):
    return [float(item.advantage_K[0]) for item in items]


def test_reinforce():
    group = make_group([1.0, 0.0])
    assert scalars(reinforce(baseline=0.5)([group])) == [0.5, -0.5]
    assert scalars(reinforce(baseline=0.0)([group])) == [1.0, 0.0]
    assert scalars(reinforce()([group, make_group([1.0, 1.0])])) == [0.25, -0.75, 0.25, 0.25]
    assert reinforce()([]) == []


@pytest.mark.parametrize("group_baseline", [False, True])
def test_reinforce_pp_weighs_by_tokens(group_baseline):
    task = make_task()
    short = make_trajectory(1.0, steps=[make_step(0, tokens=2)])
    long = make_trajectory(0.0, steps=[make_step(0, tokens=3), make_step(1, tokens=1)])
    out = reinforce_pp(group_baseline=group_baseline)([Group(task, (short, long))])
    assert scalars(out) == pytest.approx([1.290994, -0.645497], abs=1e-6)
    assert out[1].advantage_K.shape == (2,)


def test_reinforce_pp_degenerate_batches():
    assert scalars(reinforce_pp()([make_group([0.7])])) == [0.0]
    assert scalars(reinforce_pp()([make_group([0.7, 0.7])])) == [0.0, 0.0]
    assert reinforce_pp()([]) == []
    assert whiten(np.array([3.0]), np.array([1])).tolist() == [0.0]
