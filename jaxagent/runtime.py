"""Owner of one run: policy, decoder, environments, checkpoints, metrics, evaluations. The loop (train.py) drives it.

State that must survive a stop is gathered in `_save` and put back in `restore`; nothing else is carried from one
iteration to the next.
"""

from __future__ import annotations

import asyncio
import json
import resource
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxagent.ahead import Ahead
from jaxagent.checkpoint import Checkpointer
from jaxagent.checks import TOLERANCES
from jaxagent.clock import COMPILATION, DECODE, ENVIRONMENTS, PYTHON, Clock, Meter
from jaxagent.compilations import Compilations
from jaxagent.console import RunConsole
from jaxagent.data.rollout_store import FILE, RolloutWriter
from jaxagent.errors import ConfigError, DivergenceError, ParityError
from jaxagent.eval.runner import EvalResult, Rollout, evaluate
from jaxagent.evaluations import START, Due, Evaluations, measuring, opened
from jaxagent.learn.state import averaged, train_only
from jaxagent.learner import Learner, Model, Network, temperature
from jaxagent.metrics import (
    JsonlWriter,
    MetricSink,
    TensorBoardWriter,
    WandbWriter,
    Writer,
    read_metrics,
)
from jaxagent.monitors.monitor import Alarm, Monitor
from jaxagent.policy import build_engine, build_policy, load_network
from jaxagent.preemption import Preemption
from jaxagent.prepare import Prepared
from jaxagent.provenance import commit
from jaxagent.report.trajectories import append_trajectories, pick, trajectory_record
from jaxagent.rollbacks import Rollback, as_json, changed, checkpoints_kept, last_good, read_rollbacks
from jaxagent.rollout.staleness import fresh, lag_metrics
from jaxagent.rollouts import Collected, collected_with, joined, marked, open_rollouts, renewed
from jaxagent.stage import Plan, Stage
from jaxagent.types import Credited, Group, Metrics, Sampling

SHOWN, SHOWN_EVERY = 4, 5  # rollouts kept for the report, and every how many iterations
ALARMS = "alarms.jsonl"  # one line an alarm or rollback, in the run folder
EVALUATION, END = "evaluation", "end"  # what is timed beside the stages
KEPT = ("success", "tgc", "sgc", "completion", "reward", "exec_fail", "turns")


class Preempted(Exception):
    """The run was asked to stop; its state is saved."""


class Collapsed(Exception):
    """An alarm that counts as a collapse stopped the run; its state is saved."""

    def __init__(self, alarm: Alarm):
        super().__init__(alarm.message)
        self.alarm = alarm


@dataclass(frozen=True)
class Place:
    """Where a run stands: everything before this iteration of this stage is done."""

    stage: int = 0
    iteration: int = 0


