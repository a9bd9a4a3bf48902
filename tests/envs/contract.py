"""What every environment must do, whatever it measures: `check_contract(spec, task)` in each one's test."""

from __future__ import annotations

from random import Random

from jaxagent.envs.protocol import Env, EnvSpec, Snapshots
from jaxagent.envs.replay import Prefix, open_at
from jaxagent.envs.wire import decode_step, encode
from jaxagent.rollout.demonstrate import Played, play
from jaxagent.types import Action, ExecStatus, StepResult, Task


def check_contract(spec: EnvSpec, task: Task, *, oracle: bool = True, prefix: int = 2) -> Played:
    """Play the expert, replay its actions to a prefix and on, restore a snapshot, hand in a faulty action.

    oracle: whether the expert must solve the task. Returns what the expert played.
    """
    played = play(spec, task, rng=Random(0))
    assert played.evaluation.success or not oracle, played.evaluation
    assert 0 <= played.evaluation.passed <= played.evaluation.total
    assert played.evaluation.total >= 1
    for result in played.results:  # what crosses the process boundary survives it
        assert decode_step(encode(result)) == result
    cut = min(prefix, len(played.actions) - 1)
    check_replay(spec, task, played, cut)
    check_snapshot(spec, task, played, cut)
    check_faulty_action(spec, task)
    return played


def check_replay(spec: EnvSpec, task: Task, played: Played, cut: int) -> None:
    """A rebuilt environment gives the same results up to a prefix, as a worker replays it, and goes on as it did."""
    prefix = Prefix(played.actions[:cut], played.results[: cut + 1])
    finish_as_played(spec, task, played, prefix)


def check_snapshot(spec: EnvSpec, task: Task, played: Played, cut: int) -> None:
    """From a snapshot the episode goes on as it did, twice over, and the one it was taken of goes on too."""
    env = spec.make()
    try:
        if not isinstance(env, Snapshots):
            return
        env.reset(task)
        for action in played.actions[:cut]:
            env.step(action)
        state = env.snapshot()
        assert [env.step(action) for action in played.actions[cut:]] == list(played.results[cut + 1 :])
    finally:
        env.close()
    for _ in range(2):
        finish_as_played(spec, task, played, Prefix(played.actions[:cut], played.results[: cut + 1], state))


def finish_as_played(spec: EnvSpec, task: Task, played: Played, prefix: Prefix) -> None:
    """Open at the prefix; the rest of the episode and its verdict are what was played."""
    kept: list[Env] = []
    try:
        first = open_at(spec.make, task, prefix, keep=kept.append)
        results: list[StepResult] = [first, *map(kept[0].step, played.actions[len(prefix.actions) :])]
        assert results == list(played.results[len(prefix.actions) :])
        assert kept[0].evaluate() == played.evaluation
    finally:
        for env in kept:
            env.close()


def check_faulty_action(spec: EnvSpec, task: Task) -> None:
    """A message without a legal action is answered, not raised, and leaves the episode evaluable."""
    env = spec.make()
    try:
        env.reset(task)
        result = env.step(Action(error="no action was found in the message"))
        assert result.exec_status is ExecStatus.INVALID
        assert result.observation or result.messages
        assert not env.evaluate().success or result.done
    finally:
        env.close()
