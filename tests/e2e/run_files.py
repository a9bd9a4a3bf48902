"""Shipped run files, shrunk until they train in seconds, and a way to stop them."""

from pathlib import Path

from jaxagent.config import RunConfig
from jaxagent.run_file import read_run

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "configs" / "runs"
SMALL_MODEL = ROOT / "tests" / "data" / "small_model.yaml"

SMALL = (
    f"model.source={SMALL_MODEL}",
    "rollout.slots=16",
    "rollout.context=160",
    "rollout.max_steps=3",
    "rollout.max_tokens=24",
    "rollout.cache_buckets=[]",
    "rollout.query_buckets=[64]",
    "rollout.prefill_rows=[8]",
    "pack.rows=8",
    "pack.length=192",
    "warm_start.0.pack={rows: 8, length: 192}",
    "warm_start.1.pack={rows: 8, length: 192}",
    "eval.limit=4",
    "warm_start.0.options.iterations=2",
    "warm_start.0.options.demonstrations=24",
    "warm_start.0.options.batch=8",
    "warm_start.1.options.iterations=2",
    "warm_start.1.options.demonstrations=24",
    "warm_start.1.options.batch=8",
)
ROLLOUTS = ("stages.0.options.iterations=2", "stages.0.options.tasks=2", "stages.0.options.group_size=4")


def small_overrides(name: str, run_dir: Path) -> list[str]:
    shrunk = (
        ["stages.0.options.iterations=2", "stages.0.options.batch=8"]
        if name == "world_sft"
        else list(ROLLOUTS)
    )
    return [*SMALL, *shrunk, f"run_dir={run_dir}"]


def small_run(name: str, run_dir: Path, *overrides: str) -> RunConfig:
    return read_run(RUNS / f"{name}.yaml", [*small_overrides(name, run_dir), *overrides])


class StopAfter:
    """A preemption that is requested as soon as so many iterations are recorded."""

    def __init__(self, folder, lines):
        self.record, self.lines = folder / "metrics.jsonl", lines

    @property
    def requested(self):
        return self.record.exists() and self.record.read_text().count("\n") >= self.lines

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
