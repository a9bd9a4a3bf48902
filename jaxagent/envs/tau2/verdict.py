"""The benchmark's reward: the product over a task's reward basis.

    DB            the final database equals a fresh one after the reference calls
    COMMUNICATE   every string of `communicate_info` is in some message to the user; case and commas do not matter
    NL_ASSERTION  statements about the conversation, judged by a language model; left out without one, and said so

A conversation that was cut (steps, tokens, failed calls) is worth nothing, whatever it left behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from jaxagent.auxlm.blocking import BlockingAux
from jaxagent.auxlm.role import Payload, Role
from jaxagent.envs.tau2.database import Changes, differences
from jaxagent.errors import EnvFailure
from jaxagent.types import Evaluation, Message


@dataclass(frozen=True)
class Outcome:
    """What an episode left. said: the agent's words to the user. seen: everything, for a judge."""

    ended: bool
    changes: Changes
    wanted: Changes
    said: tuple[str, ...]
    seen: tuple[Message, ...]


class Finding(BaseModel):
    reason: str
    holds: bool


class Findings(BaseModel):
    findings: list[Finding]


JUDGE_INSTRUCTION = """You check statements about a finished conversation between a service agent and a customer. \
For each statement of the data, in order, say whether the conversation shows that it holds, with a short reason. \
What the conversation leaves open does not hold."""


def _one_each(answer: Findings, payload: Payload) -> str:
    wanted = len(payload["statements"])
    got = len(answer.findings)
    return "" if got == wanted else f"{got} findings for {wanted} statements"


JUDGE = Role("judge.nl_assertion", Findings, JUDGE_INSTRUCTION, check=_one_each)


def verdict(criteria: Mapping[str, Any], outcome: Outcome, *, judge: BlockingAux | None) -> Evaluation:
    """One test for DB, one a string and one a statement, as far as the task's reward basis names them."""
    basis = criteria["reward_basis"]
    faults: dict[str, list[str]] = {}
    total = 0
    if "DB" in basis:
        faults["DB"] = differences(outcome.changes, outcome.wanted)
        total += 1
    if "COMMUNICATE" in basis:
        strings = criteria["communicate_info"] or []
        faults["COMMUNICATE"] = missing(strings, outcome.said)
        total += len(strings)
    statements = (criteria["nl_assertions"] or []) if "NL_ASSERTION" in basis else []
    if statements and judge is not None and outcome.ended:
        faults["NL_ASSERTION"] = _refuted(statements, outcome.seen, judge)
        total += len(statements)
    failed = sum(1 if part == "DB" else len(found) for part, found in faults.items() if found)
    success = outcome.ended and not failed
    failures = [f"{part}: {fault}" for part, found in faults.items() for fault in found]
    return Evaluation(
        success=success,
        passed=total - failed if outcome.ended else 0,
        total=total,
        failures=tuple(failures if outcome.ended else ["the conversation was cut", *failures]),
        info={
            "score": float(success),
            "reward_basis": {part: float(not found) for part, found in faults.items()},
            "left_out": ["NL_ASSERTION"] if statements and judge is None else [],
            "ended": outcome.ended,
        },
    )


def missing(strings: Sequence[str], said: Sequence[str]) -> list[str]:
    """The strings that no message holds."""
    texts = [text.lower().replace(",", "") for text in said]
    return [
        f"the user was not told {string!r}"
        for string in strings
        if not any(string.lower() in text for text in texts)
    ]


def _refuted(statements: Sequence[str], seen: Sequence[Message], judge: BlockingAux) -> list[str]:
    """The statements that the judge finds untrue. A judge that cannot be reached fails the episode, not the policy."""
    talk = [{"speaker": message.role, "text": message.content} for message in seen]
    answer = judge.complete(JUDGE, {"statements": list(statements), "conversation": talk})
    if answer is None:
        raise EnvFailure("judge", f"the judge of NL_ASSERTION gave no usable answer: {judge.name}")
    return [
        f"{statement} (judge: {finding.reason})"
        for statement, finding in zip(statements, answer.findings, strict=True)
        if not finding.holds
    ]
