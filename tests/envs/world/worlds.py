"""Shared by the world's tests: play a scripted policy, or plain code, in this process."""

import random

from jaxagent.envs.world.env import WorldEnv
from jaxagent.envs.world.expert import scripted_policy
from jaxagent.envs.world.inline import InlineSandbox
from jaxagent.envs.world.spec import world_spec
from jaxagent.types import Action, Evaluation, Message, StepResult, Task


def level_of(task: Task) -> str:
    return "easy" if task.env == "world-easy" else "full"


def play(
    task: Task, sloppiness: float = 0.0, seed: int = 0, *, sandbox=InlineSandbox
) -> tuple[Evaluation, list[StepResult], list[str]]:
    """Verdict, observations (the reset's first) and messages of a scripted episode."""
    spec = world_spec(level_of(task))
    env, policy = WorldEnv(sandbox), scripted_policy(task, random.Random(seed), sloppiness)
    results, messages = [env.reset(task)], []
    while not results[-1].done and len(messages) < spec.max_steps:
        messages.append(policy.act(results[-1].observation))
        results.append(env.step(spec.parse(Message("assistant", messages[-1]))))
    verdict = env.evaluate()
    env.close()
    return verdict, results, messages


def run_code(task: Task, *codes: str) -> tuple[WorldEnv, list[StepResult]]:
    """An open environment after the given code steps."""
    env = WorldEnv(InlineSandbox)
    env.reset(task)
    return env, [env.step(Action(text=code)) for code in codes]


def one_task(level: str, kind: str) -> Task:
    """The first task of a kind, in whichever split has it."""
    spec = world_spec(level)
    for split in ("train", "dev", "test_normal", "test_challenge"):
        for task in spec.tasks(split)[:90]:
            if task.type == kind:
                return task
    raise LookupError(kind)
