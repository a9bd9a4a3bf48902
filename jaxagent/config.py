"""The run file: typed, frozen records, read from YAML with `extends` and dotted overrides.

In: a YAML file (or nothing) and `key.sub=value` strings. Out: a `RunConfig`, or one ConfigError that names the
key, what came and what was expected. Nothing here starts a device; recipes and environments keep the records of
their own options beside their code, and `Record` is the base of all of them.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from jaxagent.errors import ConfigError
from jaxagent.yaml_files import dump_yaml, parse_yaml, read_yaml

R = TypeVar("R", bound="Record")  # `Self` would break the tests: beartype refuses it on single methods


class Record(BaseModel):
    """A frozen configuration record that refuses unknown keys. Build it with `parse`, which raises ConfigError."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls: type[R], values: Mapping[str, Any], where: str = "") -> R:
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError("\n".join(_explain(cls, item, where) for item in _causes(error))) from None


def _causes(error: ValidationError) -> list[Any]:
    """Its items, without those that follow from others: a tuple whose only item is wrong counts as empty too."""
    items = error.errors()
    deep = {item["loc"][:-1] for item in items} | {item["loc"][:-2] for item in items}
    return [item for item in items if item["type"] != "too_short" or item["loc"] not in deep]


def _explain(record: type[BaseModel], item: Any, where: str) -> str:
    """One pydantic error as: key: what came, what was expected, what to do."""
    path = ".".join(str(part) for part in ([where] if where else []) + list(item["loc"]))
    if item["type"] == "extra_forbidden":
        known = _keys_at(record, item["loc"][:-1])
        near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"{path}: unknown key; {hint}"
    if item["type"] == "missing":
        return f"{path}: missing; it has no default, add it to the run file"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return f"{path}: {message}" if path else message
    return f"{path}={item['input']!r}: {message[0].lower()}{message[1:]}"


def _keys_at(record: type[BaseModel], location: Sequence[Any]) -> list[str]:
    """Field names of the record that a pydantic location leads to; list positions are stepped over."""
    for part in location:
        if isinstance(part, int):
            continue
        candidates = [record.model_fields[part].annotation] if part in record.model_fields else []
        for candidate in candidates:
            options = [candidate, *getattr(candidate, "__args__", ())]
            nested = [kind for kind in options if isinstance(kind, type) and issubclass(kind, BaseModel)]
            if nested:
                record = nested[0]
    return list(record.model_fields)


class LoraConfig(Record):
    rank: int = Field(gt=0)
    alpha: float = Field(gt=0)
    targets: tuple[str, ...] = ("q", "k", "v", "o", "gate", "up", "down")


class ModelConfig(Record):
    """`source` is a Hugging Face folder, an hf:// name, or the name of a file in configs/models (random weights)."""

    source: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    remat: Literal["none", "full"] = "none"
    lora: LoraConfig | None = None
    # Train only the last n layers (full fine-tuning); 0 trains everything.
    train_last_layers: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> ModelConfig:
        if self.lora and self.train_last_layers:
            raise ValueError(
                f"lora and train_last_layers={self.train_last_layers} are two ways to train a part of the model; "
                "drop one of them"
            )
        return self


class TokenizerConfig(Record):
    """`source`: a folder or hf:// name, "model" (the model's folder), or "train": a small BPE of demonstrations."""

    source: str = "model"
    vocab_size: int = Field(default=512, ge=300)
    template: str = "qwen3"


class EnvConfig(Record):
    """`workers` are processes that host environments. max_difficulty: train on tasks up to it; 0 is all of them.

    backend: where they run: "processes" on this machine, or "ray" on the cluster at `ray_address` (empty: a Ray of this
    machine's own), each taking `worker_cpus` of it.
    """

    name: str
    options: dict[str, Any] = {}
    workers: int = Field(default=2, ge=1)
    backend: Literal["processes", "ray"] = "processes"
    ray_address: str = ""
    worker_cpus: float = Field(default=1.0, gt=0)
    train_split: str = "train"
    max_difficulty: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _can_run(self) -> EnvConfig:
        if self.backend == "ray" and importlib.util.find_spec("ray") is None:
            raise ValueError(
                "backend=ray needs the package ray, which is not installed: pip install 'jaxagent[ray]'"
            )
        if self.backend != "ray" and (self.ray_address or self.worker_cpus != 1):
            raise ValueError(
                f"ray_address={self.ray_address!r} and worker_cpus={self.worker_cpus:g} are for backend=ray, "
                f"got backend={self.backend}; drop them, or set backend: ray"
            )
        return self


class MeshConfig(Record):
    """Devices per axis; -1 takes what is left. `data` spans slices, `fsdp` shards parameters and rows."""

    data: int = Field(default=1, ge=1)
    fsdp: int = Field(default=-1, ge=-1)
    tensor: int = Field(default=1, ge=1)
    context: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> MeshConfig:
        if self.fsdp == 0:
            raise ValueError("fsdp=0: give the number of devices, or -1 for what the other axes leave")
        return self


