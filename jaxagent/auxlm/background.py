"""The auxiliary model asked from ordinary code: an event loop on a thread of its own, owned here.

background = Background(aux)
future = background.submit(SUMMARISE, payload)        while the run goes on
records = background.ask(JUDGE, payloads)             many at once, and wait for all
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from jaxagent.auxlm.client import AuxLM
from jaxagent.auxlm.role import Payload, Record, Role
from jaxagent.types import Metrics


class Background:
    """Owns the thread, its loop and the auxiliary model. The thread starts with the first question."""

    def __init__(self, aux: AuxLM):
        self.aux = aux
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, role: Role[Record], payload: Payload) -> Future[Record | None]:
        """Start one question."""
        return asyncio.run_coroutine_threadsafe(self.aux.complete(role, payload), self._running_loop())

    def ask(self, role: Role[Record], payloads: Sequence[Payload]) -> list[Record | None]:
        """The answers in the order of the payloads; the auxiliary model's own limit says how many run at once."""
        return [future.result() for future in [self.submit(role, payload) for payload in payloads]]

    def metrics(self) -> Metrics:
        return self.aux.metrics()

    def close(self) -> None:
        """End the thread and the auxiliary model; questions that are still open are cancelled."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.aux.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name="auxlm", daemon=True)
            self._thread.start()
        return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.run_until_complete(_cancel_others())
    loop.close()


async def _cancel_others() -> None:
    """End what still runs, so that nothing is left half awaited."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
