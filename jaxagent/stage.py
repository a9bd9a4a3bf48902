"""A stage: the one extension point. A run is a list of stages; the loop (train.py) executes any stage.

    source -> Group -> reward -> credit -> filter -> samples -> teacher -> terms

Every field is a plain function or a small record, passed by reference; adding a method is one new function
and one recipe file. This file imports no jax: loss functions are referred to, never called, here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from jaxagent.errors import ConfigError
from jaxagent.plan import Plan
from jaxagent.types import (
    Credited,
    Generate,
    Group,
    Metrics,
    Prompt,
    Sample,
    Sampling,
    Task,
    Trajectory,
)


@runtime_checkable
class Source(Protocol):
    """Where an iteration's data comes from. Its state is checkpointed with the model."""

    def next(self, iteration: int) -> Sequence[Plan] | Sequence[Group]:
        """Plans to roll out, or ready groups (demonstrations)."""
        ...

    def observe(self, groups: Sequence[Group]) -> Metrics:
        """Learn from an iteration's outcome: curriculum, skill bank, task pool."""
        ...

    def state(self) -> Mapping[str, Any]:
        """JSON-serialisable state; `restore(state())` continues with the same tasks in the same order."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None: ...

    def close(self) -> None:
        """End threads and connections, if there are any. The run calls it when it ends, however it ends."""
        ...


Reopen = Callable[[Sequence[Group]], list[Group]]
"""The groups as they are learnt from: behind other openings than they were sampled behind."""

FollowUp = Callable[[Sequence[Group]], Sequence[Plan]]
"""All groups of the iteration so far -> plans to roll out before it goes on: a refill, the next position of a chain. It
is asked again after each of its rounds, until it gives none."""

Reward = Callable[[Trajectory], float]
"""A number for a finished episode: an outcome, or a term to add to it."""

Returns = Callable[[Sequence[Group]], list[Group]]
"""The same groups with every trajectory's return R set. Whole groups at once, so that a judge can be asked for all of
them together; rewards/returns.py lifts a `Reward`."""

Credit = Callable[[Sequence[Group]], list[Credited]]
"""Advantage per step for every surviving trajectory. Group statistics live here, over whole groups."""

Filter = Callable[[Sequence[Credited]], list[Credited]]
"""Drop trajectories after credit (the baseline has seen them)."""

Samples = Callable[[Sequence[Credited]], list[Sample]]
"""Segments with per-term token inclusion."""

Measure = Callable[[Sequence[Group], Sequence[Sample]], Metrics]
"""What a method wants in the log: the iteration's groups, with returns, and what is trained on -> metrics."""

Aggregate = Callable[[Sequence[Sample], str], tuple[list[np.ndarray], float]]
"""(samples of one minibatch, term) -> (weight [T] per sample, count): the term is sum(weight * loss) / count."""

Loss = Callable[..., tuple[Any, Mapping[str, Any]]]
"""Device function of learn/terms.py: (scores, streams) -> per-token loss [B, S] and metric sums."""


Opening = Callable[[Task, Prompt], Prompt]
"""How a task's episode opens instead of as the environment has it, e.g. with a skill in the prompt."""

Rollout = Callable[[Sequence[Plan], Sampling], Awaitable[Sequence[Group]]]
"""Runs an evaluation's plans under a sampling rule; one group a plan."""

Way = Callable[[Rollout], Rollout]
"""Another way to run them: with another opening (eval/ways.py), in another order, with what earlier episodes left."""


@dataclass(frozen=True)
class Term:
    """One loss term: which device function, its coefficient, and how tokens are averaged.

    coef: a number, or a function of the optimiser steps that the stage has taken.
    """

    loss: Loss
    aggregate: Aggregate
    coef: float | Callable[[int], float] = 1.0


TeacherWeights = Literal["current", "reference", "ema", "checkpoint"]


@dataclass(frozen=True)
class Teacher:
    """Score the same action tokens under another context and/or other weights.

    prompt:     trajectory -> opening messages of the teacher's context, or None if there is no teacher for it.
    weights:    "current" (as at the start of the iteration) | "reference" (frozen: as at the start of the stage) |
                "ema" (a moving average of the policy) | "checkpoint" (another network of the same tokens).
    decay:      of the average: after every iteration that changed the policy, ema += (1 - decay) (policy - ema).
    checkpoint: folder or hf:// name of the other network.
    """

    prompt: Callable[[Trajectory], Any | None]
    weights: TeacherWeights = "current"
    decay: float = 0.99
    checkpoint: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ConfigError(f"a teacher's decay={self.decay}; expected a number in [0, 1), 0.99 is usual")
        if bool(self.checkpoint) != (self.weights == "checkpoint"):
            raise ConfigError(
                f"a teacher of weights {self.weights!r} with checkpoint={self.checkpoint!r}: a folder goes with "
                "weights 'checkpoint', and only with them"
            )


