"""Two evaluations of the same tasks, task by task: which is better, by how much, and could it be chance?

    A solves 1 1 0 1 0, B solves 1 0 0 0 0     difference B - A = -0.4; 2 tasks lost, 0 won

Differences are paired, so that hard and easy tasks cancel. The interval of a difference of shares is Bonett and
Price's adjusted Wald interval (2012), which keeps a width where no task differs; of other values it is a bootstrap
over tasks. The p-value is McNemar's exact test (binomial over the tasks that differ) for shares, and a sign-flip
permutation test otherwise; both are two-sided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxagent.errors import DataError
from jaxagent.eval.intervals import LEVEL, blocks, bootstrap
from jaxagent.eval.settings import SETTINGS, read_json

Record = Mapping[str, Any]  # a TaskRecord as JSON
FLIPS = 10_000
RECORD = {"task_id", "success", "completion", "turns"}
EXACT_FLIPS = 12  # up to so many non-zero differences every sign pattern is counted


@dataclass(frozen=True)
class Paired:
    """One measure over P common tasks: means of both, B - A with its interval, and the p-value of no difference.

    wins, losses: tasks on which B is above and below A.
    """

    name: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float
    test: str
    wins: int
    losses: int


@dataclass(frozen=True)
class Comparison:
    """One split. only_a, only_b: tasks that the other has no finished rollout of; they are left out."""

    split: str
    mode_a: str
    mode_b: str
    tasks: int
    only_a: int
    only_b: int
    measures: tuple[Paired, ...]


MEASURES: Mapping[str, Callable[[Record], Sequence[float]]] = {
    "success": lambda record: record["success"],
    "completion": lambda record: record["completion"],
    "score": lambda record: record.get("score", ()),
    "turns": lambda record: record["turns"],
}


def compare(a: Path, b: Path) -> list[Comparison]:
    """Every split of A that B has too: the same mode of both, or the only one. Raises DataError if there is none."""
    of_a, of_b = read_evaluations(a), read_evaluations(b)
    names = _environment(a), _environment(b)
    if all(names) and names[0] != names[1]:
        raise DataError(
            f"{a} is of environment {names[0]!r} and {b} of {names[1]!r}; compare two of one environment"
        )
    compared = []
    for mine in of_a:
        theirs = _counterpart(mine, of_a, of_b)
        if theirs is not None:
            compared.append(_compare_one(mine, theirs))
    if not compared:
        raise DataError(
            f"{a} ({_named(of_a)}) and {b} ({_named(of_b)}) have no split in common that was played in the same mode"
        )
    return compared


def read_evaluations(path: Path) -> list[Mapping[str, Any]]:
    """The evaluations of a folder of `jaxagent eval`, or the one in a file of a run's evaluations folder."""
    if (path / SETTINGS).is_file() and not (path / "result.json").exists():
        raise DataError(
            f"{path}: this evaluation has not ended; start its command again, it plays what is missing"
        )
    found = read_json(path / "result.json" if path.is_dir() else path)
    evaluations = found.get("evaluations", [found]) if isinstance(found, dict) else []
    if not isinstance(evaluations, list) or not evaluations or not all(map(_is_evaluation, evaluations)):
        raise DataError(
            f"{path} holds no task records; expected a folder of `jaxagent eval`, or a JSON file of RUN_DIR/evaluations"
        )
    return evaluations


def _is_evaluation(item: Any) -> bool:
    whole = isinstance(item, dict) and {"split", "mode", "records"} <= item.keys()
    records = item["records"] if whole else None
    return isinstance(records, list) and all(isinstance(r, dict) and r.keys() >= RECORD for r in records)


def _environment(path: Path) -> str:
    """The name of the environment that a folder of `jaxagent eval` is of; a training run's files do not say it."""
    settings = read_json(path / "result.json").get("settings", {}) if path.is_dir() else {}
    return settings.get("env", {}).get("name", "")


