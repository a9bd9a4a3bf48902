"""One checkpoint holds everything that a run needs to go on: arrays and host state, written as one unit.

    run/checkpoints/
      00000010.0/          step 10, first attempt
        device/            Orbax: one entry a leaf, named by its path in the tree ("params/layers/q/kernel")
        host.json          RNG seeds, source states, stage index, iteration, counters, fingerprint
        commit.json        written last, in one rename: leaves, shapes, dtypes, and the size of every file

A checkpoint without a valid commit.json, or whose files are not those it lists, was interrupted: it is
skipped on restore and removed by a later save. Nothing that was committed is ever overwritten; saving a step
again makes a new attempt. Writing happens in the background: `save` returns when the arrays are copied, so
that the caller may donate them. Not the job of this file: what belongs in the state (train.py), HF export.
"""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from jaxagent.checkpoint_files import (
    COMMIT,
    DEVICE,
    HOST,
    checkpoint_folders,
    committed,
    sizes_of,
    whole_steps,
    write_whole,
)
from jaxagent.checkpoint_state import abstract, check_leaves, host_json, like, named, signature
from jaxagent.errors import ConfigError, DataError

log = logging.getLogger(__name__)

CRITIC = "critic/"  # below them: the value head
PARAMS = ("train/params/", "params/")  # where the loop keeps parameters: within a stage, at its end


@dataclass(frozen=True)
class Restored:
    step: int
    device_state: Any
    host_state: Mapping[str, Any]


