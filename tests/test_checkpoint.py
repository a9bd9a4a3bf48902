import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagent.checkpoint import Checkpointer
from jaxagent.errors import ConfigError, DataError

ROOT = Path(__file__).parents[1]


class Moments(NamedTuple):
    mu: jax.Array
    nu: jax.Array


def make_state(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "params": {
            "layers": {"q": jnp.asarray(rng.normal(size=(8, 4)), jnp.float32)},
            "head": jnp.ones(4, jnp.bfloat16),
        },
        "opt": (
            Moments(jnp.asarray(rng.normal(size=(8, 4)), jnp.float32), jnp.zeros((8, 4), jnp.float32)),
            None,
        ),
        "key": jax.random.key(seed),
        "step": jnp.asarray(seed, jnp.int32),
        "version": seed,
    }


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert np.asarray(x).dtype == np.asarray(y).dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.fixture
def checkpointer(tmp_path):
    checkpointer = Checkpointer(tmp_path, keep=2)
    yield checkpointer
    checkpointer.close()


def write(checkpointer, *steps):
    for step in steps:
        checkpointer.save(step, make_state(step), {"iteration": step})
    checkpointer.wait()


def test_round_trip_is_bit_exact(checkpointer):
    host = {
        "source": {"epoch": 2, "rng": 2**127 + 1},
        "ema": 0.1,
        "fingerprint": "é",
        "list": [1, None, True],
    }
    checkpointer.save(7, make_state(7), host)
    checkpointer.wait()
    out = checkpointer.restore_latest(make_state(0))
    assert out.step == 7
    assert out.host_state == checkpointer.latest_host() == host
    same(out.device_state, make_state(7))
    assert type(out.device_state["version"]) is int


def test_nothing_to_restore(checkpointer):
    assert checkpointer.restore_latest(make_state()) is None
    assert checkpointer.latest_host() is None
    assert checkpointer.steps() == []


def test_the_state_may_be_donated_as_soon_as_save_returns(checkpointer):
    state = {"w": jnp.arange(1 << 18, dtype=jnp.float32)}
    checkpointer.save(1, state, {})
    spoil = jax.jit(lambda s: {"w": s["w"] * 0 - 1}, donate_argnums=0)
    jax.block_until_ready(spoil(state))
    checkpointer.wait()
    out = checkpointer.restore_latest({"w": jax.ShapeDtypeStruct((1 << 18,), jnp.float32)})
    assert np.array_equal(out.device_state["w"], np.arange(1 << 18, dtype=np.float32))


def test_restore_onto_another_sharding(checkpointer):
    eight = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    two = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("y",)), PartitionSpec(None, "y"))
    value = jnp.arange(32.0).reshape(8, 4)
    checkpointer.save(1, {"w": jax.device_put(value, eight)}, {})
    checkpointer.wait()
    out = checkpointer.restore_latest({"w": jax.ShapeDtypeStruct((8, 4), value.dtype, sharding=two)})
    assert out.device_state["w"].sharding == two
    assert np.array_equal(out.device_state["w"], value)


def test_keeps_the_newest(checkpointer):
    write(checkpointer, 1, 2, 3, 4)
    assert checkpointer.steps() == [3, 4]
    same(checkpointer.restore(3, make_state()).device_state, make_state(3))
    with pytest.raises(DataError, match=r"step 2 .*\[3, 4\]"):
        checkpointer.restore(2, make_state())


def test_saving_a_step_again_replaces_it_only_when_written(checkpointer, tmp_path):
    write(checkpointer, 1, 2)
    checkpointer.save(2, make_state(9), {"iteration": 99})
    checkpointer.wait()
    assert checkpointer.restore_latest(make_state()).host_state == {"iteration": 99}
    assert checkpointer.steps() == [1, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000001.0", "00000002.1"]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def test_every_truncated_or_missing_file_is_noticed(checkpointer, tmp_path):
    write(checkpointer, 1, 2)
    for path in files(tmp_path / "00000002.0"):
        content = path.read_bytes()
        for damage in ("truncated", "missing"):
            path.write_bytes(content[:-1]) if damage == "truncated" else path.unlink()
            assert checkpointer.steps() == [1], f"{damage} {path}"
            path.write_bytes(content)
    assert checkpointer.steps() == [1, 2]


def test_a_half_written_checkpoint_is_skipped_and_later_removed(checkpointer, tmp_path):
    write(checkpointer, 1, 2)
    (tmp_path / "00000002.0" / "commit.json").unlink()
    same(checkpointer.restore_latest(make_state()).device_state, make_state(1))
    write(checkpointer, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000001.0", "00000002.1"]


@pytest.mark.parametrize(
    "layout", [lambda p: {"params": p}, lambda p: {"train": {"params": p, "opt": {"mu": p}}}]
)
def test_parameters_alone(checkpointer, layout):
    params = {"q": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(2, jnp.bfloat16)}
    checkpointer.save(1, layout(params), {})
    checkpointer.wait()
    template = jax.tree.map(jnp.zeros_like, params)
    same(checkpointer.restore_params(template), params)
    with pytest.raises(DataError, match=r"params/q is float32\[2, 3\]"):
        checkpointer.restore_params(template | {"q": jnp.zeros((3, 3))})


def test_parameters_of_a_run_without_checkpoint(checkpointer):
    with pytest.raises(DataError, match="no whole checkpoint"):
        checkpointer.restore_params({})


def test_foreign_files_in_the_folder_are_left_alone(checkpointer, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    write(checkpointer, 1, 2, 3)
    assert (tmp_path / "notes.txt").exists()
    assert checkpointer.steps() == [2, 3]


def change(path, leaf):
    state = make_state()
    node = state
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = leaf
    return state


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            change(["params", "layers", "q"], jnp.zeros((8, 5))),
            r"params/layers/q is float32\[8, 4\].*float32\[8, 5\]",
        ),
        (change(["params", "head"], jnp.zeros(4, jnp.float32)), "params/head is bfloat16.*float32"),
        (change(["params", "extra"], jnp.zeros(4)), "params/extra is missing"),
        ({k: v for k, v in make_state().items() if k != "step"}, "step is not part of this run"),
    ],
)
def test_what_does_not_fit_is_named(checkpointer, template, message):
    write(checkpointer, 1)
    with pytest.raises(DataError, match=message):
        checkpointer.restore_latest(template)


