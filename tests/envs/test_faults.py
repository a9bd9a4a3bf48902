"""Faults of environments, in the environments themselves: the run goes on, the status is right, baselines exclude it.

Every environment of the table is tried, as its small run file (configs/runs/<name>_tiny.yaml) opens it. One whose
package or data is missing skips and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jaxagent.envs.pool import Deadlines, EnvPool
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.table import ENVIRONMENTS, find_env
from jaxagent.errors import ConfigError, RolloutError
from jaxagent.plan import Plan
from jaxagent.rollout.plans import RolloutRules, run_plans
from jaxagent.run_file import read_run
from jaxagent.types import Task
from tests.envs.fake_envs import echo_spec, echo_task
from tests.envs.faults import check_faults, faulty
from tests.rollout.fake_policy import Scripted, char_runner

ROOT = Path(__file__).parents[2]
OPENED_BY_HAND: Mapping[str, Mapping[str, Any]] = {
    "doors": {},
    "world-easy": {"level": "easy"},
    "world-full": {"level": "full"},
}
LATE = {"at_step": 1}  # the fault comes at the second message; elsewhere the first may end the episode
SLOW = ("agentdojo", "alfworld", "appworld", "scienceworld", "textworld")  # seconds until an episode is open
NAMES = [*OPENED_BY_HAND, *sorted(set(ENVIRONMENTS) - {"doors", "world"})]


def environment(name: str) -> tuple[EnvSpec, Task]:
    """As its small run file opens it; skips where a package, data or a server are missing."""
    if name in OPENED_BY_HAND:
        spec = find_env(name.partition("-")[0], OPENED_BY_HAND[name])
        return spec, spec.tasks("train")[0]
    config = read_run(ROOT / "configs" / "runs" / f"{name}_tiny.yaml").env
    try:
        spec = find_env(config.name, config.options)
        return spec, spec.tasks(config.train_split)[0]
    except ConfigError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in NAMES]
)
@pytest.mark.filterwarnings("ignore")  # of the packages of other people's environments
def test_every_fault_costs_one_episode(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)  # run files name examples by their place in the repository
    spec, task = environment(name)
    check_faults(spec, task, **(LATE if name in OPENED_BY_HAND else {}))


def rollout(said: list[str], *, workers: int, retries: int):
    """One echo task, whose rollout i says said[i] at its second turn; environments share their workers."""
    spec = faulty(echo_spec(), alone=False)
    generate = Scripted(lambda key: said[key.rollout] if key.step == 1 else "a")

    async def run():
        async with EnvPool(workers, deadlines=Deadlines(step_s=5.0)) as pool:
            runner = char_runner(spec, generate, pool, max_steps=3)
            plans = [Plan(echo_task("t"), len(said))]
            return await run_plans(plans, runner, rules=RolloutRules(retries=retries)), pool.counts

    return asyncio.run(run())


def test_one_of_32_raises():
    """PITFALLS 56: the others are kept, it is counted, and nobody has to be run again."""
    (groups, metrics), counts = rollout([*["b"] * 31, "!raise"], workers=2, retries=0)
    assert [item.rollout for item in groups[0].trajectories] == list(range(31)), (groups[0].dropped, counts)
    assert [(item.rollout, item.reason) for item in groups[0].dropped] == [(31, "raised")]
    assert (metrics["rollout/submitted"], metrics["rollout/dropped/raised"]) == (32, 1)


@pytest.mark.parametrize("fault", ["exit", "hang"])
def test_siblings_in_a_killed_worker_are_run_again(fault):
    """It costs them no retry, however often it happens, and they sample the same: nothing of it is left in them."""
    (groups, metrics), counts = rollout([f"!{fault}", *["b"] * 7], workers=2, retries=1)
    (healthy, _), _ = rollout(["b"] * 8, workers=2, retries=1)
    assert [item.rollout for item in groups[0].trajectories] == list(range(1, 8))
    for item, other in zip(groups[0].trajectories, healthy[0].trajectories[1:], strict=True):
        assert [step.observation_after for step in item.steps] == [
            step.observation_after for step in other.steps
        ]
    assert metrics["rollout/dropped"] == 1
    assert counts["restarts"] == 2  # once for each try of the failing episode
    assert counts["evicted"] >= 1


def test_an_environment_that_always_fails_stops_the_run_with_its_words():
    """PITFALLS 65: all episodes lost is a broken environment, not a bad iteration."""
    with pytest.raises(RolloutError, match="environment bug"):
        rollout(["!raise"] * 3, workers=1, retries=1)


def test_a_policy_that_never_answers_is_named():
    """PITFALLS 57: no episode is waited for without end, and the message says which."""
    spec = echo_spec()

    async def never(request):
        await asyncio.sleep(1000)

    async def release(session):
        pass

    never.release = release  # type: ignore[attr-defined]

    async def run():
        async with EnvPool(1) as pool:
            runner = char_runner(spec, never, pool)
            await run_plans([Plan(echo_task("lost"), 2)], runner, rules=RolloutRules(stall_s=2.0))

    with pytest.raises(RolloutError, match=r"lost:0, lost:1"):
        asyncio.run(run())
