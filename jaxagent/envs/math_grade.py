"""Whether two mathematical answers are equal, by math-verify. Runs in a child that can be killed (judge_process.py)."""

from __future__ import annotations

import logging

from jaxagent.envs.entry import need

INSTALL = "pip install 'jaxagent[math]'"
_library = need("math_verify", install=INSTALL)
logging.getLogger("math_verify").setLevel(
    logging.ERROR
)  # it warns that its time-outs are off; ours is outside
_ANSWER = (_library.LatexExtractionConfig(boxed_match_priority=0), _library.ExprExtractionConfig())


def grade(gold: str, answer: str) -> bool:
    """Whether `answer` says what `gold` says: 1/2 and \\frac{2}{4}, (1,2) and (1, 2.0), x=3 and 3.

    The order matters to math-verify: the right answer comes first. Neither time-out of the library is used: they need
    signals that C code does not let through.
    """
    return bool(_library.verify(_read(gold), _read(answer), timeout_seconds=None))


def _read(text: str) -> list:
    return _library.parse(f"\\boxed{{{text}}}", extraction_config=_ANSWER, parsing_timeout=None)
