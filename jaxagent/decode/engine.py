"""The decoder: `Generate` over fixed-shape device programs, many sessions at once.

In:  requests from any number of coroutines.   Out: completions with the log-probs of the sampled tokens.
All live requests step together, `tokens` tokens per device call; what arrives meanwhile joins at the next call. A
session's KV stays in its slot between turns, so only new tokens are prefilled, and a session whose environment is busy
costs nothing. The device works in a thread of its own: environments run on meanwhile. Not its job: slots and shapes
(scheduler.py), the device (worker.py, programs.py), text (`decode` is given to it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxagent.clock import DECODE, Meter
from jaxagent.decode.buckets import Buckets
from jaxagent.decode.programs import MAX_STOPS, Programs
from jaxagent.decode.scheduler import Job, common_prefix
from jaxagent.decode.worker import Counts, Decode, Event, Worker
from jaxagent.errors import ConfigError, RolloutError
from jaxagent.model.spec import ModelSpec
from jaxagent.types import Completion, GenerateRequest, Sampling, Stop

Answer = asyncio.Future[Completion]


@dataclass(eq=False)
class Session:
    """ids: every token of the session so far, whether or not its KV is still in a slot."""

    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    job: Job | None = None


class Engine:
    """Implements types.Generate. `load` comes before the first request.

    slots: sessions whose KV is kept; with fewer slots than sessions, idle ones are evicted and prefilled
    again. tokens: tokens sampled per device call, the longest that a new request waits.
    decode: ids -> text, needed for stop strings only.   burst: prefill calls in a row before decoding goes
    on.   meter: counts the seconds of ticks.   copies: share no array with the parameters that are loaded, which may
    then be donated while requests run.
    """

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        spec: ModelSpec,
        *,
        slots: int,
        buckets: Buckets,
        tokens: int = 16,
        dtype: DTypeLike = jnp.float32,
        decode: Decode | None = None,
        burst: int = 16,
        mesh: Mesh | None = None,
        meter: Meter | None = None,
        copies: bool = False,
    ):
        if buckets.decode[-1] > slots:
            raise ConfigError(f"decode rows {buckets.decode} exceed slots={slots}; a row needs a slot")
        self.spec, self.length = spec, buckets.lengths[-1]
        self._graphdef, self._decode = graphdef, decode
        self._programs = Programs(spec, tokens=tokens, mesh=mesh, copies=copies)
        self._worker = Worker(
            spec, self._programs, slots=slots, buckets=buckets, dtype=dtype, decode=decode, burst=burst
        )
        self._meter = meter or Meter(DECODE)
        self._sessions: dict[str, Session] = {}
        self._answers: dict[Job, Answer] = {}
        self._inbox: list[Event] = []
        self._driver: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decoder")

    def load(self, params: nnx.State, version: int) -> None:
        """Take new weights and drop all KV. Requests in flight go on under the new weights; their completion
        carries the version that sampled its first token. Waits for the device call that is running: call it from
        another thread than that of the event loop, or between episodes."""
        self._worker.load(self._graphdef, params, version)

    def warm_up(self) -> int:
        """Compile every program; returns their number. Nothing is compiled afterwards."""
        self._worker.warm_up()
        return self.compilations

    @property
    def turn(self) -> AbstractContextManager[Any]:
        """Within it the decoder makes no device call. Programs of several threads that talk across devices must start
        in one order everywhere."""
        return self._worker.turn

    @property
    def version(self) -> int:
        return self._worker.version

    @property
    def checksum(self) -> int:
        """Of the weights that the decoder really holds."""
        return self._worker.checksum

    @property
    def counts(self) -> Counts:
        return self._worker.counts

    @property
    def compilations(self) -> int:
        return self._programs.compilations

    async def __call__(self, request: GenerateRequest) -> Completion:
        ids = self._checked(request)
        if len(ids) >= self.length:
            return Completion(np.zeros(0, np.int32), np.zeros(0, np.float32), Stop.CONTEXT, self.version)
        session = self._sessions.setdefault(request.session, Session())
        job = session.job = Job(request, ids.tolist(), len(ids), ids.tobytes())
        answer = self._answers[job] = asyncio.get_running_loop().create_future()
        self._inbox.append(("submit", job))
        self._start()
        try:
            return await answer
        except asyncio.CancelledError:
            self._inbox.append(("cancel", job))
            raise
        finally:
            self._answers.pop(job, None)
            session.job = None

    async def release(self, session: str) -> None:
        known = self._sessions.pop(session, None)
        if known is None:
            return
        if known.job is not None:
            self._inbox.append(("cancel", known.job))
            answer = self._answers.get(known.job)
            if answer is not None and not answer.done():
                answer.set_exception(RolloutError(f"session {session!r} was released during its request"))
        self._inbox.append(("release", session))

    def _checked(self, request: GenerateRequest) -> np.ndarray:
        """The request's ids, if the request can be served."""
        name, ids = request.session, np.asarray(request.ids_T, np.int32)
        if self.version < 0:
            raise RolloutError("the decoder has no weights yet: call load(params, version) first")
        if not len(ids):
            raise RolloutError(
                f"session {name!r}: the context is empty; there must be a token to continue from"
            )
        wrong = (ids < 0) | (ids >= self.spec.vocab)
        if wrong.any():
            at = int(wrong.argmax())
            raise RolloutError(
                f"session {name!r}: token {ids[at]} at position {at} is outside the model's vocabulary of "
                f"{self.spec.vocab}; tokenizer and model do not fit"
            )
        check_sampling(request.sampling, name, self._decode)
        session = self._sessions.get(name)
        if session is None:
            return ids
        if session.job is not None:
            raise RolloutError(f"session {name!r} already has a request in flight; a session is one episode")
        same = common_prefix(session.ids, ids)
        if same < len(session.ids):
            got = f"token {ids[same]}" if same < len(ids) else "the end"
            raise RolloutError(
                f"session {name!r}: the context was rewritten: position {same} holds token "
                f"{session.ids[same]}, the request has {got} there; a context that changes its past "
                "is a new session (a new segment)"
            )
        return ids

    def _start(self) -> None:
        """See that ticks are running. Only a new request needs that; other news waits for the next tick."""
        loop = asyncio.get_running_loop()
        if self._driver is None or self._driver.done() or self._driver.get_loop() is not loop:
            self._driver = loop.create_task(self._drive())

    async def _drive(self) -> None:
        """Ticks in the decoder's thread while there is anything to do."""
        left = False
        try:
            while left or self._inbox:
                events, self._inbox = self._inbox, []
                tick = self._thread.submit(self._tick, events)
                try:
                    done, left = await asyncio.wrap_future(tick)
                except asyncio.CancelledError:
                    # The loop is closing. A tick that never began leaves its news to the next loop.
                    if tick.cancelled():
                        self._inbox = events + self._inbox
                    raise
                for job, completion in done:
                    self._deliver(job, completion)
                await asyncio.sleep(0)  # callers may answer with their next request before the next tick
        except Exception as error:
            # Whatever went wrong, the callers must hear of it: each of them re-raises it.
            self._inbox = []
            self._worker.reset()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(error)

    def _tick(self, events: Sequence[Event]) -> tuple[list[tuple[Job, Completion]], bool]:
        with self._meter.during(DECODE):
            return self._worker.tick(events)

    def _deliver(self, job: Job, completion: Completion) -> None:
        answer = self._answers.get(job)
        if answer is None or answer.done():
            return
        session = self._sessions.get(job.request.session)
        if session is not None and session.job is job:
            session.ids = np.asarray(job.ids, np.int32)
        answer.set_result(completion)


