"""The token sequence that the policy sees, and what of it was sampled.

`History` grows only at its end; `fork` closes the segment and starts another one, for contexts that rewrite
the past (thought stripping, summaries, sliding windows). Sampled tokens are trained in the segment in which
they were sampled and are plain context (mask 0) in later ones, so each is trained exactly once.

    open(p p p)  sampled(a a e)  extend(o o o)  sampled(a a)
    ids   p p p   a a e   o o o   a a
    mask  0 0 0   1 1 1   0 0 0   1 1
    step -1-1-1   0 0 0  -1-1-1   1 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int

from jaxagent.errors import RolloutError
from jaxagent.types import Completion, Segment


@dataclass(frozen=True)
class _Piece:
    ids_T: Int[np.ndarray, "T"]
    step: int  # -1: not sampled
    logprob_T: np.ndarray | None = None


@dataclass
class History:
    """One episode's token history. Ids are stored as they came; nothing is ever decoded and encoded again."""

    _closed: list[Segment] = field(default_factory=list)
    _pieces: list[_Piece] = field(default_factory=list)
    _sampled: int = 0

    @property
    def ids_T(self) -> Int[np.ndarray, "T"]:
        """The whole context of the next message."""
        return np.concatenate([piece.ids_T for piece in self._pieces] or [np.zeros(0, np.int32)])

    def __len__(self) -> int:
        return sum(len(piece.ids_T) for piece in self._pieces)

    def extend(self, ids: Sequence[int]) -> None:
        """Tokens that nobody sampled: prompt, template, observation."""
        if len(ids):
            self._pieces.append(_Piece(np.asarray(ids, np.int32), -1))

    def sampled(self, completion: Completion, step: int) -> None:
        """One message of the policy, end-of-turn included if it was sampled."""
        self._sampled += len(completion.ids_T)
        self._pieces.append(_Piece(completion.ids_T.astype(np.int32), step, completion.logprob_T))

    def fork(self, ids: Sequence[int]) -> None:
        """Go on under a rewritten history: `ids` is the new context, none of it trained here."""
        self._close()
        self.extend(ids)

    def segments(self) -> tuple[Segment, ...]:
        """All segments that hold sampled tokens; checks that every sampled token is in exactly one."""
        self._close()
        trained = sum(int(segment.mask_T.sum()) for segment in self._closed)
        if trained != self._sampled:
            raise RolloutError(f"{self._sampled} tokens were sampled but {trained} are marked for training")
        return tuple(self._closed)

    def _close(self) -> None:
        pieces, self._pieces = self._pieces, []
        if not any(piece.step >= 0 for piece in pieces):
            return
        zeros = [np.zeros(len(piece.ids_T), np.float32) for piece in pieces]
        step_T = np.concatenate([np.full(len(piece.ids_T), piece.step, np.int32) for piece in pieces])
        self._closed.append(
            Segment(
                ids_T=np.concatenate([piece.ids_T for piece in pieces]),
                mask_T=step_T >= 0,
                step_T=step_T,
                logprobs={
                    "behaviour": np.concatenate(
                        [
                            blank if piece.logprob_T is None else piece.logprob_T.astype(np.float32)
                            for piece, blank in zip(pieces, zeros, strict=True)
                        ]
                    )
                },
            )
        )


def check_prefix(stored_T: Int[np.ndarray, "N"], context_T: Int[np.ndarray, "T"]) -> None:
    """The context of a message must start with all that the policy has seen and said. Raises RolloutError."""
    n = len(stored_T)
    if len(context_T) >= n and np.array_equal(context_T[:n], stored_T):
        return
    shared = min(n, len(context_T))
    where = int(np.argmin(np.append(context_T[:shared] == stored_T[:shared], False)))
    raise RolloutError(
        f"the context of a message ({len(context_T)} tokens) does not start with the {n} stored tokens; "
        f"they differ at token {where}. A context that rewrites its past must fork a segment"
    )
