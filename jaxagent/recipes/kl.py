"""Where a policy is held to another one, as options of a recipe: in the return, in the loss, or in the advantage.

    reward      R - beta (sum of log pi_old - log pi_ref), before group statistics; k1, no gradient
    loss        + beta mean of k1, k2, k3 or k3+, averaged as the policy loss is
    advantage   A_t - beta (log pi - log pi_old), detached: a pull to the policy at the start of the iteration

The reference is the policy at the start of the stage ("init"), a moving average of it ("ema"), or in the loss the
policy at the start of the iteration ("iter_start"). k3's gradient is that of the forward KL; that of k2 and k3+ the
reverse KL's.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import policy_samples
from jaxagent.learn.loss import Loss
from jaxagent.learn.terms import kl, pulled
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import PG, PolicyOptions, policy_update
from jaxagent.recipes.rewards import returns_of
from jaxagent.recipes.unread import refuse_unread
from jaxagent.rewards.kl import kl_in_reward
from jaxagent.stage import Aggregate, Credit, Returns, Source, Stage, Term


class KlOptions(PolicyOptions):
    """kl_ema: what the average keeps of itself in an iteration, with kl_reference ema."""

    kl_in: Literal["none", "loss", "reward", "advantage"] = "none"
    kl_estimator: Literal["k1", "k2", "k3", "k3+"] = "k3"
    kl_coef: float = Field(0.001, ge=0)
    kl_reference: Literal["init", "iter_start", "ema"] = "init"
    kl_ema: float = Field(0.99, gt=0, lt=1)

    @model_validator(mode="after")
    def _kl_says_something(self) -> KlOptions:
        refuse_unread(self, "kl_coef", read=self.kl_in != "none", when="kl_in")
        refuse_unread(self, "kl_estimator", read=self.kl_in == "loss", when="kl_in: loss")
        refuse_unread(self, "kl_ema", read=self.kl_reference == "ema", when="kl_reference: ema")
        start = self.kl_in == "advantage" or self.kl_reference == "iter_start"
        if self.kl_reference != "init" and self.kl_in not in ("loss", "reward"):
            raise ValueError(
                f"kl_reference={self.kl_reference} with kl_in={self.kl_in} is read by nothing; drop it"
            )
        if self.kl_in == "reward" and self.kl_reference == "iter_start":
            raise ValueError(
                "kl_in=reward measures the policy at the start of the iteration, which has no distance from itself; "
                "use kl_reference init or ema"
            )
        if start and self.kl_in != "none" and not self.off_policy:
            raise ValueError(
                "the distance from the start of the iteration is 0 in its only step; set epochs or minibatch, or hold "
                "the policy to kl_reference init or ema"
            )
        return self


def kl_returns(options: KlOptions, returns: Returns) -> Returns:
    return kl_in_reward(returns, beta=options.kl_coef) if options.kl_in == "reward" else returns


def kl_loss(options: KlOptions, policy: Loss) -> Loss:
    """The policy loss, with the pull in its advantage if that is asked for."""
    return pulled(policy, options.kl_coef) if options.kl_in == "advantage" else policy


def kl_terms(options: KlOptions, average: Aggregate) -> dict[str, Term]:
    if options.kl_in != "loss":
        return {}
    stream = "old" if options.kl_reference == "iter_start" else "reference"
    return {"kl": Term(kl(options.kl_estimator, stream=stream), average, options.kl_coef)}


def kl_streams(options: KlOptions) -> tuple[str, ...]:
    """Log-prob streams to score before credit: of the policy loss and of the KL."""
    old = options.off_policy or options.kl_in == "reward"
    reference = options.kl_in in ("loss", "reward") and options.kl_reference != "iter_start"
    return (("old",) if old else ()) + (("reference",) if reference else ())


def kl_average(options: KlOptions) -> float:
    """`Stage.reference_ema`."""
    return options.kl_ema if options.kl_reference == "ema" else 1.0


def kl_stage(
    options: KlOptions,
    materials: Materials,
    *,
    source: Source,
    credit: Credit,
    loss: Loss,
    average: Aggregate,
) -> Stage:
    """A stage whose only loss terms are the policy's and the KL's, averaged alike."""
    terms = {PG: Term(kl_loss(options, loss), average), **kl_terms(options, average)}
    return Stage(
        name=materials.name,
        source=source,
        iterations=options.iterations,
        reward=kl_returns(options, returns_of(options.reward)),
        credit=credit,
        samples=partial(policy_samples, terms=tuple(terms)),
        terms=terms,
        needs=kl_streams(options),
        sampling=materials.sampling,
        update=policy_update(options),
        reference_ema=kl_average(options),
    )