class TemperatureConfig(Record):
    """Training rollouts go from rollout.temperature to `end`, linearly over so many iterations of a stage."""

    end: float = Field(ge=0.7, le=1.2)
    iterations: int = Field(ge=1)


class RolloutConfig(Record):
    """Limits of an episode and size of the decoder. `context` and `max_tokens` are in tokens.

    slots: sessions whose KV is kept, and live episodes. cache_buckets: shorter cache lengths that are compiled too.
    query_buckets, prefill_rows: shapes of prefill calls. tokens_per_call: tokens sampled before new requests join.
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
    prefill_rows: int = Field(default=8, ge=1)
    tokens_per_call: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=10_000)
    temperature_schedule: TemperatureConfig | None = None
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_observation_chars: int = Field(default=16_000, ge=16)
    retries: int = Field(default=5, ge=0)
    quorum: float = Field(default=1.0, gt=0, le=1)
    quorum_per_task: int = Field(default=2, ge=2)
    max_lag: int = Field(default=0, ge=0)
    partial: bool = False
    step_seconds: float = Field(default=0.0, ge=0)

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
        if min(self.query_buckets, default=0) < 1:
            raise ValueError(
                f"query_buckets={list(self.query_buckets)}: expected one size or more, each at least 1"
            )
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


class PackConfig(Record):
    """Shape of a training micro-batch: `rows` of `length` tokens, of which `scored` (0: all) may reach the LM head.

    `rows` is rounded up to a multiple of the devices that rows are split over, mesh.data x mesh.fsdp.
    Unused slots are skipped, so a small `scored` saves little; it must hold what an episode can sample.
    """

    rows: int = Field(default=8, ge=1)
    length: int = Field(default=256, ge=8)
    scored: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> PackConfig:
        if self.scored > self.length:
            raise ValueError(
                f"scored={self.scored} tokens cannot come from rows of length={self.length}; lower scored"
            )
        return self

    @property
    def slots(self) -> int:
        """Scored tokens a row can hold."""
        return self.scored or self.length


class EvalConfig(Record):
    """What is measured before, during (`every` iterations, on the first split) and after a run.

    Every task is played greedily and, with `sampled`, once more at temperature 1.
    """

    splits: tuple[str, ...] = ()
    limit: int = Field(default=0, ge=0)  # tasks per split; 0 is all
    sampled: bool = True
    every: int = Field(default=0, ge=0)
    at_start: bool = True
    max_steps: int = Field(default=0, ge=0)  # 0: as in rollout


class CheckpointConfig(Record):
    every: int = Field(default=10, ge=0)  # iterations; 0 saves at stage ends only
    keep: int = Field(default=2, ge=1)


class AlarmThresholds(Record):
    """One number an alarm (monitors/rules.py says of what); `off` or null switches it off.

    length_explosion, turns_explosion, entropy_collapse: multiples of the value at the stage's start. reward_collapse:
    of the best mean return. grad_norm: standard deviations. reward_hacking: evaluations (eval.every) that it takes.
    """

    no_reward: float | None = 0.0
    length_limit: float | None = 0.3
    truncation: float | None = 0.3
    length_explosion: float | None = 2.0
    turns_explosion: float | None = 2.0
    mask_leak: float | None = 0.0
    mask_mismatch: float | None = 1.0
    entropy_collapse: float | None = 0.1
    kl: float | None = 0.1
    reference_kl: float | None = 0.1
    mismatch: float | None = 0.1
    clip: float | None = 0.3
    skipped: float | None = 0.0
    nonfinite: float | None = 0.0
    empty_batch: float | None = 0.0
    equal_rewards: float | None = 0.999
    zero_variance: float | None = 0.7
    singletons: float | None = 0.5
    failed_steps: float | None = 0.9
    tool_collapse: float | None = 0.2
    unknown_tools: float | None = 0.1
    loops: float | None = 3.0
    shaping_share: float | None = 0.5
    judge_gap: float | None = 0.3
    grad_norm: float | None = Field(default=5.0, gt=0)
    reward_hacking: int | None = Field(default=5, ge=3)
    reward_collapse: float | None = Field(default=0.5, gt=0, lt=1)

    @field_validator("*", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        if value is True:
            raise ValueError("an alarm is on by default; give its threshold, or leave it out")
        return None if value is False or value == "off" else value


class RollbackConfig(Record):
    """What changes when a run goes back to its last good checkpoint; with nothing changed it would collapse again.

    limit:         rollbacks in a run; after them a collapse stops it.
    learning_rate: factor on the stage's learning rate, for each rollback in it.
    reseed:        sample the episodes from other random streams. The tasks come in the same order.
    margin:        iterations before the alarm began that are not trusted either.
    """

    limit: int = Field(default=2, ge=1)
    learning_rate: float = Field(default=0.5, gt=0, le=1)
    reseed: bool = True
    margin: int = Field(default=5, ge=0)

    @model_validator(mode="after")
    def _changes(self) -> RollbackConfig:
        if self.learning_rate == 1 and not self.reseed:
            raise ValueError(
                "learning_rate=1 and reseed=false change nothing: the run would collapse again, bit for bit; "
                "lower learning_rate or set reseed: true"
            )
        return self


class AlarmConfig(Record):
    """Alarms are words on the console, in the report and in result.json. `on_collapse`: what else happens when one of
    `collapse` has sounded for `patience` iterations: "stop" ends the run (exit code 5), "rollback" goes back.
    """

    thresholds: AlarmThresholds = AlarmThresholds()
    on_collapse: Literal["warn", "stop", "rollback"] = "warn"
    collapse: tuple[str, ...] = (
        "entropy_collapse",
        "length_explosion",
        "reward_collapse",
        "skipped",
        "nonfinite",
    )
    patience: int = Field(default=3, ge=1)
    rollback: RollbackConfig = RollbackConfig()

    @model_validator(mode="after")
    def _known(self) -> AlarmConfig:
        known = list(AlarmThresholds.model_fields)
        for name in self.collapse:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise ValueError(f"collapse names the alarm {name!r}, which does not exist; {hint}")
            if getattr(self.thresholds, name) is None and self.on_collapse != "warn":
                raise ValueError(
                    f"collapse names the alarm {name!r}, which is off in thresholds; drop it from one of them"
                )
        return self


class StageConfig(Record):
    """One entry of a run: a recipe by name and that recipe's own options. `name` is unique; number-recipe if empty."""

    recipe: str
    name: str = Field(default="", pattern=r"^[\w.-]*$")
    options: dict[str, Any] = {}
    pack: PackConfig | None = None
    evaluate: bool = True  # measure all eval.splits when the stage ends


