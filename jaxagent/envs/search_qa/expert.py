"""A scripted searcher who knows the answer: it searches for the question, for the supporting titles, then answers."""

from __future__ import annotations

from random import Random

from jaxagent.types import Task

SEARCHES = 3  # besides the answer, within the step limit


class Searcher:
    """See ScriptedPolicy in envs/protocol.py. With `sloppiness` it answers too early, wrongly, or forgets the tags."""

    def __init__(self, task: Task, rng: Random, sloppiness: float):
        self._task, self._rng, self._sloppiness = task, rng, sloppiness
        self._queries = [str(task.meta["question"]), *task.meta["titles"]][:SEARCHES]

    def act(self, observation: str) -> str:
        if self._rng.random() < self._sloppiness:
            return self._slip()
        if self._queries:
            query = self._queries.pop(0)
            return f"<think>I look it up.</think>\n<search>{query}</search>"
        return f"<think>Now I know.</think>\n<answer>{self._task.meta['answers'][0]}</answer>"

    def _slip(self) -> str:
        question = str(self._task.meta["question"])
        wrong = self._rng.choice(question.rstrip("?").split() or ["nothing"])
        return self._rng.choice(
            (
                f"<think>Probably.</think>\n<answer>{wrong}</answer>",
                f"<think>I look it up.</think>\n<search>{wrong}</search>",
                str(self._task.meta["answers"][0]),
            )
        )


def expert(task: Task, rng: Random, sloppiness: float) -> Searcher:
    return Searcher(task, rng, sloppiness)
