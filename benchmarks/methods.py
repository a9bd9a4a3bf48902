"""Methods side by side on the embedded world: one warm start a seed, then every method from the same weights.

    python benchmarks/methods.py [STUDY.yaml [key=value ...]] [--out runs/methods] [--seeds 0 1 2 3 4]
                                 [--methods GRPO GVPO ...] [--cores 0 1] [--report-only]

STUDY.yaml (configs/studies/methods.yaml) names the methods' run files, what they share and the claims to test. Each
run is a process of its own on one core; what has ended is not run again, so the command may be stopped and repeated.
`key=value` overrides go to every method's run. Out: table.md, methods.png, curves.png and results.json in the folder.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from methods_report import Claim, Outcome, read_outcome, write_report

from jaxagent.config import RunConfig
from jaxagent.records import Record
from jaxagent.run_file import read_run, write_run
from jaxagent.yaml_files import read_yaml

ROOT = Path(__file__).resolve().parents[1]
ONE_CORE = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu"}


class Method(Record):
    """run: a run file, relative to the study. overrides: of this method only, after the study's.

    own_warm_start: train the run file's warm start instead of taking the shared one (SAGE begins with episodes that
    define and reuse functions).
    """

    name: str
    run: str
    own_warm_start: bool = False
    overrides: tuple[str, ...] = ()


class Study(Record):
    """warm: the run file whose warm start all share. iterations: of the last stage of every method's run; earlier ones
    (value pre-training, a cold start) come on top. overrides: of every method's run."""

    warm: str
    iterations: int
    overrides: tuple[str, ...] = ()
    methods: tuple[Method, ...]
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class Job:
    """One training run; `folder/result.json` says that it has ended."""

    config: RunConfig
    folder: Path

    @property
    def done(self) -> bool:
        return (self.folder / "result.json").is_file()


def warm_job(study: Study, home: Path, out: Path, seed: int) -> Job:
    """The shared warm start as a run of its own: its stages, without the reinforcement learning."""
    config = read_run(home / study.warm, [f"seed={seed}", f"run_dir={out}/warm/{seed}", "eval.splits=[]"])
    return Job(
        config.model_copy(update={"stages": config.warm_start, "warm_start": ()}), out / "warm" / str(seed)
    )


def method_job(study: Study, method: Method, home: Path, out: Path, seed: int, overrides: list[str]) -> Job:
    folder = out / slug(method.name) / str(seed)
    warmed = [
        "warm_start=[]",
        f"model.source={out}/warm/{seed}/export",
        "tokenizer={source: model, template: plain}",
    ]
    shared = ["export=false", f"seed={seed}", f"run_dir={folder}", *(() if method.own_warm_start else warmed)]
    last = len(read_run(home / method.run).stages) - 1
    length = f"stages.{last}.options.iterations={study.iterations}"
    chosen = [*shared, length, *study.overrides, *method.overrides, *overrides]
    return Job(read_run(home / method.run, chosen), folder)


def slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")


def run_all(jobs: list[Job], cores: list[int]) -> None:
    """Run what has not ended, one run a core; failures are told and left out, so that one does not end the study."""
    free: Queue[int] = Queue()
    for core in cores:
        free.put(core)

    def run(job: Job) -> None:
        core = free.get()
        try:
            job.folder.parent.mkdir(parents=True, exist_ok=True)
            file = job.folder.parent / f"{job.folder.name}.yaml"
            write_run(job.config, file)
            command = ["taskset", "-c", str(core), sys.executable, "-m", "jaxagent.cli", "train", str(file)]
            with (job.folder.parent / f"{job.folder.name}.log").open("w") as log:
                env = os.environ | ONE_CORE | {"PYTHONPATH": str(ROOT)}
                code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=env).returncode
            print(f"{job.folder}: {'ended' if job.done else f'FAILED with {code}, see its .log'}", flush=True)
        finally:
            free.put(core)

    with ThreadPoolExecutor(len(cores)) as pool:
        list(pool.map(run, [job for job in jobs if not job.done]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", nargs="?", type=Path, default=ROOT / "configs" / "studies" / "methods.yaml")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", help="names of the study file; all without it")
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--report-only", action="store_true", help="run nothing, read what has ended")
    args, overrides = parser.parse_known_args()
    cores = os.sched_getaffinity(0)
    if len(set(args.cores)) < len(args.cores) or not set(args.cores) <= cores:
        parser.error(f"--cores {args.cores}: expected different ones of {sorted(cores)}")
    study = Study.parse(read_yaml(args.study), str(args.study))
    home, out = args.study.parent, args.out.resolve()
    chosen = [m for m in study.methods if not args.methods or m.name in args.methods]
    if not chosen:
        known = ", ".join(method.name for method in study.methods)
        parser.error(f"no method of the study is named {' or '.join(args.methods)}; known: {known}")
    if not args.report_only:
        run_all([warm_job(study, home, out, seed) for seed in args.seeds], args.cores)
    outcomes: dict[str, dict[int, Outcome]] = {}
    jobs = {(m.name, s): method_job(study, m, home, out, s, overrides) for s in args.seeds for m in chosen}
    if not args.report_only:
        run_all(list(jobs.values()), args.cores)
    for (name, seed), job in jobs.items():
        if job.done:
            outcomes.setdefault(name, {})[seed] = read_outcome(job.folder)
    write_report(out, outcomes, study.claims, command=shlex.join([sys.executable, *sys.argv]))


if __name__ == "__main__":
    main()
