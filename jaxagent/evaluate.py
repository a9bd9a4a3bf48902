"""`jaxagent eval`: any policy on any environment, from the run file to a folder with its result.

    DIR/  settings.json  episodes/SPLIT-MODE.jsonl  episodes/failures.jsonl  opened.json  result.json  report/

Every finished episode is written at once. Started again with the same settings it plays what is missing; with others
it refuses. Nothing is written before everything that can be refused was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jaxagent.config import RunConfig
from jaxagent.console import RunConsole
from jaxagent.entrants import Entrant, Opened, enter
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.table import find_env
from jaxagent.errors import EXIT_INCOMPLETE, ConfigError
from jaxagent.eval.cost import flop_metrics, time_metrics
from jaxagent.eval.episodes import episode_of
from jaxagent.eval.ledger import Ledger, check_tasks
from jaxagent.eval.runner import EvalResult, evaluate
from jaxagent.eval.settings import SETTINGS, Asked, check_folder, read_json, recorded, write_json
from jaxagent.evaluations import EVAL_SEED, measuring
from jaxagent.folder_lock import locked
from jaxagent.plan import Plan
from jaxagent.provenance import commit
from jaxagent.stage import Rollout
from jaxagent.types import Group, Sampling, Task, Trajectory

RESULT, EPISODES, OPENED = "result.json", "episodes", "opened.json"
LINES = 10  # of progress for each split and mode


@dataclass(frozen=True)
class Round:
    """One split played in one mode."""

    split: str
    tasks: Sequence[Task]
    of: int  # tasks that the whole split has
    sampling: Sampling
    n: int

    @property
    def name(self) -> str:
        """Of its file of episodes, and on the console."""
        return f"{self.split}-{'sampled' if self.sampling.temperature else 'greedy'}".replace("/", "-")


def run_evaluation(config: RunConfig, asked: Asked, out: Path, *, console: RunConsole | None = None) -> int:
    """Evaluate into the folder `out`; returns the exit code, 0 or EXIT_INCOMPLETE."""
    console = console or RunConsole()
    console.message(f"opening environment {config.env.name} …")
    env = find_env(config.env.name, config.env.options)
    splits = tuple(dict.fromkeys(asked.splits or config.eval.splits))
    if not splits:
        raise ConfigError("no split is named; give --split NAME, or eval.splits in the run file")
    whole = {split: env.tasks(split) for split in splits}
    tasks = {split: found[: asked.limit or None] for split, found in whole.items()}
    for split in splits:
        if not tasks[split]:
            raise ConfigError(f"split {split!r} of environment {env.name!r} holds no tasks")
    entrant = enter(config, asked, env, tasks)
    settings = recorded(entrant.config, asked, entrant.identity, splits)
    check_folder(out, settings)
    rounds = [
        Round(split, tasks[split], len(whole[split]), sampling, n)
        for split in splits
        for sampling, n in _modes(entrant.config, asked)
    ]
    with locked(out, name="--out"), contextlib.ExitStack() as stack:
        check_folder(out, settings)  # another process may have begun and ended since
        write_json(out / SETTINGS, settings)
        play = _Playing(entrant, env, out, stack, console, seed=EVAL_SEED + asked.seed)
        results = [play.measure(part) for part in rounds]
        write_json(out / RESULT, _result(entrant, settings, rounds, results, play.opened_record))
    complete = not any(result.dropped for result in results)
    if not complete:
        lost = sum(sum(result.dropped.values()) for result in results)
        console.message(
            f"INCOMPLETE: {lost} episodes were dropped (see {out / EPISODES}); what is shown is over the others. "
            "Start the same command again to play them"
        )
    return 0 if complete else EXIT_INCOMPLETE


def _modes(config: RunConfig, asked: Asked) -> list[tuple[Sampling, int]]:
    """(sampling rule, rollouts a task): greedy, sampled, or both."""
    rollout = config.rollout
    greedy = Sampling(max_tokens=rollout.max_tokens, temperature=0.0)
    sampled = replace(greedy, temperature=asked.temperature, top_k=rollout.top_k, top_p=rollout.top_p)
    return ([(greedy, 1)] if asked.greedy else []) + ([(sampled, asked.n)] if asked.n else [])


class _Playing:
    """Plays rounds. The policy is opened at the first episode that is missing, if there is one."""

    def __init__(
        self,
        entrant: Entrant,
        env: EnvSpec,
        out: Path,
        stack: contextlib.ExitStack,
        console: RunConsole,
        *,
        seed: int,
    ):
        self._entrant, self._env, self._out, self._stack = entrant, env, out, stack
        self._console, self._seed = console, seed
        self._opened: Opened | None = None
        path = out / OPENED
        self.opened_record: dict[str, Any] = read_json(path) if path.is_file() else {}

    def measure(self, part: Round) -> EvalResult:
        """Play what is missing of a round, and compute its metrics from what is written."""
        path = self._out / EPISODES / f"{part.name}.jsonl"
        progress = _Progress(self._console, part)
        ledger = Ledger(path, seconds=self._seconds, ended=progress.ended)
        self._stack.callback(ledger.close)
        check_tasks(ledger.records, part.tasks, n=part.n, path=path)
        progress.begin(len(ledger.records))

        result = asyncio.run(
            evaluate(
                part.tasks,
                self._rollout(part, ledger),
                sampling=part.sampling,
                n=part.n,
                split=part.split,
                missing_fails=False,
                benchmark=self._env.metrics,
            )
        )
        by_id = {task.task_id: task for task in part.tasks}
        played = [episode_of(record, by_id[task_id]) for (task_id, _), record in ledger.records.items()]
        cost = time_metrics(played, ledger.spent(), chips=int(self.opened_record.get("chips", 0)))
        return replace(result, metrics=result.metrics | flop_metrics(played, self._entrant.sizes), cost=cost)

    def _rollout(self, part: Round, ledger: Ledger) -> Rollout:
        """How the round is played; if every episode is written, from the file alone."""
        if len(ledger.records) < part.n * len(part.tasks):
            opened = self._open(ledger)
            return measuring(opened.rollouts, self._entrant.config, seed=self._seed, through=ledger.through)

        async def kept(plans: Sequence[Plan], sampling: Sampling) -> Sequence[Group]:
            return _kept(plans, ledger)

        return kept

    def _seconds(self) -> dict[str, float]:
        return dict(self._opened.seconds()) if self._opened else {}

    def _open(self, ledger: Ledger) -> Opened:
        if self._opened is None:
            self._opened = self._entrant.open(self._stack)
            self._check_weights(self._opened)
        ledger.begin()
        return self._opened

    def _check_weights(self, opened: Opened) -> None:
        """Episodes of one evaluation come from the same weights, whatever happened to the files."""
        now = {"chips": opened.chips, "device": opened.device, "weights": opened.weights}
        before = self.opened_record.get("weights", opened.weights)
        if before != opened.weights:
            raise ConfigError(
                f"the weights of {self._entrant.name} are not those that {self._out} was begun with (checksums "
                f"{before} and {opened.weights}); choose another --out"
            )
        self.opened_record = now
        write_json(self._out / OPENED, now)


def _kept(plans: Sequence[Plan], ledger: Ledger) -> list[Group]:
    """Groups of a round of which every episode is written."""
    return [
        Group(
            plan.task,
            tuple(
                episode_of(ledger.records[plan.task.task_id, number], plan.task) for number in range(plan.n)
            ),
        )
        for plan in plans
    ]


class _Progress:
    """A line on the console every few episodes."""

    def __init__(self, console: RunConsole, part: Round):
        self._console, self._part = console, part
        self._total = part.n * len(part.tasks)
        self._done = self._played = self._solved = 0

    def begin(self, kept: int) -> None:
        self._done = kept
        part = self._part
        some = f"the first {len(part.tasks)} of {part.of}" if len(part.tasks) < part.of else f"{part.of}"
        known = f", {kept} of {self._total} episodes are there" if kept else ""
        self._console.message(f"{part.name}: {some} tasks, rollouts of each: {part.n}{known}")

    def ended(self, trajectory: Trajectory) -> None:
        self._done, self._played = self._done + 1, self._played + 1
        self._solved += trajectory.success
        if self._done % -(-self._total // LINES) == 0 or self._done == self._total:
            share = self._solved / self._played
            self._console.message(f"{self._part.name}: {self._done}/{self._total}  solved {share:.0%}")


def _result(
    entrant: Entrant,
    settings: dict[str, Any],
    rounds: Sequence[Round],
    results: Sequence[EvalResult],
    opened: dict[str, Any],
) -> dict[str, Any]:
    """What result.json holds; "when" is what report/result.py calls the column."""
    return {
        "policy": entrant.name,
        "complete": not any(result.dropped for result in results),
        "settings": settings,
        "opened": opened,
        "commit": commit(),
        "evaluations": [
            {"when": entrant.name, "of": part.of, "episodes": part.name, **asdict(result)}
            for part, result in zip(rounds, results)
        ],
    }
