"""What a run file may say about search QA."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from jaxagent.records import Record


class SearchQaOptions(Record):
    """source: `files`, a corpus and questions as JSON Lines; `hotpotqa`, a HotpotQA distractor file, whose own
    paragraphs are the corpus; or `generated`, a made-up world of a few dozen texts.

    questions: JSON Lines of {id, question, answers, split?, titles?, type?}, or the HotpotQA file.
    corpus:    JSON Lines of {id, title, text}. `files` only.
    cache:     folder for indexes; empty puts them beside the corpus (or the HotpotQA file).
    results:   texts that a search returns. text_chars: how much of each.
    """

    source: Literal["files", "hotpotqa", "generated"] = "files"
    questions: str = ""
    corpus: str = ""
    cache: str = ""
    results: int = Field(3, ge=1, le=50)
    text_chars: int = Field(2000, ge=100)
