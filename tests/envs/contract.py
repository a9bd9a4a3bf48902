"""What every environment must do, whatever it measures: `check_contract(spec, task)` in each one's test."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from jaxagent.envs.protocol import EnvSpec, Snapshots
from jaxagent.envs.wire import decode_step, encode
from jaxagent.rollout.demonstrate import Played, play
from jaxagent.types import Action, ExecStatus, StepResult, Task


def check_contract(spec: EnvSpec, task: Task, *, oracle: bool = True, prefix: int = 2) -> Played:
    """Play the expert, replay its actions to a prefix, restore a snapshot, hand in a faulty action.

    oracle: whether the expert must solve the task. Returns what the expert played.
    """
    played = play(spec, task, rng=Random(0))
    assert played.evaluation.success or not oracle, played.evaluation
    assert 0 <= played.evaluation.passed <= played.evaluation.total
    assert played.evaluation.total >= 1
    for result in played.results:  # what crosses the process boundary survives it
        assert decode_step(encode(result)) == result
    cut = min(prefix, len(played.actions) - 1)
    check_replay(spec, task, played.actions[:cut], played.results[: cut + 1])
    check_snapshot(spec, task, played, cut)
    check_faulty_action(spec, task)
    return played


def check_replay(spec: EnvSpec, task: Task, actions: Sequence[Action], results: Sequence[StepResult]) -> None:
    """A rebuilt environment answers the same actions with the same results."""
    env = spec.make()
    try:
        assert [env.reset(task), *(env.step(action) for action in actions)] == list(results)
    finally:
        env.close()


def check_snapshot(spec: EnvSpec, task: Task, played: Played, cut: int) -> None:
    """From a snapshot the episode goes on as it did, twice over; environments without snapshots are replayed."""
    env = spec.make()
    if not isinstance(env, Snapshots):
        env.close()
        return
    env.reset(task)
    for action in played.actions[:cut]:
        env.step(action)
    state = env.snapshot()
    env.close()
    for _ in range(2):
        again = spec.make()
        again.reset(task)
        again.restore(state)
        rest = [again.step(action) for action in played.actions[cut:]]
        assert rest == list(played.results[cut + 1 :])
        assert again.evaluate() == played.evaluation
        again.close()


def check_faulty_action(spec: EnvSpec, task: Task) -> None:
    """A message without a legal action is answered, not raised, and leaves the episode evaluable."""
    env = spec.make()
    env.reset(task)
    result = env.step(Action(error="no action was found in the message"))
    assert result.exec_status is ExecStatus.INVALID
    assert result.observation or result.messages
    assert not env.evaluate().success or result.done
    env.close()
