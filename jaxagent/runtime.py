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

from jaxagent.checkpoint import Checkpointer
from jaxagent.checks import TOLERANCES
from jaxagent.clock import COMPILATION, DECODE, ENVIRONMENTS, PYTHON, Clock, Meter
from jaxagent.compilations import Compilations
from jaxagent.console import RunConsole
from jaxagent.data.rollout_store import FILE, RolloutWriter
from jaxagent.eval.runner import EvalResult, Rollout, evaluate
from jaxagent.evaluations import START, Due, Evaluations, measuring, opened
from jaxagent.learn.state import averaged
from jaxagent.learner import Learner, Model, Network, temperature
from jaxagent.metrics import JsonlWriter, MetricSink, TensorBoardWriter, WandbWriter, Writer
from jaxagent.monitors import Monitor
from jaxagent.policy import build_engine, build_policy, load_network
from jaxagent.preemption import Preemption
from jaxagent.prepare import Prepared
from jaxagent.provenance import commit
from jaxagent.report.trajectories import append_trajectories, pick, trajectory_record
from jaxagent.rollouts import Collected, collected_with, joined, marked, open_rollouts
from jaxagent.stage import Opening, Plan, Stage
from jaxagent.types import Credited, Group, Metrics, Sampling

SHOWN, SHOWN_EVERY = 4, 5  # rollouts kept for the report, and every how many iterations
EVALUATION, END = "evaluation", "end"  # what is timed beside the stages
KEPT = ("success", "tgc", "sgc", "completion", "reward", "exec_fail", "turns")


