"""A run from its configuration to its folder: prepare, build stages, train, measure, export, report.

    run_dir/  config.yaml  tokenizer/  metrics.jsonl  checkpoints/  evaluations/  report/  export/  result.json
              rollouts.bin, if the run file says `keep_rollouts`

Started again with the same configuration it goes on from the newest checkpoint, or shows the table of a run that has
ended; with another configuration it refuses. Nothing is written before everything that can be refused was.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from jaxagent.chat.tokenizer import HUB_PREFIX
from jaxagent.clock import Clock
from jaxagent.config import MeshConfig, RunConfig
from jaxagent.errors import ConfigError, DataError
from jaxagent.folder_lock import LOCK, locked
from jaxagent.model_source import TRAINED
from jaxagent.preemption import EXIT_PREEMPTED, Preempted, Preemption
from jaxagent.prepare import Prepared, prepare
from jaxagent.recipes.base import Materials
from jaxagent.recipes.stored import with_stored
from jaxagent.rollout.demonstrate import play, tokens
from jaxagent.rollout.settings import RolloutConfig
from jaxagent.rollout.staleness import refuse_lending
from jaxagent.rollout.temperature import linear
from jaxagent.run_file import read_run, write_run
from jaxagent.stage import Stage
from jaxagent.types import Group, Task

EXIT_COLLAPSED = 5  # stopped by an alarm (alarms.on_collapse)
CONFIG, RESULT, EXPORT, PARTIAL = "config.yaml", "result.json", "export", ".partial"


def run_training(config: RunConfig, *, clock: Clock | None = None) -> int:
    """Train a run to its end; returns the exit code: 0, EXIT_PREEMPTED when asked to stop and saved, EXIT_COLLAPSED.

    clock: when the run began; now, if it is not given.
    """
    clock = clock or Clock()
    folder = Path(config.run_dir)
    _check_folder(folder, config)
    if (folder / RESULT).is_file():
        from jaxagent.report.run import write_report

        print(f"{folder}: this run has ended; choose another run_dir for a new one")
        write_report(folder)
        return 0
    with contextlib.ExitStack() as owned:
        owned.enter_context(locked(folder))
        prepared = opened(config)
        clock.lap("prepare")
        stages = build_stages(prepared)
        clock.lap("demonstrations")
        for stage in stages:
            owned.callback(stage.close)
        preemption = owned.enter_context(Preemption())
        return _train(prepared, stages, preemption, clock)


def _train(prepared: Prepared, stages: Sequence[Stage], preemption: Preemption, clock: Clock) -> int:
    folder = Path(prepared.config.run_dir)
    set_up_jax()
    from jaxagent.collapse import Collapsed
    from jaxagent.report.run import write_report
    from jaxagent.runtime import Runtime
    from jaxagent.train import train

    clock.lap("imports")
    with Runtime(prepared, preemption, clock=clock) as run:
        _open_folder(folder, prepared)
        try:
            train(stages, run)
        except Preempted:
            run.console.message("asked to stop: the state is saved; start the same command again to go on")
            return EXIT_PREEMPTED
        except Collapsed as collapse:
            run.console.message(
                f"stopped by the alarm {collapse.alarm.name}, which began in iteration {collapse.alarm.since}: the "
                "state is saved; start the same command again to go on all the same"
            )
            run.console.stop()
            write_report(folder)
            return EXIT_COLLAPSED
        if prepared.config.export:
            _export(run.policy.graphdef, run.weights.params, prepared, folder / EXPORT, form="merged")
        clock.lap("export")
    # The environment processes have ended, so that their CPU time counts.
    (folder / PARTIAL).write_text(json.dumps(run.result(), indent=1) + "\n")
    (folder / PARTIAL).rename(folder / RESULT)  # whole or not at all: it says that the run has ended
    write_report(folder)
    return 0


def opened(config: RunConfig) -> Prepared:
    """`prepare`, announced on stderr: some worlds take minutes to open, and there is no console yet."""
    print(f"opening environment {config.env.name} and building the stages …", file=sys.stderr, flush=True)
    return prepare(config)


def build_stages(prepared: Prepared) -> list[Stage]:
    """The stages of a run. Demonstrations that they need are played now."""
    config = prepared.config

    def demonstrate(tasks: Sequence[Task], sloppiness: float, slips: float) -> list[Group]:
        groups = []
        for number, task in enumerate(tasks):
            rng = Random(f"{config.seed}/{number}/{task.task_id}")
            played = play(prepared.env, task, rng=rng, sloppiness=sloppiness, slips=slips)
            groups.append(Group(task, (tokens(played, prepared.env, prepared.renderer, number),)))
        return groups

    stages, origin = [], prepared.origin
    for index, entry in enumerate(prepared.entries):
        materials = Materials(
            name=entry.name,
            spec=prepared.env,
            tasks=prepared.train_tasks,
            renderer=prepared.renderer,
            sampling=prepared.sampling,
            row=entry.pack.length,
            scored=entry.pack.scored,
            spare=entry.recipe.spare(entry.options),
            seed=config.seed + index,
            demonstrate=demonstrate,
            origin=origin,
        )
        stages.append(with_stored(entry.recipe.stage(entry.options, materials), entry.options, materials))
    for stage in stages:
        _check_schedule(stage)
        check_lag(stage, config.rollout)
    return [_heated(stage, config.rollout) for stage in stages]


def _heated(stage: Stage, rollout: RolloutConfig) -> Stage:
    """The stage with the run's temperature schedule, if it rolls out and there is one."""
    schedule = rollout.temperature_schedule
    if schedule is None or not stage.rolls_out:
        return stage
    return replace(stage, temperature=linear(rollout.temperature, schedule.end, schedule.iterations))


