"""Parameters -> a Hugging Face folder that transformers (or peft) loads to the same logits.

`export_model` writes the whole model, adapters merged and a value head left out; `export_adapter` writes adapters
only, in PEFT's layout. Files appear under their final name only when complete. Tensors keep their stored dtype unless
another is asked for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from jaxagent.errors import ConfigError, DataError, DivergenceError
from jaxagent.model.critic import without_critic
from jaxagent.model.hf import MODULES, pieces
from jaxagent.model.lora import merge_lora
from jaxagent.model.params import flat
from jaxagent.model.spec import LoraSpec, ModelSpec
from jaxagent.model.tensor_files import write_tensors

NAMES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


def export_model(
    folder: str | Path,
    graphdef: nnx.GraphDef,
    params: Any,
    *,
    dtype: str | None = None,
    tokenizer: str | Path | None = None,
    shard_bytes: int = 5_000_000_000,
) -> Path:
    """Write config.json, safetensors (sharded above `shard_bytes`) and the tokenizer files of folder `tokenizer`."""
    graphdef, params = without_critic(*merge_lora(graphdef, params))
    spec: ModelSpec = nnx.merge(graphdef, params).spec
    leaves = flat(params)
    kept = np.dtype(dtype or leaves["embed"].dtype) if dtype != "bfloat16" else _bfloat16()
    if kept.name not in NAMES:
        raise ConfigError(f"export dtype {kept.name!r}; known: {', '.join(NAMES)}")
    with _Folder(folder) as partial:
        _write_shards(partial, _tensors(spec, leaves, kept), shard_bytes)
        config = {**spec.to_hf(), "dtype": kept.name, "torch_dtype": kept.name}
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        if tokenizer is not None:
            copy_tokenizer(tokenizer, partial)
    return Path(folder)


def export_adapter(
    folder: str | Path, graphdef: nnx.GraphDef, params: Any, *, base: str, tokenizer: str | Path | None = None
) -> Path:
    """Write adapter_config.json and adapter_model.safetensors; `base` is the model they were trained on."""
    model = nnx.merge(graphdef, params)
    lora: LoraSpec | None = model.lora_spec
    if lora is None:
        raise ConfigError("this model has no adapters; export it merged (the default --form)")
    tensors = {}
    for name, leaf in flat(params).items():
        if not name.startswith("lora/"):
            continue
        target, side = name.removeprefix("lora/").rsplit("_", 1)
        for layer, value in enumerate(np.asarray(leaf)):
            key = f"base_model.model.model.layers.{layer}.{MODULES[target]}.lora_{side.upper()}.weight"
            tensors[key] = np.ascontiguousarray(value.T)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": [MODULES[target].rsplit(".", 1)[1] for target in lora.targets],
    }
    with _Folder(folder) as partial:
        write_tensors(tensors, partial / "adapter_model.safetensors")
        (partial / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
        if tokenizer is not None:
            copy_tokenizer(tokenizer, partial)
    return Path(folder)


def copy_tokenizer(source: str | Path, folder: Path) -> None:
    """Copy what a tokenizer folder has of the known files; at least one of them must be there."""
    found = [Path(source) / name for name in TOKENIZER_FILES if (Path(source) / name).is_file()]
    if not any(file.name.startswith(("tokenizer.", "vocab.")) for file in found):
        raise DataError(f"{source} holds no tokenizer (tokenizer.json, tokenizer.model or vocab.json)")
    for file in found:
        shutil.copyfile(file, folder / file.name)


def _bfloat16() -> np.dtype:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _tensors(spec: ModelSpec, leaves: Mapping[str, Any], dtype: np.dtype) -> Iterator[tuple[str, np.ndarray]]:
    """(Hugging Face name, array), one stacked leaf on the host at a time. A tied head is not written."""
    shapes = {name: tuple(leaf.shape) for name, leaf in leaves.items()}
    host: tuple[str, np.ndarray] | None = None
    for piece in pieces(spec, shapes):
        if host is None or host[0] != piece.leaf:
            host = (piece.leaf, np.asarray(leaves[piece.leaf]))
        value = host[1][piece.index]
        if not np.isfinite(value).all():
            raise DivergenceError(
                f"{piece.name} holds NaN or infinite values: this model diverged and is not exported. Go back to an "
                "earlier checkpoint, or train again with a lower learning rate"
            )
        yield piece.name, np.ascontiguousarray((value.T if piece.transposed else value).astype(dtype))


def _write_shards(folder: Path, tensors: Iterator[tuple[str, np.ndarray]], limit: int) -> None:
    """model.safetensors, or model-00001-of-0000N.safetensors and their index."""
    shard: dict[str, np.ndarray] = {}
    shards: list[list[str]] = []
    total = 0

    def flush() -> None:
        write_tensors(shard, folder / f"part-{len(shards)}")
        shards.append(list(shard))
        shard.clear()

    for name, value in tensors:
        if shard and sum(other.nbytes for other in shard.values()) + value.nbytes > limit:
            flush()
        shard[name] = value
        total += value.nbytes
    flush()
    if len(shards) == 1:
        (folder / "part-0").rename(folder / "model.safetensors")
        return
    where = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"part-{number}").rename(folder / file)
        where |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


class _Folder:
    """A folder that is written beside its final place and moved there when complete; it replaces an older export."""

    def __init__(self, folder: str | Path):
        self.final = Path(folder)
        self.partial = self.final.with_name(self.final.name + ".partial")

    def __enter__(self) -> Path:
        foreign = self.final.exists() and not any(
            (self.final / name).exists() for name in ("config.json", "adapter_config.json")
        )
        if foreign and (not self.final.is_dir() or any(self.final.iterdir())):
            raise DataError(f"{self.final} exists and is no earlier export; choose another folder")
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        return self.partial

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            shutil.rmtree(self.partial)
            return
        if self.final.exists():
            shutil.rmtree(self.final)
        self.partial.rename(self.final)
