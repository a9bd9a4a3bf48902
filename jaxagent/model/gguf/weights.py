"""llama-architecture GGUF -> Hugging Face's config.json and tensor names. Pure functions of a `GGUF`.

llama.cpp rotates neighbouring pairs of a head (0,1), (2,3), ...; Hugging Face rotates halves (i, i + H/2).
Converters therefore permute the rows of q and k on the way in; `unpermute` takes that back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxagent.errors import DataError
from jaxagent.model.gguf.reading import GGUF

TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def unpermute(weight_OD: Float[np.ndarray, "O D"], heads: int) -> Float[np.ndarray, "O D"]:
    """Rows of each head from llama.cpp's pair order to halves: 0 1 2 3 4 5 -> 0 2 4 1 3 5."""
    rows, columns = weight_OD.shape
    return weight_OD.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def hf_config(source: GGUF) -> dict[str, Any]:
    """config.json of `LlamaForCausalLM`. Raises DataError on what this layout cannot express."""
    arch = source.get("general.architecture")
    if arch != "llama":
        raise DataError(
            f"{source.path}: architecture {arch!r}; only 'llama' GGUF files are converted, "
            "take the model's Hugging Face folder instead"
        )
    scaling = source.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in source.tensors:
        raise DataError(
            f"{source.path}: rotary scaling ({scaling}) is not converted; take the Hugging Face folder"
        )
    if source.metadata.get("llama.expert_count", 0):
        raise DataError(f"{source.path}: a mixture of experts is not converted; take the Hugging Face folder")
    width, heads = source.get("llama.embedding_length"), source.get("llama.attention.head_count")
    head_dim = source.metadata.get("llama.attention.key_length", width // heads)
    if source.metadata.get("llama.rope.dimension_count", head_dim) != head_dim:
        raise DataError(f"{source.path}: rotary embedding on a part of each head is not converted")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": source.get("llama.feed_forward_length"),
        "num_hidden_layers": source.get("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": source.metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": len(source.get("tokenizer.ggml.tokens")),
        "max_position_embeddings": source.get("llama.context_length"),
        "rms_norm_eps": _shortest(source.get("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(source.metadata.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": source.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": source.metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": source.metadata.get("tokenizer.ggml.padding_token_id"),
    }


def _shortest(value: float) -> float:
    """A float32 of the file as the decimal that was meant: 9.99999974e-06 -> 1e-05."""
    return float(str(np.float32(value)))


def expected_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """GGUF name -> shape of every tensor that the model consists of."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    query, key = (
        config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads")
    )
    layer = {
        "attn_norm": (width,),
        "attn_q": (query, width),
        "attn_k": (key, width),
        "attn_v": (key, width),
        "attn_output": (width, query),
        "ffn_norm": (width,),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config["vocab_size"], width),
        "output_norm.weight": (width,),
    }
    if not config["tie_word_embeddings"]:
        shapes["output.weight"] = (config["vocab_size"], width)
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"blk.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def hf_tensors(source: GGUF, config: dict[str, Any]) -> Iterator[tuple[str, Float[np.ndarray, "..."]]]:
    """Every weight under its Hugging Face name, float32, one at a time; missing or unknown tensors raise."""
    shapes = expected_shapes(config)
    missing, unknown = shapes.keys() - source.tensors.keys(), source.tensors.keys() - shapes.keys()
    if missing or unknown:
        raise DataError(
            f"{source.path}: tensors missing {sorted(missing)[:5]}, unknown {sorted(unknown)[:5]}; "
            "only plain llama layers (no biases, no experts) are converted"
        )
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, shape in shapes.items():
        stored = source.tensors[name]
        if stored.shape != shape:
            raise DataError(f"{source.path}: {name} is {stored.shape}, its metadata say {shape}")
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
        if match is None:
            yield TOP[name], stored.array()
            continue
        index, part = match.groups()
        array = unpermute(stored.array(), heads[part]) if part in heads else stored.array()
        yield f"model.layers.{index}.{LAYER[part]}.weight", array
