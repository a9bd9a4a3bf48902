"""Episodes that start in the middle: replayed, restored, and refused when the replay is not what was recorded."""

import asyncio
import dataclasses
from functools import partial

import pytest

from jaxagent.envs.doors import DOORS
from jaxagent.envs.inline_pool import InlinePool
from jaxagent.envs.pool import Deadlines, EnvPool
from jaxagent.envs.replay import Prefix
from jaxagent.envs.wire import MAX_STATE
from jaxagent.envs.world.spec import world_spec
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.types import Action, StepResult, Task
from tests.envs.contract import check_contract
from tests.envs.fake_envs import EchoEnv, echo_spec, echo_task

POOLS = pytest.mark.parametrize("pool", [partial(EnvPool, 1), InlinePool], ids=["processes", "inline"])
SPEC = echo_spec()
DOOR = DOORS.tasks("train")[0]


class Drifting(EchoEnv):
    """Counts the environments of its process: each one answers otherwise than the last. Reports a failing restore."""

    made = 0

    def reset(self, task: Task) -> StepResult:
        type(self).made += 1
        return super().reset(task)

    def step(self, action: Action) -> StepResult:
        result = super().step(action)
        late = self.count == self.task.meta.get("at", 1)
        return (
            dataclasses.replace(result, observation=f"{result.observation} #{self.made}") if late else result
        )

    def snapshot(self) -> object:
        return self.task.meta["state"]

    def restore(self, state: bytes) -> None:
        raise RuntimeError("cannot restore")


@POOLS
def test_a_prefix_is_replayed_and_the_episode_goes_on(pool):
    async def run():
        async with pool() as envs:
            first = await envs.open(SPEC, echo_task())
            results = [first.first, *[await first.step(Action(text)) for text in "ab"]]
            assert await first.snapshot() is None  # it has none: a prefix without a state is replayed
            again = await envs.open(SPEC, echo_task(), Prefix((Action("a"), Action("b")), tuple(results)))
            unchecked = await envs.open(SPEC, echo_task(), Prefix((Action("a"),)))
            return (
                results,
                again.first,
                await again.step(Action("end")),
                await again.evaluate(),
                unchecked.first,
            )

    results, first, end, verdict, unchecked = asyncio.run(run())
    assert first == results[-1]
    assert (end.observation, end.done, verdict.success) == ("3 end", True, True)
    assert unchecked == results[1]


@POOLS
def test_a_snapshot_is_restored_instead_of_replayed(pool):
    """The recorded actions are wrong on purpose: who restores does not act."""

    async def run():
        async with pool() as envs:
            handle = await envs.open(DOORS, DOOR)
            opened = await handle.step(Action(DOOR.meta["colour"]))
            state = await handle.snapshot()
            assert state is not None
            wrong = Action("no such door")
            again = await envs.open(DOORS, DOOR, Prefix((wrong,), (handle.first, opened), state))
            return opened, again.first, await again.step(Action(DOOR.meta["item"])), await again.evaluate()

    opened, first, end, verdict = asyncio.run(run())
    assert first == opened
    assert (end.done, end.reward, verdict.passed) == (True, 0.5, 2)


@POOLS
def test_a_divergence_names_the_step_and_both_texts(pool):
    spec = dataclasses.replace(SPEC, make=Drifting)
    task = echo_task(at=2)
    actions = (Action("a"), Action("b"), Action("c"))

    async def run():
        async with pool() as envs:
            first = await envs.open(spec, task)
            results = (first.first, *[await first.step(action) for action in actions])
            with pytest.raises(EnvFailure) as caught:
                await envs.open(spec, task, Prefix(actions, results))
            return results[2].observation, caught.value, envs.counts

    recorded, failure, counts = asyncio.run(run())
    assert failure.kind == "diverged"
    assert "step 2 of 3" in str(failure)
    assert recorded in str(failure)
    assert counts["diverged"] == 1
    assert counts["opened"] == 1


