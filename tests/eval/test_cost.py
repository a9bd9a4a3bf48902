"""FLOPs by hand, and seconds a solved episode."""

from dataclasses import replace

import pytest

from jaxagent.eval.cost import flop_metrics, multiplied_parameters, time_metrics
from jaxagent.model.spec import ModelSpec
from tests.made_episodes import make_trajectory

TINY = ModelSpec(
    family="qwen3",
    vocab=10,
    width=8,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=4,
    mlp=5,
    tied=True,
    qk_norm=True,
)


def test_parameters_that_are_multiplied():
    attention = 8 * 8 * 2 + 8 * 4 * 2
    assert multiplied_parameters(TINY) == 2 * (attention + 3 * 8 * 5) + 10 * 8
    assert multiplied_parameters(replace(TINY, tied=False)) == multiplied_parameters(TINY)
    moe = replace(TINY, family="qwen3_moe", experts=16, experts_per_token=2)
    assert multiplied_parameters(moe) == 2 * (attention + 2 * 3 * 8 * 5 + 8 * 16) + 10 * 8


def test_qwen_7b_multiplies_7_billion():
    spec = ModelSpec(
        family="qwen2",
        vocab=152064,
        width=3584,
        layers=28,
        heads=28,
        kv_heads=4,
        head_dim=128,
        mlp=18944,
        qkv_bias=True,
    )
    assert multiplied_parameters(spec) == pytest.approx(7.07e9, rel=0.001)


def test_flops_of_a_rollout():
    """One token of prompt, two messages of two tokens: 5 positions once; contexts of 3 and 5 anew at each turn."""
    n, each = multiplied_parameters(TINY), 4 * 2 * 8
    out = flop_metrics([make_trajectory(steps=["ok", "ok"])], TINY)
    assert out["flops"] == 2 * n * 5 + each * 15
    assert out["flops_no_cache"] == 2 * n * 8 + each * (6 + 15)
    assert flop_metrics([make_trajectory()], None) == flop_metrics([], TINY) == {}
    unknown = replace(make_trajectory(), segments=(), extra={"usage": None})
    assert flop_metrics([make_trajectory(), unknown], TINY) == {}


def test_seconds_a_solved_episode():
    played = [replace(make_trajectory(float(i < 2)), extra={"env_s": 3.0}) for i in range(4)]
    out = time_metrics(played, {"wall": 10.0, "decode": 6.0}, chips=8)
    assert out == {
        "wall_s": 10.0,
        "decode_s": 6.0,
        "env_s": 12.0,
        "chip_s": 80.0,
        "env_s_per_solved": 6.0,
        "chip_s_per_solved": 40.0,
    }
    unsolved = time_metrics(played[2:], {"wall": 10.0}, chips=0)
    assert unsolved == {"wall_s": 10.0, "env_s": 6.0}