def _check_schedule(stage: Stage) -> None:
    """A warm-up as long as its stage is refused here, not when hours later the stage begins."""
    from jaxagent.learn.optim import make_schedule
    from jaxagent.learner import optimizer_spec

    try:
        make_schedule(optimizer_spec(stage.update, stage.iterations))
    except ConfigError as exc:
        raise ConfigError(f"stage {stage.name}: {exc}") from exc


def check_lag(stage: Stage, rollout: RolloutConfig) -> None:
    """What the first iteration would refuse (collector.py) is refused now."""
    if stage.lends:
        refuse_lending(stage.name, rollout.max_lag)


def export_run(run_dir: Path, out: Path, *, form: str) -> Path:
    """Write the newest checkpoint of a run as a Hugging Face folder. form: "merged" or "adapter"."""
    from jaxagent.checkpoint import Checkpointer
    from jaxagent.policy import build_policy

    if not (run_dir / CONFIG).is_file():
        raise DataError(f"{run_dir} is no run folder: it has no {CONFIG}")
    # The folder may have been moved, and to another machine: its path and its mesh do not count.
    changes = {"run_dir": str(run_dir), "mesh": MeshConfig()}
    prepared = prepare(read_run(run_dir / CONFIG).model_copy(update=changes))
    policy = build_policy(prepared)
    checkpoints = Checkpointer(run_dir / "checkpoints")
    params = checkpoints.restore_params(policy.params)
    checkpoints.close()
    return _export(policy.graphdef, params, prepared, out, form=form)


def _export(graphdef: Any, params: Any, prepared: Prepared, out: Path, *, form: str) -> Path:
    from jaxagent.export import export_adapter, export_model

    tokenizer = prepared.tokenizer.source or Path(prepared.config.run_dir) / TRAINED
    if form == "adapter":
        base = prepared.config.model.source.removeprefix(HUB_PREFIX)
        return export_adapter(out, graphdef, params, base=base, tokenizer=tokenizer)
    return export_model(out, graphdef, params, tokenizer=tokenizer)


def _check_folder(folder: Path, config: RunConfig) -> None:
    """What is in a run folder must belong to this configuration. Where the folder lies does not count."""
    written = folder / CONFIG
    if written.exists():
        before = read_run(written).model_copy(update={"run_dir": config.run_dir})
        if before != config:
            changed = [
                name for name in RunConfig.model_fields if getattr(before, name) != getattr(config, name)
            ]
            raise ConfigError(
                f"{folder} holds a run with another configuration (different: {', '.join(changed)}); choose another "
                "run_dir, or remove the folder to start over"
            )
    elif folder.exists() and (
        not folder.is_dir() or any(path.name not in (PARTIAL, LOCK) for path in folder.iterdir())
    ):
        raise ConfigError(f"{folder} is not empty and is no run folder; choose another run_dir")


def _open_folder(folder: Path, prepared: Prepared) -> None:
    """Make the run folder, or complete it. A kill in between leaves nothing half-written under a final name."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / PARTIAL
    if not (folder / CONFIG).exists():
        write_run(prepared.config, partial)
        partial.rename(folder / CONFIG)
    if prepared.config.tokenizer.source == "train" and not (folder / TRAINED).is_dir():
        shutil.rmtree(partial, ignore_errors=True)
        prepared.tokenizer.save(partial)
        partial.rename(folder / TRAINED)


def set_up_jax() -> None:
    """A persistent compilation cache, unless the user has one."""
    import jax

    # JAX makes its options attributes at run time.
    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "jaxagent" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
