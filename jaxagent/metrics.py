"""The numbers of a run: one sink, several writers, which all see the same in the same order.

    sink = MetricSink(run_dir, after=restored_step)
    sink.log(12, {"reward/mean": 0.4, "time/update": 1.9})

`metrics.jsonl` is the record: one JSON object a line, flushed, so that a killed run leaves a readable file. A
run that goes on from step n removes the lines after n first; no step is recorded twice. A value that is not
finite is written as null and counted in "metrics/nonfinite" of the same line. What a person watches is in
console.py; what is drawn from the record is in report/.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jaxagent.errors import ConfigError, DataError

Record = dict[
    str, Any
]  # one line of metrics.jsonl: "step", "time", labels (text) and metrics (numbers, null)


@runtime_checkable
class Writer(Protocol):
    def write(self, step: int, metrics: Mapping[str, float | None], labels: Mapping[str, str]) -> None:
        """Record one call of `MetricSink.log`. None stands for a value that was not finite."""
        ...

    def close(self) -> None: ...


class MetricSink:
    """Hands metrics to every writer. `nonfinite` counts bad values by name over the life of the sink."""

    def __init__(self, run_dir: str | Path, *, after: int = -1, writers: Sequence[Writer] | None = None):
        """after: the step a run goes on from; what was recorded later is removed. -1 starts a new record."""
        self.run_dir = Path(run_dir)
        if writers is None:
            writers = (JsonlWriter(self.run_dir / "metrics.jsonl", after=after),)
        self.writers = tuple(writers)
        self.nonfinite: Counter[str] = Counter()

    def log(self, step: int, metrics: Mapping[str, Any], **labels: str) -> None:
        """Record numbers (what float() takes) of one step, and text labels such as the stage. Repeatable."""
        values: dict[str, float | None] = {}
        for name, value in metrics.items():
            number = _number(name, value)
            values[name] = number if math.isfinite(number) else None
        bad = [name for name, value in values.items() if value is None]
        if bad:
            self.nonfinite.update(bad)
            values["metrics/nonfinite"] = float(len(bad))
        for writer in self.writers:
            writer.write(step, values, labels)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def __enter__(self) -> MetricSink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"metric {name!r} is {value!r}; expected a number. Text is a label: log(step, ..., stage=...)"
        ) from error


class JsonlWriter:
    """metrics.jsonl. Opening it drops lines after `after` and a last line that was cut by a kill.

    measured: evaluations, whose lines have a label `when`, were made at these moments and stay, whatever their step. Of
              others those of earlier steps stay: a rollback has left them behind. None knows no evaluations.
    """

    def __init__(self, path: Path, *, after: int = -1, measured: Collection[str] | None = None):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            kept = [record for record in read_metrics(path) if _stays(record, after, measured)]
            partial = path.with_suffix(".tmp")
            partial.write_text("".join(json.dumps(record) + "\n" for record in kept))
            os.replace(partial, path)
        self._file, self._path = path.open("a"), path

    def write(self, step: int, metrics: Mapping[str, float | None], labels: Mapping[str, str]) -> None:
        if (
            not self._path.exists()
        ):  # the open file would take the line all the same, and nobody could read it
            raise DataError(
                f"{self._path.parent} was moved or removed while it was written to; put it back, or choose another "
                "folder, and start again"
            )
        record = {"step": step, "time": round(time.time(), 3), **labels, **metrics}
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _stays(record: Record, after: int, measured: Collection[str] | None) -> bool:
    if measured is None or "when" not in record:
        return record["step"] <= after
    return record["when"] in measured or record["step"] < after


def read_metrics(path: str | Path) -> list[Record]:
    """Lines of a metrics.jsonl in order. A last line cut by a kill is left out; others must parse."""
    records: list[Record] = []
    lines = Path(path).read_bytes().splitlines(keepends=True)
    for i, line in enumerate(lines):
        try:
            record = json.loads(line)
            float(record["step"])
        except (ValueError, TypeError, KeyError) as error:
            if i == len(lines) - 1 and not line.endswith(b"\n"):
                break
            raise DataError(
                f"{path}, line {i + 1} is not JSON of a step: {line[:80]!r}; remove that line"
            ) from error
        records.append(record)
    return records


def lookup(metrics: Mapping[str, Any], name: str) -> Any:
    """The value under `name`, or under the first name ending with it ("entropy": "pg/entropy"), or None."""
    if name in metrics:
        return metrics[name]
    return next((value for key, value in metrics.items() if key.endswith("/" + name)), None)


class TensorBoardWriter:
    """Scalars for TensorBoard, through tensorboardX. Steps after `after` are purged from the display."""

    def __init__(self, folder: str | Path, *, after: int = -1):
        try:
            from tensorboardX import SummaryWriter  # an optional extra  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ConfigError("TensorBoard output needs: pip install 'jaxagent[tensorboard]'") from error
        self._writer = SummaryWriter(str(folder), purge_step=after + 1 if after >= 0 else None)

    def write(self, step: int, metrics: Mapping[str, float | None], labels: Mapping[str, str]) -> None:
        for name, value in metrics.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbWriter:
    """Weights & Biases. The id lives in the run folder, so that a resumed run goes on in the same page."""

    def __init__(
        self, run_dir: str | Path, *, project: str, name: str = "", config: Mapping[str, Any] | None = None
    ):
        try:
            import wandb  # an optional extra  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ConfigError("Weights & Biases output needs: pip install 'jaxagent[wandb]'") from error
        id_file = Path(run_dir) / "wandb_id"
        run_id = id_file.read_text().strip() if id_file.exists() else wandb.util.generate_id()
        id_file.write_text(run_id)
        self._run = wandb.init(
            project=project,
            name=name or None,
            id=run_id,
            resume="allow",
            dir=str(run_dir),
            config=dict(config or {}),
        )
        # Our own axis: wandb's internal step refuses to go back, which a resumed run does.
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, metrics: Mapping[str, float | None], labels: Mapping[str, str]) -> None:
        finite = {name: value for name, value in metrics.items() if value is not None}
        self._run.log({"step": step, **labels, **finite})

    def close(self) -> None:
        self._run.finish()
