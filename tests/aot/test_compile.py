"""Training step, hand-off and decoder compile for a real TPU target on this machine, kernels included."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = {  # a compile-only TPU client; several may be loaded at once, other test processes may hold one
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "XLA_FLAGS": "",
}
MB = 2**20
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra: tpu)"
    ),
]


def compiled(**wanted):
    run = subprocess.run(
        [sys.executable, "-m", "tests.aot.programs", json.dumps(wanted)],
        env=os.environ | ENVIRONMENT,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("model", "lora", "axes", "limit"),
    [
        # Weights, gradients and two moments of 11 M parameters are 44 MB on each of 4 chips; of 18 M, 72 MB.
        ("dense", False, {"fsdp": 2, "tensor": 2}, 200),
        ("dense", False, {"fsdp": 2, "context": 2}, 200),
        ("dense", True, {"fsdp": 2, "tensor": 2}, 100),
        ("moe", False, {"fsdp": 2, "tensor": 2}, 200),
        # Rows of 192 tokens, heads of 64, products in float32: what `python launch/tpu_run.py` runs.
        ("quickstart", False, {"fsdp": 4}, 50),
    ],
    ids=["tensor", "context", "lora", "moe", "quickstart"],
)
def test_the_update_compiles(model, lora, axes, limit):
    found = compiled(program="update", model=model, lora=lora, axes=axes)
    # Forward, its recomputation, and the two backward kernels (dq; dk and dv).
    assert found["kernels"] >= 3, found
    assert found["peak"] < limit * MB, found
    if model != "quickstart":  # tokens are exchanged for heads only where the context axis asks for it
        assert (found["all_to_all"] > 0) == ("context" in axes), found


@pytest.mark.parametrize(("model", "lora"), [("dense", True), ("moe", False)], ids=["lora", "moe"])
def test_the_decoder_compiles_and_works_in_place(model, lora):
    found = compiled(program="decoder", model=model, lora=lora, axes={"fsdp": 2, "tensor": 2})
    assert set(found) == {"hand_off", "prefill/2", "decode/2", "decode/16", "copy/8"}
    cache = found["copy/8"]["arguments"]  # 16 slots x 32,768 tokens of 4 layers: 1 GB a chip
    assert cache > 1000 * MB
    assert found["decode/16"]["temporary"] < 0.01 * cache, found  # all slots: no copy of the cache
    assert found["copy/8"]["temporary"] < 0.15 * cache, found  # one of 8 slots
    for program in (
        "prefill/2",
        "decode/2",
    ):  # a working copy of two slots and their scores, not of the cache
        assert found[program]["temporary"] < 0.6 * cache, (program, found)