class Preempted(Exception):
    """The run was asked to stop; its state is saved."""


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
        self.checkpoints = Checkpointer(self.folder / "checkpoints", keep=config.checkpoint.keep)
        self.monitor = Monitor()
        self.evaluations = Evaluations(prepared)
        self._earlier: Counter[str] = Counter()  # what earlier processes of this run used
        self.iterations = 0
        self._sink: MetricSink | None = None
        self._kept: RolloutWriter | None = None
        self._learner: Learner | None = None
        self._stage = (0, "")

    # --- the loop asks ---------------------------------------------------------------------------------------

    def restore(self, stages: Sequence[Stage]) -> Place:
        """Take up the newest checkpoint, if there is one, and say where the run stands."""
        host = self.checkpoints.latest_host()
        place = Place() if host is None else Place(*host["place"])
        if host is not None:
            self._version, self.iterations = host["version"], host["iterations"]
            self.evaluations.made = list(host["evaluations"])
            self._earlier = Counter(host["used"])
            self.clock.resume(host["seconds"])
            self.monitor.restore(host["monitor"])
            for stage, state in zip(stages, host["sources"]):
                stage.source.restore(state)
            if place.iteration == 0:
                found = self.checkpoints.restore_latest({"params": self._params})
                assert found is not None
                self._params = found.device_state["params"]
            name = stages[place.stage].name if place.stage < len(stages) else "its end"
            self.console.message(f"going on at {name}, iteration {place.iteration + 1}")
        self._sink = MetricSink(self.folder, after=self.iterations - 1, writers=self._writers())
        if self.config.keep_rollouts:
            self._kept = RolloutWriter(self.folder / FILE, self.prepared.origin, after=self.iterations - 1)
        self.clock.lap("build")
        self.clock.take(START)
        if (due := self.evaluations.due_before(place.stage, place.iteration)) is not None:
            self.measure(due, self._params, stages[place.stage - 1].openings if place.stage else {})
        return place

    def begin(self, stage: Stage, index: int, place: Place) -> Learner:
        """The learner of a stage; in the middle of one, with the optimiser's state and the stage's reference."""
        resuming = index == place.stage and place.iteration > 0
        self._reference = jax.tree.map(jnp.copy, self._params) if stage.keeps_reference else None
        self._average = jax.tree.map(jnp.copy, self._params) if stage.keeps_average else None
        execution = replace(self.policy.execution, temperature=temperature(stage))
        teacher = self._network(stage)
        model = Model(self.policy.graphdef, self.policy.partition, execution, self._frozen(stage), teacher)
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
        self.console.start(stage.name, stage.iterations, done=place.iteration if resuming else 0)
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
        collected = collected_with(stage.follow_up, plans, partial(self._play, sampling, iteration))
        if stage.temperature is None:
            return collected
        return replace(collected, metrics={**collected.metrics, "rollout/temperature": sampling.temperature})

    def _play(self, sampling: Sampling, iteration: int, plans: Sequence[Plan], number: int) -> Collected:
        return self._roll_out(plans, sampling, self._stream(iteration, number))

    def _roll_out(self, plans: Sequence[Plan], sampling: Sampling, seed: int) -> Collected:
        """Every plan under the weights that it names: first the policy's, which are loaded, then others in turn."""
        rounds: dict[str, list[Plan]] = {}
        for plan in sorted(plans, key=lambda plan: plan.weights != "current"):
            rounds.setdefault(plan.weights, []).append(plan)
        collected = []
        for name, some in rounds.items():
            if name != "current":
                self._lend_engine(name)
            found = self.rollouts.run(some, sampling, seed=seed)
            collected.append(found if name == "current" else marked(found, name))
        if set(rounds) - {"current"}:
            self._lend_engine("current")
        return reduce(joined, collected)

    def _lend_engine(self, name: str) -> None:
        """Let named weights sample, under the number of the policy's version: they are no newer policy."""
        assert self._learner is not None
        self.engine.load(self._learner.weights(name), self._engine_version())

    def _stream(self, iteration: int, number: int) -> int:
        """Names the random streams of an iteration's rollouts, of round `number` of its follow-ups."""
        place = f"{self.seed}/{self._stage[0]}/{iteration}" + (f"/{number}" if number else "")
        return zlib.crc32(place.encode()) >> 1

    def first_rollout(self, groups: Sequence[Group]) -> bool:
        """True once, for the first groups that this process sampled: the moment to compare decoder and trainer."""
        sampled = any(t.steps for group in groups for t in group.trajectories)
        first = self._unchecked and self._rolls_out and sampled
        self._unchecked = self._unchecked and not first
        return first

    def hand_off(self, learner: Learner) -> None:
        """The new weights go to the decoder. A teacher's average follows them, and so may the reference."""
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

    def finish_iteration(self, stages: Sequence[Stage], done: Place, metrics: Metrics) -> None:
        """Log, watch, measure and save what is due after an iteration. Raises Preempted when asked to stop."""
        learner = self._learner
        assert learner is not None
        assert self._sink is not None
        index, name = self._stage
        ended = done.stage > index
        number = stages[index].iterations if ended else done.iteration
        self._version = learner.version
        self._sink.log(self.iterations, metrics, stage=name)
        self.iterations += 1
        self.console.iteration(number, metrics)
        for alarm in self.monitor.check(metrics):
            self.console.message(f"ALARM {alarm.name}: {alarm.message}")
        self.clock.lap(PYTHON)
        if ended:
            self._params = learner.params
        due = self.evaluations.due_after(index, number, ended=ended)
        # A run that is asked to stop saves first, for there may be seconds left. `restore` measures what it owes.
        if due is not None and not self._preemption.requested:
            self.measure(due, learner.params, stages[index].openings)
        every = self.config.checkpoint.every
        stopping = self._preemption.requested
        if ended or stopping or (every and number % every == 0):
            self._save(stages, done)
        self.clock.lap("checkpoint")
        self.clock.take(name)
        if stopping:
            self.checkpoints.wait()
            raise Preempted

    # --- evaluation --------------------------------------------------------------------------------------------

    def measure(self, due: Due, params: Any, openings: Mapping[str, Opening]) -> None:
        """Evaluate these parameters: kept for result.json and written to the metrics. Once plainly, then with each
        opening; "greedy" with the opening "skills" is the mode "greedy+skills"."""
        self._load_engine(params)
        self.clock.lap("hand_off")
        self.clock.take(self._stage[1] or START)
        plain = measuring(self.rollouts, self.config)
        ways = {"": plain} | {f"+{name}": opened(plain, opening) for name, opening in openings.items()}
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
            "place": [done.stage, done.iteration],
            "version": self._version,
            "iterations": self.iterations,
            "sources": [dict(stage.source.state()) for stage in stages],
            "evaluations": self.evaluations.made,
            "seconds": self.clock.spent,
            "used": self._used(),
            "monitor": self.monitor.state(),
        }
        self.checkpoints.save(self.iterations, state, host)
        stage = stages[self.stage_index]
        for name, content in stage.shown.items():
            text = json.dumps(content(), indent=1, ensure_ascii=False)
            (self.folder / f"{stage.name}.{name}.json").write_text(text + "\n", "utf-8", "replace")

    def _load_engine(self, params: Any) -> None:
        if self.engine.version < self._engine_version():
            self.engine.load(params, self._engine_version())

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
        self.rollouts.close()
        self.checkpoints.close()
        self.compilations.close()
        if self._sink is not None:
            self._sink.close()
        if self._kept is not None:
            self._kept.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cpu_seconds() -> float:
    """User and system time of this process and of its ended children."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
