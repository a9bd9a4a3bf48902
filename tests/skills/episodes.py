"""Small finished episodes for the tests of skills and rewards."""

import numpy as np

from jaxagent.types import (
    Action,
    Evaluation,
    ExecStatus,
    Group,
    Message,
    Prompt,
    Segment,
    Status,
    Step,
    Stop,
    Task,
    Trajectory,
)

OK, ERROR, INVALID = ExecStatus.OK, ExecStatus.RUNTIME_ERROR, ExecStatus.INVALID


def step(k, code, status=OK, observation="", *, n=3, text=None, error="", calls=()):
    ids = np.arange(n, dtype=np.int32)
    action = Action(text="" if error else code, error=error, tool_calls=calls)
    return Step(
        k, "", text or code, ids, np.zeros(n, np.float32), 0, Stop.STOP, action, status, observation
    )


def episode(task="t1", rollout=0, *, steps=(), reward=1.0, status=Status.DONE, evaluation="reward", segments=()):
    if evaluation == "reward":
        evaluation = Evaluation(reward == 1.0, round(reward * 4), 4)
    prompt = Prompt((Message("system", "Rules"), Message("user", f"Do {task}")))
    record = Task(task, "world", "train")
    name = f"{task}/{rollout}"
    return Trajectory(name, record, rollout, status, prompt, tuple(steps), tuple(segments), evaluation, reward)


def segment(ids, mask, **logprobs):
    mask_T = np.asarray(mask, bool)
    streams = {name: np.asarray(values, np.float32) for name, values in logprobs.items()}
    return Segment(np.asarray(ids, np.int32), mask_T, np.where(mask_T, 0, -1).astype(np.int32), streams)


def group(*trajectories):
    return Group(trajectories[0].task, tuple(trajectories))
