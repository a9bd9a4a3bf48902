"""The pool's workers as Ray actors, spread over a cluster (extra `ray`).

The same `EnvPool`, with the same deadlines, counts, wear and replacements; only the process is another one: an actor
that holds an EnvTable. Each call is one request, as over a socket. The nodes need this package, the environment's
packages, and its data under the same paths.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxagent.clock import Meter
from jaxagent.envs.entry import need
from jaxagent.envs.limits import Deadlines
from jaxagent.envs.pool import EnvPool
from jaxagent.envs.worker import EnvTable, answer
from jaxagent.envs.worker_client import Lost, parsed
from jaxagent.errors import ConfigError

INSTALL = "pip install 'jaxagent[ray]'"
KNOCK_S = 10.0
# Of a Ray started here: answers are small and go with the call, not through the store.
STORE_BYTES = 100 << 20


@dataclass(frozen=True)
class RayCluster:
    """address: of a running cluster ("auto", "host:6379"); empty starts a Ray of this machine's own.

    worker_cpus: what each worker takes of the cluster's CPUs; a fraction lets several share one.
    """

    address: str = ""
    worker_cpus: float = 1.0


class Host:
    """The actor: what worker.main is for a process on this machine."""

    def __init__(self) -> None:
        self._table = EnvTable()

    def pid(self) -> int:
        return os.getpid()

    def serve(self, request: bytes) -> bytes:
        return json.dumps(answer(self._table, request)).encode()


class RayProcess:
    """See worker_client.Process."""

    def __init__(self, cluster: RayCluster):
        self.pid = 0
        self._ray, self._cluster = need("ray", install=INSTALL), cluster
        self._actor: Any = None

    async def start(self, seconds: float) -> None:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        options: Mapping[str, Any] = {
            "num_cpus": self._cluster.worker_cpus,
            "max_restarts": 0,  # the pool replaces it, and tells its episodes
            "runtime_env": {"env_vars": {"PYTHONPATH": path, **threads}},
        }
        self._actor = self._ray.remote(Host).options(**options).remote()
        try:
            self.pid = await self._get(self._actor.pid.remote(), seconds)
        except Lost as lost:
            if lost.kind != "hang":
                raise
            free = self._ray.available_resources().get("CPU", 0)
            raise Lost(
                "hang", f"the actor did not start in {seconds:g} s; CPUs that are free: {free}"
            ) from lost

    async def ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        if self._actor is None:
            raise Lost("died", "it was killed")
        return parsed(await self._get(self._actor.serve.remote(request), seconds))

    def kill(self) -> None:
        if self._actor is not None:
            self._ray.kill(self._actor, no_restart=True)
            self._actor = None

    async def _get(self, ref: Any, seconds: float) -> Any:
        errors = self._ray.exceptions
        try:
            return await asyncio.wait_for(asyncio.wrap_future(ref.future()), seconds)
        except TimeoutError:
            raise Lost("hang", f"no answer in {seconds:g} s") from None
        except errors.RayActorError as exc:
            raise Lost("died", _first_line(exc)) from exc
        except errors.RayError as exc:  # the node or the object is lost, the answer cannot be read
            raise Lost("garbage", _first_line(exc)) from exc


def open_ray_pool(
    workers: int, cluster: RayCluster, *, deadlines: Deadlines | None = None, meter: Meter | None = None
) -> EnvPool:
    """A pool on a Ray cluster. Raises ConfigError where it cannot be reached or has too few CPUs."""
    ray = need("ray", install=INSTALL)
    started = not ray.is_initialized()
    if started:
        _connect(ray, workers, cluster)
    found = ray.cluster_resources().get("CPU", 0)
    if found < workers * cluster.worker_cpus:
        if started:
            ray.shutdown()
        raise ConfigError(
            f"env.workers={workers} of env.worker_cpus={cluster.worker_cpus:g} do not fit the Ray cluster's "
            f"{found:g} CPUs; lower one of them, or add nodes"
        )
    return EnvPool(
        workers,
        deadlines=deadlines,
        meter=meter,
        launch=lambda: RayProcess(cluster),
        close=ray.shutdown if started else None,
    )


def _connect(ray: Any, workers: int, cluster: RayCluster) -> None:
    own = {
        "address": "local",
        "num_cpus": math.ceil(workers * cluster.worker_cpus),
        "object_store_memory": STORE_BYTES,
        "include_dashboard": False,
    }
    where = {"address": cluster.address} if cluster.address else own
    try:
        _knock(cluster.address)
        ray.init(**where, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as exc:
        raise ConfigError(
            f"env.ray_address={cluster.address!r}: no Ray cluster could be reached or started ({exc}); "
            "start one with `ray start --head`, or leave the address empty"
        ) from exc


def _knock(address: str) -> None:
    """Raises OSError if nobody listens at host:port: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=KNOCK_S).close()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
