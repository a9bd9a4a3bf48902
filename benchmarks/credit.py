"""Seconds of every credit method on made-up groups, beside an iteration's time; how they grow with the steps.

    python benchmarks/credit.py [--tasks 40] [--rollouts 6] [--steps 40] [--iteration 240] [--rounds 5] [--json FILE]

An iteration is `tasks` x `rollouts` episodes of `steps` steps, with about 300 characters of code and 600 of observation
a step; half of the observations hold two numbers of their own. CPU seconds of one call (median over the rounds), credit
alone: no rollout, no reward, no packing; the judge is a script. `--iteration` is the wall time of an iteration to
compare with: 240 s is the rollout of SALT's paper. Growth: 1,000, 10,000 and 100,000 steps, as more groups of the same
size, as one group of more rollouts, and, for similarity, as one group in which no two states are alike: its worst case.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import string
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from jaxagent.auxlm.background import Background  # noqa: E402
from jaxagent.auxlm.client import AuxLimits, AuxLM, ScriptedBackend  # noqa: E402
from jaxagent.credit.attribution import Attribution  # noqa: E402
from jaxagent.credit.gigpo import gigpo  # noqa: E402
from jaxagent.credit.group import group_std, leave_one_out, per_group  # noqa: E402
from jaxagent.credit.gvpo import gvpo  # noqa: E402
from jaxagent.credit.salt import salt  # noqa: E402
from jaxagent.credit.step_judge import ATTRIBUTE, StepJudge, script_labels  # noqa: E402
from jaxagent.credit.step_returns import step_returns  # noqa: E402
from jaxagent.stage import Credit  # noqa: E402
from jaxagent.types import (  # noqa: E402
    Action,
    Evaluation,
    ExecStatus,
    Group,
    Prompt,
    Status,
    Step,
    Stop,
    Task,
    Trajectory,
)

ACTIONS = 6  # that a rollout chooses from at a step
SIZES = (1_000, 10_000, 100_000)


@dataclass(frozen=True)
class Texts:
    """What is said in one task. unlike: every observation is made of letters of its own."""

    random: Random
    task: str
    unlike: bool = False

    def step(self, k: int) -> Step:
        choice = self.random.randrange(ACTIONS)
        code = f"result = apis.app_{choice}.call_{k % 9}(page={k})\n" * 6
        seen = self._observation(k, choice)
        return Step(
            k=k,
            observation_before=seen,
            text=f"I look at {choice} next.\n```python\n{code}```",
            ids_T=np.zeros(1, np.int32),
            logprob_T=np.zeros(1, np.float32),
            version=0,
            stop=Stop.STOP,
            action=Action(code),
            exec_status=ExecStatus.OK if self.random.random() < 0.9 else ExecStatus.RUNTIME_ERROR,
            observation_after=seen,
        )

    def _observation(self, k: int, choice: int) -> str:
        if self.unlike:
            return "".join(self.random.choices(self.random.sample(string.printable, 20), k=600))
        own = self.random.randrange(10**6) if self.random.random() < 0.5 else 0
        letters = Random(f"{self.task}/{k}/{choice}").choices(string.ascii_lowercase + "    ", k=560)
        return f"page {k}: {''.join(letters[:280])} visit {own} {''.join(letters[280:])} record {own}"


def made_groups(tasks: int, rollouts: int, steps: int, *, unlike: bool = False) -> list[Group]:
    groups = []
    for number in range(tasks):
        texts = Texts(Random(number), str(number), unlike)
        task = Task(str(number), "made", "train")
        groups.append(Group(task, tuple(episode(texts, task, i, steps) for i in range(rollouts))))
    return groups


def episode(texts: Texts, task: Task, rollout: int, steps: int) -> Trajectory:
    passed = texts.random.randrange(5)
    return Trajectory(
        traj_id=f"{task.task_id}:{rollout}",
        task=task,
        rollout=rollout,
        status=Status.DONE,
        prompt=Prompt(()),
        steps=tuple(texts.step(k) for k in range(steps)),
        segments=(),
        evaluation=Evaluation(passed == 4, passed, 4),
        reward=passed / 4,
    )


def methods() -> dict[str, Credit]:
    rloo = per_group(leave_one_out)
    judge = Background(AuxLM(ScriptedBackend({ATTRIBUTE.name: script_labels}), AuxLimits(cached=0)))
    return {
        "leave-one-out": rloo,
        "GRPO": per_group(group_std()),
        "GVPO": gvpo(rloo),
        "SALT": salt(rloo),
        "GVPO over SALT": gvpo(salt(rloo)),
        "GiGPO": gigpo(),
        "GiGPO, similarity 0.95": gigpo(similarity=0.95),
        "step returns": step_returns(gamma=0.95),
        "attribution by script": Attribution(StepJudge(judge), lambda: 0.1),
    }


def cpu_seconds(call: Callable[[], object], rounds: int) -> float:
    """Median CPU seconds of a call, of all threads."""
    spent = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        spent.append(time.process_time() - start)
    return statistics.median(spent)


def of_an_iteration(args: argparse.Namespace) -> dict[str, float]:
    groups = made_groups(args.tasks, args.rollouts, args.steps)
    found = {}
    print(f"\n{args.tasks} x {args.rollouts} x {args.steps} steps; an iteration of {args.iteration:g} s")
    print(f"{'method':26}{'seconds':>10}{'of it':>10}")
    for name, credit in methods().items():
        found[name] = cpu_seconds(partial(credit, groups), args.rounds)
        print(f"{name:26}{found[name]:10.4f}{100 * found[name] / args.iteration:9.4f}%", flush=True)
    return found


def growth(args: argparse.Namespace) -> dict[str, list[float]]:
    """Microseconds a step at each size."""
    per_group_steps = args.rollouts * args.steps
    salted, same, alike = salt(per_group(leave_one_out)), gigpo(), gigpo(similarity=0.95)
    more, one, worst = "more groups", "one group", "one group, no states alike"
    cases: list[tuple[str, str, Credit]] = [
        ("SALT", more, salted),
        ("SALT", one, salted),
        ("GiGPO", more, same),
        ("GiGPO", one, same),
        ("GiGPO, similarity 0.95", more, alike),
        ("GiGPO, similarity 0.95", one, alike),
        ("GiGPO, similarity 0.95", worst, alike),
    ]
    found: dict[str, list[float]] = {}
    print(f"\nmicroseconds a step{'':>34}" + "".join(f"{size:>12,}" for size in SIZES))
    for name, shape, credit in cases:
        row = []
        for size in SIZES if shape != worst else SIZES[:2]:
            groups = (
                made_groups(max(1, size // per_group_steps), args.rollouts, args.steps)
                if shape == more
                else made_groups(1, size // args.steps, args.steps, unlike=shape == worst)
            )
            steps = sum(len(t.steps) for group in groups for t in group.trajectories)
            rounds = args.rounds if size < SIZES[-1] else 1
            row.append(1e6 * cpu_seconds(partial(credit, groups), rounds) / steps)
        found[f"{name}: {shape}"] = row
        print(f"{name + ': ' + shape:53}" + "".join(f"{value:12.1f}" for value in row), flush=True)
    return found


def about(argv: Sequence[str]) -> dict[str, str]:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    info = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next(
        (line.split(":")[1].strip() for line in info if line.startswith("model name")), "unknown CPU"
    )
    return {
        "command": shlex.join(["python", *argv]),
        "commit": done.stdout.strip() or "unknown",
        "machine": f"{model}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"load before {os.getloadavg()[0]:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--rollouts", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--iteration", type=float, default=240.0, help="seconds of an iteration")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    where = about(sys.argv)
    print("\n".join(f"{key:8} {value}" for key, value in where.items()))
    result = {**where, "seconds": of_an_iteration(args), "microseconds_a_step": growth(args)}
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
