"""A wider upper clip for some trajectories: the same policy gradient as two terms that share one count.

    boosted_stage(stage, clipped_pg(0.2, 0.6))        "pg" keeps its clip, flagged trajectories move to "pg_boosted"

A trajectory is boosted by the flag `extra["boost"]`, e.g. one that was guided by an experience which is stripped before
training (AgentEvolver): its ratios start far from the sampled distribution, and what succeeded there is to be learnt.
The upper bound of a clip binds where the advantage is positive alone, so that no other token of it is affected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jaxagent.errors import ConfigError
from jaxagent.stage import Aggregate, Loss, Samples, Stage
from jaxagent.types import Credited, Sample

BOOST = "boost"  # key of `Trajectory.extra`


def boosted_stage(stage: Stage, loss: Loss, *, term: str = "pg", other: str = "pg_boosted") -> Stage:
    """The stage with its policy term split: flagged trajectories are trained by `loss`, averaged with the rest."""
    policy = stage.terms[term]
    shared = replace(policy, aggregate=jointly(policy.aggregate, (term, other)))
    terms = {**stage.terms, term: shared, other: replace(shared, loss=loss)}
    return replace(stage, samples=boosted(stage.samples, term=term, other=other), terms=terms)


def boosted(samples: Samples, *, term: str = "pg", other: str = "pg_boosted") -> Samples:
    """What `term` includes of flagged trajectories moves to `other`."""

    def split(credited: Sequence[Credited]) -> list[Sample]:
        flags = [bool(item.trajectory.extra.get(BOOST, False)) for item in credited]
        return [_moved(sample, term, other, flags[sample.trajectory]) for sample in samples(credited)]

    return split


def _moved(sample: Sample, term: str, other: str, flag: bool) -> Sample:
    included_T = sample.include[term]
    none_T = np.zeros_like(included_T)
    place = {term: none_T, other: included_T} if flag else {term: included_T, other: none_T}
    return replace(sample, include={**sample.include, **place})


def jointly(aggregate: Aggregate, terms: Sequence[str]) -> Aggregate:
    """`aggregate` over what any of the terms includes: each takes its tokens' weights, all have the same count.

    The sum of the terms is then what one term over all tokens would be, e.g. a mean over all of them.
    """
    if len(set(terms)) < 2:
        raise ConfigError(f"jointly over the terms {list(terms)}: name two or more different ones")

    def shared(samples: Sequence[Sample], term: str) -> tuple[list[np.ndarray], float]:
        together = [
            replace(s, include={term: np.sum([s.include[t] for t in terms], axis=0)}) for s in samples
        ]
        weights, count = aggregate(together, term)
        return [np.where(s.include[term] != 0, w, np.float32(0)) for s, w in zip(samples, weights)], count

    return shared
