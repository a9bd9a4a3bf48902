"""The pool on a local Ray: the same answers, counts and faults as with processes. Starts Ray once for the file."""

import asyncio
import dataclasses
import os
import threading
from collections.abc import Iterator

import pytest

from jaxagent.config import EnvConfig
from jaxagent.envs.doors import DOORS
from jaxagent.envs.limits import Deadlines
from jaxagent.envs.ray_pool import RayCluster, open_ray_pool
from jaxagent.envs.replay import Prefix
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.types import Action
from tests.envs.fake_envs import echo_spec, echo_task
from tests.envs.needs import package

pytestmark = [
    package("ray", "pip install 'jaxagent[ray]'"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning"
    ),  # Ray leaves log files and sockets to the interpreter
]
CLUSTER = RayCluster(worker_cpus=0.5)
DEADLINES = Deadlines(start_s=120.0, step_s=5.0, close_s=10.0)
SPEC = echo_spec(worker={"memory_gb": 4.0})


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


def test_episodes_and_faults_on_ray(ray):
    """One pool for all: actors start slowly. Each killing fault costs its worker, and no other."""

    async def fails(envs, fault: str) -> str:
        broken = await envs.open(SPEC, echo_task(fault, fault=fault))
        with pytest.raises(EnvFailure) as caught:
            await broken.step(Action("a"))
        await broken.close()
        return caught.value.kind

    async def run():
        async with open_ray_pool(2, CLUSTER, deadlines=DEADLINES) as envs:
            sibling, other = await envs.open(SPEC, echo_task("s")), await envs.open(SPEC, echo_task("o"))
            pids = {(await handle.evaluate()).info["pid"] for handle in (sibling, other)}
            await sibling.step(Action("a"))
            await other.close()
            kinds = [
                await fails(envs, fault) for fault in ("raised", "none", "memory", "hang", "exit", "killed")
            ]
            answer = (await sibling.step(Action("b"))).observation
            workers = {worker.pid for worker in envs.workers if worker.pid}
            return pids, kinds, answer, workers, envs.counts

    pids, kinds, answer, workers, counts = asyncio.run(run())
    assert kinds == ["raised", "garbage", "raised", "hang", "died", "died"]
    assert answer == "2 b"
    assert os.getpid() not in pids
    assert len(pids & workers) == 1  # the sibling's process has outlived every fault
    assert (counts["restarts"], counts["opened"], counts["hang"], counts["died"]) == (3, 8, 1, 2)


def test_snapshots_wear_and_warming_on_ray(ray):
    task = DOORS.tasks("train")[0]
    spec = dataclasses.replace(DOORS, worker={"episodes_per_worker": 2})

    async def run():
        async with open_ray_pool(1, CLUSTER, deadlines=DEADLINES) as envs:
            envs.warm(spec, task)
            handle = await envs.open(spec, task)
            opened = await handle.step(Action(task.meta["colour"]))
            prefix = Prefix((Action(task.meta["colour"]),), (handle.first, opened), await handle.snapshot())
            before = envs.workers[0].pid
            await handle.close()  # the second episode of that worker, after the warming
            again = await envs.open(spec, task, prefix)
            return opened, again.first, before, envs.workers[0].pid, envs.counts["recycled"]

    opened, first, before, after, recycled = asyncio.run(run())
    assert first == opened
    assert (before != after, recycled) == (True, 1)


def test_too_few_cpus_are_refused_before_anything_waits(ray):
    with pytest.raises(ConfigError, match=r"env.workers=5 .* do not fit the Ray cluster's 2 CPUs"):
        open_ray_pool(5, RayCluster())


def test_a_pool_starts_and_ends_a_ray_of_its_own():
    """As a run does: from a thread that is not the main one."""
    import ray as module

    if module.is_initialized():
        module.shutdown()
    seen: list[object] = []

    async def run():
        async with open_ray_pool(1, CLUSTER, deadlines=DEADLINES) as envs:
            seen.append((await envs.open(SPEC, echo_task())).first.observation)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    thread.join()
    assert seen == ["hello"]
    assert not module.is_initialized()


def test_an_address_without_a_cluster_is_a_config_error():
    with pytest.raises(ConfigError, match=r"ray_address='127\.0\.0\.1:1'"):
        open_ray_pool(1, RayCluster("127.0.0.1:1"))


def test_the_run_file_names_the_back_end():
    config = EnvConfig.parse({"name": "doors", "backend": "ray", "worker_cpus": 0.25}, "env")
    assert (config.backend, config.ray_address) == ("ray", "")
    with pytest.raises(ConfigError, match="are for backend=ray"):
        EnvConfig.parse({"name": "doors", "worker_cpus": 0.25}, "env")
