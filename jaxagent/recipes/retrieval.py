"""How skills are found: options that recipes with a skill bank share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.auxlm.endpoint import EndpointBackend, EndpointConfig
from jaxagent.recipes.unread import refuse_unread
from jaxagent.records import Record
from jaxagent.skills.embed import (
    QWEN3_EMBEDDING,
    EndpointEmbed,
    Remembered,
    SentenceTransformerEmbed,
    hashed,
)
from jaxagent.skills.request import Asked, request_in, request_of
from jaxagent.skills.retrieve import Likeness, cosine, jaccard


class RetrieverOptions(Record):
    """by: "ngram" (Jaccard of word n-grams), or the cosine of embeddings: "hashed" n-grams, a local model of
    "sentence_transformers", or an "endpoint" (OpenAI-compatible, `base_url`, its key in the variable `api_key_env`).

    model: of the latter two. floor: what is less alike is not shown.
    request: a pattern whose first group is what the opening asks, e.g. "Your task is to: (.*)"; empty takes the whole
             last user message.
    """

    by: Literal["ngram", "hashed", "sentence_transformers", "endpoint"] = "hashed"
    model: str = QWEN3_EMBEDDING
    base_url: str = ""
    api_key_env: str = ""
    floor: float = Field(default=0.4, ge=-1, le=1)
    request: str = ""

    @model_validator(mode="after")
    def _fits(self) -> RetrieverOptions:
        named = self.by in ("sentence_transformers", "endpoint")
        refuse_unread(self, "model", read=named, when="by: sentence_transformers or endpoint")
        refuse_unread(self, "api_key_env", read=self.by == "endpoint", when="by: endpoint")
        if (self.by == "endpoint") != bool(self.base_url):
            raise ValueError(
                f"by={self.by!r} and base_url={self.base_url!r}: base_url belongs to by: endpoint"
            )
        try:
            groups = re.compile(self.request).groups
        except re.error as error:
            raise ValueError(f"request={self.request!r} is no regular expression: {error}") from None
        if self.request and not groups:
            raise ValueError(
                f"request={self.request!r} needs a group: what is to be found stands between ( and )"
            )
        return self

    def asked(self) -> Asked:
        return request_in(self.request) if self.request else request_of

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
