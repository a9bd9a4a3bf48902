"""Worker processes: deadlines, deaths, garbage; the siblings go on."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import ClassVar

import pytest

from jaxagent.envs.inline_pool import InlinePool
from jaxagent.envs.pool import Deadlines, EnvPool
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.types import Action, ExecStatus, StepResult
from tests.envs.fake_envs import EchoEnv, echo_spec, echo_task

ROOT = Path(__file__).parents[2]
SPEC = echo_spec()
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and the parent-death signal")
QUICK = Deadlines(step_s=1.5, reset_s=20.0, evaluate_s=5.0, close_s=5.0)


@pytest.mark.parametrize("pool", [lambda: EnvPool(1), InlinePool], ids=["processes", "inline"])
def test_an_episode(pool):
    async def run():
        async with pool() as envs:
            handle = await envs.open(SPEC, echo_task())
            first, second = await handle.step(Action("a")), await handle.step(Action("end"))
            bad = await handle.step(Action(error="nothing to run"))
            verdict = await handle.evaluate()
            await handle.close()
            await handle.close()
            return handle.first, first, second, bad, verdict, envs.counts

    zeroth, first, second, bad, verdict, counts = asyncio.run(run())
    assert (zeroth.observation, zeroth.anchor) == ("hello", "start")
    assert (first.observation, first.done, first.reward, first.anchor) == ("1 a", False, 0.5, "s1")
    assert (second.observation, second.done) == ("2 end", True)
    assert (bad.observation, bad.exec_status) == ("nothing to run", ExecStatus.INVALID)
    assert (verdict.success, verdict.passed, verdict.total) == (True, 1, 1)
    assert counts["opened"] == 1
    assert counts["step"] == 3
    assert counts["close"] == 1


def test_environments_live_in_another_process_without_jax():
    async def run():
        async with EnvPool(2) as envs:
            handles = [await envs.open(SPEC, echo_task(str(n))) for n in range(4)]
            return [(await handle.evaluate()).info for handle in handles]

    infos = asyncio.run(run())
    pids = [info["pid"] for info in infos]
    assert os.getpid() not in pids
    assert len(set(pids)) == 2  # spread evenly over both workers
    assert not any(info["jax"] for info in infos)


@LINUX
def test_a_worker_starts_quickly():
    """CPU seconds, so that a busy machine changes nothing; 0.25 on a free core."""

    async def run():
        async with EnvPool(1) as envs:
            await envs.open(SPEC, echo_task())
            fields = Path(f"/proc/{envs.workers[0].pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    assert asyncio.run(run()) < 2.0


@pytest.mark.parametrize(
    ("fault", "kind", "restarts"),
    [
        ("raised", "raised", 0),
        ("hang", "hang", 1),
        ("exit", "died", 1),
        ("killed", "died", 1),
        ("none", "garbage", 0),
        ("reward", "garbage", 0),
        ("info", "garbage", 0),
        ("type", "garbage", 0),
        ("status", "garbage", 0),
        ("huge", "garbage", 0),
        ("forge", "garbage", 1),
        ("memory", "raised", 0),
    ],
)
def test_a_fault_is_one_episodes_failure(fault, kind, restarts):
    """The pool serves the next episode; a sibling in another worker never notices."""
    spec = echo_spec(worker={"memory_gb": 4.0})

    async def run():
        async with EnvPool(2, deadlines=QUICK) as envs:
            sibling = await envs.open(spec, echo_task("sibling"))
            await sibling.step(Action("a"))
            broken = await envs.open(spec, echo_task("broken", fault=fault))
            with pytest.raises(EnvFailure) as caught:
                await broken.step(Action("a"))
            await broken.close()
            after = await envs.open(spec, echo_task("after"))
            answers = [(await handle.step(Action("b"))).observation for handle in (sibling, after)]
            return caught.value, answers, envs.counts

    failure, answers, counts = asyncio.run(run())
    assert failure.kind == kind
    assert answers == ["2 b", "1 b"]
    assert counts[kind] >= 1
    assert counts["restarts"] == restarts


def test_everybody_in_a_killed_worker_hears_of_it():
    async def run():
        async with EnvPool(1, deadlines=QUICK) as envs:
            handles = [
                await envs.open(SPEC, echo_task(str(n), fault="hang" if n == 0 else "")) for n in range(3)
            ]
            results = await asyncio.gather(
                *(handle.step(Action("a")) for handle in handles), return_exceptions=True
            )
            for handle in handles:
                await handle.close()
            again = await envs.open(SPEC, echo_task("again"))
            return results, (await again.step(Action("a"))).observation

    results, again = asyncio.run(run())
    assert [result.kind for result in results] == ["hang", "evicted", "evicted"]
    assert "hang" in str(results[1])  # says why its worker was replaced
    assert again == "1 a"


@pytest.mark.parametrize(
    "pool", [lambda: EnvPool(1, deadlines=QUICK), InlinePool], ids=["processes", "inline"]
)
def test_reset_evaluate_and_close_may_fail(pool):
    async def run():
        async with pool() as envs:
            with pytest.raises(EnvFailure, match="cannot reset") as reset:
                await envs.open(SPEC, echo_task(fault="reset"))
            handle = await envs.open(SPEC, echo_task(fault="evaluate"))
            with pytest.raises(EnvFailure, match="no verdict") as evaluate:
                await handle.evaluate()
            await handle.close()
            handle = await envs.open(SPEC, echo_task(fault="close"))
            await handle.close()
            return reset.value.kind, evaluate.value.kind, envs.counts["raised"]

    assert asyncio.run(run()) == ("reset", "raised", 2)


def test_text_is_made_encodable_and_output_of_environments_is_not_protocol():
    async def run():
        async with EnvPool(1) as envs:
            odd = await envs.open(SPEC, echo_task(fault="surrogate"))
            loud = await envs.open(SPEC, echo_task(fault="print"))
            return (await odd.step(Action("a"))).observation, (await loud.step(Action("a"))).observation

    assert asyncio.run(run()) == ("a?b", "x")


def test_a_cancelled_call_leaves_the_worker_in_step():
    """A quorum cancels episodes in mid-call; the late answer must not reach the next caller."""

    async def run():
        async with EnvPool(1) as envs:
            first, second = await envs.open(SPEC, echo_task("1")), await envs.open(SPEC, echo_task("2"))
            call = asyncio.ensure_future(first.step(Action("cut")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            answer = await second.step(Action("b"))
            await first.close()
            return call.cancelled(), answer.observation, envs.counts["restarts"]

    assert asyncio.run(run()) == (True, "1 b", 0)


def test_a_cancelled_opening_leaves_no_environment_behind():
    async def run():
        async with EnvPool(1) as envs:
            await (await envs.open(SPEC, echo_task("warm"))).close()
            opening = asyncio.ensure_future(envs.open(SPEC, echo_task("cut")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            return opening.cancelled(), envs.counts["close"], [worker.load for worker in envs.workers]

    assert asyncio.run(run()) == (True, 2, [0])


HOST = """
import asyncio
from tests.envs.fake_envs import echo_spec, echo_task
from jaxagent.envs.pool import EnvPool
from jaxagent.types import Action
async def run():
    pool = EnvPool(1)
    handle = await pool.open(echo_spec(), echo_task())
    print((await handle.evaluate()).info["pid"], flush=True)
    await (await pool.open(echo_spec(), echo_task(fault="hang"))).step(Action("a"))
