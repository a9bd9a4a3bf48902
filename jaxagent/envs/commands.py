"""Text games: how a message becomes a command, and a scripted player of a known solution.

Three styles of answer. `think` and `action` are the layout that verl-agent made usual for ALFWorld and its like; `bare`
is for models trained from scratch.

    think   <think>The mug is on the desk.</think><action>go to desk 1</action>      "go to desk 1"
    action  <action>Take mug 1  from desk 1</action>                                  "take mug 1 from desk 1"
    bare    > look                                                                     "look"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from jaxagent.chat.tags import after_thinking, first_tag
from jaxagent.types import Action, Message

Style = Literal["think", "action", "bare"]
SHOWN_CHARS = 80  # of a faulty message in an error
USAGE = {
    "think": "Reason between <think> and </think>, then give exactly one command between <action> and </action>.",
    "action": "Give exactly one command between <action> and </action>.",
    "bare": "Answer with one command on one line and nothing else.",
}
HARMLESS = ("look", "inventory")  # commands of every text game here that change nothing
DETOUR = 0.3  # chance of a harmless command before each step of a player with sloppiness 1


def parse_command(message: Message, style: Style) -> Action:
    """The command of a message, in lower case, blanks collapsed. Never raises.

    Only what follows the thinking counts. Thinking is asked for, not required: a message without it is executed.
    Of several commands the first counts, as the game would not have answered before the second.
    """
    text = after_thinking(message.content)
    if style == "bare":
        lines = [line.strip().removeprefix(">").strip() for line in text.splitlines() if line.strip()]
        if len(lines) == 1 and lines[0]:
            return Action(text=" ".join(lines[0].lower().split()))
        return Action(error=f"Found {len(lines)} lines, expected one command. {USAGE[style]}")
    found = first_tag(text.lower(), "action")
    command = " ".join(found[1].split()) if found else ""
    if command:
        return Action(text=command)
    if found:
        return Action(error=f"The <action> is empty. {USAGE[style]}")
    if "<think>" in message.content and "</think>" not in message.content:
        return Action(error=f"The message ended while thinking. {USAGE[style]}")
    cause = "The message ended before </action>" if "<action>" in text else "Found no <action>…</action>"
    return Action(error=f"{cause} in: {text.strip()[:SHOWN_CHARS]!r}. {USAGE[style]}")


def spoken(command: str, style: Style) -> str:
    """The message that asks for a command."""
    if style == "bare":
        return command
    thought = f"<think>\nThe next step is to {command}.\n</think>\n" if style == "think" else ""
    return f"{thought}<action>{command}</action>"


@dataclass
class Player:
    """Plays a known solution. With sloppiness it looks around in between, which costs steps and changes nothing."""

    commands: Sequence[str]
    style: Style
    rng: Random
    sloppiness: float
    place: int = field(default=0, init=False)

    def act(self, observation: str) -> str:
        if self.place >= len(self.commands) or self.rng.random() < DETOUR * self.sloppiness:
            return spoken(self.rng.choice(HARMLESS), self.style)
        self.place += 1
        return spoken(self.commands[self.place - 1], self.style)
