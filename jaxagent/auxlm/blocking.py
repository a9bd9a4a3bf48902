"""The auxiliary language model for callers that are not coroutines: environments in worker processes.

In: the run file's description of an endpoint. Out: `BlockingAux.complete`, which waits. One per endpoint and process.
"""

from __future__ import annotations

from functools import cache, cached_property

from pydantic import Field

from jaxagent.auxlm.background import Background
from jaxagent.auxlm.client import AuxBackend, AuxLimits, AuxLM
from jaxagent.auxlm.endpoint import EndpointBackend, EndpointConfig
from jaxagent.auxlm.role import Payload, Role
from jaxagent.auxlm.role import Record as Answer
from jaxagent.auxlm.stored import StoredBackend
from jaxagent.records import Record


class EndpointOptions(Record):
    """An OpenAI-compatible endpoint in a run file.

    base_url: up to and including the version. api_key_env: name of the environment variable that holds the key.
    backoff_s: wait before the second attempt, doubled with each; longest_wait_s bounds all waits.
    cache: folder in which answers are kept, shared by worker processes and runs; empty keeps them in memory only.
    """

    base_url: str
    model: str
    api_key_env: str = ""
    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=1024, ge=1)
    timeout_s: float = Field(default=15.0, gt=0)
    retries: int = Field(default=2, ge=0)
    backoff_s: float = Field(default=0.5, ge=0)
    longest_wait_s: float = Field(default=4.0, ge=0)
    cache: str = ""

    @property
    def longest_s(self) -> float:
        """Seconds that one call may take, every attempt and the waits between them included."""
        return (self.retries + 1) * self.timeout_s + self.retries * self.longest_wait_s

    def aux(self) -> AuxLM:
        """The auxiliary model behind the endpoint. Raises ConfigError for an address or key that cannot work."""
        limits = AuxLimits(
            self.retries,
            timeout_s=self.timeout_s,
            backoff_s=self.backoff_s,
            longest_wait_s=self.longest_wait_s,
        )
        return AuxLM(self.backend(), limits)

    def backend(self) -> AuxBackend:
        """Raises ConfigError for an address or key that cannot work."""
        config = EndpointConfig(
            self.base_url, self.model, self.api_key_env, self.temperature, self.max_tokens, self.timeout_s
        )
        backend = EndpointBackend(config)
        return StoredBackend(backend, self.cache) if self.cache else backend


class ReaderOptions(EndpointOptions):
    """A model that reads whole episodes (judge, summariser, writer); no environment's deadline waits for it."""

    timeout_s: float = Field(default=120.0, gt=0)
    longest_wait_s: float = Field(default=60.0, ge=0)


class BlockingAux:
    """Owner of the auxiliary model of one endpoint; it starts with the first question."""

    def __init__(self, options: EndpointOptions):
        self.options = options
        self.name = f"{options.base_url} {options.model}"

    def complete(self, role: Role[Answer], payload: Payload) -> Answer | None:
        """As `AuxLM.complete`: a valid record, or None when every attempt failed."""
        return self._background.submit(role, payload).result()

    def close(self) -> None:
        if "_background" in self.__dict__:
            self.__dict__.pop("_background").close()

    @cached_property
    def _background(self) -> Background:
        return Background(self.options.aux())


def connect(options: EndpointOptions) -> BlockingAux:
    """This process's `BlockingAux` of an endpoint: its cache and threads outlive the single episode."""
    return _connected(options.model_dump_json())


@cache
def _connected(options: str) -> BlockingAux:
    return BlockingAux(EndpointOptions.model_validate_json(options))
