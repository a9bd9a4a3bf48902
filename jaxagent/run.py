"""A run from its configuration to its folder: prepare, build stages, train, measure, export, report.

    run_dir/  config.yaml  tokenizer/  metrics.jsonl  checkpoints/  evaluations/  report/  export/  result.json

Started again with the same configuration it goes on from the newest checkpoint; with another one it refuses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from jaxagent.clock import Clock
from jaxagent.config import RunConfig, read_run, write_run
from jaxagent.errors import ConfigError, DataError
from jaxagent.preemption import EXIT_PREEMPTED, Preemption
from jaxagent.prepare import TRAINED, Prepared, prepare
from jaxagent.recipes.base import Materials
from jaxagent.rollout.demonstrate import play, tokens
from jaxagent.stage import Stage
from jaxagent.types import Group, Task

CONFIG, RESULT = "config.yaml", "result.json"


def run_training(config: RunConfig, *, clock: Clock | None = None) -> int:
    """Train a run to its end; returns the exit code (0, or EXIT_PREEMPTED when asked to stop and saved).

    clock: when the run began; now, if it is not given.
    """
    clock = clock or Clock()
    prepared = prepare(config)
    folder = _open_folder(prepared)
    clock.lap("prepare")
    stages = build_stages(prepared)
    clock.lap("demonstrations")
    with Preemption() as preemption:
        return _train(prepared, stages, folder, preemption, clock)


def _train(
    prepared: Prepared, stages: Sequence[Stage], folder: Path, preemption: Preemption, clock: Clock
) -> int:
    _set_up_jax()
    from jaxagent.report.run import write_report
    from jaxagent.runtime import Preempted, Runtime
    from jaxagent.train import train

    clock.lap("imports")
    with Runtime(prepared, preemption, clock=clock) as run:
        try:
            train(stages, run)
        except Preempted:
            run.console.message("asked to stop: the state is saved; start the same command again to go on")
            return EXIT_PREEMPTED
        if prepared.config.export:
            _export(run.policy.graphdef, run.params, prepared, folder / "export", form="merged")
        clock.lap("export")
    # The environment processes have ended, so that their CPU time counts.
    (folder / RESULT).write_text(json.dumps(run.result(), indent=1) + "\n")
    write_report(folder)
    return 0


def build_stages(prepared: Prepared) -> list[Stage]:
    """The stages of a run. Demonstrations that they need are played now."""
    config = prepared.config

    def demonstrate(tasks: Sequence[Task], sloppiness: float) -> list[Group]:
        groups = []
        for number, task in enumerate(tasks):
            rng = Random(f"{config.seed}/{number}/{task.task_id}")
            played = play(prepared.env, task, rng=rng, sloppiness=sloppiness)
            groups.append(Group(task, (tokens(played, prepared.env, prepared.renderer, number),)))
        return groups

    return [
        entry.recipe.stage(
            entry.options,
            Materials(
                name=entry.name,
                spec=prepared.env,
                tasks=prepared.tasks[config.env.train_split],
                renderer=prepared.renderer,
                sampling=prepared.sampling,
                row=(config.all_stages[index].pack or config.pack).length,
                seed=config.seed + index,
                demonstrate=demonstrate,
            ),
        )
        for index, entry in enumerate(prepared.entries)
    ]


def export_run(run_dir: Path, out: Path, *, form: str) -> Path:
    """Write the newest checkpoint of a run as a Hugging Face folder. form: "merged" or "adapter"."""
    from jaxagent.checkpoint import Checkpointer
    from jaxagent.policy import build_policy

    if not (run_dir / CONFIG).is_file():
        raise DataError(f"{run_dir} is no run folder: it has no {CONFIG}")
    prepared = prepare(read_run(run_dir / CONFIG, [f"run_dir={run_dir}"]))
    policy = build_policy(prepared)
    checkpoints = Checkpointer(run_dir / "checkpoints")
    params = checkpoints.restore_params(policy.params)
    checkpoints.close()
    return _export(policy.graphdef, params, prepared, out, form=form)


def _export(graphdef: Any, params: Any, prepared: Prepared, out: Path, *, form: str) -> Path:
    from jaxagent.export import export_adapter, export_model

    config = prepared.config
    tokenizer = {"train": str(Path(config.run_dir) / TRAINED), "model": config.model.source}.get(
        config.tokenizer.source, config.tokenizer.source
    )
    if form == "adapter":
        return export_adapter(out, graphdef, params, base=config.model.source, tokenizer=tokenizer)
    return export_model(out, graphdef, params, tokenizer=tokenizer)


def _open_folder(prepared: Prepared) -> Path:
    """Make the run folder, or check that the one that is there belongs to this configuration."""
    config = prepared.config
    folder = Path(config.run_dir)
    written = folder / CONFIG
    if written.exists():
        before = read_run(written)
        if before != config:
            changed = [
                name for name in RunConfig.model_fields if getattr(before, name) != getattr(config, name)
            ]
            raise ConfigError(
                f"{folder} holds a run with another configuration (different: {', '.join(changed)}); choose another "
                "run_dir, or remove the folder to start over"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty and is no run folder; choose another run_dir")
    folder.mkdir(parents=True, exist_ok=True)
    if config.tokenizer.source == "train" and not (folder / TRAINED).is_dir():
        prepared.tokenizer.save(folder / TRAINED)
    if not written.exists():
        write_run(config, written)
    return folder


def _set_up_jax() -> None:
    """A persistent compilation cache, unless the user has one."""
    import jax

    # JAX makes its options attributes at run time.
    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "jaxagent" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
