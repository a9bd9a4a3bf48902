"""Hugging Face folders -> parameters, tensor by tensor, each device reading only its own part.

In: a local folder with config.json and safetensors files (one, or sharded with an index), or
`hf://name[@revision]`. Out: (ModelSpec, params). A tensor that is missing, left over or of another shape is a
DataError that names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike
from safetensors import safe_open

from jaxagent.errors import DataError
from jaxagent.model.params import flat, map_named, shardings
from jaxagent.model.spec import ModelSpec
from jaxagent.model.transformer import abstract

FLOATS = ("F32", "F16", "BF16")
MODULES = {  # leaf of `layers` -> Hugging Face module; matrices are transposed to [in, out]
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "router": "mlp.gate",
}
TOP = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
BUFFERS = ("rotary_emb.inv_freq",)  # recomputed from the config; old files carry them


@dataclass(frozen=True)
class Piece:
    """One Hugging Face tensor and where it lies: params[leaf][index], transposed if it is a matrix of a layer."""

    name: str
    leaf: str
    index: tuple[int, ...]
    shape: tuple[int, ...]  # on the Hugging Face side
    transposed: bool


def pieces(spec: ModelSpec, shapes: dict[str, tuple[int, ...]]) -> Iterator[Piece]:
    """Every tensor of a checkpoint, leaf by leaf. `shapes`: leaf name -> shape of the stacked parameter."""
    for leaf, shape in shapes.items():
        if leaf in TOP:
            yield Piece(TOP[leaf], leaf, (), shape, False)
            continue
        name = leaf.removeprefix("layers/")
        bias = name.endswith("_bias")
        module = MODULES[name.removesuffix("_bias")]
        inner = shape[1:]
        for layer in range(shape[0]):
            prefix = f"model.layers.{layer}.{module}"
            if len(inner) == 3:
                for expert in range(inner[0]):
                    full = prefix.replace("mlp.", f"mlp.experts.{expert}.")
                    yield Piece(f"{full}.weight", leaf, (layer, expert), inner[:0:-1], True)
            elif len(inner) == 2:
                yield Piece(f"{prefix}.weight", leaf, (layer,), inner[::-1], True)
            else:
                yield Piece(f"{prefix}.{'bias' if bias else 'weight'}", leaf, (layer,), inner, False)


def resolve(path: str | Path) -> Path:
    """The local folder of a path or of an `hf://owner/name[@revision]`, which is downloaded if need be."""
    text = str(path)
    if text.startswith("hf://"):
        from huggingface_hub import snapshot_download

        name, _, revision = text.removeprefix("hf://").partition("@")
        patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
        try:
            return Path(snapshot_download(name, revision=revision or None, allow_patterns=patterns))
        except Exception as error:
            raise DataError(f"cannot download {text}: {error}") from error
    folder = Path(text)
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} has no config.json; expected a model folder or hf://owner/name")
    return folder


def read_spec(path: str | Path) -> ModelSpec:
    """ModelSpec of a folder's config.json."""
    file = resolve(path) / "config.json"
    try:
        config = json.loads(file.read_text())
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise DataError(f"{file} holds {type(config).__name__}, expected the object of a model's settings")
    return ModelSpec.from_hf(config)


def check_weights(path: str | Path, spec: ModelSpec) -> None:
    """That the folder holds the tensors of `spec`: names, shapes and dtypes, from the files' headers alone."""
    folder = resolve(path)
    _, template = abstract(spec)
    shapes = {name: tuple(leaf.shape) for name, leaf in flat(template).items()}
    with ExitStack() as stack:
        _check(spec, _open(folder, stack), list(pieces(spec, shapes)), folder)


def check_tokenizer(spec: ModelSpec, size: int) -> None:
    """A tokenizer may be smaller than the model's (padded) vocabulary, never larger."""
    if size > spec.vocab:
        raise DataError(
            f"the tokenizer has {size} tokens, the model's embedding {spec.vocab}: ids from {spec.vocab} on "
            "have no row; use the tokenizer of this model"
        )


