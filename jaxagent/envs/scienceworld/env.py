"""One ScienceWorld episode. In: commands. Out: the world's answers, the gain in score as reward, the final score."""

from __future__ import annotations

from jaxagent.envs.scienceworld.java import Answer, World, simulator
from jaxagent.envs.scienceworld.worlds import Worlds, recorded
from jaxagent.errors import EnvFailure
from jaxagent.types import Action, Evaluation, ExecStatus, StepResult, Task

UNKNOWN = "No known action matches that input."  # how the simulator refuses a command


class ScienceWorld:
    """One episode. The world is in the Java process; here are the score so far and who may use the process.

    rehearsal: in the trainer's process, where the same few episodes are played over and over; see recorded().
    """

    def __init__(self, simplifications: str, *, rehearsal: bool = False):
        self._simplifications = simplifications
        self._rehearsal = rehearsal

    def reset(self, task: Task) -> StepResult:
        self._worlds: Worlds = recorded() if self._rehearsal else simulator()
        self._now = self._worlds.load(world_of(task, self._simplifications))
        self._at, self._last = self._worlds.at, self._now.score
        return StepResult(
            f"{self._worlds.description()}\n\n{self._now.text}",
            anchor=_anchor(self._now),
            info={"score": self._now.score / 100},
        )

    def step(self, action: Action) -> StepResult:
        if action.error:
            return StepResult(
                action.error, ExecStatus.INVALID, done=self._now.done, anchor=_anchor(self._now)
            )
        if self._worlds.at != self._at:
            raise EnvFailure("raised", "another episode loaded its world into this process's simulator")
        self._now = self._worlds.step(action.text)
        self._at = self._worlds.at
        gained, self._last = self._now.score - self._last, self._now.score
        return StepResult(
            self._now.text,
            ExecStatus.INVALID if self._now.text.strip() == UNKNOWN else ExecStatus.OK,
            done=self._now.done,
            reward=gained / 100,
            anchor=_anchor(self._now),
            info={"score": self._now.score / 100},
        )

    def evaluate(self) -> Evaluation:
        score = max(self._now.score, 0)
        failures = () if score == 100 else (f"score {self._now.score} of 100",)
        info = {"score": score / 100, "failed": self._now.score < 0}
        return Evaluation(success=score == 100, passed=score, total=100, failures=failures, info=info)

    def close(self) -> None:
        """The process stays for the next episode; it ends with the worker."""


def world_of(task: Task, simplifications: str) -> World:
    return World(task.type, int(task.meta["variation"]), simplifications)


def _anchor(answer: Answer) -> str:
    return f"{answer.look}\n{answer.inventory}"
