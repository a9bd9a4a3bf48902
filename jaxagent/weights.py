"""Owner of a run's parameters, and of which of them the decoder samples from.

In: a stage that begins, updates, checkpoints. Out: the stage's learner; versions handed to the decoder; the arrays that
are saved. While a stage trains them, the policy's parameters are its learner's (learner.py), which donates them; beside
them the run keeps those that the stage wants kept (the reference, the moving average).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxagent.config import PackConfig
from jaxagent.decode.engine import Engine
from jaxagent.learn.state import averaged, train_only
from jaxagent.learner import Learner, Model, Network, temperature
from jaxagent.policy import Policy
from jaxagent.stage import Stage


class Weights:
    """turns: decoder and learner run at the same time, and take turns.

    handed:  versions that the decoder was given, in order.
    version: of the policy when the last iteration ended.
    """

    def __init__(self, policy: Policy, engine: Engine, *, turns: bool):
        self.engine = engine
        self.handed: list[int] = []
        self.version = 0
        self._policy = policy
        self._turn = engine.turn if turns else None
        self._params: Any = policy.params
        self._reference: Any = None
        self._average: Any = None
        self._learner: Learner | None = None

    @property
    def learner(self) -> Learner:
        """That of the present stage."""
        assert self._learner is not None, "no stage has begun"
        return self._learner

    @property
    def params(self) -> Any:
        """The policy's newest."""
        return self._params if self._params is not None else self.learner.params

    # --- a stage -----------------------------------------------------------------------------------------------

    def begin(self, stage: Stage, shape: PackConfig, teacher: Network | None) -> Learner:
        """The learner of a stage, from the newest parameters. teacher: one that is another network."""
        policy = self._policy
        self._reference = jax.tree.map(jnp.copy, self._params) if stage.keeps_reference else None
        self._average = jax.tree.map(jnp.copy, self._params) if stage.keeps_average else None
        execution = replace(policy.execution, temperature=temperature(stage), turn=self._turn)
        partition = (
            train_only(lambda name: name.startswith(stage.trains)) if stage.trains else policy.partition
        )
        model = Model(policy.graphdef, partition, execution, self._frozen(stage), teacher)
        self._learner = Learner(model, self._params, stage, shape, version=self.version)
        self._params = None  # the learner owns (and donates) them now
        return self._learner

    def end(self) -> None:
        """The stage has ended: its learner's parameters are the run's again."""
        self._params = self.learner.params

    def start_from(self, params: Any) -> None:
        """Parameters with which the next stage begins."""
        self._params = params

    def _frozen(self, stage: Stage) -> dict[str, Any]:
        average = {"ema": self._average} if stage.keeps_average else {}
        return {"reference": self._reference, **average} if stage.keeps_reference else average

    # --- the decoder -------------------------------------------------------------------------------------------

    def load(self, params: Any) -> None:
        """The policy's parameters go to the decoder, unless it has their version."""
        if self.engine.version < self._now:
            self.engine.load(params, self._now)
            self.handed.append(self.engine.version)

    def lend(self, name: str) -> None:
        """Let named weights sample, under the number of the policy's version: they are no newer policy."""
        self.engine.load(self.learner.weights(name), self._now)

    def hand_off(self, learner: Learner) -> None:
        """The new weights go to the decoder; a teacher's average follows them, and a reference that is to follow."""
        if learner.stage.rolls_out:
            self.load(learner.params)
        keep = learner.stage.reference_ema
        if self._reference is not None and keep < 1:
            self._reference = averaged(self._reference, learner.params, keep)
        if self._average is not None and (teacher := learner.stage.teacher) is not None:
            self._average = averaged(self._average, learner.params, teacher.decay)
        learner.model = replace(learner.model, frozen=self._frozen(learner.stage))

    @property
    def _now(self) -> int:
        """The policy's version."""
        return self._learner.version if self._learner is not None else self.version

    # --- checkpoints -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Device state in the middle of a stage."""
        state = {"train": self.learner.state}
        state |= {} if self._average is None else {"average": self._average}
        return state if self._reference is None else state | {"reference": self._reference}

    def restore(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave, after `begin` of the same stage."""
        learner = self.learner
        learner.state = state["train"]
        if learner.stage.keeps_reference:
            self._reference = state["reference"]
        if learner.stage.keeps_average:
            self._average = state["average"]
        learner.model = replace(learner.model, frozen=self._frozen(learner.stage))

    def go_back(self, read: Callable[[Any], dict[str, Any]], *, within: bool) -> dict[str, Any]:
        """Arrays of an earlier checkpoint of this stage, under a version that the decoder has not seen: it takes no
        older one. What was trained and kept is let go first. read: into this template. within: not that of the stage's
        start.
        """
        learner = self.learner
        self.version = max(self.version, self.engine.version) + 1
        template = _shapes(self.state())
        self._reference = self._average = None
        learner.model = replace(learner.model, frozen={})
        learner.state = template["train"]
        if not within:
            self._params = read({"params": learner.params})["params"]
            return {"params": self._params}
        state = read(template)
        train = state["train"]
        state["train"] = replace(train, version=train.version * 0 + self.version)
        self._params = state["train"].params
        return state


def _shapes(state: Any) -> Any:
    """What to restore into, without the arrays."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
    )
