"""The one door to the auxiliary language model. In: a role and a payload. Out: a validated record.

    record = await aux.complete(SUMMARISE, {"task": …, "steps": […], "return": 1.0})

Every call has a schema, two retries (the fault is told to the model), a content-hash cache, a limit on
concurrent calls and a timeout. Failures are counted and logged, never hidden. Not its job: what a role means
(the packages that use it define their roles), transport (auxlm/endpoint.py, auxlm/policy.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ValidationError

from jaxagent.auxlm.role import Payload, Record, Role, canonical, find_object, messages
from jaxagent.errors import JaxagentError
from jaxagent.types import Message, Metrics

log = logging.getLogger(__name__)


class AuxError(JaxagentError):
    """A back end could not answer. `retry` says whether asking again can help; `after_s` how long to wait.

    status: of HTTP; 0 where no answer came.
    """

    def __init__(self, message: str, *, retry: bool = True, after_s: float = 0.0, status: int = 0):
        super().__init__(message)
        self.retry = retry
        self.after_s = after_s
        self.status = status


@dataclass(frozen=True)
class AuxRequest:
    """What a back end gets: the chat to answer, and for scripts the role and payload it was made from."""

    role: str
    payload: Payload
    messages: Sequence[Message]
    attempt: int


@runtime_checkable
class AuxBackend(Protocol):
    """Answers one request with text, or raises AuxError. `name` tells the cached answers of models apart."""

    name: str

    async def __call__(self, request: AuxRequest) -> str: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class AuxLimits:
    """backoff_s: wait before the second attempt; it doubles with each, or is what the back end asks for (Retry-After).

    longest_wait_s: of a wait. So a call takes at most (retries + 1) * timeout_s + retries * longest_wait_s.
    cached: answers that are kept, the newest; 0 keeps none.
    """

    retries: int = 2
    timeout_s: float = 120.0
    concurrency: int = 8
    backoff_s: float = 0.5
    longest_wait_s: float = 120.0
    cached: int = 20_000


class AuxLM:
    """Owns the cache, the concurrency limit and the counts of one back end. Use it from one event loop."""

    def __init__(self, backend: AuxBackend, limits: AuxLimits | None = None):
        self.backend = backend
        self.limits = limits or AuxLimits()
        self.counts: Counter[str] = Counter()
        self._cache: dict[str, BaseModel] = {}
        self._slots = asyncio.Semaphore(self.limits.concurrency)

    async def complete(self, role: Role[Record], payload: Payload) -> Record | None:
        """A record that fits the role's schema and check; on final failure `role.on_failure(payload)`."""
        key = self._key(role, payload)
        if key in self._cache:
            self.counts[f"{role.name}/cached"] += 1
            return self._cache[key]  # type: ignore[return-value]  # the key names the role
        self.counts[f"{role.name}/calls"] += 1
        async with self._slots:
            record = await self._attempts(role, payload)
        if record is None:
            self.counts[f"{role.name}/failures"] += 1
            return role.on_failure(payload)
        if self.limits.cached:
            self._cache[key] = record
            if len(self._cache) > self.limits.cached:
                self._cache.pop(next(iter(self._cache)))
        return record

    def metrics(self) -> Metrics:
        """Counts since the start, by role: calls, cached, retries, failures."""
        return {f"auxlm/{name}": float(count) for name, count in sorted(self.counts.items())}

    def close(self) -> None:
        """End the back end."""
        self.backend.close()

    async def _attempts(self, role: Role[Record], payload: Payload) -> Record | None:
        chat = messages(role, payload)
        for attempt in range(self.limits.retries + 1):
            if attempt:
                self.counts[f"{role.name}/retries"] += 1
            try:
                answer = await asyncio.wait_for(
                    self.backend(AuxRequest(role.name, payload, chat, attempt)), self.limits.timeout_s
                )
            except (AuxError, TimeoutError) as error:
                log.warning("auxlm %s attempt %d: %s", role.name, attempt + 1, error or "timed out")
                if isinstance(error, AuxError) and not error.retry:
                    return None
                if attempt < self.limits.retries:
                    await asyncio.sleep(self._wait(error, attempt))
                continue
            record, fault = validate(role, payload, answer)
            if record is not None:
                return record
            log.warning("auxlm %s attempt %d: %s", role.name, attempt + 1, fault)
            correction = f"Your answer could not be used: {fault}. Answer again with one JSON object."
            chat = (*messages(role, payload), Message("assistant", answer), Message("user", correction))
        return None

    def _wait(self, error: Exception, attempt: int) -> float:
        asked = error.after_s if isinstance(error, AuxError) else 0.0
        return min(max(asked, self.limits.backoff_s * 2**attempt), self.limits.longest_wait_s)

    def _key(self, role: Role[Any], payload: Payload) -> str:
        text = "\0".join((self.backend.name, role.name, role.instruction, canonical(payload)))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def validate(role: Role[Record], payload: Payload, answer: str) -> tuple[Record | None, str]:
    """The record in an answer, or None and what is wrong with it."""
    try:
        record = role.record.model_validate(find_object(answer))
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'record'}: {e['msg']}" for e in error.errors()[:3]
        )
        return None, faults
    except ValueError as error:
        return None, str(error)
    fault = role.check(record, payload)
    return (None, fault) if fault else (record, "")


class ScriptedBackend:
    """A back end that answers by script: tests, and worlds whose answers can be computed."""

    def __init__(self, script: Mapping[str, Any], name: str = "scripted"):
        self.script = script  # role name -> function of the AuxRequest that returns the answer's text
        self.name = name

    async def __call__(self, request: AuxRequest) -> str:
        if request.role not in self.script:
            raise AuxError(
                f"no script for role {request.role!r}; known: {', '.join(self.script)}", retry=False
            )
        return self.script[request.role](request)

    def close(self) -> None:
        """Nothing is held."""
