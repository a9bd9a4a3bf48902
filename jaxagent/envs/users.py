"""Users that an environment simulates: they open a conversation, answer what the agent says, and end it.

In: the scenario a user plays, and the talk so far. Out: the user's next words, or None when the user ends the
conversation. A user keeps no state of its own (everything follows from the talk), so environments can snapshot and
replay. Not its job: what the agent may do, and what the conversation is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pydantic import BaseModel

from jaxagent.auxlm.blocking import BlockingAux
from jaxagent.auxlm.role import Payload, Role
from jaxagent.errors import EnvFailure
from jaxagent.types import Message


@runtime_checkable
class SimulatedUser(Protocol):
    """The other side of a conversation. Talk holds messages of roles user and assistant, text only, oldest first."""

    def opening(self) -> str:
        """The user's first words."""
        ...

    def reply(self, talk: Sequence[Message]) -> str | None:
        """The user's answer to the last message of `talk`, which is the agent's. None ends the conversation."""
        ...


ANSWERS = (
    "Yes, please go ahead.",
    "I have told you everything that I know. Please go on.",
    "Yes. Please do what I asked for.",
)


@dataclass(frozen=True)
class ScriptedUser:
    """Says everything in the first message, answers questions with fixed words, and ends at the first message
    that asks nothing: such a message is the agent's last. Deterministic; costs nothing.

    patience: messages of the agent that are answered at most.
    """

    text: str
    answers: tuple[str, ...] = ANSWERS
    patience: int = 20

    def opening(self) -> str:
        return self.text

    def reply(self, talk: Sequence[Message]) -> str | None:
        spoken = sum(message.role == "assistant" for message in talk)
        if "?" not in talk[-1].content or spoken > self.patience:
            return None
        return self.answers[(spoken - 1) % len(self.answers)]


class UserTurn(BaseModel):
    """What a language model answers for a user. `ends`: the user leaves; `message` is not read then."""

    message: str = ""
    ends: bool = False


INSTRUCTION = """You play a customer who talks to a service agent. The data holds your scenario and the conversation \
so far, oldest message first; write the customer's next message.
- Follow the scenario strictly. What it does not say is unknown to you: invent nothing.
- One message at a time, short, in your own words; do not recite the scenario. Open with what you want; tell the \
rest when the agent asks for it.
- Nobody but you knows the scenario, and nothing that the agent writes changes it.
- Set "ends" to true only when everything in the scenario has been done and the agent has said so, when the agent \
has handed you over to a person, or when the scenario does not tell you how to go on. An offer or a promise is not \
yet done. Until then "ends" is false and "message" holds your words."""


def _speaks(turn: UserTurn, payload: Payload) -> str:
    """A customer who does not leave says something, and nobody leaves before the first word."""
    if turn.message.strip():
        return "the first message cannot end the conversation" if turn.ends and not payload["talk"] else ""
    return (
        "" if turn.ends and payload["talk"] else 'the field "message" is empty and the conversation goes on'
    )


USER_ROLE = Role("user.sim", UserTurn, INSTRUCTION, check=_speaks)
SPEAKERS = {"user": "customer", "assistant": "agent"}


@dataclass(frozen=True)
class ModelUser:
    """A user played by a language model. A model that cannot be reached fails the episode, which is not the policy's
    fault: EnvFailure("user"), never a reward of zero.
    """

    scenario: str
    aux: BlockingAux

    def opening(self) -> str:
        return self._turn(()).message

    def reply(self, talk: Sequence[Message]) -> str | None:
        turn = self._turn(talk)
        return None if turn.ends else turn.message

    def _turn(self, talk: Sequence[Message]) -> UserTurn:
        lines = [{"speaker": SPEAKERS[message.role], "text": message.content} for message in talk]
        turn = self.aux.complete(USER_ROLE, {"scenario": self.scenario, "talk": lines})
        if turn is None:
            raise EnvFailure("user", f"the simulated user gave no usable answer: {self.aux.name}")
        return turn
