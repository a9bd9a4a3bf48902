"""The nouns of a product's title. In: a title. Out: its nouns in lower case, repeated ones repeated.

The benchmark tags titles with spaCy and keeps nouns and proper nouns. Two ways here:

word_nouns    every word but numbers, function words and a few participles. No package needed.
spacy_nouns   the benchmark's own way, with an installed spaCy pipeline.

Titles are strings of capitalised words ("Saireed UL Listed 2 Prong Power Cord for JBL Bar"), which the tagger takes for
proper nouns, adjectives among them; docs/environments/webshop.md says how often the two disagree about a reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from jaxagent.envs.entry import need
from jaxagent.errors import ConfigError

Nouns = Callable[[str], tuple[str, ...]]
WORD = re.compile(r"[^\W_](?:[\w.]*\w)?")
POSSESSIVE = re.compile(r"['’]s\b", re.IGNORECASE)
FUNCTION_WORDS = """
    a about above after all an and any are as at be been before below between both but by can each for from has have
    if in inside into is it its of off on only onto or other our out outside over per so than that the their them these
    they this those through to under until up upon us very via was we were when which while who will with within without
    you your not no non more most also plus added contains damaged improved listed made plated tempered upgraded
    used"""
NO_NOUNS = frozenset(FUNCTION_WORDS.split())


@lru_cache(maxsize=1 << 15)
def word_nouns(title: str) -> tuple[str, ...]:
    words = WORD.findall(POSSESSIVE.sub("", title).lower())
    return tuple(word for word in words if not word[0].isdigit() and word not in NO_NOUNS)


def spacy_nouns(pipeline: str) -> Nouns:
    """Nouns by an installed spaCy pipeline, such as en_core_web_sm. Raises ConfigError where it is missing."""
    spacy = need("spacy", install="pip install spacy, and a pipeline such as en_core_web_sm")
    try:
        tagger = spacy.load(pipeline, disable=["ner", "parser"])
    except OSError as error:
        raise ConfigError(
            f"env.options.tagger={pipeline!r} is no installed spaCy pipeline ({error}); install it, or leave the "
            "option out for the built-in word lists"
        ) from None
    return lru_cache(maxsize=1 << 15)(partial(_tagged, tagger))


def _tagged(tagger: Any, title: str) -> tuple[str, ...]:
    return tuple(token.text.lower() for token in tagger(title) if token.pos_ in ("NOUN", "PROPN"))
