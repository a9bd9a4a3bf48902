"""Small environments for pool and rollout tests. Worker processes import this file."""

import contextlib
import os
import signal
import sys
import time
from functools import partial

from jaxagent.envs.protocol import EnvSpec
from jaxagent.types import (
    Action,
    Evaluation,
    ExecStatus,
    Message,
    Prompt,
    StepResult,
    Task,
)


class EchoEnv:
    """Answers "<count> <text>"; "end" ends. `task.meta["fault"]` makes it misbehave at its first step."""

    def __init__(self, faults: bool = True):
        self.faults = faults

    def reset(self, task: Task) -> StepResult:
        self.task, self.count, self.said = task, 0, []
        if self.fault == "reset":
            raise RuntimeError("cannot reset")
        return StepResult("hello", anchor="start")

    @property
    def fault(self) -> str:
        """A fault file makes the fault happen once: it is removed when it has struck."""
        fault, path = self.task.meta.get("fault", ""), self.task.meta.get("once", "")
        if not fault or not self.faults or (path and not os.path.exists(path)):
            return ""
        return fault

    def step(self, action: Action) -> StepResult:
        fault = self.fault
        if fault and (path := self.task.meta.get("once", "")):
            os.remove(path)
        if fault:
            return FAULTS[fault]()
        if action.error:
            return StepResult(action.error, ExecStatus.INVALID, anchor="error")
        self.count += 1
        self.said.append(action.text)
        if action.text == "flood":
            return StepResult("x" * 100_000)
        done = action.text == "end"
        return StepResult(f"{self.count} {action.text}", done=done, reward=0.5, anchor=f"s{self.count}")

    def evaluate(self) -> Evaluation:
        if self.task.meta.get("fault") == "evaluate":
            raise RuntimeError("no verdict")
        solved = bool(self.said) and self.said[-1] == "end"
        return Evaluation(solved, int(solved), 1, info={"pid": os.getpid(), "jax": "jax" in sys.modules})

    def close(self) -> None:
        if self.task.meta.get("fault") == "close":
            raise RuntimeError("cannot close")


def raise_error():
    raise ZeroDivisionError("env bug")


def forge():
    """Write nonsense into every socket this process can find."""
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(fd, b"\xff" * 16)


FAULTS = {
    "forge": forge,
    "raised": raise_error,
    "hang": lambda: time.sleep(1000),
    "exit": lambda: os._exit(3),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "none": lambda: None,
    "reward": lambda: StepResult("x", reward=float("nan")),
    "info": lambda: StepResult("x", info={"object": object()}),
    "type": lambda: StepResult(17),  # type: ignore[arg-type]
    "status": lambda: StepResult("x", exec_status="strange"),  # type: ignore[arg-type]
    "memory": lambda: StepResult("x", info={"n": len(bytearray(8 << 30))}),
    "huge": lambda: StepResult("x" * (80 << 20)),
    "surrogate": lambda: StepResult("a\ud800b"),
    "print": lambda: StepResult("x", info={"n": print("noise" * 1000) or os.write(1, b"more noise")}),
}


def open_prompt(task: Task, first: StepResult) -> Prompt:
    return Prompt((Message("user", first.observation),))


def parse_text(message: Message) -> Action:
    if message.content.startswith("?"):
        return Action(error="no action found")
    return Action(text=message.content)


def observe_user(text: str) -> Message:
    return Message("user", text)


def echo_spec(max_steps: int = 8, **fields) -> EnvSpec:
    return EnvSpec(
        name="echo",
        make=partial(EchoEnv, True),
        tasks=lambda split: [],
        prompt=open_prompt,
        parse=parse_text,
        observe=observe_user,
        max_steps=max_steps,
        **fields,
    )


def echo_task(name: str = "t", **meta) -> Task:
    return Task(task_id=name, env="echo", split="train", meta=meta)