# Which of its coroutines and reads Orbax drops when a restore fails depends on timing.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning"
)
def test_damage_inside_a_file_is_an_error_that_names_the_checkpoint(checkpointer, tmp_path):
    write(checkpointer, 1)
    for path in files(tmp_path / "00000001.0" / "device"):
        if path.parent.name == "d" or path.name == "manifest.ocdbt":
            path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(DataError, match=r"00000001.0 is damaged"):
        checkpointer.restore_latest(make_state())
    gc.collect()  # Orbax drops a coroutine when it fails; it is collected here, not in another test


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {1: 2}}, "host_state.a has the key 1"),
        ({"a": [0, np.int64(3)]}, r"host_state.a\[1\] is a int64"),
        ({"a": np.zeros(2)}, "host_state.a is a ndarray"),
    ],
)
def test_host_state_that_json_would_change_is_refused(checkpointer, state, message):
    with pytest.raises(DataError, match=message):
        checkpointer.save(1, make_state(), state)
    assert checkpointer.steps() == []


def test_an_error_while_writing_reaches_the_caller(checkpointer, monkeypatch):
    monkeypatch.setattr(
        "jaxagent.checkpoint.sizes_of", lambda path: (_ for _ in ()).throw(OSError("disk full"))
    )
    checkpointer.save(1, make_state(), {})
    with pytest.raises(DataError, match="disk full"):
        checkpointer.wait()


def test_keep_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="keep=0"):
        Checkpointer(tmp_path, keep=0)


WRITER = """
import os, signal, sys
import jax.numpy as jnp
from jaxagent import checkpoint
folder, die_at = sys.argv[1], sys.argv[2]
writer = checkpoint.Checkpointer(folder, keep=2)
start = len(writer.steps()) and writer.steps()[-1]
if die_at != "never":
    commit = checkpoint.write_whole
    def kill(path, text):
        if path.parent.name.startswith(die_at):
            os.kill(os.getpid(), signal.SIGKILL)
        commit(path, text)
    checkpoint.write_whole = kill
for step in range(start + 1, start + 1000):
    writer.save(step, {"w": jnp.full((256, 1024), step, jnp.float32)}, {"iteration": step})
    writer.wait()
    print(step, flush=True)
"""


def start_writer(folder, die_at):
    env = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), die_at],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        cwd=folder,
    )


def check_whole(folder) -> int:
    reader = Checkpointer(folder)
    out = reader.restore_latest({"w": jax.ShapeDtypeStruct((256, 1024), jnp.float32)})
    reader.close()
    assert (np.asarray(out.device_state["w"]) == out.step).all()
    assert out.host_state == {"iteration": out.step}
    return out.step


def test_killed_before_the_commit(tmp_path):
    """kill -9 when all arrays of step 3 are on disk and the commit record is not."""
    with start_writer(tmp_path, "00000003") as process:
        assert process.wait(timeout=120) == -signal.SIGKILL
    assert (tmp_path / "00000003.0" / "device").exists()
    assert check_whole(tmp_path) == 2


def test_killed_at_any_moment(tmp_path):
    last = 0
    for delay in (0.0, 0.017, 0.041):
        with start_writer(tmp_path, "never") as process:
            process.stdout.readline()
            printed = int(process.stdout.readline())
            time.sleep(delay)
            process.kill()
            rest = [int(line) for line in process.communicate()[0].split()]
        step = check_whole(tmp_path)
        assert step >= max([printed, *rest]) > last
        last = step
    assert json.loads((tmp_path / f"{last:08d}.0" / "commit.json").read_text())["step"] == last


def test_a_value_head_is_left_where_it_is_by_whoever_needs_none(checkpointer):
    params = {"q": jnp.arange(6.0).reshape(2, 3), "critic": {"out": jnp.ones(3)}}
    checkpointer.save(1, {"train": {"params": params}}, {})
    checkpointer.wait()
    same(checkpointer.restore_params({"q": jnp.zeros((2, 3))}), {"q": params["q"]})
    same(checkpointer.restore_params(jax.tree.map(jnp.zeros_like, params)), params)
    with pytest.raises(DataError, match="train/params/q is not part of this run"):
        checkpointer.restore_params({"critic": {"out": jnp.zeros(3)}})