class Checkpointer:
    """Owns the checkpoint folder of a run. Every process of a multi-host run calls every method.

    keep: newest checkpoints that stay.
    """

    def __init__(self, folder: str | epath.PathLike, *, keep: int = 3):
        if keep < 1:
            raise ConfigError(
                f"checkpoint keep={keep} would delete the checkpoint just written; set it to 1 or more"
            )
        self.folder = epath.Path(folder).absolute()
        self.keep = keep
        self._orbax = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    # --- writing ---------------------------------------------------------------------------------------

    def save(self, step: int, device_state: Any, host_state: Mapping[str, Any]) -> None:
        """Start writing a checkpoint; returns when `device_state` may be donated.

        device_state: any pytree of arrays and numbers. host_state: JSON values, string keys. What goes wrong
        in the background is raised by the next `save` or `wait`.
        """
        if step < 0:
            raise DataError(f"checkpoint step {step}; expected 0 or more")
        host = host_json(host_state)
        leaves = named(device_state)
        self.wait()
        target = self.folder / self._new_name(step)
        primary = jax.process_index() == 0
        if primary:
            target.mkdir(parents=True, exist_ok=True)
            (target / HOST).write_text(host)
        arrays = {
            name: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for name, leaf in leaves.items()
        }
        self._orbax.save(target / DEVICE, args=ocp.args.StandardSave(arrays))
        record = {
            "step": step,
            "host_crc32": zlib.crc32(host.encode()),
            "leaves": {name: signature(leaf) for name, leaf in leaves.items()},
        }
        self._thread = threading.Thread(target=self._finish, args=(target, record, primary), daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Return when the last save is committed; raise what went wrong while it was written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise DataError(f"the last checkpoint could not be written to {self.folder}: {error}") from error

    def close(self) -> None:
        self.wait()
        self._orbax.close()

    def _finish(self, target: epath.Path, record: dict[str, Any], primary: bool) -> None:
        """Background thread: wait for the arrays, commit, drop what is no longer kept."""
        try:
            self._orbax.wait_until_finished()
            if primary:
                write_whole(target / COMMIT, json.dumps(record | {"files": sizes_of(target)}))
                self._prune()
        except BaseException as error:  # handed to the caller of the next save() or wait()
            self._error = error

    def _prune(self) -> None:
        kept: list[int] = []
        for path, step in reversed(self._folders()):
            whole = step not in kept and committed(path) is not None
            if whole and len(kept) < self.keep:
                kept.append(step)
                continue
            # First, so that a kill in between leaves none that looks whole.
            (path / COMMIT).unlink(missing_ok=True)
            path.rmtree()

    def _new_name(self, step: int) -> str:
        """A name not taken by a committed checkpoint; a half-written one under it is removed."""
        taken = {path.name for path, _ in self._folders()}
        attempt = 0
        while (name := f"{step:08d}.{attempt}") in taken:
            attempt += 1
        return name

    # --- reading ---------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        return whole_steps(self.folder)

    def latest_host(self) -> Mapping[str, Any] | None:
        """Host state of the newest whole checkpoint: it may say which template the arrays need."""
        found = self._latest()
        return None if found is None else json.loads((found[0] / HOST).read_text())

    def hosts(self) -> dict[int, Mapping[str, Any]]:
        """Host state of every whole checkpoint, by step."""
        whole = [(step, path) for path, step in self._folders() if committed(path) is not None]
        return {step: json.loads((path / HOST).read_text()) for step, path in whole}

    def restore_latest(self, template: Any) -> Restored | None:
        """The newest whole checkpoint, or None. See `restore` for `template`."""
        found = self._latest()
        return None if found is None else self._load(*found, template)

    def restore(self, step: int, template: Any) -> Restored:
        """A given step. `template`: arrays, ShapeDtypeStructs and numbers as expected."""
        return self._load(*self._whole(step), template)

    def restore_params(self, template: Any, *, step: int | None = None) -> Any:
        """The parameters alone of a whole checkpoint, whatever else is in it; the newest, if no step is given.

        A value head that the template lacks is left where it is: only training needs it.
        """
        path, record = self._whole(step)
        prefix = next((p for p in PARAMS if any(name.startswith(p) for name in record["leaves"])), PARAMS[0])
        wanted = {prefix + name: leaf for name, leaf in named(template).items()}
        unwanted = prefix + CRITIC
        saved = {
            name: leaf
            for name, leaf in record["leaves"].items()
            if name.startswith(prefix) and (name in wanted or not name.startswith(unwanted))
        }
        check_leaves(path, saved, wanted)
        item = {name: abstract(leaf) for name, leaf in wanted.items()}
        how = ocp.checkpoint_utils.construct_restore_args(item)
        args = ocp.args.PyTreeRestore(item=item, restore_args=how, partial_restore=True)
        reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
        arrays = _read(path, lambda: reader.restore(path / DEVICE, args=args))
        reader.close()
        return jax.tree.unflatten(jax.tree.structure(template), [arrays[name] for name in wanted])

    def _whole(self, step: int | None) -> tuple[epath.Path, Mapping[str, Any]]:
        """The checkpoint of a step, or the newest. Raises DataError if there is none."""
        if step is None:
            if (newest := self._latest()) is None:
                raise DataError(
                    f"no whole checkpoint in {self.folder}; a run writes one at the end of each stage"
                )
            return newest
        for path, found in reversed(self._folders()):
            if found == step and (record := committed(path)) is not None:
                return path, record
        raise DataError(f"no whole checkpoint of step {step} in {self.folder}; there are {self.steps()}")

    def _latest(self) -> tuple[epath.Path, Mapping[str, Any]] | None:
        for path, _ in reversed(self._folders()):
            if (record := committed(path)) is not None:
                return path, record
            log.warning("skipping %s: it was not written to its end", path)
        return None

    def _load(self, path: epath.Path, record: Mapping[str, Any], template: Any) -> Restored:
        wanted = named(template)
        check_leaves(path, record["leaves"], wanted)
        target = {name: abstract(leaf) for name, leaf in wanted.items()}
        args = ocp.args.StandardRestore(target)
        arrays = _read(path, lambda: self._orbax.restore(path / DEVICE, args=args))
        leaves = [like(arrays[name], leaf) for name, leaf in wanted.items()]
        state = jax.tree.unflatten(jax.tree.structure(template), leaves)
        return Restored(record["step"], state, json.loads((path / HOST).read_text()))

    def _folders(self) -> list[tuple[epath.Path, int]]:
        return checkpoint_folders(self.folder)


def _read(path: epath.Path, restore: Callable[[], Any]) -> Any:
    """Run Orbax; what it finds wrong inside a file is damage, since shapes and names were checked before."""
    try:
        return restore()
    except (ValueError, OSError, KeyError) as error:
        raise DataError(
            f"checkpoint {path} is damaged ({error}); delete that folder to resume from the one before it"
        ) from error
