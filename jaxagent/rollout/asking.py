"""One session's requests to the policy: within the room that is left, and checked when they are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int

from jaxagent.errors import RolloutError
from jaxagent.types import Completion, Generate, GenerateRequest, SampleKey, Sampling

Ask = Callable[[Int[np.ndarray, "T"], int, int], Awaitable[Completion]]
"""(context, step, tokens of room) -> completion."""


def asker(generate: Generate, session: str, key: SampleKey, sampling: Sampling) -> Ask:
    """(context, step, room) -> checked completion, for one session and one random stream."""

    async def ask(ids_T: Int[np.ndarray, "T"], step: int, room: int) -> Completion:
        limited = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        completion = await generate(GenerateRequest(session, ids_T, replace(key, step=step), limited))
        n, logprob_T = len(completion.ids_T), completion.logprob_T
        if not 1 <= n <= limited.max_tokens:
            raise RolloutError(f"the decoder returned {n} tokens; 1 to {limited.max_tokens} were asked for")
        if len(logprob_T) != n or not np.isfinite(logprob_T).all():
            raise RolloutError(f"{n} tokens came with {len(logprob_T)} log-probs; expected {n} finite ones")
        return completion

    return ask


def with_stops(sampling: Sampling, stop_ids: Sequence[int]) -> Sampling:
    """The sampling rule with the template's stop ids, unless it has its own."""
    return sampling if sampling.stop_ids else replace(sampling, stop_ids=tuple(stop_ids))
