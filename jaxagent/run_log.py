"""Owner of the files that a run writes as it goes: metrics, alarms, whole rollouts, the rollouts that the report shows.

metrics.jsonl      one line an iteration or evaluation; trackers get the same
alarms.jsonl       one line an alarm or rollback
rollouts.bin       if the run file says `keep_rollouts`
trajectories.jsonl a few rollouts
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from jaxagent.data.rollout_store import FILE, RolloutWriter
from jaxagent.metrics import (
    JsonlWriter,
    MetricSink,
    Record,
    TensorBoardWriter,
    WandbWriter,
    Writer,
    read_metrics,
)
from jaxagent.prepare import Prepared
from jaxagent.report.trajectories import append_trajectories, pick, trajectory_record
from jaxagent.types import Credited, Group, Metrics

SHOWN, SHOWN_EVERY = 4, 5  # rollouts kept for the report, and every how many iterations
ALARMS = "alarms.jsonl"


class RunLog:
    """Open it when it is known where the run stands; close it."""

    def __init__(self, prepared: Prepared):
        self._config, self._folder = prepared.config, Path(prepared.config.run_dir)
        self._origin, self._decode = prepared.origin, prepared.tokenizer.decode
        self._sink: MetricSink | None = None
        self._alarms: JsonlWriter | None = None
        self._kept: RolloutWriter | None = None

    def open(self, *, after: int, measured: Collection[str]) -> None:
        """What was written after this iteration is dropped: it will be run again. So is what was measured at other
        moments than these."""
        self._sink = MetricSink(self._folder, after=after, writers=self._writers(after, measured))
        self._alarms = JsonlWriter(self._folder / ALARMS, after=after)
        if self._config.keep_rollouts:
            self._kept = RolloutWriter(self._folder / FILE, self._origin, after=after)

    def _writers(self, after: int, measured: Collection[str]) -> list[Writer]:
        """metrics.jsonl always; trackers as configured."""
        record = JsonlWriter(self._folder / "metrics.jsonl", after=after, measured=measured)
        writers: list[Writer] = [record]
        if "tensorboard" in self._config.trackers:
            writers.append(TensorBoardWriter(self._folder / "tensorboard", after=after))
        if "wandb" in self._config.trackers:
            writers.append(
                WandbWriter(self._folder, project="jaxagent", config=self._config.model_dump(mode="json"))
            )
        return writers

    def metrics(self, iteration: int, metrics: Metrics, **labels: str) -> None:
        assert self._sink is not None, "open the log first"
        self._sink.log(iteration, metrics, **labels)

    def alarm(self, iteration: int, labels: Mapping[str, str], *, number: int) -> None:
        """number: the stage's iteration, from 1."""
        assert self._alarms is not None, "open the log first"
        self._alarms.write(iteration, {"iteration": number}, labels)

    def alarms(self) -> list[Record]:
        """All of the run."""
        return read_metrics(self._folder / ALARMS)

    def keep(self, groups: Sequence[Group], *, iteration: int, stage: str) -> None:
        """Write the iteration's rollouts with their returns and streams to the store, if the run file asks for it."""
        if self._kept is not None and iteration % self._config.keep_rollouts == 0:
            self._kept.write(groups, iteration=iteration, stage=stage)

    def show(self, credited: Sequence[Credited], *, iteration: int) -> None:
        """Keep a few rollouts for the report's viewer."""
        if iteration % SHOWN_EVERY == 0:
            records = [trajectory_record(c, self._decode, iteration=iteration) for c in pick(credited, SHOWN)]
            append_trajectories(self._folder / "trajectories.jsonl", records)

    def close(self) -> None:
        for file in (self._sink, self._alarms, self._kept):
            if file is not None:
                file.close()
