"""One question. In: an `Action` whose tool call is search or answer. Out: search results, until there is an answer.

    <search>viva media</search>     <information>
                                    Doc 1 (Title: "VIVA Media") VIVA Media GmbH (until 2004 …
                                    </information>
    <answer>GmbH</answer>           the end

What a search returns is the environment's message, so no loss term sees it as the policy's. Texts come from a corpus
that nobody checked: whatever in them reads like one of the tags is escaped.
"""

from __future__ import annotations

import json
import re

from jaxagent.envs.search_qa.corpus import Text, open_library
from jaxagent.envs.search_qa.scoring import exact_match, f1
from jaxagent.types import Action, Evaluation, ExecStatus, StepResult, Task

TITLE_CHARS = 300  # of a text's title that are shown
TAG = re.compile(r"<(?=\s*/?\s*(?:information|search|answer|think)\b)", re.IGNORECASE)


class SearchQa:
    """See envs/protocol.py. `Snapshots` is implemented: the state is the queries so far and the answer."""

    def __init__(self, index: str, results: int, text_chars: int):
        self._index, self._results, self._text_chars = index, results, text_chars

    def reset(self, task: Task) -> StepResult:
        self._library = open_library(self._index)
        self._question, self._answers = str(task.meta["question"]), tuple(task.meta["answers"])
        self._queries: list[str] = []
        self._answer: str | None = None
        return StepResult(self._question, anchor=self._question)

    def step(self, action: Action) -> StepResult:
        if action.error or not action.tool_calls or self._answer is not None:
            return self._result(action.error or "The question has been answered.", ExecStatus.INVALID)
        call = action.tool_calls[0]
        text = str(call.arguments["text"])
        if call.name == "answer":
            self._answer = text
            return self._result("", done=True, reward=exact_match(text, self._answers))
        self._queries.append(text)
        return self._result(information(self._library.search(text, self._results), self._text_chars))

    def _result(
        self, text: str, status: ExecStatus = ExecStatus.OK, *, done: bool = False, reward: float = 0.0
    ) -> StepResult:
        """The anchor is what was asked of the engine so far: with it, the policy has seen the same texts."""
        anchor = json.dumps([self._question, *self._queries], ensure_ascii=False)
        return StepResult(text, status, done=done, reward=reward, anchor=anchor)

    def evaluate(self) -> Evaluation:
        given = self._answer is not None
        matched = exact_match(self._answer or "", self._answers) if given else 0.0
        overlap = f1(self._answer or "", self._answers) if given else 0.0
        failure = f"answered {self._answer!r}" if given else "nothing was answered"
        return Evaluation(
            success=bool(matched),
            passed=int(matched),
            total=1,
            failures=() if matched else (failure[:500],),
            info={"score": matched, "f1": overlap, "searches": len(self._queries), "answered": given},
        )

    def close(self) -> None:
        """The library stays with the process."""

    def snapshot(self) -> bytes:
        return json.dumps({"queries": self._queries, "answer": self._answer}).encode()

    def restore(self, state: bytes) -> None:
        values = json.loads(state)
        self._queries, self._answer = list(values["queries"]), values["answer"]


def information(texts: list[Text], text_chars: int) -> str:
    """Search results as the policy reads them."""
    lines = [
        f'Doc {number} (Title: "{_harmless(text.title[:TITLE_CHARS])}") {_harmless(text.text[:text_chars])}'
        for number, text in enumerate(texts, start=1)
    ]
    return "\n".join(["<information>", *(lines or ["No results."]), "</information>"])


def _harmless(text: str) -> str:
    return TAG.sub("&lt;", text)