class Runtime:
    """See the module docstring. Use as a context manager: it owns processes, threads and files."""

    def __init__(
        self, prepared: Prepared, preemption: Preemption, *, clock: Clock, console: RunConsole | None = None
    ):
        config = prepared.config
        self.prepared, self.config, self.renderer = prepared, config, prepared.renderer
        self.folder = Path(config.run_dir)
        self.seed = config.seed
        self.console = console or RunConsole()
        self._preemption = preemption
        self.compilations = Compilations()
        meter = Meter(DECODE, ENVIRONMENTS)
        self.clock = clock
        clock.divide(lambda: {**meter.seconds(), COMPILATION: self.compilations.seconds})
        self.policy = build_policy(prepared)
        self._params: Any = self.policy.params
        self._version = 0
        self._reference: Any = None
        self._average: Any = None
        self.engine = build_engine(prepared, self.policy, meter)
        self.parity_tolerance = TOLERANCES[config.model.dtype]
        self._unchecked = True
        self.rollouts = open_rollouts(prepared, self.engine, meter)
        self.max_lag = config.rollout.max_lag
        self.ahead = Ahead(self.max_lag - config.rollout.partial)
        self._handed: list[int] = []  # versions that the decoder was given, in order
        keep = checkpoints_kept(config.alarms, config.checkpoint)
        self.checkpoints = Checkpointer(self.folder / "checkpoints", keep=keep)
        self.monitor = Monitor(config.alarms)
        self.rollbacks: list[Rollback] = []
        self.evaluations = Evaluations(prepared)
        self._earlier: Counter[str] = Counter()  # what earlier processes of this run used
        self.iterations = 0
        self._sink: MetricSink | None = None
        self._alarms: JsonlWriter | None = None
        self._kept: RolloutWriter | None = None
        self._learner: Learner | None = None
        self._stage = (0, "")
        self._collapse: Alarm | None = None  # one that has not been acted on

    # --- the loop asks ---------------------------------------------------------------------------------------

    def restore(self, stages: Sequence[Stage]) -> Place:
        """Take up the newest checkpoint, if there is one, and say where the run stands."""
        host = self.checkpoints.latest_host()
        place = Place() if host is None else Place(*host["place"])
        if host is not None:
            self._version, self.iterations = host["version"], host["iterations"]
            self._earlier = Counter(host["used"])
            self.clock.resume(host["seconds"])
            self.rollbacks = read_rollbacks(host["rollbacks"])
            self._restore_host(stages, host)
            if place.iteration == 0:
                found = self.checkpoints.restore_latest({"params": self._params})
                assert found is not None
                self._params = found.device_state["params"]
            name = stages[place.stage].name if place.stage < len(stages) else "its end"
            self.console.message(f"going on at {name}, iteration {place.iteration + 1}")
        self._sink = MetricSink(self.folder, after=self.iterations - 1, writers=self._writers())
        self._alarms = JsonlWriter(self.folder / ALARMS, after=self.iterations - 1)
        if self.config.keep_rollouts:
            self._kept = RolloutWriter(self.folder / FILE, self.prepared.origin, after=self.iterations - 1)
        self.clock.lap("build")
        self.clock.take(START)
        if (due := self.evaluations.due_before(place.stage, place.iteration)) is not None:
            self.measure(due, self._params, stages[place.stage - 1] if place.stage else None)
        if host is None and self.config.alarms.on_collapse == "rollback":
            self._save(stages, place)  # a collapse in the first iterations must have something to go back to
        return place

    def begin(self, stage: Stage, place: Place) -> Learner:
        """The learner of a stage; in the middle of one, with the optimiser's state and the stage's reference."""
        index, resuming = place.stage, place.iteration > 0
        stage = replace(stage, update=changed(stage.update, self.config.alarms, self._rolled_back(index)))
        self._reference = jax.tree.map(jnp.copy, self._params) if stage.keeps_reference else None
        self._average = jax.tree.map(jnp.copy, self._params) if stage.keeps_average else None
        turn = self.engine.turn if self.max_lag else None
        execution = replace(self.policy.execution, temperature=temperature(stage), turn=turn)
        partition = (
            train_only(lambda name: name.startswith(stage.trains)) if stage.trains else self.policy.partition
        )
        teacher = self._network(stage)
        model = Model(self.policy.graphdef, partition, execution, self._frozen(stage), teacher)
        shape = self.prepared.entries[index].pack
        self._learner = Learner(model, self._params, stage, shape, version=self._version)
        self._params = None  # the learner owns (and donates) them now
        if resuming:
            found = self.checkpoints.restore_latest(self._device_state())
            assert found is not None
            self._learner.state = found.device_state["train"]
            if stage.keeps_reference:
                self._reference = found.device_state["reference"]
            if stage.keeps_average:
                self._average = found.device_state["average"]
            self._learner.model = replace(model, frozen=self._frozen(stage))
        else:
            self.monitor.begin(rolls_out=stage.rolls_out)
        self._stage = (index, stage.name)
        self.console.start(stage.name, stage.iterations, done=place.iteration)
        if stage.rolls_out:
            self._load_engine(self._learner.params)
        if stage.meet_policy is not None:
            stage.meet_policy(self.rollouts.reachable(self.engine))
        self.clock.lap("build")
        return self._learner

    def rollout(self, stage: Stage, plans: Sequence[Plan], iteration: int) -> Collected:
        """Roll out under the present weights, and whatever the stage asks for after seeing the groups."""
        sampling = stage.sampling_at(iteration)
        assert sampling is not None, f"stage {stage.name} has plans to roll out but no sampling rule"
        play = partial(self._play, stage, sampling, iteration)
        collected = collected_with(stage.follow_up, plans, play)
        if stage.temperature is None:
            return collected
        return replace(collected, metrics={**collected.metrics, "rollout/temperature": sampling.temperature})

    def _play(
        self, stage: Stage, sampling: Sampling, iteration: int, plans: Sequence[Plan], number: int
    ) -> Collected:
        """One round. Every plan under the weights that it names: first the policy's, which are loaded, then others in
        turn."""
        seed = self._stream(iteration, number)
        rounds: dict[str, list[Plan]] = {}
        for plan in sorted(plans, key=lambda plan: plan.weights != "current"):
            rounds.setdefault(plan.weights, []).append(plan)
        if set(rounds) == {"current"}:
            return self.rollouts.run(plans, sampling, seed=seed, hold=self._holds(stage, iteration))
        if self.max_lag:
            raise ConfigError(
                f"rollout.max_lag={self.max_lag}, but stage {stage.name} samples from other weights than the policy's, "
                "which the decoder cannot hold beside it; set rollout.max_lag to 0"
            )
        collected = []
        for name, some in rounds.items():
            if name != "current":
                self._lend_engine(name)
            found = self.rollouts.run(some, sampling, seed=seed)
            collected.append(found if name == "current" else marked(found, name))
        self._lend_engine("current")
        return reduce(joined, collected)

    def _lend_engine(self, name: str) -> None:
        """Let named weights sample, under the number of the policy's version: they are no newer policy."""
        assert self._learner is not None
        self.engine.load(self._learner.weights(name), self._engine_version())

    def may_begin(self, stage: Stage, iteration: int) -> list[int]:
        """Later iterations whose rollouts may begin now. A stage that follows up on its groups runs in step."""
        if not stage.rolls_out or stage.follow_up is not None or self._ending:
            return []
        return list(self.ahead.may_begin(iteration, stage.iterations - 1, self._quiet))

    def _quiet(self, done: int) -> bool:
        """Whether nothing may be in flight when so many iterations of the stage are done: it is saved or measured."""
        every = self.config.checkpoint.every
        saves = bool(every) and done % every == 0
        return saves or self.evaluations.due_after(self._stage[0], done, ended=False) is not None

    def _holds(self, stage: Stage, iteration: int) -> bool:
        """Whether groups may go on playing into the next iteration."""
        last = iteration + 1 == stage.iterations or stage.follow_up is not None
        return self.config.rollout.partial and not (last or self._ending or self._quiet(iteration + 1))

    @property
    def _ending(self) -> bool:
        """Whether the run is about to stop: nothing new is begun, and what is in flight is learnt from first."""
        return self._preemption.requested or self._collapse is not None

    @property
    def _in_flight(self) -> bool:
        return self.ahead.pending or self.rollouts.holding

    def fresh(self, collected: Collected) -> Collected:
        """What is not too old to be trained on, counted; everything, without a lag."""
        if not self.max_lag or not self._rolls_out:
            return collected
        groups = fresh(collected.groups, self._handed, max_lag=self.max_lag)
        return renewed(collected, groups, lag_metrics(groups, self._handed))

    def _stream(self, iteration: int, number: int) -> int:
        """Names the random streams of an iteration's rollouts, of round `number` of its follow-ups."""
        place = f"{self.seed}/{self._stage[0]}/{iteration}" + (f"/{number}" if number else "")
        again = self._rolled_back(self._stage[0]) if self.config.alarms.rollback.reseed else 0
        place += f"/rollback {again}" if again else ""
        return zlib.crc32(place.encode()) >> 1

    def first_rollout(self, groups: Sequence[Group]) -> bool:
        """True once, for the first groups that this process sampled: the moment to compare decoder and trainer."""
        sampled = any(t.steps for group in groups for t in group.trajectories)
        first = self._unchecked and self._rolls_out and sampled
        self._unchecked = self._unchecked and not first
        return first

    def hand_off(self, learner: Learner) -> None:
        """The new weights go to the decoder; a teacher's average follows them, and a reference that is to follow."""
        if learner.stage.rolls_out:
            self._load_engine(learner.params)
        keep = learner.stage.reference_ema
        if self._reference is not None and keep < 1:
            self._reference = averaged(self._reference, learner.params, keep)
        if self._average is not None and (teacher := learner.stage.teacher) is not None:
            self._average = averaged(self._average, learner.params, teacher.decay)
        learner.model = replace(learner.model, frozen=self._frozen(learner.stage))

    def keep(self, groups: Sequence[Group]) -> None:
        """Write the iteration's rollouts with their returns and streams to the store, if the run file asks for it."""
        if self._kept is not None and self._rolls_out and self.iterations % self.config.keep_rollouts == 0:
            self._kept.write(groups, iteration=self.iterations, stage=self._stage[1])

    def show(self, credited: Sequence[Credited]) -> None:
        """Keep a few rollouts for the report's viewer."""
        if self._rolls_out and self.iterations % SHOWN_EVERY == 0:
            decode = self.prepared.tokenizer.decode
            records = [trajectory_record(c, decode, iteration=self.iterations) for c in pick(credited, SHOWN)]
            append_trajectories(self.folder / "trajectories.jsonl", records)

    def finish_iteration(self, stages: Sequence[Stage], done: Place, metrics: Metrics) -> Place:
        """Log, watch, measure and save what is due after an iteration; returns where to go on: at `done`, or earlier
        after a rollback. Raises Preempted when asked to stop, Collapsed when a collapse is to stop the run."""
        learner = self._learner
        assert learner is not None
        assert self._sink is not None
        index, name = self._stage
        ended = done.stage > index
        number = stages[index].iterations if ended else done.iteration
        self._version = learner.version
        alarms = self.monitor.check(metrics)
        self._sink.log(self.iterations, {**metrics, **self._alarm_metrics()}, stage=name)
        self.iterations += 1
        self.console.iteration(number, metrics)
        self._sound(alarms)
        self._collapse = self._collapse or self.monitor.collapse()
        if (back := self._act(stages, done)) is not None:
            if self._preemption.requested:
                raise Preempted
            return back
        self.clock.lap(PYTHON)
        if ended:
            self._params = learner.params
        due = self.evaluations.due_after(index, number, ended=ended)
        # A run that is asked to stop saves first, for there may be seconds left. `restore` measures what it owes.
        if due is not None and not self._preemption.requested:
            self.measure(due, learner.params, stages[index])
            if not ended and (solved := self.evaluations.solved(due.when)) is not None:
                self._sound(self.monitor.evaluated(solved))
        every = self.config.checkpoint.every
        stopping = self._preemption.requested and not self._in_flight
        if ended or stopping or (every and number % every == 0):
            self._save(stages, done)
        self.clock.lap("checkpoint")
        self.clock.take(name)
        if stopping:
            self.checkpoints.wait()
            raise Preempted
        return done

    # --- alarms ------------------------------------------------------------------------------------------------

    def diverged(self, stages: Sequence[Stage], number: int, error: DivergenceError) -> Place:
        """Go back after an iteration that could not be finished, if the run is to; else the error stands."""
        if isinstance(error, ParityError) or self.config.alarms.on_collapse != "rollback":
            raise error
        alarm = Alarm("diverged", f"{error}, in iteration {number}", since=number)
        self._sound([alarm])
        place = self._roll_back(stages, number, alarm)
        if place is None:
            raise error
        return place

    def _sound(self, alarms: Sequence[Alarm]) -> None:
        """Say and record alarms of the iteration that was finished last."""
        for alarm in alarms:
            self._note(f"ALARM {alarm.name}", alarm.name, alarm.message)

    def _note(self, shown: str, name: str, message: str) -> None:
        assert self._alarms is not None
        self.console.message(f"{shown}: {message}")
        labels = {"stage": self._stage[1], "alarm": name, "message": message}
        self._alarms.write(max(self.iterations - 1, 0), {"iteration": self.monitor.number}, labels)

    def _alarm_metrics(self) -> Metrics:
        return {
            "alarms/sounding": float(self.monitor.sounding),
            "alarms/rollbacks": float(len(self.rollbacks)),
        }

    def _act(self, stages: Sequence[Stage], done: Place) -> Place | None:
        """What the run file wants done about a collapse: nothing more, go back, or stop (once nothing is in flight)."""
        alarm, action = self._collapse, self.config.alarms.on_collapse
        if alarm is None or action == "warn":
            self._collapse = None
            return None
        place = self._roll_back(stages, self.monitor.number, alarm) if action == "rollback" else None
        if place is not None:
            self._collapse = None
        elif not self._in_flight:
            self._save(stages, done)
            self.checkpoints.wait()
            raise Collapsed(alarm)
        return place

    def _roll_back(self, stages: Sequence[Stage], left: int, alarm: Alarm) -> Place | None:
        """Copy the last good checkpoint to a new one under today's number, which the run goes on from. None if there is
        none, or were enough rollbacks. left: iterations of the stage that were made."""
        index, rules = self._stage[0], self.config.alarms.rollback
        self.checkpoints.wait()
        hosts = self.checkpoints.hosts()
        places = {step: host["place"] for step, host in hosts.items()}
        step = last_good(places, self.rollbacks, stage=index, since=alarm.since, margin=rules.margin)
        if step is None or len(self.rollbacks) >= rules.limit:
            return None
        self.ahead.clear(self.rollouts.cancel)
        self.rollouts.cancel()  # nobody waits for what is held
        host, place = hosts[step], Place(*hosts[step]["place"])
        went = Rollback(alarm.name, index, left, place.iteration, step, self.iterations)
        self.rollbacks.append(went)
        self._note("ROLLBACK", "rollback", went.words(self.config.alarms, len(self.rollbacks)))
        self._version = max(self._version, self.engine.version) + 1  # the decoder takes no older version
        self._restore_host(stages, host)
        state = self._restored(step, place)
        self.checkpoints.save(self.iterations, state, {**host, **self._host_now(place)})
        self.checkpoints.wait()
        self.clock.lap("checkpoint")
        self.clock.take(self._stage[1])
        return place

    def _restored(self, step: int, place: Place) -> dict[str, Any]:
        """Arrays of a checkpoint of this stage, under the present version. What was trained is let go first."""
        learner = self._learner
        assert learner is not None
        if not place.iteration:
            self._params = self.checkpoints.restore(step, {"params": _shapes(learner.params)}).device_state[
                "params"
            ]
            return {"params": self._params}
        template = _shapes(self._device_state())
        self._reference, learner.state = None, template["train"]
        state = self.checkpoints.restore(step, template).device_state
        train = state["train"]
        state["train"] = replace(train, version=train.version * 0 + self._version)
        self._params = state["train"].params
        return state

    def _rolled_back(self, index: int) -> int:
        """Rollbacks in a stage so far."""
        return sum(item.stage == index for item in self.rollbacks)

    # --- evaluation --------------------------------------------------------------------------------------------

    def measure(self, due: Due, params: Any, stage: Stage | None) -> None:
        """Evaluate these parameters: kept for result.json and written to the metrics. Once plainly, then with each
        opening and in each way of the stage; "greedy" with the opening "skills" is the mode "greedy+skills"."""
        self._load_engine(params)
        self.clock.lap("hand_off")
        self.clock.take(self._stage[1] or START)
        plain = measuring(self.rollouts, self.config)
        ways = {"": plain}
        if stage is not None:
            ways |= {f"+{name}": opened(plain, opening) for name, opening in stage.openings.items()}
            ways |= {f"+{name}": way(plain) for name, way in stage.ways.items()}
        for split in due.splits:
            for sampling in self.evaluations.modes():
                for name, rollout in ways.items():
                    result = self._evaluate(split, sampling, rollout)
                    self.clock.lap(EVALUATION)
                    self._keep(due.when, replace(result, mode=result.mode + name))

    def _evaluate(self, split: str, sampling: Sampling, rollout: Rollout) -> EvalResult:
        tasks, benchmark = self.evaluations.tasks(split), self.prepared.env.metrics
        return asyncio.run(evaluate(tasks, rollout, sampling=sampling, split=split, benchmark=benchmark))

    def _keep(self, when: str, result: EvalResult) -> None:
        assert self._sink is not None
        self.evaluations.keep(when, result)
        taken = self.clock.take(EVALUATION)
        self._sink.log(max(self.iterations - 1, 0), {**result.named, **taken}, when=when)
        shown = "  ".join(f"{k} {result.metrics[k]:.3g}" for k in KEPT if k in result.metrics)
        self.console.message(f"{when}  {result.split} ({result.mode}, {len(result.records)} tasks): {shown}")

    # --- state ----------------------------------------------------------------------------------------------------

    @property
    def stage_index(self) -> int:
        return self._stage[0]

    @property
    def params(self) -> Any:
        """The newest parameters."""
        return self._params if self._params is not None else self._learner.params  # type: ignore[union-attr]

    @property
    def _rolls_out(self) -> bool:
        return self._learner is not None and self._learner.stage.rolls_out

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
            "iterations": self.iterations,
            "alarms": read_metrics(self.folder / ALARMS),
            "rollbacks": as_json(self.rollbacks),
            **self._used(),
            "commit": commit(),
            "seed": self.seed,
        }

    def _used(self) -> dict[str, float]:
        """What the run has used, its earlier processes included."""
        own = {
            "cpu_seconds": _cpu_seconds(),
            "compilations": self.compilations.count,
            "compile_seconds": self.compilations.seconds,
        }
        return {name: value + self._earlier[name] for name, value in own.items()}

    def _frozen(self, stage: Stage) -> dict[str, Any]:
        average = {"ema": self._average} if stage.keeps_average else {}
        return {"reference": self._reference, **average} if stage.keeps_reference else average

    def _network(self, stage: Stage) -> Network | None:
        """The teacher that is another network."""
        teacher = stage.teacher
        if teacher is None or teacher.weights != "checkpoint":
            return None
        return load_network(teacher.checkpoint, self.prepared, self.policy.execution.mesh)

    def _device_state(self) -> dict[str, Any]:
        assert self._learner is not None
        state = {"train": self._learner.state}
        state |= {} if self._average is None else {"average": self._average}
        return state if self._reference is None else state | {"reference": self._reference}

    def _save(self, stages: Sequence[Stage], done: Place) -> None:
        state = self._device_state() if done.iteration else {"params": self.params}
        host = {
            **self._host_now(done),
            "sources": [dict(stage.source.state()) for stage in stages],
            "evaluations": self.evaluations.made,
            "monitor": self.monitor.state(),
        }
        self.checkpoints.save(self.iterations, state, host)
        stage = stages[self.stage_index]
        for name, content in stage.shown.items():
            text = json.dumps(content(), indent=1, ensure_ascii=False)
            (self.folder / f"{stage.name}.{name}.json").write_text(text + "\n", "utf-8", "replace")

    def _host_now(self, done: Place) -> dict[str, Any]:
        """The part of the host state that never goes back, and the place."""
        return {
            "place": [done.stage, done.iteration],
            "version": self._version,
            "iterations": self.iterations,
            "seconds": self.clock.spent,
            "used": self._used(),
            "rollbacks": as_json(self.rollbacks),
        }

    def _restore_host(self, stages: Sequence[Stage], host: Mapping[str, Any]) -> None:
        """The part that is as it was at the checkpoint."""
        self.evaluations.made = list(host["evaluations"])
        self.monitor.restore(host["monitor"])
        for stage, state in zip(stages, host["sources"]):
            stage.source.restore(state)

    def _load_engine(self, params: Any) -> None:
        if self.engine.version < self._engine_version():
            self.engine.load(params, self._engine_version())
            self._handed.append(self.engine.version)

    def _engine_version(self) -> int:
        return self._learner.version if self._learner is not None else self._version

    def _writers(self) -> list[Writer]:
        """metrics.jsonl always; trackers as configured. Lines of iterations that will be run again are dropped."""
        last = self.iterations - 1
        writers: list[Writer] = [JsonlWriter(self.folder / "metrics.jsonl", after=last)]
        if "tensorboard" in self.config.trackers:
            writers.append(TensorBoardWriter(self.folder / "tensorboard", after=last))
        if "wandb" in self.config.trackers:
            writers.append(
                WandbWriter(self.folder, project="jaxagent", config=self.config.model_dump(mode="json"))
            )
        return writers

    def close(self) -> None:
        self.console.stop()
        self.ahead.close(self.rollouts.cancel)
        self.rollouts.close()
        self.checkpoints.close()
        self.compilations.close()
        if self._sink is not None:
            self._sink.close()
        if self._alarms is not None:
            self._alarms.close()
        if self._kept is not None:
            self._kept.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shapes(state: Any) -> Any:
    """What to restore into, without the arrays."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
    )


def _cpu_seconds() -> float:
    """User and system time of this process and of its ended children."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
