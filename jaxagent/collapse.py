"""What a run does about alarms: says and records them, and stops or goes back at one that counts as a collapse.

In: alarms of monitors/, the run file's `alarms`. Out: the place to go on from after a rollback, or `Collapsed`. Which
checkpoint is gone back to, and what is changed, says rollbacks.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxagent.collector import Collector
from jaxagent.console import RunConsole
from jaxagent.errors import DivergenceError, ParityError
from jaxagent.monitors.monitor import Alarm
from jaxagent.monitors.settings import AlarmConfig
from jaxagent.rollbacks import Rollback
from jaxagent.run_log import RunLog
from jaxagent.run_state import Place, RunState
from jaxagent.stage import Stage
from jaxagent.types import Metrics


class Collapsed(Exception):
    """An alarm that counts as a collapse stopped the run; its state is saved."""

    def __init__(self, alarm: Alarm):
        super().__init__(alarm.message)
        self.alarm = alarm


class CollapseGuard:
    """pending: a collapse that has not been acted on."""

    def __init__(
        self, config: AlarmConfig, state: RunState, collector: Collector, *, log: RunLog, console: RunConsole
    ):
        self.pending: Alarm | None = None
        self._config, self._state, self._collector = config, state, collector
        self._log, self._console = log, console

    def metrics(self) -> Metrics:
        return {
            "alarms/sounding": float(self._state.monitor.sounding),
            "alarms/rollbacks": float(len(self._state.rollbacks)),
        }

    def sound(self, alarms: Sequence[Alarm]) -> None:
        """Say and record alarms of the iteration that was finished last."""
        for alarm in alarms:
            self._note(f"ALARM {alarm.name}", alarm.name, alarm.message)

    def act(self, stages: Sequence[Stage], done: Place) -> Place | None:
        """What the run file wants done about a collapse: nothing more, go back, or stop (once nothing is in flight)."""
        self.pending = self.pending or self._state.monitor.collapse()
        alarm, action = self.pending, self._config.on_collapse
        if alarm is None or action == "warn":
            self.pending = None
            return None
        number = self._state.monitor.number
        place = self._roll_back(stages, number, alarm) if action == "rollback" else None
        if place is not None:
            self.pending = None
        elif not self._collector.in_flight:
            self._state.save(stages, done)
            self._state.checkpoints.wait()
            raise Collapsed(alarm)
        return place

    def diverged(self, stages: Sequence[Stage], number: int, error: DivergenceError) -> Place:
        """Go back after an iteration that could not be finished, if the run is to; else the error stands."""
        if isinstance(error, ParityError) or self._config.on_collapse != "rollback":
            raise error
        alarm = Alarm("diverged", f"{error}, in iteration {number}", since=number)
        self.sound([alarm])
        place = self._roll_back(stages, number, alarm)
        if place is None:
            raise error
        return place

    def _roll_back(self, stages: Sequence[Stage], left: int, alarm: Alarm) -> Place | None:
        """Go back to the last good checkpoint. None if there is none, or were enough rollbacks. left: iterations of the
        stage that were made."""
        state, rules = self._state, self._config.rollback
        found = state.last_good(since=alarm.since, margin=rules.margin)
        if found is None or len(state.rollbacks) >= rules.limit:
            return None
        step, place = found
        self._collector.give_up()
        went = Rollback(alarm.name, state.index, left, place.iteration, step, state.iterations)
        state.rollbacks.append(went)
        self._note("ROLLBACK", "rollback", went.words(self._config, len(state.rollbacks)))
        state.go_back(stages, step, place)
        state.clock.lap("checkpoint")
        state.clock.take(state.name)
        return place

    def _note(self, shown: str, name: str, message: str) -> None:
        state = self._state
        self._console.message(f"{shown}: {message}")
        labels = {"stage": state.name, "alarm": name, "message": message}
        self._log.alarm(state.last, labels, number=state.monitor.number)