@dataclass(frozen=True)
class Update:
    """How an iteration's samples become optimiser steps.

    minibatch: trajectories per optimiser step; 0 means all of them (one step an epoch).
    steps_per_iteration: optimiser steps of a full iteration; a decaying schedule needs it to know its length.
    adam_learning_rate: with optimizer "muon", the rate of what is not a matrix; None is learning_rate.
    critic_learning_rate: of the value head; None is learning_rate.
    kl_stop:   end the iteration when |mean trajectory log-ratio| exceeds it; 0 is off.
    outlier_sigma: skip a step whose gradient norm is so many standard deviations above the running mean; 0 is off.
    """

    learning_rate: float
    epochs: int = 1
    minibatch: int = 0
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    warmup_steps: int = 0
    schedule: str = "constant"
    steps_per_iteration: int = 0
    adam_learning_rate: float | None = None
    critic_learning_rate: float | None = None
    max_grad_norm: float = 1.0
    kl_stop: float = 0.0
    outlier_sigma: float = 0.0
    max_nan: int = 20


def close_held(held: object) -> None:
    """Close what may hold threads or connections (a judge); a plain function has nothing to close."""
    close = getattr(held, "close", None)
    if close is not None:
        close()


@dataclass(frozen=True)
class Stage:
    """One phase of a run. See the module docstring for the flow.

    needs: token streams scored by the trainer before credit: "old" (log-probs under the parameters at the start of
           the iteration), "reference" (at the start of the stage); "value" and "bootstrap" (see scoring.py). Without
           "old" the update takes the current log-probs as old ones, which is exact for a single on-policy step.
    trains: prefix of the names of the parameters that the stage may change, e.g. "critic/"; empty is what the run
           file says (everything, adapters, the last layers).
    temperature: of an iteration's rollouts, and of all its log-probs; None is that of `sampling` throughout.
    ways: further evaluations by name, beside the plain one: the same tasks, run in another way.
    meet_policy: called when the stage begins, with the live policy; it may be asked from any thread between rollouts.
    shown: name -> JSON-serialisable content; written to <run>/<stage>.<name>.json for people, with each checkpoint.
    reopen: before anything is scored, so that old and reference log-probs are those of the openings that are learnt.
    reference_ema: after an iteration's update the reference becomes reference_ema x itself + the rest x the policy; 1
           keeps the parameters of the stage's start.
    """

    name: str
    source: Source
    iterations: int
    samples: Samples
    terms: Mapping[str, Term]
    update: Update
    stored: bool = False  # the source gives rollouts that were sampled earlier, under `sampling`
    lends: bool = False  # its plans may name other weights than the policy's (`Plan.weights`)
    reward: Returns | None = None
    credit: Credit | None = None
    filter: Filter | None = None
    teacher: Teacher | None = None
    needs: tuple[str, ...] = ()
    trains: str = ""
    sampling: Sampling | None = None
    follow_up: FollowUp | None = None
    temperature: Callable[[int], float] | None = None
    ways: Mapping[str, Way] = field(default_factory=dict)
    meet_policy: Callable[[Generate], None] | None = None
    shown: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    measure: Measure | None = None
    reopen: Reopen | None = None
    reference_ema: float = 1.0

    def sampling_at(self, iteration: int) -> Sampling | None:
        """The rule of an iteration: `sampling`, at the temperature that a schedule gives it."""
        if self.sampling is None or self.temperature is None:
            return self.sampling
        return replace(self.sampling, temperature=self.temperature(iteration))

    def close(self) -> None:
        """End what the source, the reward and the credit hold: threads, connections."""
        for held in (self.source, self.reward, self.credit):
            close_held(held)

    @property
    def rolls_out(self) -> bool:
        """Whether the policy plays episodes; a stage of demonstrations has no sampling rule."""
        return self.sampling is not None and not self.stored

    @property
    def keeps_reference(self) -> bool:
        """Whether the parameters of the stage's start must be kept."""
        return "reference" in self.needs or (self.teacher is not None and self.teacher.weights == "reference")

    @property
    def keeps_average(self) -> bool:
        """Whether a moving average of the parameters must be kept."""
        return self.teacher is not None and self.teacher.weights == "ema"
