"""Owner of one run, which the loop (train.py) drives: it opens what a run needs, begins stages, and does what is due
after an iteration. Each part has an owner of its own:

    weights.py    parameters, and what the decoder samples from     collector.py  rollouts, and what begins ahead
    run_state.py  what survives a stop                              collapse.py   alarms, stop, rollback
    run_log.py    files that are written as the run goes
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxagent.checks import TOLERANCES
from jaxagent.clock import COMPILATION, DECODE, ENVIRONMENTS, PYTHON, Clock, Meter
from jaxagent.collapse import CollapseGuard
from jaxagent.collector import Collector
from jaxagent.console import RunConsole
from jaxagent.eval.runner import EvalResult, evaluate
from jaxagent.eval.ways import mode_in
from jaxagent.evaluations import START, Due, measuring
from jaxagent.learner import Learner, Network
from jaxagent.policy import build_engine, build_policy, load_network
from jaxagent.preemption import Preempted, Preemption
from jaxagent.prepare import Prepared
from jaxagent.provenance import commit
from jaxagent.rollbacks import as_json, changed
from jaxagent.rollouts import open_rollouts
from jaxagent.run_log import RunLog
from jaxagent.run_state import Place, RunState, Usage
from jaxagent.stage import Rollout, Stage
from jaxagent.types import Credited, Group, Metrics, Sampling
from jaxagent.weights import Weights

EVALUATION, END = "evaluation", "end"  # what is timed beside the stages
KEPT = ("success", "tgc", "sgc", "completion", "reward", "exec_fail", "turns")


class Runtime:
    """See the module docstring. Use as a context manager: it owns processes, threads and files."""

    def __init__(
        self, prepared: Prepared, preemption: Preemption, *, clock: Clock, console: RunConsole | None = None
    ):
        config = prepared.config
        self.prepared, self.config, self.renderer = prepared, config, prepared.renderer
        self.seed = config.seed
        self.console = console or RunConsole()
        self._preemption = preemption
        usage, meter = Usage(), Meter(DECODE, ENVIRONMENTS)
        self.clock = clock
        clock.divide(lambda: {**meter.seconds(), COMPILATION: usage.compilations.seconds})
        self.policy = build_policy(prepared)
        engine = build_engine(prepared, self.policy, meter)
        self.weights = Weights(self.policy, engine, turns=config.rollout.max_lag > 0)
        self.parity_tolerance = TOLERANCES[config.model.dtype]
        self._unchecked = True
        rollouts = open_rollouts(prepared, engine, meter)
        self.collector = Collector(
            rollouts, self.weights, config, ending=lambda: self._ending, quiet=self._quiet
        )
        self.state = RunState(prepared, self.weights, clock, usage)
        self.evaluations = self.state.evaluations
        self.log = RunLog(prepared)
        self.guard = CollapseGuard(
            config.alarms, self.state, self.collector, log=self.log, console=self.console
        )

    # --- stages and iterations -------------------------------------------------------------------------------

    def restore(self, stages: Sequence[Stage]) -> Place:
        """Take up the newest checkpoint, if there is one, and say where the run stands."""
        found = self.state.restore(stages)
        place = found or Place()
        if found is not None:
            name = stages[place.stage].name if place.stage < len(stages) else "its end"
            self.console.message(f"going on at {name}, iteration {place.iteration + 1}")
        self.log.open(after=self.state.iterations - 1, measured=self.evaluations.moments)
        self.clock.lap("build")
        self.clock.take(START)
        if (due := self.evaluations.due_before(place.stage, place.iteration)) is not None:
            self.measure(due, self.weights.params, stages[place.stage - 1] if place.stage else None)
        if found is None and self.config.alarms.on_collapse == "rollback":
            # A collapse in the first iterations must have something to go back to.
            self.state.save(stages, place)
        return place

    def begin(self, stage: Stage, place: Place) -> Learner:
        """The learner of a stage; in the middle of one, with the optimiser's state and the stage's reference."""
        index = place.stage
        rolled_back = self.state.rolled_back(index)
        stage = replace(stage, update=changed(stage.update, self.config.alarms, rolled_back))
        shape = self.prepared.entries[index].pack
        learner = self.weights.begin(stage, shape, self._network(stage))
        self.state.begin(place, stage)
        self.collector.begin(index, rolled_back)
        self.console.start(stage.name, stage.iterations, done=place.iteration)
        if stage.rolls_out:
            self.weights.load(learner.params)
        if stage.meet_policy is not None:
            stage.meet_policy(self.collector.rollouts.reachable(self.weights.engine))
        self.clock.lap("build")
        if (owed := self.evaluations.due_within(index, place.iteration)) is not None:
            self._measure_within(owed, stage)
        return learner

    def _network(self, stage: Stage) -> Network | None:
        """The teacher that is another network."""
        teacher = stage.teacher
        if teacher is None or teacher.weights != "checkpoint":
            return None
        return load_network(teacher.checkpoint, self.prepared, self.policy.execution.mesh)

    def first_rollout(self, groups: Sequence[Group]) -> bool:
        """True once, for the first groups that this process sampled: the moment to compare decoder and trainer."""
        sampled = any(t.steps for group in groups for t in group.trajectories)
        first = self._unchecked and self._rolls_out and sampled
        self._unchecked = self._unchecked and not first
        return first

    def keep(self, groups: Sequence[Group]) -> None:
        """Store the iteration's rollouts, if the run file asks for it."""
        if self._rolls_out:
            self.log.keep(groups, iteration=self.state.iterations, stage=self.state.name)

    def show(self, credited: Sequence[Credited]) -> None:
        """Keep a few rollouts for the report's viewer."""
        if self._rolls_out:
            self.log.show(credited, iteration=self.state.iterations)

    def finish_iteration(self, stages: Sequence[Stage], done: Place, metrics: Metrics) -> Place:
        """Log, watch, measure and save what is due after an iteration; returns where to go on: at `done`, or earlier
        after a rollback. Raises Preempted when asked to stop, Collapsed when a collapse is to stop the run."""
        state, learner = self.state, self.weights.learner
        index = state.index
        ended = done.stage > index
        number = stages[index].iterations if ended else done.iteration
        self.weights.version = learner.version
        alarms = state.monitor.check(metrics)
        self.log.metrics(state.iterations, {**metrics, **self.guard.metrics()}, stage=state.name)
        state.iterations += 1
        self.console.iteration(number, metrics, note=", ".join(alarm.name for alarm in alarms))
        self.guard.sound(alarms)
        if (back := self.guard.act(stages, done)) is not None:
            if self._preemption.requested:
                raise Preempted
            return back
        self.clock.lap(PYTHON)
        if ended:
            self.weights.end()
        due = self.evaluations.due_after(index, number, ended=ended)
        # A run that is asked to stop saves first, for there may be seconds left. `restore` measures what it owes.
        if due is not None and not self._preemption.requested:
            if ended:
                self.measure(due, learner.params, stages[index])
            else:
                self._measure_within(due, stages[index])
        stopping = self._preemption.requested and not self.collector.in_flight
        if ended or stopping or self._saves(number):
            state.save(stages, done)
        self.clock.lap("checkpoint")
        self.clock.take(state.name)
        if stopping:
            state.checkpoints.wait()
            raise Preempted
        return done

    def _saves(self, done: int) -> bool:
        """Whether a checkpoint is due within a stage, when so many of its iterations are done."""
        every = self.config.checkpoint.every
        return bool(every) and done % every == 0

    def _quiet(self, done: int) -> bool:
        """Whether nothing may be in flight when so many iterations of the stage are done: it is saved or measured."""
        return self._saves(done) or (
            self.evaluations.due_after(self.state.index, done, ended=False) is not None
        )

    @property
    def _ending(self) -> bool:
        return self._preemption.requested or self.guard.pending is not None

    @property
    def _rolls_out(self) -> bool:
        return self.weights.learner.stage.rolls_out

    # --- evaluation --------------------------------------------------------------------------------------------

    def measure(self, due: Due, params: Any, stage: Stage | None) -> None:
        """Evaluate these parameters, plainly and in each way of the stage: kept for result.json and written to the
        metrics."""
        self.weights.load(params)
        self.clock.lap("hand_off")
        self.clock.take(self.state.name or START)
        plain = measuring(self.collector.rollouts, self.config)
        ways = {"": plain}
        if stage is not None:
            ways |= {name: way(plain) for name, way in stage.ways.items()}
        for split in due.splits:
            for sampling in self.evaluations.modes():
                for way, rollout in ways.items():
                    result = self._evaluate(split, sampling, rollout)
                    self.clock.lap(EVALUATION)
                    self._keep(due.when, replace(result, mode=mode_in(result.mode, way)))

    def _measure_within(self, due: Due, stage: Stage) -> None:
        """Evaluate the policy of a stage that goes on; the monitor sees it."""
        self.measure(due, self.weights.learner.params, stage)
        if (solved := self.evaluations.solved(due.when)) is not None:
            self.guard.sound(self.state.monitor.evaluated(solved))

    def _evaluate(self, split: str, sampling: Sampling, rollout: Rollout) -> EvalResult:
        tasks, benchmark = self.evaluations.tasks(split), self.prepared.env.metrics
        return asyncio.run(evaluate(tasks, rollout, sampling=sampling, split=split, benchmark=benchmark))

    def _keep(self, when: str, result: EvalResult) -> None:
        self.evaluations.keep(when, result)
        taken = self.clock.take(EVALUATION)
        self.log.metrics(self.state.last, {**result.named, **taken}, when=when)
        shown = "  ".join(f"{k} {result.metrics[k]:.3g}" for k in KEPT if k in result.metrics)
        self.console.message(f"{when}  {result.split} ({result.mode}, {len(result.records)} tasks): {shown}")

    # --- the end -----------------------------------------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        """What result.json holds.

        "seconds" is the run's wall time until now by stage and part (clock.py); it adds up to "minutes".
        """
        self.clock.lap("close")
        self.clock.take(END)
        return {
            **self.evaluations.outcome(),
            "minutes": self.clock.total / 60,
            "seconds": self.clock.spent,
            "iterations": self.state.iterations,
            "alarms": self.log.alarms(),
            "rollbacks": as_json(self.state.rollbacks),
            **self.state.usage.total(),
            "commit": commit(),
            "seed": self.seed,
        }

    def close(self) -> None:
        self.console.stop()
        self.collector.close()
        self.state.close()
        self.log.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
