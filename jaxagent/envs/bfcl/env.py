"""One conversation of BFCL multi-turn as an environment.

In a turn the assistant's calls are run, message by message, until it sends one without a (readable) call; the
simulated user then speaks again, and after the last turn the episode is over. More than 20 messages with calls in one
turn end it at once, and with it the entry unless it was the last turn (as in the package's own runner).
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxagent.envs.bfcl.backend import Backend, failed
from jaxagent.envs.bfcl.calls import Format, python_call
from jaxagent.envs.bfcl.data import Entry, find
from jaxagent.envs.bfcl.tools import Describe, handed_out, listing
from jaxagent.envs.bfcl.verdict import turn_fault
from jaxagent.types import Action, Evaluation, ExecStatus, Message, StepResult, Task, ToolCall

STEPS = 20  # messages with calls that a turn may have
OVER = "The conversation is over."
NEW_FUNCTIONS = (
    "I have updated some more functions you can choose from. What about now?"  # the benchmark's words
)


@dataclass
class Play:
    """How far a conversation is: both sets of instances, the open turn, and the finished turns' faults ("" is right).

    truth stands at the end of the last finished turn. results are the assistant's of all turns.
    """

    model: Backend
    truth: Backend
    turn: int = 0
    steps: int = 0
    calls: int = 0
    called: list[int] = field(default_factory=list)  # calls of each finished turn
    results: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    forced: bool = False


class BfclEnv:
    """Answers are tool results, or the user's next turn."""

    def __init__(self, format: Format = "hermes", describe: Describe = "full"):
        self.format: Format = format
        self.describe: Describe = describe

    def reset(self, task: Task) -> StepResult:
        self.entry: Entry = find(task)
        self.play = Play(Backend(self.entry), Backend(self.entry))
        return StepResult(self._user(), anchor=self._anchor())

    def step(self, action: Action) -> StepResult:
        if action.tool_calls:
            return self._run(action.tool_calls)
        self._end_turn()
        status = ExecStatus.INVALID if action.error else ExecStatus.OK
        if self.play.turn == len(self.entry.turns):
            return StepResult(OVER, status, done=True, anchor=self._anchor())
        text = self._user()
        return StepResult(text, status, anchor=self._anchor(), messages=(Message("user", text),))

    def evaluate(self) -> Evaluation:
        """A last turn that was cut counts as it stands; turns that were not reached are wrong."""
        play, total = self.play, len(self.entry.turns)
        if play.turn == total - 1 and play.steps:
            self._end_turn()
        unreached = ["not reached" if not play.forced else "not reached: 20 steps in one turn"]
        faults = play.faults + unreached * (total - play.turn)
        idle = [not called for called, calls in zip(play.called, self.entry.expected) if not calls]
        return Evaluation(
            success=not any(faults),
            passed=faults.count(""),
            total=total,
            failures=tuple(f"turn {number}: {fault}" for number, fault in enumerate(faults) if fault),
            info={
                "score": float(not any(faults)),
                "turns": [not fault for fault in faults],
                "irrelevance": all(idle),
                "forced": play.forced,
            },
        )

    def close(self) -> None:
        """Nothing is held outside the instance."""

    def snapshot(self) -> bytes:
        return pickle.dumps(self.play)

    def restore(self, state: bytes) -> None:
        self.play = pickle.loads(state)

    def _run(self, calls: Sequence[ToolCall]) -> StepResult:
        play = self.play
        results = [play.model.call(call) for call in calls]
        play.results += results
        play.steps += 1
        play.calls += len(calls)
        play.forced = play.steps > STEPS
        if play.forced:
            self._end_turn()
        return StepResult(
            "\n".join(results),
            ExecStatus.RUNTIME_ERROR if any(map(failed, results)) else ExecStatus.OK,
            done=play.forced,
            anchor=self._anchor(),
            messages=self._told(calls, results),
        )

    def _told(self, calls: Sequence[ToolCall], results: Sequence[str]) -> tuple[Message, ...]:
        if self.format == "hermes":
            return tuple(Message("tool", result) for result in results)
        told = [
            {"role": "tool", "name": python_call(call), "content": result}
            for call, result in zip(calls, results)
        ]
        return (Message("user", repr(told)),)

    def _end_turn(self) -> None:
        play = self.play
        expected = [play.truth.call(call) for call in self.entry.expected[play.turn]]
        fault = turn_fault(
            play.model, play.truth, called=play.calls > 0, results=play.results, expected=expected
        )
        play.faults.append(fault)
        play.called.append(play.calls)
        play.turn, play.steps, play.calls = play.turn + 1, 0, 0

    def _user(self) -> str:
        """What the user says at the open turn."""
        new = handed_out(self.entry, self.play.turn)
        said = self.entry.turns[self.play.turn]
        return f"{listing(new, self.describe)}\n{NEW_FUNCTIONS}" if new else said

    def _anchor(self) -> str:
        return f"{self.entry.task_id}/{self.play.turn}/{self.play.model.key()}"
