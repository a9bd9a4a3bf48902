"""One customer's conversation: tools change the episode's database, talk goes to the simulated user.

In: actions. Out: tool results, the user's words, and the benchmark's verdict. Which tasks there are, and how a
message becomes an action, is spec.py's.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxagent.auxlm.blocking import BlockingAux, EndpointOptions, connect
from jaxagent.envs.tau2.data import Domain, find_domain
from jaxagent.envs.tau2.database import Changes, changed, open_tables
from jaxagent.envs.tau2.verdict import Outcome, verdict
from jaxagent.envs.users import ModelUser, ScriptedUser, SimulatedUser
from jaxagent.types import Action, Evaluation, ExecStatus, Message, StepResult, Task, ToolCall

MAX_ERRORS = 10  # the benchmark's limit of failed calls
STOP = "###STOP###"  # an agent that writes it ends the conversation, as upstream
LEFT = "The customer has left the conversation."


@dataclass(frozen=True)
class Players:
    """Who plays the customer and who judges assertions in words; None is the script, and no judge."""

    user: EndpointOptions | None = None
    judge: EndpointOptions | None = None


@dataclass(frozen=True)
class Talk:
    """What was said and done so far. `seen` is what a judge reads: calls and results too."""

    spoken: tuple[Message, ...] = ()
    seen: tuple[Message, ...] = ()
    errors: int = 0
    ended: str = ""  # who ended it: "user", "agent", or "errors"

    def add(self, message: Message, *, spoken: bool) -> Talk:
        return replace(
            self, seen=(*self.seen, message), spoken=(*self.spoken, message) if spoken else self.spoken
        )


class Tau2:
    """One episode. Everything that it changes is in `tables` and `talk`, so a snapshot is small."""

    def __init__(self, domain: str, players: Players):
        self._name, self._players = domain, players

    def reset(self, task: Task) -> StepResult:
        self.domain: Domain = find_domain(self._name)
        self.record = self.domain.tasks[str(task.meta["id"])]
        self.tables = open_tables(self.domain.tables)
        self.user = _user(scenario(self.record), self._players)
        self.talk = Talk().add(Message("user", self.user.opening()), spoken=True)
        return StepResult(self.talk.spoken[0].content, anchor=self._anchor())

    def step(self, action: Action) -> StepResult:
        if action.error:
            return self._answer([action.error], ExecStatus.INVALID, errors=1)
        self.talk = self.talk.add(Message("assistant", action.text), spoken=not action.tool_calls)
        return self._call(action.tool_calls) if action.tool_calls else self._speak(action.text)

    def _call(self, calls: tuple[ToolCall, ...]) -> StepResult:
        """Run the calls in order; one failing does not keep the next from running, as upstream."""
        texts, errors = [], 0
        for call in calls:
            try:
                texts.append(self.domain.call(self.tables, call.name, call.arguments))
            except Exception as exc:  # whatever a tool raises on a model's arguments is the tool's answer
                texts.append(f"Error: {exc}")
                errors += 1
        return self._answer(texts, ExecStatus.RUNTIME_ERROR if errors else ExecStatus.OK, errors=errors)

    def _answer(self, texts: list[str], status: ExecStatus, *, errors: int) -> StepResult:
        messages = tuple(Message("tool", text) for text in texts)
        for message in messages:
            self.talk = self.talk.add(message, spoken=False)
        self.talk = replace(self.talk, errors=self.talk.errors + errors)
        if self.talk.errors >= MAX_ERRORS:
            self.talk = replace(self.talk, ended="errors")
        return StepResult(
            "\n".join(texts), status, done=bool(self.talk.ended), anchor=self._anchor(), messages=messages
        )

    def _speak(self, text: str) -> StepResult:
        reply = None if STOP in text else self.user.reply(self.talk.spoken)
        if reply is None:
            self.talk = replace(self.talk, ended="agent" if STOP in text else "user")
            return StepResult(LEFT, done=True, anchor=self._anchor(), messages=(Message("user", LEFT),))
        message = Message("user", reply)
        self.talk = self.talk.add(message, spoken=True)
        return StepResult(reply, anchor=self._anchor(), messages=(message,))

    def evaluate(self) -> Evaluation:
        criteria = self.record["evaluation_criteria"]
        outcome = Outcome(
            ended=self.talk.ended in ("user", "agent"),
            changes=changed(self.tables),
            wanted=self.domain.reference(criteria),
            said=tuple(message.content for message in self.talk.spoken if message.role == "assistant"),
            seen=self.talk.seen,
        )
        return verdict(criteria, outcome, judge=_aux(self._players.judge))

    def close(self) -> None:
        """Nothing is held: connections belong to the process."""

    def snapshot(self) -> bytes:
        return pickle.dumps((changed(self.tables), self.talk))

    def restore(self, state: bytes) -> None:
        changes, self.talk = pickle.loads(state)
        self.tables = open_tables(self.domain.tables, changes)

    def _anchor(self) -> str:
        """What the database holds beyond the shared one, and what was said last: the agent's situation."""
        return f"{_digest(changed(self.tables))} {self.talk.seen[-1].content}"


def scenario(record: Mapping[str, Any]) -> str:
    """What the customer knows and wants, in the benchmark's words."""
    told = record["user_scenario"]["instructions"]
    parts = {
        "What I need": told["reason_for_call"],
        "About me": told["known_info"],
        "What I do not know": told["unknown_info"],
        "How I want it": told["task_instructions"],
        "Who I am": record["user_scenario"]["persona"],
    }
    return "\n".join(f"{title}: {text.strip()}" for title, text in parts.items() if text and text.strip(" ."))


def _user(text: str, players: Players) -> SimulatedUser:
    return ScriptedUser(text) if players.user is None else ModelUser(text, connect(players.user))


def _aux(options: EndpointOptions | None) -> BlockingAux | None:
    return connect(options) if options is not None else None


def _digest(changes: Changes) -> str:
    return hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:12]
