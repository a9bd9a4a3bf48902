"""What a model is: sizes and switches, frozen and hashable; read from and written to Hugging Face's config.json.

Covers the decoders of Qwen2/2.5, Qwen3, Qwen3-MoE and Llama. What the model code cannot do exactly (sliding windows,
other rotary scalings, other activations, …) is refused here, by name, before anything is loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from jaxagent.errors import ConfigError
from jaxagent.yaml_files import read_yaml

Family = Literal["qwen2", "qwen3", "qwen3_moe", "llama"]
RopeKind = Literal["default", "linear", "llama3", "yarn"]

ARCHITECTURES: Mapping[str, str] = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "llama": "LlamaForCausalLM",
}
LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name}={value!r} is unknown; known: {', '.join(known)}")


WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
KINDS = {"int": int, "float": (int, float), "bool": bool}


def check_types(cls: type, fields: Mapping[str, Any], where: str) -> None:
    """Refuse text, null or a fraction where a size stands, by name: a dataclass takes whatever comes."""
    for field in dataclasses.fields(cls):
        if field.name not in fields or field.type not in KINDS:
            continue
        value, kind = fields[field.name], str(field.type)
        odd = isinstance(value, bool) != (kind == "bool") or value != value
        if odd or not isinstance(value, KINDS[kind]):
            raise ConfigError(f"{where}.{field.name}={value!r}: expected {WORDS[kind]}")


@dataclass(frozen=True)
class Rope:
    """Rotary embedding, rotate-half form. `factor` and what follows belong to the scalings that name them.

    linear: frequencies / factor.   llama3: low, high, original.   yarn: beta_fast, beta_slow, original,
    attention_factor (0 means 0.1 ln(factor) + 1), truncate.
    """

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 0.0
    truncate: bool = True

    def __post_init__(self) -> None:
        _one_of("rope.kind", self.kind, get_args(RopeKind))
        if self.kind in ("llama3", "yarn") and self.original < 1:
            raise ConfigError(f"rope kind {self.kind!r} needs `original`, the context length of pre-training")
        if self.theta <= 0:
            raise ConfigError(f"rope.theta={self.theta} must be above 0")
        if self.kind != "default" and self.factor <= 0:
            raise ConfigError(f"rope.factor={self.factor} must be above 0")


@dataclass(frozen=True)
class LoraSpec:
    """Low-rank adapters W + (alpha / rank) A B on `targets`, in every layer."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = LORA_TARGETS

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"lora.rank={self.rank} must be at least 1")
        if not self.targets:
            raise ConfigError("lora.targets is empty: no weight would be trained")
        for target in self.targets:
            _one_of("lora.targets", target, LORA_TARGETS)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True)
class CriticSpec:
    """A value head (critic.py).

    hidden: widths of its hidden layers. detach: it learns from the trunk and never changes it.
    """

    hidden: tuple[int, ...] = ()
    detach: bool = False

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.hidden):
            raise ConfigError(f"critic.hidden={list(self.hidden)}: every layer needs a width of at least 1")


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer. `mlp` is the hidden width of the (per-expert, if experts > 0) MLP.

    qkv_bias, o_bias: biases of the attention projections.   qk_norm: RMS norm of each query and key head.
    tied: the LM head is the embedding matrix.   norm_topk: expert weights of a token sum to 1.
    bos, eos, pad: token ids carried through to an export; the model itself does not use them.
    """

    family: Family
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    tied: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    norm_eps: float = 1e-6
    rope: Rope = Rope()
    max_positions: int = 32_768
    experts: int = 0
    experts_per_token: int = 0
    norm_topk: bool = False
    init_std: float = 0.02
    bos: int | None = None
    eos: tuple[int, ...] = ()
    pad: int | None = None

    def __post_init__(self) -> None:
        _one_of("model.family", self.family, get_args(Family))
        for name in ("vocab", "width", "layers", "heads", "kv_heads", "head_dim", "mlp"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name}={getattr(self, name)} must be at least 1")
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"model.heads={self.heads} is not a multiple of model.kv_heads={self.kv_heads}; "
                "every key/value head serves the same number of query heads"
            )
        if self.head_dim % 2:
            raise ConfigError(f"model.head_dim={self.head_dim} must be even: rotary embedding turns pairs")
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ConfigError(
                f"model.experts_per_token={self.experts_per_token} must lie in 1..experts={self.experts}"
            )
        if bool(self.experts) != (self.family == "qwen3_moe"):
            raise ConfigError(
                f"model.family={self.family!r} with experts={self.experts}: only qwen3_moe has experts"
            )
        self._check_switches()

    def _check_switches(self) -> None:
        """Refuse switches that the family's Hugging Face class does not have, since an export would lose them."""
        if self.qk_norm != (self.family in ("qwen3", "qwen3_moe")):
            raise ConfigError(f"model.qk_norm={self.qk_norm} does not exist in family {self.family!r}")
        if self.family == "qwen2" and (self.o_bias or not self.qkv_bias):
            raise ConfigError(
                "family 'qwen2' has qkv_bias and no o_bias; use family 'llama' for other biases"
            )
        if self.family != "qwen2" and self.qkv_bias != self.o_bias:
            raise ConfigError(f"family {self.family!r} has all four attention biases or none")

    @property
    def rank_of_heads(self) -> tuple[int, int]:
        """(flat width of all query heads, of all key/value heads)."""
        return self.heads * self.head_dim, self.kv_heads * self.head_dim

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelSpec:
        """From the contents of a config.json; refuses what this code would compute differently."""
        from jaxagent.model.hf_config import read_config

        return read_config(config)

    def to_hf(self) -> dict[str, Any]:
        """The config.json that transformers reads (without `dtype`, which the exporter adds)."""
        from jaxagent.model.hf_config import write_config

        return write_config(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ModelSpec:
        """From plain fields, as in configs/models/*.yaml; `rope` is a nested mapping."""
        checked = dict(_known(cls, fields, "model"))
        if "rope" in checked:
            if not isinstance(checked["rope"], Mapping):
                raise ConfigError(
                    f"model.rope={checked['rope']!r}: expected a mapping such as {{theta: 10000.0}}"
                )
            checked["rope"] = Rope(**_known(Rope, checked["rope"], "model.rope"))
        if isinstance(checked.get("eos"), list):
            checked["eos"] = tuple(checked["eos"])
        return cls(**checked)

    @classmethod
    def from_file(cls, path: str | Path) -> ModelSpec:
        """From a YAML file of fields, or a Hugging Face config.json."""
        path = Path(path)
        if not path.is_file():
            raise ConfigError(
                f"model file {path} does not exist; expected a YAML of model fields or a config.json"
            )
        fields = read_yaml(path)
        if not isinstance(fields, Mapping):
            raise ConfigError(
                f"model file {path} holds {type(fields).__name__}, expected a mapping of fields"
            )
        return cls.from_hf(fields) if "model_type" in fields else cls.from_fields(fields)


def _known(cls: type, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """`fields` if every key is a field of `cls` and every field without a default is there."""
    names = [field.name for field in dataclasses.fields(cls)]
    for key in fields:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
            raise ConfigError(f"{where} has no field {key!r}{hint}")
    required = [field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING]
    missing = [name for name in required if name not in fields]
    if missing:
        raise ConfigError(f"{where} lacks {', '.join(missing)}")
    check_types(cls, fields, where)
    return fields
