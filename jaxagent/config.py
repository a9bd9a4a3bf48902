"""The records of a run file, typed and frozen. Starts no device.

Alarms, rollouts, recipes and environments keep the records of their options beside their code; `Record` (records.py) is
the base of all of them. Reading a run file, with `extends` and overrides, is run_file.py's job.
"""

from __future__ import annotations

import importlib.util
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from jaxagent.monitors.settings import AlarmConfig
from jaxagent.records import Record
from jaxagent.rollout.settings import RolloutConfig


class LoraConfig(Record):
    rank: int = Field(gt=0)
    alpha: float = Field(gt=0)
    targets: tuple[str, ...] = ("q", "k", "v", "o", "gate", "up", "down")


class CriticConfig(Record):
    """The value head: widths of its hidden layers (ReLU); detach: it learns from the trunk and never changes it."""

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = ()
    detach: bool = False


class ModelConfig(Record):
    """`source` is a Hugging Face folder, an hf:// name, or the name of a file in configs/models (random weights).

    critic: shape of the value head, for runs with a stage that needs one.
    """

    source: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    remat: Literal["none", "full"] = "none"
    lora: LoraConfig | None = None
    # Train only the last n layers (full fine-tuning); 0 trains everything.
    train_last_layers: int = Field(default=0, ge=0)
    critic: CriticConfig | None = None

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
    options: dict[str, Any] = Field(default={})
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


class StageConfig(Record):
    """One entry of a run: a recipe by name and that recipe's own options. `name` is unique; number-recipe if empty."""

    recipe: str
    name: str = Field(default="", pattern=r"^[\w.-]*$")
    options: dict[str, Any] = Field(default={})
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
