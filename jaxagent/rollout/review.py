"""The same action tokens under another opening prompt: a Skill-SD teacher, SIRI internalisation, stripping.

Only the opening is rendered anew; everything from the first sampled token on is kept id for id. The two
sequences therefore align by their suffix: token -n of one is token -n of the other.

    student   p p p       a a e o o o a a
    teacher   q q q q q   a a e o o o a a

What the new opening has and the old one has not is privileged: it alone is cut where the whole would be too long.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from jaxagent.errors import RolloutError
from jaxagent.rollout.episode import PLAIN, Renderer
from jaxagent.types import Prompt, Segment, Trajectory

REOPENED = (
    "reopened"  # key of `Trajectory.extra`: it stands behind another opening than it was sampled behind
)


def plain_prompt(trajectory: Trajectory) -> Prompt:
    """How the episode would have opened without the plan's rewriting: without skills, experience, hints."""
    return trajectory.extra.get(PLAIN, trajectory.prompt)


def review(
    trajectory: Trajectory, prompt: Prompt, renderer: Renderer, *, room: int | None = None
) -> list[Segment]:
    """Every segment of `trajectory` as if the episode had opened with `prompt`.

    Masks, step numbers and log-prob streams move with their tokens. room: tokens of the longest segment; to keep it,
    the privileged tokens of the opening lose their end. Empty, if nothing of them would be left. Raises RolloutError
    for a segment that does not start with the trajectory's own opening, because its history was rewritten.
    """
    old = np.asarray(renderer.open(trajectory.prompt), np.int32)
    new = np.asarray(renderer.open(prompt), np.int32)
    longest = max((len(segment.ids_T) for segment in trajectory.segments), default=0)
    excess = 0 if room is None else longest - len(old) + len(new) - room
    if excess > 0:
        first, last = privileged(old, new)
        if excess >= last - first:
            return []
        new = np.delete(new, slice(last - excess, last))
    return [_reopen(segment, old, new, trajectory.traj_id) for segment in trajectory.segments]


def privileged(old: np.ndarray, new: np.ndarray) -> tuple[int, int]:
    """Where in `new` lies what `old` has not: all but their common start and, of the rest, their common end.

    old p p a e, new p p q q a e  ->  (2, 4)
    """
    shared = min(len(old), len(new))
    differ = np.flatnonzero(old[:shared] != new[:shared])
    first = int(differ[0]) if len(differ) else shared
    differ = np.flatnonzero(old[::-1][: shared - first] != new[::-1][: shared - first])
    last = len(new) - (int(differ[0]) if len(differ) else shared - first)
    return first, last


def _reopen(segment: Segment, old: np.ndarray, new: np.ndarray, name: str) -> Segment:
    n = len(old)
    if len(segment.ids_T) < n or not np.array_equal(segment.ids_T[:n], old) or segment.mask_T[:n].any():
        raise RolloutError(
            f"a segment of {name} does not start with the {n} tokens of its opening prompt, so that another "
            "opening cannot take their place; the renderer or the context differs from the rollout's"
        )

    def moved(stream: np.ndarray, head: np.ndarray) -> np.ndarray:
        return np.concatenate([head.astype(stream.dtype), stream[n:]])

    blank = np.zeros(len(new))
    return Segment(
        ids_T=moved(segment.ids_T, new),
        mask_T=moved(segment.mask_T, blank),
        step_T=moved(segment.step_T, blank - 1),
        logprobs={key: moved(stream, blank) for key, stream in segment.logprobs.items()},
    )


def carry_back(values_T: Float[np.ndarray, "T2"], onto: Segment) -> Float[np.ndarray, "T"]:
    """Values of a reviewed segment's tokens, moved to these tokens' places in `onto`; 0 off the mask."""
    actions = np.flatnonzero(onto.mask_T)
    carried = np.zeros(len(onto.ids_T), np.float32)
    if len(actions):
        n = len(onto.ids_T) - int(actions[0])
        carried[-n:] = values_T[-n:]
    return carried * onto.mask_T
