"""config.json of Hugging Face <-> ModelSpec. Knows the spelling of transformers 4 and 5; loads no weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args

from jaxagent.errors import ConfigError
from jaxagent.model.spec import ARCHITECTURES, Family, ModelSpec, Rope, check_types

QK_NORM = ("qwen3", "qwen3_moe")


def read_config(config: Mapping[str, Any]) -> ModelSpec:
    """ModelSpec of a config.json. Raises ConfigError for every setting that would change the computation."""
    family = config.get("model_type")
    if not isinstance(family, str) or family not in get_args(Family):
        raise ConfigError(f"model_type={family!r} is not supported; supported: {', '.join(get_args(Family))}")
    _refuse(config, family)
    try:
        width, heads = config["hidden_size"], config["num_attention_heads"]
        moe = family == "qwen3_moe"
        sizes = {
            "vocab": config["vocab_size"],
            "width": width,
            "layers": config["num_hidden_layers"],
            "heads": heads,
            "kv_heads": config.get("num_key_value_heads") or heads,
            "head_dim": config.get("head_dim") or (128 if family == "qwen3" else width // heads),
            "mlp": config["moe_intermediate_size" if moe else "intermediate_size"],
            "experts": _experts(config) if moe else 0,
            "experts_per_token": config["num_experts_per_tok"] if moe else 0,
        }
        rope = _read_rope(config)
    except KeyError as missing:
        raise ConfigError(f"config.json of a {family} model lacks {missing}; is the file complete?") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"config.json of a {family} model: a value is no usable number ({error})") from None
    bias = bool(config.get("attention_bias", False))
    eos = config.get("eos_token_id")
    fields = {
        **sizes,
        "family": cast(Family, family),
        "tied": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": family == "qwen2" or bias,
        "o_bias": family != "qwen2" and bias,
        "qk_norm": family in QK_NORM,
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "rope": rope,
        "max_positions": config.get("max_position_embeddings", 32_768),
        "norm_topk": bool(config.get("norm_topk_prob", False)),
        "init_std": config.get("initializer_range", 0.02),
        "bos": config.get("bos_token_id"),
        "eos": tuple(eos) if isinstance(eos, list | tuple) else () if eos is None else (eos,),
        "pad": config.get("pad_token_id"),
    }
    check_types(ModelSpec, fields, "config.json: model")
    return ModelSpec(**fields)


def write_config(spec: ModelSpec) -> dict[str, Any]:
    """config.json with the rotary settings in both spellings: transformers 4 and 5 read the same model."""
    rope = _write_rope(spec.rope)
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[spec.family]],
        "model_type": spec.family,
        "vocab_size": spec.vocab,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.mlp,
        "hidden_act": "silu",
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied,
        "max_position_embeddings": spec.max_positions,
        "initializer_range": spec.init_std,
        "rope_theta": spec.rope.theta,
        "rope_parameters": rope,
        "bos_token_id": spec.bos,
        "eos_token_id": list(spec.eos) if len(spec.eos) > 1 else (spec.eos[0] if spec.eos else None),
        "pad_token_id": spec.pad,
    }
    if spec.rope.kind != "default":
        config["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    if spec.family == "qwen2":
        config["use_sliding_window"] = False
    else:
        config["attention_bias"] = spec.qkv_bias
    if spec.experts:
        config |= {
            "num_experts": spec.experts,
            "num_experts_per_tok": spec.experts_per_token,
            "moe_intermediate_size": spec.mlp,
            "norm_topk_prob": spec.norm_topk,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return config


def _experts(config: Mapping[str, Any]) -> int:
    """Transformers 5 may spell num_experts as num_local_experts."""
    return config["num_experts"] if "num_experts" in config else config["num_local_experts"]


def _refuse(config: Mapping[str, Any], family: str) -> None:
    """Settings with one supported value: anything else would be silently wrong."""
    layer_types = config.get("layer_types") or []
    wrong = {
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "use_sliding_window": bool(config.get("use_sliding_window", False)),
        "layer_types": any(kind != "full_attention" for kind in layer_types),
        "mlp_bias": bool(config.get("mlp_bias", False)),
        "quantization_config": config.get("quantization_config") is not None,
        "partial_rotary_factor": config.get("partial_rotary_factor") not in (None, 1, 1.0),
        "decoder_sparse_step": config.get("decoder_sparse_step", 1) != 1,
        "mlp_only_layers": bool(config.get("mlp_only_layers")),
    }
    for key, refused in wrong.items():
        if refused:
            raise ConfigError(
                f"config.json of a {family} model sets {key}={config.get(key)!r}, which is not supported; "
                "supported: silu, full attention in every layer, no MLP bias, unquantised, full rotary, "
                "experts in every layer or in none"
            )


def _read_rope(config: Mapping[str, Any]) -> Rope:
    """Rotary settings from `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (4)."""
    kind, given = _rope_settings(config)
    theta = float(given.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    longest = config.get("max_position_embeddings", 0)
    original = (
        config.get("original_max_position_embeddings")
        or given.get("original_max_position_embeddings")
        or longest
    )
    if kind == "default":
        return Rope(theta=theta)
    factor = given.get("factor") or (longest / original if kind == "yarn" else None)
    if factor is None:
        raise ConfigError(f"rotary scaling {kind!r} lacks its factor; got {given}")
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=float(factor))
    if kind == "llama3":
        return Rope(
            theta=theta,
            kind="llama3",
            factor=float(factor),
            original=original,
            low=float(given.get("low_freq_factor", 1.0)),
            high=float(given.get("high_freq_factor", 4.0)),
        )
    return Rope(
        theta=theta,
        kind="yarn",
        factor=float(factor),
        original=original,
        beta_fast=float(given.get("beta_fast") or 32.0),
        beta_slow=float(given.get("beta_slow") or 1.0),
        attention_factor=float(given.get("attention_factor") or 0.0),
        truncate=bool(given.get("truncate", True)),
    )


def _rope_settings(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(kind, what is given for it), if the model code can do it exactly."""
    given: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        settings = config.get(key) or {}
        if not isinstance(settings, Mapping):
            raise ConfigError(f"config.json: {key}={settings!r}, expected an object of rotary settings")
        given |= settings
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise ConfigError(
            f"rotary scaling {kind!r} is not supported; supported: default, linear, llama3, yarn. "
            "Scalings that depend on the length of the input would change log-probs within an episode"
        )
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(
            f"partial_rotary_factor={given['partial_rotary_factor']} is not supported (only 1.0)"
        )
    if kind == "yarn" and given.get("mscale") and given.get("mscale_all_dim"):
        raise ConfigError(
            "yarn with mscale and mscale_all_dim is not supported; give attention_factor instead"
        )
    return kind, given


def _write_rope(rope: Rope) -> dict[str, Any]:
    out: dict[str, Any] = {"rope_type": rope.kind, "rope_theta": rope.theta}
    if rope.kind != "default":
        out["factor"] = rope.factor
    if rope.kind in ("llama3", "yarn"):
        out["original_max_position_embeddings"] = rope.original
    if rope.kind == "llama3":
        out |= {"low_freq_factor": rope.low, "high_freq_factor": rope.high}
    if rope.kind == "yarn":
        out |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        if rope.attention_factor:
            out["attention_factor"] = rope.attention_factor
    return out
