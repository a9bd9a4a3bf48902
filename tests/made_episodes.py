"""Finished episodes made by hand, for tests that start where a rollout ends."""

import numpy as np

from jaxagent.types import (
    Action,
    Evaluation,
    ExecStatus,
    Group,
    Prompt,
    Segment,
    Status,
    Step,
    Stop,
    Task,
    Trajectory,
)


def make_task(task_id="t0", *, scenario="s0", difficulty=1, type="", split="train"):
    return Task(task_id, "world", split, scenario=scenario, difficulty=difficulty, type=type)


def make_step(k, *, tokens=2, status=ExecStatus.OK, text="x", code=None):
    return Step(
        k=k,
        observation_before="before",
        text=text,
        ids_T=np.arange(tokens, dtype=np.int32),
        logprob_T=np.full(tokens, -0.5, np.float32),
        version=0,
        stop=Stop.STOP,
        action=Action(text=text if code is None else code),
        exec_status=ExecStatus(status),
        observation_after="after",
    )


def make_trajectory(
    reward=0.0, *, steps=None, task=None, rollout=0, success=None, status=Status.DONE, tests=(0, 4)
):
    """`steps` is a list of ExecStatus values or of Step records; success defaults to reward == 1."""
    steps = [ExecStatus.OK] if steps is None else steps
    records = tuple(s if isinstance(s, Step) else make_step(k, status=s) for k, s in enumerate(steps))
    step_T = np.concatenate([[-1], *[np.full(s.ids_T.size, s.k) for s in records]]).astype(np.int32)
    segment = Segment(step_T * 0, step_T >= 0, step_T, {"behaviour": np.zeros(step_T.size, np.float32)})
    task = task or make_task()
    solved = reward == 1 if success is None else success
    return Trajectory(
        traj_id=f"{task.task_id}/{rollout}",
        task=task,
        rollout=rollout,
        status=status,
        prompt=Prompt(()),
        steps=records,
        segments=(segment,),
        evaluation=Evaluation(solved, tests[1] if solved else tests[0], tests[1]),
        reward=float(reward),
    )


def make_group(rewards, *, task=None, steps=None, **kwargs):
    task = task or make_task()
    return Group(
        task,
        tuple(make_trajectory(r, task=task, rollout=i, steps=steps, **kwargs) for i, r in enumerate(rewards)),
    )
