"""What of a run survives a stop: gathered in `save`, put back in `restore`, and nothing else is carried from one
iteration to the next. Arrays are those of weights.py.
"""

from __future__ import annotations

import json
import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxagent.checkpoint import Checkpointer
from jaxagent.clock import Clock
from jaxagent.compilations import Compilations
from jaxagent.evaluations import Evaluations
from jaxagent.monitors.monitor import Monitor
from jaxagent.prepare import Prepared
from jaxagent.rollbacks import Rollback, as_json, checkpoints_kept, last_good, read_rollbacks
from jaxagent.stage import Stage
from jaxagent.weights import Weights


@dataclass(frozen=True)
class Place:
    """Where a run stands: everything before this iteration of this stage is done."""

    stage: int = 0
    iteration: int = 0


class Usage:
    """What a run has used, its earlier processes included. Counts from its construction on; close it."""

    def __init__(self) -> None:
        self.compilations = Compilations()
        self._earlier: Counter[str] = Counter()

    def resume(self, earlier: Mapping[str, Any]) -> None:
        self._earlier = Counter(earlier)

    def total(self) -> dict[str, float]:
        own = {
            "cpu_seconds": _cpu_seconds(),
            "compilations": self.compilations.count,
            "compile_seconds": self.compilations.seconds,
        }
        return {name: value + self._earlier[name] for name, value in own.items()}

    def close(self) -> None:
        self.compilations.close()


class RunState:
    """Owner of a run's checkpoints. Close it.

    iterations: made in all stages together; numbers what is recorded and saved.   index, name: of the present stage.
    """

    def __init__(self, prepared: Prepared, weights: Weights, clock: Clock, usage: Usage):
        config = prepared.config
        self.folder = Path(config.run_dir)
        keep = checkpoints_kept(config.alarms, config.checkpoint)
        self.checkpoints = Checkpointer(self.folder / "checkpoints", keep=keep)
        self.weights, self.clock, self.usage = weights, clock, usage
        self.monitor = Monitor(config.alarms)
        self.evaluations = Evaluations(prepared)
        self.rollbacks: list[Rollback] = []
        self.iterations = 0
        self.index, self.name = 0, ""

    @property
    def last(self) -> int:
        """The iteration that was finished last; the first one before it."""
        return max(self.iterations - 1, 0)

    def restore(self, stages: Sequence[Stage]) -> Place | None:
        """Take up the newest checkpoint and say where the run stands; None if there is none."""
        host = self.checkpoints.latest_host()
        if host is None:
            return None
        place = Place(*host["place"])
        self.weights.version, self.iterations = host["version"], host["iterations"]
        self.usage.resume(host["used"])
        self.clock.resume(host["seconds"])
        self.rollbacks = read_rollbacks(host["rollbacks"])
        self._restore_host(stages, host)
        if place.iteration == 0:
            self.weights.start_from(self._newest({"params": self.weights.params})["params"])
        return place

    def begin(self, place: Place, stage: Stage) -> None:
        """A stage has a learner. In the middle of one, it gets the optimiser's state and the stage's reference."""
        if place.iteration > 0:
            self.weights.restore(self._newest(self.weights.state()))
        else:
            self.monitor.begin(rolls_out=stage.rolls_out)
        self.index, self.name = place.stage, stage.name

    def rolled_back(self, index: int) -> int:
        """Rollbacks in a stage so far."""
        return sum(item.stage == index for item in self.rollbacks)

    def save(self, stages: Sequence[Stage], done: Place) -> None:
        state = self.weights.state() if done.iteration else {"params": self.weights.params}
        host = {
            **self._host_now(done),
            "sources": [dict(stage.source.state()) for stage in stages],
            "evaluations": self.evaluations.made,
            "monitor": self.monitor.state(),
        }
        self.checkpoints.save(self.iterations, state, host)
        stage = stages[self.index]
        for name, content in stage.shown.items():
            text = json.dumps(content(), indent=1, ensure_ascii=False)
            (self.folder / f"{stage.name}.{name}.json").write_text(text + "\n", "utf-8", "replace")

    def last_good(self, *, since: int, margin: int) -> tuple[int, Place] | None:
        """Step and place of the checkpoint of this stage to go back to, when something began in iteration `since`."""
        self.checkpoints.wait()
        places = {step: host["place"] for step, host in self.checkpoints.hosts().items()}
        step = last_good(places, self.rollbacks, stage=self.index, since=since, margin=margin)
        return None if step is None else (step, Place(*places[step]))

    def go_back(self, stages: Sequence[Stage], step: int, place: Place) -> None:
        """Copy an earlier checkpoint to a new one under today's number, which the run goes on from."""
        host = self.checkpoints.hosts()[step]
        self._restore_host(stages, host)
        state = self.weights.go_back(
            lambda template: dict(self.checkpoints.restore(step, template).device_state),
            within=place.iteration > 0,
        )
        self.checkpoints.save(self.iterations, state, {**host, **self._host_now(place)})
        self.checkpoints.wait()

    def _host_now(self, done: Place) -> dict[str, Any]:
        """The part of the host state that never goes back, and the place."""
        return {
            "place": [done.stage, done.iteration],
            "version": self.weights.version,
            "iterations": self.iterations,
            "seconds": self.clock.spent,
            "used": self.usage.total(),
            "rollbacks": as_json(self.rollbacks),
        }

    def _restore_host(self, stages: Sequence[Stage], host: Mapping[str, Any]) -> None:
        """The part that is as it was at the checkpoint."""
        self.evaluations.made = list(host["evaluations"])
        self.monitor.restore(host["monitor"])
        for stage, state in zip(stages, host["sources"]):
            stage.source.restore(state)

    def _newest(self, template: Any) -> Any:
        """Device state of the newest checkpoint."""
        found = self.checkpoints.restore_latest(template)
        assert found is not None
        return found.device_state

    def close(self) -> None:
        self.checkpoints.close()
        self.usage.close()


def _cpu_seconds() -> float:
    """User and system time of this process and of its ended children."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