class RunConfig(Record):
    run_dir: str
    seed: int = Field(default=0, ge=0, lt=2**31)
    model: ModelConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    env: EnvConfig
    mesh: MeshConfig = MeshConfig()
    rollout: RolloutConfig
    pack: PackConfig = PackConfig()
    warm_start: tuple[StageConfig, ...] = ()  # run before `stages`; apart, so that run files can share it
    stages: tuple[StageConfig, ...] = Field(min_length=1)
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    alarms: AlarmConfig = AlarmConfig()
    # Write the rollouts of every n-th iteration to run_dir/rollouts.bin (data/rollout_store.py); 0 keeps none.
    keep_rollouts: int = Field(default=0, ge=0)
    export: bool = True
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()

    @model_validator(mode="after")
    def _can_go_back(self) -> RunConfig:
        if self.alarms.on_collapse == "rollback" and not self.checkpoint.every:
            raise ValueError(
                "alarms.on_collapse=rollback needs checkpoints within a stage to go back to; set checkpoint.every"
            )
        return self

    @model_validator(mode="after")
    def _can_run_ahead(self) -> RunConfig:
        for name, every in (("checkpoint", self.checkpoint.every), ("eval", self.eval.every)):
            if self.rollout.max_lag and every == 1:
                raise ValueError(
                    f"{name}.every=1 leaves nothing to run ahead (rollout.max_lag={self.rollout.max_lag}): nothing may "
                    f"be in flight then; set {name}.every to 2 or more, or max_lag to 0"
                )
        return self

    @property
    def all_stages(self) -> tuple[StageConfig, ...]:
        """Every stage in the order of the run."""
        return self.warm_start + self.stages


def read_run(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run file, its `extends` chain (paths relative to the file) and `a.b=value` overrides (value is YAML)."""
    values = _read_yaml(Path(path), ())
    for override in overrides:
        _set(values, override)
    return RunConfig.parse(values)


def write_run(config: RunConfig, path: Path) -> None:
    path.write_text(dump_yaml(config.model_dump(mode="json")))


def _read_yaml(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    path = path.resolve()
    if path in seen:
        raise ConfigError(f"{path}: `extends` goes round in a circle through {seen[-1]}; remove one of them")
    try:
        values = read_yaml(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such run file; see configs/runs for those that ship") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, got {type(values).__name__}")
    parent = values.pop("extends", None)
    if parent is not None and not isinstance(parent, str):
        raise ConfigError(f"{path}: extends={parent!r}: expected the name of one run file")
    return _merge(_read_yaml(path.parent / parent, (*seen, path)), values) if parent else values


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key; anything else, lists included, is replaced."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _set(values: dict[str, Any], override: str) -> None:
    """Apply `a.b=value`; a number in the path indexes a list (`stages.0.options.iterations=5`)."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(
            f"override {override!r}: expected key=value, for example seed=3 or rollout.max_steps=8"
        )
    try:
        value = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not YAML: {error}") from None
    *parents, last = path.split(".")
    node: Any = values
    for part in parents:
        node = _child(node, part, override)
    if isinstance(node, list):
        _child(node, last, override)
        node[int(last)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise ConfigError(f"override {override!r}: {'.'.join(parents)} is not a mapping")


def _child(node: Any, part: str, override: str) -> Any:
    if isinstance(node, list):
        if not (part.isascii() and part.isdigit()) or int(part) >= len(node):
            raise ConfigError(f"override {override!r}: {part!r} is not an index below {len(node)}")
        return node[int(part)]
    if not isinstance(node, dict):
        raise ConfigError(f"override {override!r}: there is nothing below {part!r} to set")
    if node.get(part) is None:
        node[part] = {}
    return node[part]
