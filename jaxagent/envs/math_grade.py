"""Whether two mathematical answers are equal, by math-verify. Runs in a child that can be killed (judge_process.py).

math-verify evaluates what it reads: 6*7, \\binom{42}{1} and \\sum_{k=1}^{42} 1 all equal 42. A policy learns from that
to write the question down instead of its answer, so where the right answer is a number, only a number counts.
"""

from __future__ import annotations

import logging
import re

from jaxagent.envs.entry import need

INSTALL = "pip install 'jaxagent[math]'"
_library = need("math_verify", install=INSTALL)
_sympy = need("sympy", install=INSTALL)
# It warns that its time-outs are off; ours is outside.
logging.getLogger("math_verify").setLevel(logging.ERROR)
_ANSWER = (_library.LatexExtractionConfig(boxed_match_priority=0), _library.ExprExtractionConfig())

# Dropped before looking for a calculation: words, units, degrees, spacing, and the forms of one number.
_WORDS = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox)\s*\{[^{}]*\}")
_LAYOUT = re.compile(
    r"\\(?:left|right|quad|qquad|displaystyle|boxed|ldots|dots|approx|circ|degree|[,;:!$% ])(?![A-Za-z])"
)
_POWER_OF_TEN = re.compile(r"(?:(?:\\times|\\cdot|[×*])\s*|(?<![\d.)}]))10\s*\^\s*(?:\{\s*-?\d+\s*\}|-?\d)")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*-?[\d.]+\s*\}\s*\{\s*-?[\d.]+\s*\}|\d\s*\d)|\d+\s*/\s*\d+")
# One is left: a command, an operator after an operand, a product or a sum without a sign, a function's name before "(".
_CALCULATION = re.compile(
    r"\\[A-Za-z]|[|√∑∏∫⌊⌈]|[\d)\]}]\s*[-+−*/×·÷^!²³⁴⁵⁶⁷⁸⁹±]|[\d)\]}]\s*\(\s*-?\d|\d\s+\d|[A-Za-z]\s?\(\s*-?\d"
)


def grade(gold: str, answer: str, calculations: bool) -> bool:
    """Whether `answer` says what `gold` says: 1/2 and \\frac{2}{4}, (1,2) and (1, 2.0), x=3 and 3.

    calculations: count 6*7 as 42. The order matters to math-verify: the right answer comes first. Neither time-out of
    the library is used: they need signals that C code does not let through.
    """
    right = _read(gold)
    if not _library.verify(right, _read(answer), timeout_seconds=None):
        return False
    if calculations or not right or not isinstance(right[0], _sympy.Number):
        return True
    return not is_calculation(answer, fraction=right[0] != int(right[0]) if right[0].is_finite else False)


def is_calculation(text: str, *, fraction: bool) -> bool:
    """Whether what comes after the last = has to be worked out to be a number. fraction: one of two numerals has not.

    42\\text{ cm}^2, n=42, 4.2 \\times 10^1: no.   6*7, 40 2, \\frac{84}{2} without `fraction`, 7!: yes.
    """
    # A unit may have an exponent.
    text = _WORDS.sub(" m ", text.replace("{,}", ",").replace("\\dfrac", "\\frac"))
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?", "", text.rsplit("=", 1)[-1])
    text = _POWER_OF_TEN.sub("", _LAYOUT.sub(" ", text))
    if fraction:
        text = _FRACTION.sub("", text, count=1)
    return _CALCULATION.search(text) is not None


def _read(text: str) -> list:
    return _library.parse(f"\\boxed{{{text}}}", extraction_config=_ANSWER, parsing_timeout=None)
