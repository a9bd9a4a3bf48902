"""Texts as vectors. In: texts. Out: rows of length 1, so that a dot product is a cosine.

hashed                  word n-grams hashed into a fixed number of signed cells; nothing to install, equal everywhere
sentence_transformers   a local model, Qwen/Qwen3-Embedding-0.6B unless another is named (extra `embeddings`)
endpoint                any OpenAI-compatible `/embeddings`; when it stays silent the run stops, it never guesses

Choosing among texts is skills/retrieve.py's job.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import re
import time
import zlib
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from jaxagent.auxlm.client import AuxError, AuxLimits
from jaxagent.auxlm.endpoint import EndpointBackend
from jaxagent.errors import ConfigError

log = logging.getLogger(__name__)
WORD = re.compile(r"\w+")
DIMENSIONS = 1024
QWEN3_EMBEDDING = "Qwen/Qwen3-Embedding-0.6B"
BATCH = 256  # texts a request


@runtime_checkable
class Embed(Protocol):
    """Rows in the order of the texts; a text without words may be a row of zeros, which resembles nothing."""

    def __call__(self, texts: Sequence[str], /) -> Float[np.ndarray, "N D"]: ...


def word_ngrams(text: str, sizes: Sequence[int] = (1, 2, 3)) -> list[str]:
    """Lower-case words in runs of each size.  "Pay the bill", sizes 1, 2 -> pay, the, bill, pay the, the bill."""
    words = WORD.findall(text.lower())
    return [" ".join(words[i : i + n]) for n in sizes for i in range(len(words) - n + 1)]


def hashed(texts: Sequence[str], /, *, dimensions: int = DIMENSIONS) -> Float[np.ndarray, "N D"]:
    """Feature hashing of word 1- to 3-grams (Weinberger et al. 2009): cell (crc32 / 2) mod D, sign crc32 mod 2."""
    rows = np.zeros((len(texts), dimensions), np.float32)
    for row, text in zip(rows, texts):
        for gram in word_ngrams(text):
            code = zlib.crc32(gram.encode())
            row[(code >> 1) % dimensions] += 1.0 if code & 1 else -1.0
    return unit_rows(rows)


def unit_rows(rows_ND: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    """Every row divided by its length; zeros stay zeros."""
    length_N = np.linalg.norm(rows_ND, axis=1, keepdims=True)
    return (rows_ND / np.where(length_N == 0, 1, length_N)).astype(np.float32)


class SentenceTransformerEmbed:
    """A local model; it is loaded with the first text. `model` is a Hugging Face name or a folder."""

    def __init__(self, model: str = QWEN3_EMBEDDING, *, device: str = "cpu"):
        if importlib.util.find_spec("sentence_transformers") is None:
            raise ConfigError(
                "retrieval by sentence_transformers needs the package sentence-transformers, which is not installed: "
                "pip install 'jaxagent[embeddings]'; or retrieve by ngram, hashed or endpoint"
            )
        self.model, self.device = model, device
        self._loaded: Any = None

    def __call__(self, texts: Sequence[str], /) -> Float[np.ndarray, "N D"]:
        if self._loaded is None:
            from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

            try:
                self._loaded = SentenceTransformer(self.model, device=self.device)
            except (OSError, ValueError) as error:
                raise ConfigError(f"the embedding model {self.model!r} cannot be loaded: {error}") from error
        return unit_rows(np.asarray(self._loaded.encode(list(texts), show_progress_bar=False), np.float32))


class EndpointEmbed:
    """Asks an endpoint in the caller's thread. `limits` says how often, and how long it waits in between."""

    def __init__(self, backend: EndpointBackend, limits: AuxLimits | None = None):
        self.backend, self.limits = backend, limits or AuxLimits()

    def __call__(self, texts: Sequence[str], /) -> Float[np.ndarray, "N D"]:
        parts = [self._ask(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        if len({part.shape[1] for part in parts}) > 1:
            raise AuxError(f"{self.backend.name}: embeddings of different lengths", retry=False)
        return unit_rows(np.concatenate(parts)) if parts else np.zeros((0, 1), np.float32)

    def _ask(self, texts: Sequence[str]) -> Float[np.ndarray, "N D"]:
        body = json.dumps({"model": self.backend.config.model, "input": list(texts)}).encode()
        for attempt in itertools.count():
            try:
                return read_embeddings(self.backend.post(body, "/embeddings"), len(texts))
            except AuxError as error:
                if not error.retry or attempt >= self.limits.retries:
                    raise
                log.warning("embeddings attempt %d: %s", attempt + 1, error)
                wait = max(error.after_s, self.limits.backoff_s * 2**attempt)
                time.sleep(min(wait, self.limits.longest_wait_s))
        raise AssertionError("unreachable")


def read_embeddings(data: bytes, n: int) -> Float[np.ndarray, "N D"]:
    """The vectors of an answer, by their `index`. Raises AuxError when they are not n finite vectors of one length."""
    try:
        items = sorted(json.loads(data)["data"], key=lambda item: item["index"])
        indices = [item["index"] for item in items]
        rows = np.array([item["embedding"] for item in items], np.float64)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AuxError(f"no embeddings ({type(error).__name__}): {data[:200]!r}") from error
    if indices != list(range(n)) or rows.ndim != 2 or not rows.shape[1] or not np.isfinite(rows).all():
        raise AuxError(
            f"{n} texts came back as embeddings {indices[:8]} of shape {rows.shape}; expected finite rows"
        )
    return rows


class Remembered:
    """An `Embed` that asks for a text once. The newest `kept` vectors are remembered."""

    def __init__(self, embed: Embed, *, kept: int = 20_000):
        self.embed, self.kept = embed, kept
        self._known: dict[str, Float[np.ndarray, "D"]] = {}

    def __call__(self, texts: Sequence[str], /) -> Float[np.ndarray, "N D"]:
        wanted = list(dict.fromkeys(texts))
        found = {text: self._known[text] for text in wanted if text in self._known}
        if new := [text for text in wanted if text not in found]:
            found |= dict(zip(new, self.embed(new), strict=True))
            self._known |= found
            while len(self._known) > self.kept:
                self._known.pop(next(iter(self._known)))
        return np.stack([found[text] for text in texts]) if texts else self.embed(())
