"""Step-level credit over a trajectory-level estimator, as options that recipes share: SALT and GVPO's correction.

salt: {history: 3}                 steps that good and bad rollouts share are neutral (credit/salt.py)
gvpo: {b: 0.2, shape: mult}        failed steps are corrected (credit/gvpo.py); after SALT, by the step's own advantage

A recipe takes them by deriving its options from `StepCredit` and passing its base through `credit_of`. What the
formulas do not allow is refused with the reason: SALT over credit that differs between the steps of a trajectory, GVPO
where groups without variance are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from jaxagent.credit.gvpo import gvpo
from jaxagent.credit.salt import Key, NodeRules, salt
from jaxagent.recipes.unread import refuse_unread
from jaxagent.records import Record
from jaxagent.stage import Credit

OVER_TRAJECTORIES = {
    "salt": "averages the one advantage that a trajectory has",
    "gvpo": "corrects failed steps by the sign of the trajectory's advantage",
}


class SaltOptions(Record):
    """See credit/salt.py: `NodeRules`, and whether a trajectory counts once in a node that it passes twice."""

    history: int = Field(3, ge=0)
    key: Key = "action"
    key_post: bool = False
    mask_numbers: bool = False
    count_distinct: bool = True

    def over(self, base: Credit) -> Credit:
        rules = NodeRules(self.history, self.key, self.key_post, self.mask_numbers)
        return salt(base, rules, count_distinct=self.count_distinct)


class ShapeOptions(Record):
    """See credit/gvpo.py."""

    b: float = Field(0.2, ge=0)
    shape: Literal["mult", "add", "add_all", "mask", "none"] = "mult"
    invalid_is_fail: bool = True
    api_error_is_fail: bool = False

    @model_validator(mode="after")
    def _shapes(self) -> ShapeOptions:
        refuse_unread(self, "b", read=self.shape not in ("mask", "none"), when="shape mult, add or add_all")
        fails = ("invalid_is_fail", "api_error_is_fail")
        refuse_unread(self, *fails, read=self.shape != "none", when="a shape other than none")
        return self

    def over(self, base: Credit) -> Credit:
        return gvpo(
            base,
            b=self.b,
            shape=self.shape,
            invalid_is_fail=self.invalid_is_fail,
            api_error_is_fail=self.api_error_is_fail,
        )


class StepCredit(Record):
    """Base of the options of recipes whose estimator gives one advantage a trajectory."""

    salt: SaltOptions | None = None
    gvpo: ShapeOptions | None = None


def credit_of(options: StepCredit, base: Credit) -> Credit:
    """`base`, with what was asked for over it: SALT first, for it needs the one advantage of a trajectory."""
    averaged = options.salt.over(base) if options.salt else base
    return options.gvpo.over(averaged) if options.gvpo else averaged


def refuse_dropped_groups(options: StepCredit, by: str) -> None:
    """For the validator of a recipe that leaves out groups without variance; `by` names the option that does."""
    if options.gvpo is not None and options.gvpo.shape in ("mult", "add", "add_all") and options.gvpo.b:
        raise ValueError(
            f"gvpo teaches the failed steps of groups without variance (A = 0 becomes -b), and {by} leaves these "
            "groups out; drop one of the two"
        )


def refuse_over_steps(values: Any, credit: str) -> Any:
    """For the "before" validator of a recipe whose credit already differs from step to step."""
    for method, reason in OVER_TRAJECTORIES.items():
        if isinstance(values, Mapping) and values.get(method) is not None:
            raise ValueError(
                f"{method} {reason}, and {credit} gives every step its own; drop {method}, or use it with recipe grpo, "
                "loop or gvpo"
            )
    return values
