"""Search QA as a run refers to it: `env: {name: search_qa, options: {...}}`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jaxagent.envs.bm25 import load_bm25s
from jaxagent.envs.entry import Entry, data_path
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.search_qa.corpus import prepare_index
from jaxagent.envs.search_qa.env import TITLE_CHARS, SearchQa
from jaxagent.envs.search_qa.expert import expert
from jaxagent.envs.search_qa.options import SearchQaOptions
from jaxagent.envs.search_qa.prompt import parse, prompt
from jaxagent.envs.search_qa.questions import questions_of, read_questions
from jaxagent.envs.verdicts import verdict_means
from jaxagent.types import Metrics, Task, Trajectory

MAX_STEPS = 5  # four searches and the answer, as Search-R1
LINES = "Write JSON Lines, one object a line, or take source: hotpotqa or generated"


def search_qa_spec(options: SearchQaOptions) -> EnvSpec:
    """Builds the index where there is none yet. Raises ConfigError or DataError for missing or broken files."""
    load_bm25s()
    questions, index = _open(options)
    return EnvSpec(
        name="search_qa",
        make=partial(SearchQa, index, options.results, options.text_chars),
        tasks=partial(tasks, options.source, questions),
        prompt=prompt,
        parse=parse,
        metrics=metrics,
        max_steps=MAX_STEPS,
        max_observation_chars=longest_observation(options),
        expert=expert,
        worker={"step_s": 60.0},
    )


def longest_observation(options: SearchQaOptions) -> int:
    """Characters that the asked-for results may take; a cut would lose texts and the closing tag.

    16,000 at least, as elsewhere. Escaped tags make a text longer: a tenth is room enough for any that is read.
    """
    return max(16_000, options.results * (options.text_chars + TITLE_CHARS) * 11 // 10)


def _open(options: SearchQaOptions) -> tuple[str, str]:
    """Question file and index folder; both "" for the made-up world."""
    if options.source == "generated":
        read_questions("generated", "")
        return "", ""
    hotpotqa = options.source == "hotpotqa"
    variable, what = "JAXAGENT_SEARCH_QUESTIONS", "the question file {id, question, answers}"
    if hotpotqa:
        variable, what = "JAXAGENT_HOTPOTQA", "the HotpotQA distractor file"
    questions = data_path(
        options.questions, variable=variable, what=what, fetch=f"Set env.options.questions. {LINES}"
    )
    corpus = questions
    if not hotpotqa:
        corpus = data_path(
            options.corpus,
            variable="JAXAGENT_SEARCH_CORPUS",
            what="the corpus {id, title, text}",
            fetch=f"Set env.options.corpus. {LINES}",
        )
    read_questions(options.source, str(questions))
    return str(questions), prepare_index(corpus, hotpotqa=hotpotqa, cache=options.cache)


def tasks(source: str, questions: str, split: str) -> list[Task]:
    return questions_of(split, read_questions(source, questions))


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Means over episodes: em (exact match), f1, searches (a count) and answered (a share)."""
    measures = {
        "em": lambda verdict: verdict.info["score"],
        "f1": lambda verdict: verdict.info["f1"],
        "searches": lambda verdict: verdict.info["searches"],
        "answered": lambda verdict: verdict.info["answered"],
    }
    return verdict_means(trajectories, measures)


ENTRY = Entry(SearchQaOptions, search_qa_spec)
