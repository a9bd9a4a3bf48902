"""What SAGE hands from one task of a chain to the next: the functions of this very chain, shown and defined.

In: the finished episodes of one chain. Out: an opening with their signatures, and actions that define them. Chains
played by an environment's scripted expert are demonstrations of it, for the cold start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from textwrap import indent

from jaxagent.chat.render import Renderer
from jaxagent.data.chains import Handed, HandOn
from jaxagent.envs.protocol import EnvSpec
from jaxagent.errors import ConfigError
from jaxagent.rollout.demonstrate import perform, tokens
from jaxagent.skills.functions import Function, Library, carried, definitions
from jaxagent.skills.prompt import add_lesson
from jaxagent.types import Prompt, Task, Trajectory

LIBRARY = "These functions of yours are defined already. Call them where they help:"
HEADINGS = {"full": LIBRARY, "plain": ""}  # "plain" is for small models that know code and observations only


def library_text(library: Library, *, heading: str = LIBRARY, max_chars: int = 4000) -> str:
    """Signatures and docstrings of a library's functions; "" for none.

    The newest that fit into `max_chars` are shown. The others are defined as well: what is left out is not lost.
    """
    shown: list[str] = []
    room = max_chars - len(heading)
    for function in reversed(library):
        text = function_text(function)
        room -= len(text) + 1
        if room < 0:
            break
        shown.append(text)
    return "\n".join(([heading] if heading else []) + shown[::-1]) if shown else ""


def function_text(function: Function) -> str:
    """A function without its body, as Python writes it."""
    if not function.docstring:
        return function.signature
    return f"{function.signature}:\n" + indent(f'"""{function.docstring}"""', "    ")


def show_library(
    prompt: Prompt, library: Library, *, heading: str = LIBRARY, max_chars: int = 4000
) -> Prompt:
    """The prompt with the library's signatures and docstrings; the same prompt if there are none."""
    text = library_text(library, heading=heading, max_chars=max_chars)
    return add_lesson(prompt, text) if text else prompt


def handing_on(*, heading: str = LIBRARY, max_chars: int = 4000) -> HandOn:
    """A chain's own library. Other rollouts of its tasks neither see it nor add to it."""

    def hand_on(episodes: Sequence[Trajectory]) -> Handed:
        return handed(carried(episodes), heading=heading, max_chars=max_chars)

    return hand_on


def handed(library: Library, *, heading: str = LIBRARY, max_chars: int = 4000) -> Handed:
    return Handed(
        prompt=partial(show_library, library=library, heading=heading, max_chars=max_chars),
        before=lambda opening: definitions(library),
    )


@dataclass(frozen=True)
class ChainExpert:
    """An environment's scripted expert that plays whole chains, each with its own library."""

    spec: EnvSpec
    renderer: Renderer
    hand_on: HandOn
    sloppiness: float = 0.0
    seed: int = 0

    def play(self, tasks: Sequence[Task], number: int) -> list[Trajectory]:
        """The episodes of one chain; `number` is its rollout number."""
        expert = self.spec.chain_expert
        if expert is None:
            raise ConfigError(
                f"environment {self.spec.name!r} has no scripted expert for chains; let the policy play them (recipe "
                "rft), or use the sft recipe's `file`"
            )
        episodes: list[Trajectory] = []
        for task in tasks:
            rng = Random(f"{self.seed}/{number}/{task.task_id}")
            names = [function.name for function in carried(episodes)]
            start = self.hand_on(episodes)
            policy = expert(task, rng, names, self.sloppiness)
            played = perform(self.spec, task, policy, prompt=start.prompt, before=start.before)
            episodes.append(tokens(played, self.spec, self.renderer, number))
        return episodes
