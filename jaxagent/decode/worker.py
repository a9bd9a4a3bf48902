"""The decoder's device side: weights, cache and programs, driven one tick at a time. Synchronous.

A tick takes in what callers did meanwhile, prefills what is missing, and runs one decode call for all live
jobs. It runs in one thread at a time (`turn` keeps `load`, and training, out of it). Not its job: coroutines and
sessions (engine.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxagent.decode.buckets import Buckets
from jaxagent.decode.programs import COPIES, Programs, Rows, idle_rows, stream_name
from jaxagent.decode.scheduler import Copy, Job, Prefill, Scheduler, slot_of
from jaxagent.errors import DivergenceError, RolloutError
from jaxagent.model.cache import OFF
from jaxagent.model.extend import Weights
from jaxagent.model.spec import ModelSpec
from jaxagent.types import Completion, Stop

Decode = Callable[[Sequence[int]], str]
Event = tuple[Literal["submit", "cancel", "release"], Job | str]


@dataclass
class Counts:
    """Work done so far. row_steps: rows x tokens that the decode calls computed; sampled / row_steps is the yield."""

    prefilled: int = 0
    copied: int = 0
    sampled: int = 0
    row_steps: int = 0
    prefill_calls: int = 0
    decode_calls: int = 0
    evictions: int = 0
    loads: int = 0


class Worker:
    """burst: prefill calls in a row before decoding goes on.   decode: ids -> text, for stop strings."""

    def __init__(
        self,
        spec: ModelSpec,
        programs: Programs,
        *,
        slots: int,
        buckets: Buckets,
        dtype: DTypeLike,
        decode: Decode | None,
        burst: int,
    ):
        self.spec, self.programs, self.buckets, self.dtype, self.burst = spec, programs, buckets, dtype, burst
        self.slots, self.decode = slots, decode
        self.version, self.checksum = -1, 0
        self.counts = Counts()
        self.weights: Weights | None = None
        self.turn = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """An empty cache, and no jobs."""
        self.scheduler = Scheduler(slots=self.slots, buckets=self.buckets)
        self.cache = self.programs.empty_cache(self.slots, self.buckets.lengths[-1], self.dtype)

    def load(self, graphdef: nnx.GraphDef, params: nnx.State, version: int) -> None:
        if version < self.version:
            raise RolloutError(
                f"weights of version {version} came after version {self.version}; versions never go back, or "
                "stale samples would pass for fresh ones"
            )
        with self.turn:
            self.weights = None  # the old ones go first: both need not fit
            self.weights, checksum = self.programs.hand_off(graphdef, params, self.dtype)
            self.version, self.checksum = version, int(checksum)
            self.counts.loads += 1
            self.scheduler.invalidate()

    def warm_up(self) -> None:
        with self.turn:
            self.programs.warm_up(self._loaded(), self.cache, self.buckets)

    def tick(self, events: Iterable[Event]) -> tuple[list[tuple[Job, Completion]], bool]:
        """(jobs that are complete, whether any are left)."""
        with self.turn:
            for event, about in events:
                if isinstance(about, str):
                    self.scheduler.release(about)
                elif event == "submit":
                    self.scheduler.submit(about)
                else:
                    self.scheduler.finish(about)
            self._prefill()
            done = self._decode()
            self.counts.evictions = self.scheduler.evictions
            return done, bool(self.scheduler.queue or self.scheduler.live)

    def _loaded(self) -> Weights:
        if self.weights is None:
            raise RolloutError("the decoder has no weights yet: call load(params, version) first")
        return self.weights

    def _prefill(self) -> None:
        for _ in range(self.burst):
            for copies in self.scheduler.place():
                self._copy(copies)
            batch = self.scheduler.next_prefill()
            if batch is None:
                return
            self.cache = self.programs.prefill(
                batch.length, self._loaded(), self.cache, prefill_arrays(batch, self.slots)
            )
            self.scheduler.prefilled(batch)
            self.counts.prefill_calls += 1
            self.counts.prefilled += sum(batch.counts)

    def _copy(self, copies: Sequence[Copy]) -> None:
        for start in range(0, len(copies), COPIES):
            some = copies[start : start + COPIES]
            source, target = np.zeros(COPIES, np.int32), np.full(COPIES, self.slots, np.int32)
            source[: len(some)] = [copy.source for copy in some]
            target[: len(some)] = [copy.target for copy in some]
            length = self.buckets.length(max(copy.tokens for copy in some))
            self.cache = self.programs.copy(length, self.cache, source, target)
            self.counts.copied += sum(copy.tokens for copy in some)

    def _decode(self) -> list[tuple[Job, Completion]]:
        jobs = self.scheduler.decodable()
        if not jobs:
            return []
        limits = [self._limit(job) for job in jobs]
        reach = max(len(job.ids) - 1 + min(limit, self.programs.tokens) for job, limit in zip(jobs, limits))
        count = self.buckets.rows(len(jobs))
        places = [slot_of(job).index for job in jobs] if count == self.slots else range(len(jobs))
        rows = decode_arrays(jobs, limits, places, idle_rows(count, self.slots))
        self.cache, out = self.programs.decode(self.buckets.length(reach), self._loaded(), self.cache, rows)
        token_RN, logprob_RN, count_R = jax.device_get(out)
        self.counts.decode_calls += 1
        self.counts.sampled += int(count_R.sum())
        self.counts.row_steps += count * int(count_R.max())
        done = []
        for job, row in zip(jobs, places):
            n = count_R[row]
            if not np.isfinite(logprob_RN[row, :n]).all():
                raise DivergenceError(
                    f"the decoder sampled from logits that are not finite (weights of version {self.version}"
                    f", session {job.request.session!r}, position {len(job.ids)}); the weights have diverged"
                )
            if job.version is None:
                job.version = self.version
            self.scheduler.decoded(job, token_RN[row, :n].tolist(), logprob_RN[row, :n].tolist())
            stop = self._stop(job, int(n))
            if stop:
                self.scheduler.finish(job)
                done.append((job, completion(job, stop)))
        return done

    def _limit(self, job: Job) -> int:
        """Tokens the job may still sample."""
        return min(job.request.sampling.max_tokens - job.sampled, self.buckets.lengths[-1] - len(job.ids))

    def _stop(self, job: Job, new: int) -> Stop | None:
        """Why the job is complete after `new` more tokens. A stop string cuts off what was sampled after it."""
        sampling = job.request.sampling
        if sampling.stop_strings and self.decode is not None:
            keep = first_stop(job.ids[job.context :], job.sampled - new, sampling.stop_strings, self.decode)
            if keep is not None:
                del job.ids[job.context + keep :], job.logprobs[keep:]
                return Stop.STOP
        if job.ids[-1] in sampling.stop_ids:
            return Stop.STOP
        if job.sampled >= sampling.max_tokens:
            return Stop.MAX_TOKENS
        return Stop.CONTEXT if len(job.ids) >= self.buckets.lengths[-1] else None


def first_stop(ids: Sequence[int], known: int, strings: Sequence[str], decode: Decode) -> int | None:
    """Smallest number of tokens, above `known`, whose text contains a stop string."""
    text = decode(ids)
    if not any(string in text for string in strings):
        return None
    for count in range(known + 1, len(ids)):
        text = decode(ids[:count])
        if any(string in text for string in strings):
            return count
    return len(ids)


def completion(job: Job, stop: Stop) -> Completion:
    assert job.version is not None, "a job finished without having been sampled"
    ids = np.asarray(job.ids[job.context :], np.int32)
    return Completion(ids, np.asarray(job.logprobs, np.float32), stop, job.version)


def prefill_arrays(batch: Prefill, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """slot_R, token_RQ, position_RQ; padding has position OFF, unused rows slot = slots."""
    slot_R = np.full(batch.rows, slots, np.int32)
    token_RQ = np.zeros((batch.rows, batch.queries), np.int32)
    position_RQ = np.full((batch.rows, batch.queries), OFF, np.int32)
    for row, (job, count) in enumerate(zip(batch.jobs, batch.counts)):
        slot = slot_of(job)
        held, slot_R[row] = slot.held, slot.index
        token_RQ[row, :count] = job.ids[held : held + count]
        position_RQ[row, :count] = np.arange(held, held + count)
    return slot_R, token_RQ, position_RQ


def decode_arrays(jobs: Sequence[Job], limits: Sequence[int], places: Sequence[int], rows: Rows) -> Rows:
    """`rows` with the jobs filled in at `places`."""
    for job, limit, row in zip(jobs, limits, places):
        sampling, key = job.request.sampling, job.request.key
        rows.slot_R[row] = slot_of(job).index
        rows.token_R[row] = job.ids[-1]
        rows.position_R[row] = len(job.ids) - 1
        rows.index_R[row] = job.sampled
        rows.limit_R[row] = limit
        rows.stream_R5[row] = stream_name(key.seed, key.task, key.rollout, key.step)
        rows.stop_RM[row, : len(sampling.stop_ids)] = sampling.stop_ids
        rows.rule.temperature_B[row] = sampling.temperature
        rows.rule.top_k_B[row] = sampling.top_k
        rows.rule.top_p_B[row] = sampling.top_p
        rows.rule.min_p_B[row] = sampling.min_p
    return rows
