"""The finished episodes of an evaluation, one JSON line each: an evaluation that is started again plays the rest.

    ledger = Ledger(folder / "dev-greedy.jsonl", tasks, seconds=meter.seconds)
    groups = run_plans(plans, ledger.through(runner))

An episode that was played before comes from the file, every other is played, written, and read back. A kill leaves at
most one half line, which the next start cuts off. Failed attempts go to a file of their own: they are no results.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxagent.errors import DataError, EnvFailure
from jaxagent.eval.episodes import EpisodeRecord, episode_of, episode_record
from jaxagent.plan import Plan
from jaxagent.rollout.plans import Runner
from jaxagent.types import Task, Trajectory

FAILURES = "failures.jsonl"
FIELDS = (
    "status",
    "evaluation",
    "usage",
    "env_s",
    "generate_s",
    "prompt",
    "tools",
    "steps",
    "session",
    "spent",
)


class Ledger:
    """Owner of one file of episodes. `records` holds them by (task id, rollout number).

    seconds: what of this process's wall time went where so far, by name; kept beside each episode.
    ended: called after each episode that was played now.
    """

    def __init__(
        self,
        path: Path,
        *,
        seconds: Callable[[], Mapping[str, float]] = dict,
        ended: Callable[[Trajectory], None] | None = None,
    ):
        self.path = path
        self.records = read_episodes(path)
        self._seconds, self._ended = seconds, ended
        self.begin()
        self._session = 1 + max((record["session"] for record in self.records.values()), default=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_half_line(path)
        self._file = path.open("a")

    def begin(self) -> None:
        """Count this process's seconds from now on: what plays is ready."""
        self._before, self._start = dict(self._seconds()), time.monotonic()

    def through(self, runner: Runner) -> Runner:
        """The same runner, which plays only what is not in the file."""

        async def kept_or_played(plan: Plan, rollout: int, /) -> Trajectory:
            task = plan.task
            record = self.records.get((task.task_id, rollout))
            if record is not None:
                return episode_of(record, task)
            try:
                played = await runner(plan, rollout)
            except EnvFailure as failure:
                self._note(task, rollout, failure)
                raise
            if played.status.dropped:
                return played
            trajectory = episode_of(self._keep(played), task)
            if self._ended is not None:
                self._ended(trajectory)
            return trajectory

        return kept_or_played

    def spent(self) -> dict[str, float]:
        """Wall seconds of all processes that wrote episodes, from the start to the last one of each, by name."""
        last: dict[int, dict[str, float]] = {}
        for record in self.records.values():
            known = last.setdefault(record["session"], record["spent"])
            if record["spent"]["wall"] > known["wall"]:
                last[record["session"]] = record["spent"]
        names = sorted({name for spent in last.values() for name in spent})
        return {name: sum(spent.get(name, 0.0) for spent in last.values()) for name in names}

    def close(self) -> None:
        self._file.close()

    def _keep(self, played: Trajectory) -> EpisodeRecord:
        spent = {name: value - self._before.get(name, 0.0) for name, value in self._seconds().items()}
        spent = {"wall": time.monotonic() - self._start, **spent}
        record = episode_record(played)
        record |= {
            "session": self._session,
            "spent": {name: round(value, 4) for name, value in spent.items()},
        }
        line = json.dumps(record, allow_nan=False)
        self._file.write(line + "\n")
        self._file.flush()
        record = json.loads(line)
        self.records[record["task"], record["rollout"]] = record
        return record

    def _note(self, task: Task, rollout: int, failure: EnvFailure) -> None:
        about = {"episodes": self.path.stem, "task": task.task_id, "rollout": rollout}
        with (self.path.parent / FAILURES).open("a") as file:
            file.write(json.dumps(about | {"kind": failure.kind, "message": str(failure)[:2000]}) + "\n")


def read_episodes(path: Path) -> dict[tuple[str, int], EpisodeRecord]:
    """Every whole line of a file of episodes, in its order; empty if there is no file."""
    if not path.is_file():
        return {}
    found: dict[tuple[str, int], EpisodeRecord] = {}
    for number, line in enumerate(path.read_text().split("\n")[:-1], 1):
        try:
            record = json.loads(line)
            key, *_ = (record["task"], record["rollout"]), *(record[name] for name in FIELDS)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}, line {number} is no episode: {line[:80]!r}; remove that line"
            ) from error
        if key in found:
            raise DataError(
                f"{path}, line {number}: rollout {key[1]} of task {key[0]!r} is there twice. Was the folder written to "
                "by two processes? Remove one of the lines"
            )
        found[key] = record
    return found


def check_tasks(records: Mapping[tuple[str, int], Any], tasks: Sequence[Task], *, n: int, path: Path) -> None:
    """What is in the file must be asked for: tasks of the split, rollout numbers below n."""
    known = {task.task_id for task in tasks}
    for task_id, rollout in records:
        if task_id not in known or rollout >= n:
            raise DataError(
                f"{path} holds rollout {rollout} of task {task_id!r}, which is not asked for; has the environment's "
                "data changed? Choose another --out"
            )


def _cut_half_line(path: Path) -> None:
    """What a kill left behind the last line's end goes: the next episode would be glued to it."""
    if not path.is_file():
        return
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        with path.open("r+b") as file:
            file.truncate(end)
