"""Steps a second and memory of environments, by pool size: what a host can feed a decoder with.

    python benchmarks/environments.py --env doors 'world={"level":"easy"}' --workers 1 2 4 --episodes 64 --live 32
                                      [--split train] [--json results.json] [--markdown results.md]

Every environment is driven through the run's own pool by its scripted expert (by a fixed text, where it has none).
Columns: start is from an empty pool until the first episode is open; reset, of later ones (median); steps/s is of the
whole pool, wall; steps/CPU-s, of one CPU-second of the workers and what they started; RSS and PSS are their largest
sums while `live` episodes are open, PSS counts shared pages once. The command, commit and machine go with the table:
quote them with the figures. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jaxagent.envs.pool import Deadlines, EnvPool  # noqa: E402
from jaxagent.envs.protocol import EnvSpec  # noqa: E402
from jaxagent.envs.table import find_env  # noqa: E402
from jaxagent.types import Message, Task  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")
PERIOD_S = 0.2  # between two looks at memory


@dataclass
class Measured:
    """One environment in one pool."""

    environment: str
    workers: int
    live: int
    episodes: int = 0
    failed: int = 0
    steps: int = 0
    start_s: float = 0.0
    reset_ms: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    rss_mb: float = 0.0
    pss_mb: float = 0.0
    resets: list[float] = field(default_factory=list)

    def row(self) -> list[str]:
        return [
            self.environment,
            str(self.workers),
            str(self.live),
            f"{self.episodes}" + (f" ({self.failed} failed)" if self.failed else ""),
            f"{self.start_s:.2f}",
            f"{self.reset_ms:.1f}",
            f"{self.steps / self.wall_s:,.0f}",
            f"{self.steps / self.cpu_s:,.0f}" if self.cpu_s else "",
            f"{self.rss_mb:,.0f}",
            f"{self.pss_mb:,.0f}",
        ]


HEAD = (
    "environment",
    "workers",
    "live",
    "episodes",
    "start s",
    "reset ms",
    "steps/s",
    "steps/CPU-s",
    "RSS MB",
    "PSS MB",
)


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(member for child in children for member in family(int(child)))]


def read(pids: Iterable[int], name: str, value: Callable[[str], float]) -> float:
    """Sum of a /proc file's value over processes; those that have ended count 0."""
    total = 0.0
    for pid in pids:
        try:
            total += value(Path(f"/proc/{pid}/{name}").read_text())
        except OSError:
            continue
    return total


def cpu_seconds(pids: Iterable[int]) -> float:
    """Used so far, with ended children that were waited for."""
    return read(pids, "stat", lambda text: sum(map(int, text.rsplit(")", 1)[1].split()[11:15])) / TICK)


def megabytes(pids: Sequence[int], field_name: str) -> float:
    def value(text: str) -> float:
        lines = [line for line in text.splitlines() if line.startswith(field_name + ":")]
        return int(lines[0].split()[1]) / 1024 if lines else 0.0

    return read(pids, "smaps_rollup", value)


def processes(pool: EnvPool) -> list[int]:
    return [member for worker in pool.workers if worker.pid for member in family(worker.pid)]


async def watch(pool: EnvPool, measured: Measured) -> None:
    """Keep the largest memory."""
    while True:
        pids = processes(pool)
        measured.rss_mb = max(measured.rss_mb, megabytes(pids, "Rss"))
        measured.pss_mb = max(measured.pss_mb, megabytes(pids, "Pss"))
        await asyncio.sleep(PERIOD_S)


async def episode(pool: EnvPool, spec: EnvSpec, task: Task, measured: Measured) -> None:
    start = time.perf_counter()
    handle = await pool.open(spec, task)
    measured.resets.append(time.perf_counter() - start)
    try:
        policy = spec.expert(task, Random(0), 0.0) if spec.expert else None
        result = handle.first
        for _ in range(spec.max_steps):
            text = policy.act(result.observation) if policy else "x"
            result = await handle.step(spec.parse(Message("assistant", text)))
            measured.steps += 1
            if result.done:
                break
        await handle.evaluate()
    finally:
        await handle.close()


async def measure(
    name: str, spec: EnvSpec, tasks: Sequence[Task], workers: int, episodes: int, live: int
) -> Measured:
    measured = Measured(name, workers, live, episodes)
    async with EnvPool(workers, deadlines=Deadlines(step_s=300.0, reset_s=600.0)) as pool:
        start = time.perf_counter()
        await (await pool.open(spec, tasks[0])).close()
        measured.start_s = time.perf_counter() - start
        warm = [await pool.open(spec, tasks[0]) for _ in range(workers)]  # least loaded first: one in each
        for handle in warm:
            await handle.close()
        places, watcher = asyncio.Semaphore(live), asyncio.ensure_future(watch(pool, measured))

        async def limited(task: Task) -> None:
            async with places:
                await episode(pool, spec, task, measured)

        before, start = cpu_seconds(processes(pool)), time.perf_counter()
        jobs = [limited(task) for task in islice(cycle(tasks), episodes)]
        outcomes = await asyncio.gather(*jobs, return_exceptions=True)
        measured.wall_s = time.perf_counter() - start
        measured.cpu_s = cpu_seconds(processes(pool)) - before
        watcher.cancel()
        measured.failed = sum(isinstance(outcome, BaseException) for outcome in outcomes)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                print(f"{name}: an episode failed: {outcome}", file=sys.stderr)
                break
        measured.reset_ms = 1000 * statistics.median(measured.resets or [0.0])
    return measured


def commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def machine() -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":")[1].strip() for line in info if line.startswith("model name")), "unknown CPU"
    )
    load = os.getloadavg()[0]
    return f"{model}, {os.cpu_count()} CPUs, Python {platform.python_version()}, load before {load:.1f}"


def table(rows: Sequence[Sequence[str]]) -> str:
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", nargs="+", default=["doors", 'world={"level":"easy"}', "world"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--live", type=int, default=32, help="episodes open at once")
    parser.add_argument("--split", default="train")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    about = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "machine": machine(),
    }
    found: list[Measured] = []
    for given in args.env:
        name, _, options = given.partition("=")
        spec = find_env(name, json.loads(options or "{}"))
        tasks = spec.tasks(args.split)[: args.episodes]
        for workers in args.workers:
            found.append(asyncio.run(measure(given, spec, tasks, workers, args.episodes, args.live)))
            print(table([found[-1].row()]).splitlines()[-1], flush=True)
    text = "\n".join(
        [
            table([one.row() for one in found]),
            "",
            *(f"{key}: `{value}`" for key, value in about.items()),
        ]
    )
    print(text)
    if args.markdown:
        args.markdown.write_text(text + "\n")
    if args.json:
        rows = [{key: value for key, value in asdict(one).items() if key != "resets"} for one in found]
        args.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