def test_a_task_that_opens_differently_has_diverged_at_the_reset():
    prefix = Prefix((), (StepResult("good day"),))

    async def run():
        await InlinePool().open(SPEC, echo_task(), prefix)

    with pytest.raises(EnvFailure, match="the reset gave another answer"):
        asyncio.run(run())


def test_an_episode_that_ends_within_its_prefix_has_diverged():
    async def run():
        await InlinePool().open(SPEC, echo_task(), Prefix((Action("end"), Action("a"))))

    with pytest.raises(EnvFailure, match="ended at step 1 of 2"):
        asyncio.run(run())


def test_recorded_texts_may_have_been_cut():
    """A trajectory keeps what the policy saw."""
    cut = StepResult("x" * 10 + "\n[observation cut: 99990 more characters]")

    async def run(recorded):
        prefix = Prefix((Action("flood"),), (StepResult("hello"), recorded), characters=10)
        return (await InlinePool().open(SPEC, echo_task(), prefix)).first

    assert len(asyncio.run(run(cut)).observation) == 100_000
    with pytest.raises(EnvFailure, match="another answer"):
        asyncio.run(run(dataclasses.replace(cut, observation=cut.observation.replace("99990", "99991"))))


@pytest.mark.parametrize("state", ["text", None, b"x" * (MAX_STATE + 1)], ids=["text", "none", "huge"])
def test_a_snapshot_is_bytes_of_bounded_size(state):
    spec = dataclasses.replace(SPEC, make=Drifting)

    async def run():
        return await (await InlinePool().open(spec, echo_task(state=state))).snapshot()

    if state is None:
        assert asyncio.run(run()) is None
    else:
        with pytest.raises(EnvFailure, match="a snapshot of"):
            asyncio.run(run())


def test_a_failing_restore_is_a_failed_opening():
    spec = dataclasses.replace(SPEC, make=Drifting)
    prefix = Prefix((Action("a"),), (StepResult("hello"), StepResult("1 a")), b"state")

    async def run():
        async with EnvPool(1) as envs:
            with pytest.raises(EnvFailure, match="cannot restore") as caught:
                await envs.open(spec, echo_task(), prefix)
            return caught.value.kind, envs.counts["close"]

    assert asyncio.run(run()) == ("reset", 1)


def test_a_replay_gets_the_time_of_its_actions():
    seconds = Deadlines(reset_s=10, step_s=2)
    assert seconds.of(SPEC)["open"] == 10
    assert seconds.of(SPEC, Prefix((Action("a"),) * 3))["open"] == 16


def test_prefixes_that_cannot_be():
    with pytest.raises(ConfigError, match="1 actions came with 1 results"):
        Prefix((Action("a"),), (StepResult("hello"),))
    with pytest.raises(ConfigError, match="needs its recorded results"):
        Prefix((Action("a"),), state=b"x")


@pytest.mark.parametrize(
    ("spec", "prefix"), [(DOORS, 0), (DOORS, 1), (world_spec("easy"), 1), (world_spec("full"), 3)]
)
def test_episodes_go_on_from_any_place(spec, prefix):
    check_contract(spec, spec.tasks("train")[0], prefix=prefix)


def test_the_worlds_agent_finds_its_variables_after_a_replay():
    """They live in a confined interpreter that no snapshot holds."""
    spec = world_spec("full")
    task = spec.tasks("train")[0]
    actions = (Action("x = 17"), Action("print(x)"))

    async def run():
        async with EnvPool(1) as envs:
            first = await envs.open(spec, task)
            results = [first.first, *[await first.step(action) for action in actions]]
            assert await first.snapshot() is None
            again = await envs.open(spec, task, Prefix(actions, tuple(results)))
            return (await again.step(Action("print(x + 1)"))).observation

    assert asyncio.run(run()).strip() == "18"
