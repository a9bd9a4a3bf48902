"""What an evaluation cost: FLOPs by the formula of its model, and seconds of chips and environments a solved episode.

FLOPs follow from token counts alone and repeat exactly; seconds are measured and do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxagent.eval.behaviour import inference_flops
from jaxagent.eval.usage import usage
from jaxagent.model.spec import ModelSpec
from jaxagent.types import Metrics, Trajectory


def multiplied_parameters(spec: ModelSpec) -> int:
    """Parameters that a token is multiplied with: projections, the experts that are used, router, LM head.

    The input embedding is looked up, not multiplied; a tied one counts once, as the head.
    """
    queries, keys = spec.rank_of_heads
    attention = spec.width * (2 * queries + 2 * keys)
    experts = spec.experts_per_token if spec.experts else 1
    mlp = 3 * spec.width * spec.mlp * experts + spec.width * spec.experts
    return spec.layers * (attention + mlp) + spec.vocab * spec.width


def flop_metrics(trajectories: Sequence[Trajectory], spec: ModelSpec | None) -> Metrics:
    """FLOPs a rollout: each token worked through once, and (`flops_no_cache`) the whole context anew at each turn.

    Empty without a model, or where a rollout's tokens were not counted.
    """
    counts = [count for count in map(usage, trajectories) if count is not None]
    if spec is None or not trajectories or len(counts) < len(trajectories):
        return {}
    width = spec.rank_of_heads[0]
    once = [length for count in counts for length in count.processed]
    anew = [before + said for count in counts for before, said in zip(count.context, count.sampled)]
    n = len(trajectories)
    return {
        name: inference_flops(multiplied_parameters(spec), layers=spec.layers, width=width, lengths=lengths)
        / n
        for name, lengths in (("flops", once), ("flops_no_cache", anew))
    }


def time_metrics(trajectories: Sequence[Trajectory], spent: Mapping[str, float], *, chips: int) -> Metrics:
    """Seconds in all, and those of chips and environments for each episode that was solved (left out if none was).

    spent: wall seconds by what went on; "wall" is all of them. chip_s: chips x wall seconds: chips that wait are held
    too. env_s: of all environments together, which run side by side.
    """
    metrics: Metrics = {f"{name}_s": float(value) for name, value in spent.items()}
    metrics["env_s"] = sum(float(trajectory.extra.get("env_s", 0.0)) for trajectory in trajectories)
    if chips and "wall" in spent:
        metrics["chip_s"] = chips * float(spent["wall"])
    solved = sum(trajectory.success for trajectory in trajectories)
    if solved:
        metrics |= {
            f"{name}_per_solved": metrics[name] / solved for name in ("env_s", "chip_s") if name in metrics
        }
    return metrics
