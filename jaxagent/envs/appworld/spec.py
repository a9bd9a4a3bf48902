"""AppWorld as a run refers to it: options, checks before anything starts, the `EnvSpec`.

Raises ConfigError where the package or the data is missing, with the commands that fetch them.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import Field

from jaxagent.chat.tools import parse_code
from jaxagent.envs.appworld.env import GRACE_S, AppWorldEnv, Settings
from jaxagent.envs.appworld.expert import expert
from jaxagent.envs.appworld.prompt import observe, prompt
from jaxagent.envs.appworld.server import Installation, probe
from jaxagent.envs.appworld.tasks import check_root, how_to_fetch, tasks
from jaxagent.envs.entry import Entry, data_path
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.verdicts import verdict_means
from jaxagent.errors import ConfigError
from jaxagent.records import Record
from jaxagent.types import Metrics, Trajectory

PYTHON, ROOT = "JAXAGENT_APPWORLD_PYTHON", "APPWORLD_ROOT"
VERSION = "0.1.3.post1"
PATIENCE_S = 600.0  # in the trainer's process, where no pool waits: demonstrations are not retried
INSTALL = (
    f"Make it with `python3.11 -m venv appworld-venv && appworld-venv/bin/pip install appworld=={VERSION} && "
    f"appworld-venv/bin/appworld install` and name appworld-venv/bin/python in env.options.python or ${PYTHON}"
)


class AppWorldOptions(Record):
    """Empty paths are taken from the environment variables JAXAGENT_APPWORLD_PYTHON and APPWORLD_ROOT.

    python:           interpreter of the virtual environment that has the package `appworld`.
    root:             AppWorld's root: the folder that holds `data`.
    experiment:       keep what episodes leave in <root>/experiments/outputs/<experiment>/rollout_N, for
                      `appworld evaluate`; empty throws it away.
    max_interactions: executions of code after which AppWorld runs no more.
    step_seconds:     AppWorld's time-out of one execution.
    memory_gb:        what code may allocate in its world.
    example:          open with the worked example.
    """

    python: str = ""
    root: str = ""
    experiment: str = Field(default="", pattern=r"^[\w./-]*$")
    max_interactions: int = Field(default=1000, ge=1)
    step_seconds: int = Field(default=100, ge=1)
    seed: int = 100
    memory_gb: float = Field(default=2.0, ge=0.25)
    example: bool = True


def appworld_spec(options: AppWorldOptions) -> EnvSpec:
    """Splits: train, dev, test_normal, test_challenge. Raises ConfigError without package or data."""
    python = data_path(options.python, variable=PYTHON, what="the Python that has AppWorld", fetch=INSTALL)
    _check_package(python.absolute())
    fetch = f"To get it, {how_to_fetch(options.root or 'FOLDER')}"
    root = data_path(options.root, variable=ROOT, what="AppWorld's root folder", fetch=fetch).absolute()
    data = check_root(root)
    installation = Installation(python.absolute(), data, root if options.experiment else None)
    settings = Settings(
        installation=installation,
        experiment=options.experiment,
        max_interactions=options.max_interactions,
        timeout_s=options.step_seconds,
        seed=options.seed,
        memory_gb=options.memory_gb,
    )
    return EnvSpec(
        name="appworld",
        make=partial(AppWorldEnv, settings),
        tasks=partial(tasks, data),
        prompt=partial(prompt, example=options.example),
        parse=parse_code,
        observe=observe,
        metrics=metrics,
        max_steps=50,  # of the official ReAct agent
        expert=partial(expert, data),
        rehearse=partial(AppWorldEnv, replace(settings, answer_s=PATIENCE_S, raises=False)),
        worker={"step_s": options.step_seconds + 2 * GRACE_S},
    )


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Beside TGC and SGC (eval/metrics.py): share of episodes that called complete_task, executions an episode."""
    measures = {
        "task_completed": lambda verdict: verdict.info["completed"],
        "interactions": lambda verdict: verdict.info["interactions"],
    }
    return verdict_means(trajectories, measures)


@functools.cache
def _check_package(python: Path) -> None:
    try:
        found = probe(python)
    except (OSError, ValueError, subprocess.TimeoutExpired) as exc:
        raise ConfigError(f"the Python that has AppWorld: {python} does not run ({exc}). {INSTALL}") from exc
    if not found["version"]:
        raise ConfigError(f"the Python that has AppWorld: {python} lacks the package appworld. {INSTALL}")
    if not found["unpacked"]:
        command = python.with_name("appworld")
        raise ConfigError(
            f"{python} has appworld {found['version']}, not unpacked yet; run `{command} install`"
        )


ENTRY = Entry(AppWorldOptions, appworld_spec)
