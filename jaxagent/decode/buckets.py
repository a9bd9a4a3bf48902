"""The shapes of the decoder's device programs: how rows, query tokens and cache lengths are rounded up."""

from __future__ import annotations

from dataclasses import dataclass

from jaxagent.errors import ConfigError


@dataclass(frozen=True)
class Buckets:
    """The shapes of the decoder's programs: one is compiled for every combination.

    prefill: (rows, query tokens) pairs.   decode: rows.   lengths: cache positions read; the last is the context.
    """

    prefill: tuple[tuple[int, int], ...]
    decode: tuple[int, ...]
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("decode", "lengths"):
            sizes = getattr(self, name)
            if not sizes or min(sizes) < 1 or list(sizes) != sorted(set(sizes)):
                raise ConfigError(f"buckets.{name}={sizes} must be positive sizes in ascending order")
        if not self.prefill or min(min(pair) for pair in self.prefill) < 1:
            raise ConfigError(f"buckets.prefill={self.prefill} must be (rows, query tokens) pairs")
        widest = max(queries for _, queries in self.prefill)
        if widest > self.lengths[-1]:
            raise ConfigError(
                f"buckets.prefill takes {widest} tokens at once, the context is {self.lengths[-1]}"
            )

    def length(self, needed: int) -> int:
        return next(length for length in self.lengths if length >= needed)

    def queries(self, needed: int) -> int:
        widths = sorted({queries for _, queries in self.prefill})
        return next((width for width in widths if width >= needed), widths[-1])

    def rows(self, needed: int) -> int:
        return next((rows for rows in self.decode if rows >= needed), self.decode[-1])