asyncio.run(run())
"""


@LINUX
def test_workers_die_with_their_host_even_in_a_hang():
    command = [sys.executable, "-c", HOST]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        time.sleep(0.2)
        os.kill(pid, 0)
        host.kill()
    assert_ends(pid)


def assert_ends(pid: int) -> None:
    """The process is gone, or nobody has yet asked how it ended."""
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(500):
        if not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} lives on")


def test_a_killed_idle_worker_is_replaced():
    async def run():
        async with EnvPool(1) as envs:
            handle = await envs.open(SPEC, echo_task())
            os.kill((await handle.evaluate()).info["pid"], signal.SIGKILL)
            with pytest.raises(EnvFailure, match="signal 9") as caught:
                await handle.step(Action("a"))
            again = await envs.open(SPEC, echo_task())
            return caught.value.kind, (await again.step(Action("a"))).observation

    assert asyncio.run(run()) == ("died", "1 a")


def test_room_for_episodes_is_limited_and_waited_for():
    spec = echo_spec(worker={"envs_per_worker": 1.0})

    async def run():
        async with EnvPool(1) as envs:
            first = await envs.open(spec, echo_task("1"))
            waiting = asyncio.ensure_future(envs.open(spec, echo_task("2")))
            await asyncio.sleep(0.05)
            blocked = not waiting.done()
            await first.close()
            return blocked, (await waiting).first.observation

    assert asyncio.run(run()) == (True, "hello")


def test_nothing_is_left_behind():
    async def run():
        async with EnvPool(2) as envs:
            return [(await (await envs.open(SPEC, echo_task())).evaluate()).info["pid"] for _ in range(2)]

    for pid in asyncio.run(run()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_factory_that_cannot_be_pickled_is_a_config_error():
    broken = dataclasses.replace(SPEC, make=lambda: EchoEnv())

    async def run():
        async with EnvPool(1) as envs:
            await envs.open(broken, echo_task())

    with pytest.raises(ConfigError, match="importable"):
        asyncio.run(run())


def test_at_least_one_worker():
    with pytest.raises(ConfigError, match="workers=0"):
        EnvPool(0)


def test_a_runs_deadline_comes_before_the_environments_own():
    hinted = dataclasses.replace(SPEC, worker={"step_s": 5})
    assert Deadlines().of(SPEC)["step"] == 60.0
    assert Deadlines().of(hinted)["step"] == 5.0
    assert Deadlines(step_s=2.0).of(hinted)["step"] == 2.0


class Hoarder(EchoEnv):
    """Leaks 30 MB an episode into its process, and starts a program that outlives a careless kill."""

    hoard: ClassVar[list[bytes]] = []

    def __init__(self):
        super().__init__(True)

    def reset(self, task):
        self.hoard.extend(os.urandom(1 << 20) for _ in range(30))
        return super().reset(task)

    def step(self, action):
        if action.text == "spawn":
            program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            return StepResult(str(program.pid))
        return super().step(action)


async def pids_of(envs: EnvPool, spec, episodes: int) -> list[int]:
    """The process that served each of so many episodes, one after another."""
    found = []
    for number in range(episodes):
        handle = await envs.open(spec, echo_task(str(number)))
        found.append((await handle.evaluate()).info["pid"])
        await handle.close()
    return found


def test_a_worker_is_replaced_after_its_episodes():
    spec = echo_spec(worker={"episodes_per_worker": 2})

    async def run():
        async with EnvPool(1) as envs:
            return await pids_of(envs, spec, 5), envs.counts

    pids, counts = asyncio.run(run())
    assert [pids[0] == pids[1], pids[1] != pids[2], pids[2] == pids[3], pids[3] != pids[4]] == [True] * 4
    assert (counts["recycled"], counts["restarts"]) == (2, 0)


@LINUX
def test_a_worker_that_grows_is_replaced_and_one_that_only_loads_is_not():
    """What the first episode loads is no leak: 30 MB of it; two more episodes are over the limit of 45 MB."""
    leaking = dataclasses.replace(SPEC, make=Hoarder, worker={"growth_gb": 45 / 1024})

    async def run():
        async with EnvPool(1) as envs:
            return await pids_of(envs, leaking, 4), envs.counts["recycled"]

    pids, recycled = asyncio.run(run())
    assert pids[0] == pids[1] == pids[2] != pids[3]
    assert recycled == 1


def test_a_worn_worker_keeps_its_open_episodes_and_takes_no_new_ones():
    spec = echo_spec(worker={"episodes_per_worker": 1})

    async def run():
        async with EnvPool(1) as envs:
            long, short = await envs.open(spec, echo_task("long")), await envs.open(spec, echo_task("short"))
            pid = (await long.evaluate()).info["pid"]
            await short.close()
            waiting = asyncio.ensure_future(envs.open(spec, echo_task("next")))
            await asyncio.sleep(0.05)
            blocked = not waiting.done()
            answer = (await long.step(Action("a"))).observation
            await long.close()
            return blocked, answer, pid, (await (await waiting).evaluate()).info["pid"]

    blocked, answer, pid, other = asyncio.run(run())
    assert (blocked, answer) == (True, "1 a")
    assert pid != other


def test_workers_are_warmed_in_the_background():
    """What a process loads once is there before the first episode, in fresh workers too."""
    spec = dataclasses.replace(SPEC, make=Hoarder, worker={"envs_per_worker": 1, "episodes_per_worker": 2})

    async def run():
        async with EnvPool(2) as envs:
            envs.warm(spec, echo_task("warm"))
            first = await envs.open(spec, echo_task("first"))  # waits for the warming: one world a process
            while envs.counts["warmed"] < 2:
                await asyncio.sleep(0.01)
            await first.close()
            while envs.counts["warmed"] < 3:
                await asyncio.sleep(0.01)
            return envs.counts, [worker.load for worker in envs.workers]

    counts, loads = asyncio.run(run())
    assert (counts["opened"], counts["recycled"], counts["warmed"]) == (1, 1, 3)
    assert loads == [0, 0]


def test_a_warming_that_fails_is_left_to_the_first_episode():
    async def run():
        async with EnvPool(1, deadlines=QUICK) as envs:
            envs.warm(SPEC, echo_task("warm", fault="reset"))
            handle = await envs.open(SPEC, echo_task())
            while not envs.counts["warming_failed"]:
                await asyncio.sleep(0.01)
            return handle.first.observation, envs.counts["reset"]

    assert asyncio.run(run()) == ("hello", 1)


@LINUX
def test_hundreds_of_episodes_over_four_workers_are_served_evenly():
    """300 live episodes of 10 steps: in a worker nobody is ahead, and the workers stay small."""
    spec = echo_spec(worker={"memory_gb": 2.0})
    steps: Counter[int] = Counter()
    ahead = 0

    async def play(envs: EnvPool, number: int) -> int:
        nonlocal ahead
        handle = await envs.open(spec, echo_task(str(number)))
        pid = (await handle.evaluate()).info["pid"]
        homes[pid].append(number)
        await everybody.wait()
        for _ in range(10):
            await handle.step(Action("a"))
            steps[number] += 1
            ahead = max(ahead, steps[number] - min(steps[other] for other in homes[pid]))
        await handle.close()
        return pid

    homes: defaultdict[int, list[int]] = defaultdict(list)
    everybody = asyncio.Barrier(300)

    async def run():
        async with EnvPool(4) as envs:
            pids = Counter(await asyncio.gather(*(play(envs, number) for number in range(300))))
            return pids, [resident_mb(worker.pid) for worker in envs.workers], envs.counts

    pids, megabytes, counts = asyncio.run(run())
    assert sorted(pids.values()) == [75] * 4
    assert (counts["opened"], counts["step"], counts["close"]) == (300, 3000, 300)
    assert ahead <= 2  # an episode's calls wait in line with those of the 74 others of its worker
    assert max(megabytes) < 100


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@LINUX
def test_a_killed_worker_takes_its_programs_along():
    spec = dataclasses.replace(SPEC, make=Hoarder)

    async def run():
        async with EnvPool(1, deadlines=QUICK) as envs:
            handle = await envs.open(spec, echo_task(fault=""))
            program = int((await handle.step(Action("spawn"))).observation)
            os.kill(program, 0)
        return program

    program = asyncio.run(run())
    assert_ends(program)


def test_closing_a_pool_does_not_wait_for_a_hang():
    async def run():
        async with EnvPool(1, deadlines=Deadlines(step_s=300.0)) as envs:
            handle = await envs.open(SPEC, echo_task(fault="hang"))
            call = asyncio.ensure_future(handle.step(Action("a")))
            await asyncio.sleep(0.2)
        with pytest.raises(EnvFailure):
            await call
        return envs.counts["restarts"]

    start = time.monotonic()
    assert asyncio.run(run()) == 0
    assert time.monotonic() - start < 60
