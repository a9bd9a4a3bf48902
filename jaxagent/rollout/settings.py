"""Limits of an episode, size of the decoder, and what may be in flight: the section `rollout` of a run file."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from jaxagent.records import Record


class TemperatureConfig(Record):
    """Training rollouts go from rollout.temperature to `end`, linearly over so many iterations of a stage."""

    end: float = Field(ge=0.7, le=1.2)
    iterations: int = Field(ge=1)


class RolloutConfig(Record):
    """Limits of an episode and size of the decoder. `context` and `max_tokens` are in tokens.

    tool_epsilon: probability that a message of a training rollout begins with a tool drawn uniformly; 0 is off.
    slots: sessions whose KV is kept, and live episodes. cache_buckets: shorter cache lengths that are compiled too.
    query_buckets, prefill_rows: shapes of prefill calls; one is compiled for every pair. decode_rows: sizes of decode
                   calls besides `slots`, for when few sessions are at work. tokens_per_call: tokens sampled before
                   new requests join.
    retries: of an episode whose environment failed. step_seconds: deadline of one action; 0 is the environment's own.
    quorum: share of an iteration's episodes that must end, `quorum_per_task` of every task among them (one rollout has
            no baseline); the rest is cut and dropped.
    max_lag: updates that may lie between sampling and learning; the next iteration's episodes are then played during
             an update. 0 runs in step.   partial: episodes beyond the quorum are not cut, their groups go on into the
             next iteration and are learnt from there, whole; it takes one of max_lag's updates.
    """

    max_steps: int = Field(ge=1)
    max_tokens: int = Field(ge=1)
    context: int = Field(ge=8)
    slots: int = Field(default=32, ge=1)
    cache_buckets: tuple[int, ...] = ()
    query_buckets: tuple[int, ...] = (32, 128)
    prefill_rows: tuple[int, ...] = (8,)
    decode_rows: tuple[int, ...] = (8,)
    tokens_per_call: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=10_000)
    temperature_schedule: TemperatureConfig | None = None
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    tool_epsilon: float = Field(default=0.0, ge=0, le=1)
    max_observation_chars: int = Field(default=16_000, ge=16)
    retries: int = Field(default=5, ge=0)
    quorum: float = Field(default=1.0, gt=0, le=1)
    quorum_per_task: int = Field(default=2, ge=2)
    max_lag: int = Field(default=0, ge=0)
    partial: bool = False
    step_seconds: float = Field(default=0.0, ge=0)

    @field_validator("cache_buckets", "query_buckets", "prefill_rows", "decode_rows", mode="before")
    @classmethod
    def _one_size(cls, value: Any) -> Any:
        """One size may stand without brackets, as it does in run folders from before there could be several."""
        return (value,) if type(value) is int else value

    @property
    def heating(self) -> str:
        """The temperature schedule in words; empty without one."""
        if (schedule := self.temperature_schedule) is None:
            return ""
        return f"{self.temperature:g} to {schedule.end:g} over {schedule.iterations} iterations"

    @model_validator(mode="after")
    def _fits(self) -> RolloutConfig:
        if self.max_tokens >= self.context:
            raise ValueError(
                f"max_tokens={self.max_tokens} leaves no room for a prompt in context={self.context}; "
                "lower max_tokens or raise context"
            )
        if not all(1 <= length <= self.context for length in self.cache_buckets):
            raise ValueError(
                f"cache_buckets={list(self.cache_buckets)}: expected sizes from 1 to context={self.context}"
            )
        for name in ("query_buckets", "prefill_rows", "decode_rows"):
            sizes = getattr(self, name)
            if min(sizes, default=0) < 1:
                raise ValueError(f"{name}={list(sizes)}: expected one size or more, each at least 1")
        if self.partial and (self.quorum == 1 or self.max_lag not in (1, 2)):
            raise ValueError(
                f"partial needs a quorum below 1 (got {self.quorum:g}) and max_lag 1, or 2 to play ahead as well (got "
                f"{self.max_lag})"
            )
        if self.quorum == 1 and self.quorum_per_task != 2:
            raise ValueError(
                f"quorum_per_task={self.quorum_per_task} is read only with quorum below 1; LOOP's are 4 and 0.9"
            )
        if 0 < self.temperature < 1e-3:
            raise ValueError(f"temperature={self.temperature} is neither greedy (0) nor at least 0.001")
        if self.temperature_schedule is not None and not 0.7 <= self.temperature <= 1.2:
            raise ValueError(
                f"temperature={self.temperature} with a temperature_schedule: a schedule stays within 0.7 and 1.2"
            )
        return self