def paired(name: str, a_P: Float[np.ndarray, "P"], b_P: Float[np.ndarray, "P"]) -> Paired:
    """Compare two values a task. All 0 or 1: the exact test of shares."""
    difference_P = b_P - a_P
    wins, losses = int((difference_P > 0).sum()), int((difference_P < 0).sum())
    if np.isin(np.concatenate([a_P, b_P]), (0, 1)).all():
        (low, high), p, test = bonett_price(wins, losses, a_P.size), mcnemar(wins, losses), "McNemar, exact"
    else:
        (low, high), p, test = bootstrap(difference_P), sign_flip(difference_P), "sign flips"
    means = float(a_P.mean()), float(b_P.mean())
    return Paired(name, *means, float(difference_P.mean()), low, high, p, test, wins, losses)


def bonett_price(wins: int, losses: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Interval of (wins - losses) / n: a Wald interval after one win and one loss were added."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    won, lost = (wins + 1) / (n + 2), (losses + 1) / (n + 2)
    half = z * sqrt((won + lost - (won - lost) ** 2) / (n + 2))
    return max(-1.0, won - lost - half), min(1.0, won - lost + half)


def mcnemar(wins: int, losses: int) -> float:
    """Two-sided exact p: chance of so uneven a split of the tasks that differ, were each as likely to be won as lost.

    8 won, 1 lost: 2 (C(9,0) + C(9,1)) / 2^9 = 0.0390625
    """
    n = wins + losses
    tail = sum(comb(n, i) for i in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**n)


def sign_flip(difference_P: Float[np.ndarray, "P"], *, seed: int = 0) -> float:
    """Two-sided p: share of sign patterns of the differences whose mean is as far from 0 as the one observed.

    All patterns of few differences; otherwise FLIPS random ones with a fixed seed, the observed one counted in.
    """
    value_N = difference_P[difference_P != 0]
    n = value_N.size
    if not n:
        return 1.0
    far = abs(value_N.sum()) - 1e-12 * np.abs(value_N).sum()  # equal sums differ by rounding
    if n <= EXACT_FLIPS:
        bits_XN = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return float((np.abs((2 * bits_XN - 1) @ value_N) >= far).mean())
    rng = np.random.default_rng(seed)
    as_far = sum(
        int((np.abs(rng.choice([-1.0, 1.0], (rows, n)) @ value_N) >= far).sum()) for rows in blocks(FLIPS, n)
    )
    return (1 + as_far) / (1 + FLIPS)


def _counterpart(
    mine: Mapping[str, Any], of_a: Sequence[Mapping[str, Any]], of_b: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """The same split and mode; where both sides have one mode of a split only, that one."""
    theirs = [item for item in of_b if item["split"] == mine["split"]]
    same = [item for item in theirs if item["mode"] == mine["mode"]]
    if same:
        return same[0]
    alone = sum(item["split"] == mine["split"] for item in of_a) == 1
    return theirs[0] if alone and len(theirs) == 1 else None


def _compare_one(a: Mapping[str, Any], b: Mapping[str, Any]) -> Comparison:
    of_a = {record["task_id"]: record for record in a["records"] if record["success"]}
    of_b = {record["task_id"]: record for record in b["records"] if record["success"]}
    common = [task_id for task_id in of_a if task_id in of_b]
    if not common:
        raise DataError(
            f"split {a['split']!r}: the two have no finished task in common; are they of one environment?"
        )
    measures = []
    for name, value in MEASURES.items():
        pairs = [(value(of_a[task_id]), value(of_b[task_id])) for task_id in common]
        if all(len(x) and len(y) for x, y in pairs):
            a_P, b_P = (np.array([np.mean(pair[side]) for pair in pairs], np.float64) for side in (0, 1))
            measures.append(paired(name, a_P, b_P))
    return Comparison(
        split=a["split"],
        mode_a=a["mode"],
        mode_b=b["mode"],
        tasks=len(common),
        only_a=len(of_a) - len(common),
        only_b=len(of_b) - len(common),
        measures=tuple(measures),
    )


def _named(evaluations: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{item['split']} {item['mode']}" for item in evaluations)