def check_sampling(sampling: Sampling, name: str, decode: Decode | None) -> None:
    """Refuse what the decoder would silently do otherwise."""
    where = f"session {name!r}: sampling"
    if sampling.max_tokens < 1:
        raise RolloutError(f"{where}.max_tokens={sampling.max_tokens} must be at least 1")
    if not 0 <= sampling.temperature <= 1e4 or 0 < sampling.temperature < 1e-3:
        raise RolloutError(
            f"{where}.temperature={sampling.temperature} must be 0 (greedy) or in [0.001, 10000]"
        )
    if sampling.top_k < 0 or not 0 < sampling.top_p <= 1 or not 0 <= sampling.min_p <= 1:
        raise RolloutError(
            f"{where} has top_k={sampling.top_k}, top_p={sampling.top_p}, min_p={sampling.min_p}; expected "
            "top_k >= 0, 0 < top_p <= 1, 0 <= min_p <= 1"
        )
    if len(sampling.stop_ids) > MAX_STOPS:
        raise RolloutError(
            f"{where} has {len(sampling.stop_ids)} stop ids; the decoder checks {MAX_STOPS} at most"
        )
    if sampling.stop_strings and decode is None:
        raise RolloutError(f"{where}.stop_strings needs a decoder made with decode=tokenizer.decode")
