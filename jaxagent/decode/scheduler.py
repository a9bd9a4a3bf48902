"""Which session's tokens lie in which slot, and what runs next. Pure Python and numpy: no device, clock or threads.

A slot holds the KV of `held` tokens. The KV of a job never includes its last token: that one leads the next decode
call, so prefill needs no logits and every call to the model either prefills or decodes.

    place()         gives waiting jobs a slot: their session's own, an empty one, or that of the least recently used
                    idle session (which is prefilled again when it returns). Tokens that another slot already holds are
                    copied; if another slot is about to hold more of them, the job waits for that prefill.
    next_prefill()  the next batch of tokens to prefill          decodable()  jobs whose context is complete
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxagent.decode.buckets import Buckets
from jaxagent.types import GenerateRequest


@dataclass(eq=False)
class Job:
    """One request in flight. ids: context and sampled tokens; the first `context` of them were asked with."""

    request: GenerateRequest
    ids: list[int]
    context: int
    prompt: bytes  # identity of the context, for the memory of common prefixes
    logprobs: list[float] = field(default_factory=list)
    slot: Slot | None = None
    version: int | None = None
    stepped: int = 0

    @property
    def sampled(self) -> int:
        return len(self.ids) - self.context


@dataclass(eq=False)
class Slot:
    """`held` of `ids` have their KV in the slot. `used` orders slots by time of use."""

    index: int
    ids: np.ndarray
    held: int = 0
    session: str | None = None
    job: Job | None = None
    used: int = 0
    content: int = 0  # changes whenever `ids` is replaced


@dataclass(frozen=True)
class Copy:
    source: int
    target: int
    tokens: int


@dataclass(frozen=True)
class Prefill:
    """`counts[i]` tokens of jobs[i] from position slot.held on, in a program of `rows` x `queries` x `length`."""

    jobs: tuple[Job, ...]
    counts: tuple[int, ...]
    rows: int
    queries: int
    length: int


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Number of leading tokens that are equal."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


class Scheduler:
    """share: shortest common prefix worth copying, or waiting for."""

    def __init__(self, *, slots: int, buckets: Buckets, share: int = 16):
        self.buckets, self.share = buckets, share
        self.slots = [Slot(index, np.zeros(0, np.int32)) for index in range(slots)]
        self.queue: list[Job] = []
        self.by_session: dict[str, Slot] = {}
        self.evictions = 0
        self._clock = 0
        self._contents = 0
        self._common: dict[tuple[bytes, int], int] = {}

    @property
    def live(self) -> list[Job]:
        return [slot.job for slot in self.slots if slot.job]

    # --- what callers tell ---

    def submit(self, job: Job) -> None:
        self.queue.append(job)

    def finish(self, job: Job) -> None:
        """The job is done or given up. Its slot keeps the KV for the session's next turn."""
        if job in self.queue:
            self.queue.remove(job)
        slot, job.slot = job.slot, None
        if slot:
            slot.job = None
            self._hold(slot, np.asarray(job.ids, np.int32), min(slot.held, len(job.ids) - 1))

    def release(self, session: str) -> None:
        """The session is over. Its tokens stay until the slot is needed: another session may share their prefix."""
        slot = self.by_session.pop(session, None)
        if slot:
            slot.session = None

    def invalidate(self) -> None:
        """The weights changed: no KV is worth anything. Live jobs keep their slots and are prefilled again."""
        for slot in self.slots:
            self._hold(slot, slot.ids, 0)

    # --- what runs next ---

    def place(self) -> list[list[Copy]]:
        """Slots for waiting jobs: returning sessions first, then by arrival. The batches of copies must run, in order,
        before anything else; within a batch no source is another's target."""
        batches: list[list[Copy]] = []
        waiting: list[Job] = []
        for job in sorted(self.queue, key=lambda job: job.request.session not in self.by_session):
            own = self.by_session.get(job.request.session)
            if own is not None:
                self._occupy(job, own, self._shared(job, own))
                continue
            source, shared = self._source(job)
            target = None if self._more_is_coming(job, shared) else self._victim(source)
            if target is None:
                waiting.append(job)
                continue
            if target.session is not None:
                self.by_session.pop(target.session)
                self.evictions += 1
            target.session = job.request.session
            self.by_session[target.session] = target
            if source is not None and source is not target:
                if not batches or source.index in {copy.target for copy in batches[-1]}:
                    batches.append([])
                batches[-1].append(Copy(source.index, target.index, shared))
            self._occupy(job, target, shared)
        self.queue = waiting
        return batches

    def next_prefill(self) -> Prefill | None:
        """Jobs of one query bucket, those that waited longest first; others fill rows that are left."""
        pending = sorted((job for job in self.live if _missing(job)), key=lambda job: job.stepped)
        if not pending:
            return None
        wanted = self.buckets.queries(_missing(pending[0]))
        alike = [job for job in pending if self.buckets.queries(_missing(job)) == wanted]
        shapes = sorted(rows for rows, queries in self.buckets.prefill if queries == wanted)
        rows = next((r for r in shapes if r >= len(alike)), shapes[-1])
        jobs = tuple((alike + [job for job in pending if job not in alike])[:rows])
        counts = tuple(min(_missing(job), wanted) for job in jobs)
        reach = max(slot_of(job).held + count for job, count in zip(jobs, counts))
        return Prefill(jobs, counts, rows, wanted, self.buckets.length(reach))

    def prefilled(self, batch: Prefill) -> None:
        for job, count in zip(batch.jobs, batch.counts):
            slot = slot_of(job)
            slot.held += count
            slot.used = self._tick()

    def decodable(self) -> list[Job]:
        """Live jobs with nothing left to prefill; if there are more than rows, those that waited longest."""
        ready = [job for job in self.live if not _missing(job)]
        if len(ready) > self.buckets.decode[-1]:
            ready = sorted(ready, key=lambda job: job.stepped)[: self.buckets.decode[-1]]
        for job in ready:
            job.stepped = self._tick()
        return ready

    def decoded(self, job: Job, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Tokens sampled by one decode call; all but the last now have their KV in the slot."""
        job.ids.extend(ids)
        job.logprobs.extend(logprobs)
        slot = slot_of(job)
        slot.held, slot.used = len(job.ids) - 1, self._tick()

    # --- inside ---

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _hold(self, slot: Slot, ids: np.ndarray, held: int) -> None:
        self._contents += 1
        slot.ids, slot.held, slot.content = ids, held, self._contents
        if len(self._common) > 1 << 16:
            self._common.clear()

    def _occupy(self, job: Job, slot: Slot, shared: int) -> None:
        self._hold(slot, np.asarray(job.ids, np.int32), shared)
        slot.job, job.slot, slot.used = job, slot, self._tick()

    def _shared(self, job: Job, slot: Slot) -> int:
        """Tokens of the job's context, its last one excepted, whose KV the slot holds."""
        return min(self._equal(job, slot), slot.held)

    def _equal(self, job: Job, slot: Slot) -> int:
        pair = (job.prompt, slot.content)
        if pair not in self._common:
            self._common[pair] = common_prefix(slot.ids, np.asarray(job.ids[:-1], np.int32))
        return self._common[pair]

    def _source(self, job: Job) -> tuple[Slot | None, int]:
        best = max(self.slots, key=lambda slot: self._shared(job, slot))
        shared = self._shared(job, best)
        return (best, shared) if shared >= self.share else (None, 0)

    def _more_is_coming(self, job: Job, shared: int) -> bool:
        """True if a slot that is being prefilled will hold the job's whole context, or `share` more tokens of it."""
        coming = max(
            (self._equal(job, slot) for slot in self.slots if slot.job and _missing(slot.job)), default=0
        )
        return coming >= shared + self.share or shared < coming == len(job.ids) - 1

    def _victim(self, source: Slot | None) -> Slot | None:
        """A slot that is not at work: sessionless ones first, then by time of last use. The source comes last
        among the sessionless (others may still want its tokens) unless it is the only one."""
        free = [slot for slot in self.slots if slot.job is None]
        order = lambda slot: (slot.session is not None, slot is source, slot.used)  # noqa: E731
        return min(free, key=order, default=None)


def slot_of(job: Job) -> Slot:
    assert job.slot is not None, "a job without a slot was scheduled"
    return job.slot


def _missing(job: Job) -> int:
    """Context tokens that are not in the slot yet; the last token never has to be."""
    return len(job.ids) - 1 - slot_of(job).held
