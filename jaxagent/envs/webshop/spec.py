"""WebShop as a run refers to it: `env: {name: webshop, options: {...}}`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jaxagent.envs.bm25 import load_bm25s
from jaxagent.envs.entry import Entry
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.verdicts import verdict_means
from jaxagent.envs.webshop.env import Webshop
from jaxagent.envs.webshop.expert import expert
from jaxagent.envs.webshop.goals import split_numbers
from jaxagent.envs.webshop.options import WebshopOptions
from jaxagent.envs.webshop.prompt import parse, prompt
from jaxagent.envs.webshop.reward import INSTALL, rapidfuzz
from jaxagent.envs.webshop.shop import open_shop
from jaxagent.types import ExecStatus, Metrics, Task, Trajectory

MAX_STEPS = 15  # GiGPO, SALT, SIRI


def webshop_spec(options: WebshopOptions) -> EnvSpec:
    """Raises ConfigError for packages or item files that are missing."""
    load_bm25s(INSTALL)
    rapidfuzz()
    open_shop(options)
    return EnvSpec(
        name="webshop",
        make=partial(Webshop, options),
        tasks=partial(tasks, options),
        prompt=partial(prompt, options),
        parse=partial(parse, options),
        metrics=metrics,
        max_steps=MAX_STEPS,
        expert=partial(expert, options),
        worker={"step_s": 30.0},
    )


def tasks(options: WebshopOptions, split: str) -> list[Task]:
    """One task a goal; its number is the benchmark's session number. `type` is the goal's catalogue query."""
    goals = open_shop(options).goals
    return [
        Task(
            task_id=f"webshop/{number}",
            env="webshop",
            split=split,
            scenario=goals[number].asin,
            type=goals[number].query,
            seed=number,
            meta={"goal": number},
        )
        for number in split_numbers(split, len(goals))
    ]


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """The benchmark's two, in percent: score = 100 x mean reward, success_rate = share of rewards that are exactly 1.

    And shares: bought (of episodes), invalid (of actions: malformed, or not allowed by the page).
    """
    means = verdict_means(
        trajectories,
        {
            "score": lambda verdict: 100 * verdict.info["score"],
            "success_rate": lambda verdict: 100 * verdict.success,
            "bought": lambda verdict: verdict.info["bought"],
        },
    )
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    bad = (ExecStatus.INVALID, ExecStatus.RUNTIME_ERROR)
    invalid = sum(step.exec_status in bad for step in steps) / max(len(steps), 1)
    return means and {**means, "invalid": invalid}


ENTRY = Entry(WebshopOptions, webshop_spec)