def load_hf(
    path: str | Path,
    *,
    spec: ModelSpec | None = None,
    param_dtype: DTypeLike = jnp.float32,
    mesh: Mesh | None = None,
) -> tuple[ModelSpec, nnx.State]:
    """(spec, params) of a checkpoint; params fit `transformer.abstract(spec, …)`'s graphdef. `spec` overrides
    config.json. Under a mesh every leaf is built shard by shard, so a host never holds a whole large leaf."""
    folder = resolve(path)
    spec = spec or read_spec(folder)
    _, template = abstract(spec, param_dtype=param_dtype)
    places = flat(shardings(template, mesh)) if mesh else {}
    shapes = {name: tuple(leaf.shape) for name, leaf in flat(template).items()}
    wanted = list(pieces(spec, shapes))
    with ExitStack() as stack:
        tensors = _open(folder, stack)
        _check(spec, tensors, wanted, folder)

        def load(leaf: str, like: jax.ShapeDtypeStruct) -> jax.Array:
            parts = {piece.index: piece for piece in wanted if piece.leaf == leaf}

            def read(window: tuple[slice, ...] | None) -> np.ndarray:
                return _read(tensors, parts, window or (slice(None),) * len(like.shape), like)

            if mesh is None:
                return jnp.asarray(read(None))
            return jax.make_array_from_callback(like.shape, places[leaf], read)

        return spec, map_named(load, template)


def _open(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Tensor name -> slice of an open safetensors file."""
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            named = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{index} has no readable weight_map ({error!r}); download it again") from error
        missing = [name for name in named if not (folder / name).is_file()]
        if missing:
            raise DataError(f"{folder} lacks {', '.join(missing)}, which its index names; download it again")
        files = [folder / name for name in named]
    if not files:
        raise DataError(f"{folder} holds no *.safetensors; convert the checkpoint to safetensors first")
    tensors: dict[str, Any] = {}
    for file in files:
        try:
            handle = stack.enter_context(safe_open(file, framework="numpy"))
        except Exception as error:
            raise DataError(f"{file} is no readable safetensors file ({error}); download it again") from error
        tensors |= {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (no mapping)
    return tensors


def _check(spec: ModelSpec, tensors: dict[str, Any], wanted: list[Piece], folder: Path) -> None:
    """Names, shapes and dtypes, before a byte is read."""
    for piece in wanted:
        found = tensors.get(piece.name)
        if found is None:
            hint = " (config.json says tie_word_embeddings=false)" if piece.leaf == "head" else ""
            raise DataError(f"{folder}: tensor {piece.name} of shape {piece.shape} is missing{hint}")
        shape = tuple(found.get_shape())
        if shape != piece.shape:
            raise DataError(
                f"{folder}: tensor {piece.name} has shape {shape}, config.json asks for {piece.shape}"
            )
        if found.get_dtype() not in FLOATS:
            raise DataError(
                f"{folder}: tensor {piece.name} is {found.get_dtype()}, expected one of {', '.join(FLOATS)}; "
                "dequantise the checkpoint first"
            )
    extra = set(tensors) - {piece.name for piece in wanted}
    extra = {name for name in extra if not name.endswith(BUFFERS)}
    if spec.tied and TOP["head"] in extra:
        # Some tied checkpoints repeat the embedding as the head; a head that differs would be lost.
        if not np.array_equal(tensors[TOP["head"]][:], tensors[TOP["embed"]][:]):
            raise DataError(
                f"{folder}: lm_head.weight is not the embedding although tie_word_embeddings=true"
            )
        extra.remove(TOP["head"])
    if extra:
        some = ", ".join(sorted(extra)[:3])
        raise DataError(f"{folder}: {len(extra)} tensors have no place in a {spec.family} model: {some}")


def _read(
    tensors: dict[str, Any], parts: dict[tuple[int, ...], Piece], window: tuple[slice, ...], like: Any
) -> np.ndarray:
    """The part `window` of a stacked parameter."""
    depth = len(next(iter(parts)))
    ranges = [range(*part.indices(size)) for part, size in zip(window, like.shape)]
    out = np.empty([len(r) for r in ranges], like.dtype)
    for index, piece in parts.items():
        if any(i not in r for i, r in zip(index, ranges)):
            continue
        inner = window[depth:][::-1] if piece.transposed else window[depth:]
        value = tensors[piece.name][inner]
        at = tuple(i - r.start for i, r in zip(index, ranges))
        out[at] = (value.T if piece.transposed else value).astype(like.dtype)
    return out
