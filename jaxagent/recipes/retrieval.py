"""How skills are found, and who writes them: options that recipes with a skill bank share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.auxlm.blocking import EndpointOptions
from jaxagent.auxlm.endpoint import EndpointBackend, EndpointConfig
from jaxagent.config import Record
from jaxagent.skills.embed import (
    QWEN3_EMBEDDING,
    EndpointEmbed,
    Remembered,
    SentenceTransformerEmbed,
    hashed,
)
from jaxagent.skills.retrieve import Likeness, cosine, jaccard


class WriterOptions(EndpointOptions):
    """A language model that writes skills: it reads whole episodes, and no environment's deadline waits for it."""

    timeout_s: float = Field(default=120.0, gt=0)
    longest_wait_s: float = Field(default=60.0, ge=0)


class RetrieverOptions(Record):
    """by: "ngram" (Jaccard of word n-grams), or the cosine of embeddings: "hashed" n-grams, a local model of
    "sentence_transformers", or an "endpoint" (OpenAI-compatible, `base_url`, its key in the variable `api_key_env`).

    model: of the latter two; Qwen3-Embedding-0.6B if it is empty. floor: what is less alike is not shown.
    """

    by: Literal["ngram", "hashed", "sentence_transformers", "endpoint"] = "hashed"
    model: str = QWEN3_EMBEDDING
    base_url: str = ""
    api_key_env: str = ""
    floor: float = Field(0.4, ge=-1, le=1)

    @model_validator(mode="after")
    def _endpoint(self) -> RetrieverOptions:
        if (self.by == "endpoint") != bool(self.base_url):
            raise ValueError(
                f"by={self.by!r} and base_url={self.base_url!r}: base_url belongs to by: endpoint"
            )
        return self

    def likeness(self) -> Likeness:
        """Raises ConfigError where a package, an address or a key is missing."""
        return LIKENESS[self.by](self)


def _endpoint(options: RetrieverOptions) -> Likeness:
    backend = EndpointBackend(
        EndpointConfig(options.base_url, options.model, api_key_env=options.api_key_env)
    )
    return cosine(Remembered(EndpointEmbed(backend)))


LIKENESS: Mapping[str, Callable[[RetrieverOptions], Likeness]] = {
    "ngram": lambda options: jaccard,
    "hashed": lambda options: cosine(Remembered(hashed)),
    "sentence_transformers": lambda options: cosine(Remembered(SentenceTransformerEmbed(options.model))),
    "endpoint": _endpoint,
}
