"""BM25 ranking of short texts with bm25s. In: texts, or an index on disk. Out: numbers of matching texts, best first.

Used by the shop and by search QA, in worker processes. Equal scores are ordered by number, so that a ranking is
the same on every machine. Not its job: what the texts are, and how a result is shown.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from jaxagent.envs.entry import need
from jaxagent.errors import DataError

K1, B = 0.9, 0.4  # what Pyserini's LuceneSearcher ranks with unless told otherwise
QUERY_CHARS = 2_000  # of a query that are looked at; a policy may write a million
_hiding = threading.Lock()


class Ranking:
    """An index of numbered texts."""

    def __init__(self, index: Any):
        self._index, self._bm25s = index, load_bm25s()

    def search(self, query: str, limit: int) -> list[int]:
        """Numbers of at most `limit` texts that share a word with the query, best first."""
        ids = self._index.get_tokens_ids(_words(self._bm25s, [query[:QUERY_CHARS]], return_ids=False)[0])
        if not ids:
            return []
        score_D = self._index.get_scores_from_ids(ids)
        found = np.flatnonzero(score_D > 0)
        return found[np.lexsort((found, -score_D[found]))][:limit].tolist()

    def save(self, folder: Path) -> None:
        self._index.save(folder, show_progress=False)


def build_ranking(texts: Sequence[str]) -> Ranking:
    """Index texts in memory. About 35 microseconds and 200 bytes for a text of 20 words."""
    bm25s = load_bm25s()
    index = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
    tokens = _words(bm25s, texts)
    if not any(map(len, tokens.ids)):
        raise DataError(f"none of {len(texts)} texts holds a word to search for; check the corpus")
    index.index(tokens, show_progress=False)
    return Ranking(index)


def load_ranking(folder: Path) -> Ranking:
    """An index that `save` wrote, memory-mapped: processes on one host share its pages."""
    return Ranking(load_bm25s().BM25.load(folder, mmap=True, show_progress=False))


def load_bm25s(install: str = "pip install 'jaxagent[search]' (or bm25s)") -> ModuleType:
    """Import bm25s without jax; `install` is the command that gets it.

    Where jax is installed, `import bm25s` runs a jax program to try its top-k: that would start the device in an
    environment worker, or in the trainer before its checks are done. bm25s takes numpy where jax cannot be imported.
    """
    if "bm25s" in sys.modules:
        return sys.modules["bm25s"]
    with _hiding, _hidden("jax", "jax.lax"):
        return need("bm25s", install=install)


@contextmanager
def _hidden(*names: str) -> Iterator[None]:
    """Imports of these modules fail meanwhile, whether they were loaded before or not."""
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(dict.fromkeys(names))  # pyright: ignore[reportArgumentType, reportCallIssue]
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _words(bm25s: ModuleType, texts: Sequence[str], *, return_ids: bool = True) -> Any:
    return bm25s.tokenize(
        list(texts), stopwords="en", stemmer=_stems, return_ids=return_ids, show_progress=False
    )


def _stems(words: Sequence[str]) -> list[str]:
    return [stem(word) for word in words]


def stem(word: str) -> str:
    """Plural to singular by Harman's S-stemmer (1991): berries, berry; shoes, shoe; glass stays.

    Lucene's English analyser also takes off -ed and -ing; its stemmer is not in bm25s.
    """
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word
