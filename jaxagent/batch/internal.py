"""Internalisation: action tokens of episodes played with a skill, as samples under the prompt without it. SIRI.

    L_int = - sum of w_t log p(y_t | plain context) / kept,   w_t = gate 1[action token] clip(A_t, 0, w_max)

kept is the number of tokens with w > 0 ("kept") or the sum of w ("weight"). The gate is Delta > 0 of the episode's
group. Reasoning, steps without a positive advantage and steps whose action cannot be located have no weight. The ids
differ from the episode's own in their opening alone; the policy-gradient samples are not touched.

    A     .8 .8 .8 -.5 -.5  3        action tokens  0 1 1 1 1 1        w_max 2
    w      0 .8 .8   0   0  2        with lp -1 -.5 -.2 -2 -2 -1.5:  1.1867 over kept, .9889 over the weight
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from jaxagent.chat.spans import Decode, action_tokens
from jaxagent.rollout.renderer import Renderer
from jaxagent.rollout.review import plain_prompt, review
from jaxagent.types import Credited, Metrics, Sample, Segment

Gate = Callable[[Credited], bool]
Divisor = Literal["kept", "weight"]
Place = slice | None


@dataclass(frozen=True)
class Internalise:
    """gate: which episodes take part. w_max caps the weight of a token. term: name of the loss term."""

    gate: Gate
    w_max: float = 2.0
    divisor: Divisor = "kept"
    term: str = "internal"


def internal_samples(
    credited: Sequence[Credited], rules: Internalise, *, strength: float, renderer: Renderer, decode: Decode
) -> tuple[list[Sample], Metrics]:
    """Samples of one term, numbered as their trajectories, and what they are made of.

    The loss must be -advantage * lp, averaged by `token_mean`: its weights are 1 a kept token, or w.
    """
    samples: list[Sample] = []
    kept = missing = episodes = 0
    for index, item in enumerate(credited):
        if item.trajectory.masked or not rules.gate(item):
            continue
        episodes += 1
        places, lost = _places(item, decode, renderer.stop_ids)
        missing += lost
        for segment in review(item.trajectory, plain_prompt(item.trajectory), renderer):
            weight_T = token_weights(item, segment, places, w_max=rules.w_max)
            if weight_T.any():
                kept += int((weight_T > 0).sum())
                samples.append(_sample(index, segment, weight_T, rules, strength))
    counts = {"episodes": episodes, "kept_tokens": kept, "steps_without_span": missing}
    return samples, {f"internal/{name}": float(count) for name, count in counts.items()}


def token_weights(
    item: Credited, segment: Segment, places: Sequence[Place], *, w_max: float
) -> Float[np.ndarray, "T"]:
    """w_t of one segment. places: where in each step's sampled tokens its action lies."""
    weight_T = np.zeros(len(segment.ids_T), np.float32)
    for step, place in enumerate(places):
        at = np.flatnonzero(segment.mask_T & (segment.step_T == step))
        if place is not None and len(at) == len(item.trajectory.steps[step].ids_T):
            weight_T[at[place]] = np.clip(item.advantage_K[step], 0.0, w_max)
    weight_T[:1] = 0
    return weight_T


def _places(item: Credited, decode: Decode, stop_ids: Sequence[int]) -> tuple[list[Place], int]:
    """Each step's action tokens, where its advantage is positive; and how many of these were not found."""
    places: list[Place] = []
    lost = 0
    for step, advantage in zip(item.trajectory.steps, item.advantage_K):
        if advantage <= 0:
            places.append(None)
            continue
        ids = step.ids_T.tolist()
        place = action_tokens(ids, step.action, decode=decode, stop_ids=stop_ids)
        lost += place is None
        places.append(place)
    return places, lost


def _sample(
    index: int, segment: Segment, weight_T: np.ndarray, rules: Internalise, strength: float
) -> Sample:
    kept_T = (weight_T > 0).astype(np.float32)
    by_count = rules.divisor == "kept"
    return Sample(
        trajectory=index,
        ids_T=segment.ids_T,
        step_T=segment.step_T,
        advantage_T=(strength * (weight_T if by_count else kept_T)).astype(np.float32),
        include={rules.term: kept_T if by_count else weight_T},
        logprobs=segment.logprobs,
    )
