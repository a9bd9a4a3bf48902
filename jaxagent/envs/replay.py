"""An episode that starts in the middle: the actions that lead there, or a snapshot of the place.

In: an environment, a task, a `Prefix`. Out: the environment at the end of the prefix and the result from which the
episode goes on. A replay that differs from what was recorded is an `EnvFailure("diverged")`: whoever branches off or
verifies an episode must not go on from another state than the one he knows. Used by the workers (worker.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxagent.envs.protocol import Env, Snapshots
from jaxagent.envs.wire import decode_step, encode
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.types import Action, StepResult, Task

SHOWN = 200  # characters of each side in the message of a divergence


@dataclass(frozen=True)
class Prefix:
    """How far an episode has got.

    actions:    since the reset, in order.
    results:    what was recorded: the reset's, then one for each action; empty if nobody recorded them.
    state:      `Env.snapshot()` taken after the last action. It is used if the environment has snapshots;
                otherwise, and without it, the actions are replayed.
    characters: at which length the recorded texts were cut (`cap_observation`); 0 is never.
    """

    actions: tuple[Action, ...] = ()
    results: tuple[StepResult, ...] = ()
    state: bytes | None = None
    characters: int = 0

    def __post_init__(self) -> None:
        if self.results and len(self.results) != len(self.actions) + 1:
            raise ConfigError(
                f"a prefix of {len(self.actions)} actions came with {len(self.results)} results; "
                "expected the reset's and one for each action, or none"
            )
        if self.state is not None and not self.results:
            raise ConfigError("a prefix with a snapshot needs its recorded results: a snapshot holds none")


def cap_observation(text: str, limit: int) -> str:
    """The first `limit` characters of an observation, and a marker that says how many were cut."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[observation cut: {len(text) - limit} more characters]"


def open_at(
    make: Callable[[], Env], task: Task, prefix: Prefix | None, *, keep: Callable[[Env], None]
) -> StepResult:
    """Make an environment and bring it to the end of `prefix`; the result from which the episode goes on.

    keep: gets the environment before anything can fail in it, so that its owner can close it.
    """
    prefix = prefix or Prefix()
    env = make()
    keep(env)
    result = _checked(prefix, 0, env.reset(task))
    if prefix.state is not None and isinstance(env, Snapshots):
        env.restore(prefix.state)
        return prefix.results[-1]
    for number, action in enumerate(prefix.actions, 1):
        result = _checked(prefix, number, env.step(action))
        if result.done and number < len(prefix.actions):
            raise EnvFailure("diverged", f"the episode ended at step {number} of {len(prefix.actions)}")
    return result


def _checked(prefix: Prefix, number: int, result: object) -> StepResult:
    """The result as the trainer would see it, if it is the recorded one. Step 0 is the reset."""
    came = decode_step(encode(result))
    if not prefix.results:
        return came
    recorded = prefix.results[number]
    if _same(came, recorded, prefix.characters):
        return came
    where = f"step {number} of {len(prefix.actions)}" if number else "the reset"
    raise EnvFailure(
        "diverged",
        f"{where} gave another answer than recorded. Recorded ({recorded.exec_status.value}): "
        f"{_excerpt(recorded.observation, came.observation)!r}. "
        f"Came ({came.exec_status.value}): {_excerpt(came.observation, recorded.observation)!r}. "
        "The environment is not deterministic, or its version or data changed",
    )


def _same(came: StepResult, recorded: StepResult, characters: int) -> bool:
    """Whether the policy saw the same. Rewards and info are not compared: a stored trajectory lacks some of them."""
    texts = {came.observation, cap_observation(came.observation, characters or len(came.observation))}
    return recorded.observation in texts and recorded.exec_status is came.exec_status


def _excerpt(text: str, other: str) -> str:
    """The part of `text` around the first character that differs from `other`."""
    pairs = zip(text, other, strict=False)
    place = next((i for i, (left, right) in enumerate(pairs) if left != right), min(len(text), len(other)))
    start = max(0, place - SHOWN // 4)
    return ("…" if start else "") + text[start : start + SHOWN]
