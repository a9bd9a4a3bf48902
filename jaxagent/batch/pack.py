"""Bin packing of samples into fixed [rows, length] micro-batches, and the way back.

In: samples, loss terms (for their weights), one row shape. Out: `Packed` micro-batches whose counts are those
of the whole minibatch, so that any number of them gives the same loss. numpy only; no loss is computed here.

    samples  a: 5 tokens, b: 3, c: 4      length 8 ->  row 0: a a a a a b b b    segment 1 1 1 1 1 2 2 2
                                                       row 1: c c c c . . . .            1 1 1 1 0 0 0 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxagent.errors import ConfigError, DataError
from jaxagent.stage import Term
from jaxagent.types import Batch, Sample

GROUPED = ("trajectory", "trajectory_geo")


@dataclass(frozen=True)
class Place:
    """Where a sample lies: tokens [start, start + T) of `row`, slots [slot, slot + len(scored))."""

    sample: int
    row: int
    start: int
    slot: int
    scored: np.ndarray  # indices of the sample's scored tokens


@dataclass(frozen=True, eq=False)
class Packed:
    """One micro-batch and where each sample lies in it. lengths: tokens of every sample, packed or not."""

    batch: Batch
    places: tuple[Place, ...]
    lengths: tuple[int, ...]


@dataclass
class _Row:
    tokens: int
    scored: int
    samples: list[int]


def pack(
    samples: Sequence[Sample],
    terms: Mapping[str, Term],
    *,
    rows: int,
    length: int,
    scored: int | None = None,
) -> list[Packed]:
    """First-fit-decreasing packing; deterministic. A sample never crosses a row.

    terms: give weights and global counts, and say (by the level of their ratio) whether the segments of a
    trajectory must share a row. scored: S, scored tokens a row can hold; all of `length` if None. Samples
    whose every inclusion is 0 are not packed.
    """
    scored = length if scored is None else scored
    if rows < 1 or length < 2 or not 0 < scored <= length:
        raise ConfigError(
            f"rows={rows}, length={length}, scored={scored}: need rows >= 1, 0 < scored <= length"
        )
    columns = [_scored_tokens(sample) for sample in samples]
    _check_sizes(samples, columns, length, scored)
    weights = {name: term.aggregate(samples, name) for name, term in terms.items()}
    streams = _streams(samples, terms, weights)
    units = _units(samples, columns, terms)
    bins = _first_fit(units, samples, columns, length, scored)
    lengths = tuple(len(sample.ids_T) for sample in samples)
    out = []
    for first in range(0, len(bins), rows):
        batch = _empty(rows, length, scored, streams, weights)
        places = []
        for row, bin_ in enumerate(bins[first : first + rows]):
            places += _fill(batch, row, bin_, samples, columns, weights)
        out.append(Packed(batch, tuple(places), lengths))
    return out


def unpack(packed: Sequence[Packed], values: Sequence[Float[np.ndarray, "B S"]]) -> list[np.ndarray]:
    """Per-sample arrays [T] from one [B, S] array per micro-batch; 0 at tokens that are not scored."""
    if len(packed) != len(values):
        raise ValueError(f"{len(values)} arrays of values for {len(packed)} micro-batches")
    if not packed:
        return []
    out = [np.zeros(size, np.float32) for size in packed[0].lengths]
    for part, value_BS in zip(packed, values):
        for place in part.places:
            stop = place.slot + len(place.scored)
            out[place.sample][place.scored] = np.asarray(value_BS)[place.row, place.slot : stop]
    return out


def _scored_tokens(sample: Sample) -> np.ndarray:
    """Indices that any term includes. Index 0 has no logits before it and is never scored."""
    used_T = np.zeros(sample.ids_T.shape, bool)
    for include_T in sample.include.values():
        used_T |= np.asarray(include_T) != 0
    used_T[:1] = False
    return np.flatnonzero(used_T)


def _check_sizes(samples: Sequence[Sample], columns: Sequence[np.ndarray], length: int, scored: int) -> None:
    for index, (sample, column) in enumerate(zip(samples, columns)):
        if len(column) and len(sample.ids_T) > length:
            raise DataError(
                f"sample {index} (trajectory {sample.trajectory}) has {len(sample.ids_T)} tokens, a row "
                f"holds {length}; raise pack.length to at least {len(sample.ids_T)} or lower rollout.context"
            )
        if len(column) > scored:
            raise DataError(
                f"sample {index} (trajectory {sample.trajectory}) has {len(column)} scored tokens, a row "
                f"scores {scored}; raise pack.scored to at least {len(column)}"
            )


def _streams(samples: Sequence[Sample], terms: Mapping[str, Term], weights: Mapping[str, tuple]) -> list[str]:
    """Log-prob streams of the batch: those of every sample, and those that a term reads.

    A sample may lack what a term reads (no teacher for this task yet) only where the term gives it no weight.
    A stream that nobody has yet is there all the same, so that its arrival compiles nothing anew.
    """
    held = set.intersection(*(set(sample.logprobs) for sample in samples)) if samples else set()
    for name, term in terms.items():
        for stream in getattr(term.loss, "needs", ()):
            held.add(stream)
            for index, (sample, weight_T) in enumerate(zip(samples, weights[name][0])):
                if stream not in sample.logprobs and weight_T.any():
                    raise DataError(
                        f"sample {index} (trajectory {sample.trajectory}) is trained by term {name!r}, which reads "
                        f"the log-prob stream {stream!r}; the sample has {sorted(sample.logprobs)}. Score that "
                        "stream (Stage.needs, Stage.teacher), or keep the sample out of the term"
                    )
    return sorted(held)


def _units(
    samples: Sequence[Sample], columns: Sequence[np.ndarray], terms: Mapping[str, Term]
) -> list[list[int]]:
    """Samples that must share a row: the segments of a trajectory if a term has one ratio per trajectory."""
    used = [index for index, column in enumerate(columns) if len(column)]
    if not any(getattr(term.loss, "level", "token") in GROUPED for term in terms.values()):
        return [[index] for index in used]
    groups: dict[int, list[int]] = {}
    for index in used:
        groups.setdefault(samples[index].trajectory, []).append(index)
    return list(groups.values())


def _first_fit(
    units: list[list[int]], samples: Sequence[Sample], columns: Sequence[np.ndarray], length: int, scored: int
) -> list[_Row]:
    sized = [
        (sum(len(samples[i].ids_T) for i in unit), sum(len(columns[i]) for i in unit), unit) for unit in units
    ]
    bins: list[_Row] = []
    for tokens, slots, unit in sorted(sized, key=lambda item: (-item[0], item[2][0])):
        if tokens > length or slots > scored:
            raise DataError(
                f"trajectory {samples[unit[0]].trajectory} has {tokens} tokens ({slots} scored) in "
                f"{len(unit)} segments, a row holds {length} ({scored}), and a trajectory-level ratio needs "
                "them in one row; use a token- or turn-level ratio or raise pack.length and pack.scored"
            )
        for row in bins:
            if row.tokens + tokens <= length and row.scored + slots <= scored:
                break
        else:
            row = _Row(0, 0, [])
            bins.append(row)
        row.tokens, row.scored = row.tokens + tokens, row.scored + slots
        row.samples += unit
    return bins


def _empty(
    rows: int, length: int, scored: int, streams: Sequence[str], weights: Mapping[str, tuple]
) -> Batch:
    def tokens() -> np.ndarray:
        return np.zeros((rows, length), np.int32)

    def slots(dtype: type = np.float32, fill: int = 0) -> np.ndarray:
        return np.full((rows, scored), fill, dtype)

    return Batch(
        token_BT=tokens(),
        position_BT=tokens(),
        segment_BT=tokens(),
        column_BS=slots(np.int32),
        target_BS=slots(np.int32),
        turn_BS=slots(np.int32, scored - 1),
        trajectory_BS=slots(np.int32, scored - 1),
        advantage_BS=slots(),
        logprobs={name: slots() for name in streams},
        weight={name: slots() for name in weights},
        count={name: np.float32(count) for name, (_, count) in weights.items()},
    )


def _fill(
    batch: Batch,
    row: int,
    bin_: _Row,
    samples: Sequence[Sample],
    columns: Sequence[np.ndarray],
    weights: Mapping[str, tuple],
) -> list[Place]:
    """Write one row; returns the places of its samples."""
    places, start, slot = [], 0, 0
    turns: dict[tuple[int, int], int] = {}
    trajectories: dict[int, int] = {}
    for number, index in enumerate(bin_.samples, 1):
        sample, scored = samples[index], columns[index]
        T = len(sample.ids_T)
        tokens, slots = (row, slice(start, start + T)), (row, slice(slot, slot + len(scored)))
        batch.token_BT[tokens] = sample.ids_T
        batch.position_BT[tokens] = np.arange(T)
        batch.segment_BT[tokens] = number
        batch.column_BS[slots] = start + scored
        batch.target_BS[slots] = np.asarray(sample.ids_T)[scored]
        trajectory = trajectories.setdefault(sample.trajectory, len(trajectories))
        batch.trajectory_BS[slots] = trajectory
        keys = [(sample.trajectory, int(step)) for step in np.asarray(sample.step_T)[scored]]
        batch.turn_BS[slots] = [turns.setdefault(key, len(turns)) for key in keys]
        batch.advantage_BS[slots] = np.asarray(sample.advantage_T)[scored]
        for name, stream_BS in batch.logprobs.items():
            if name in sample.logprobs:
                stream_BS[slots] = np.asarray(sample.logprobs[name])[scored]
        for name, (weight, _) in weights.items():
            batch.weight[name][slots] = weight[index][scored]
        places.append(Place(index, row, start, slot, scored))
        start, slot = start + T, slot + len(scored)
    return places
