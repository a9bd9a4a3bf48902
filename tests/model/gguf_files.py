"""Writes tiny GGUF files for tests: the format as in ggml's docs/gguf.md, independent of the reader."""

import struct
from pathlib import Path

import numpy as np

KINDS = {"F32": 0, "F16": 1, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12}
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "1", "2", "Ġ", "ab", "Ġab"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def metadata() -> dict:
    """Two layers, width 32, 4 query heads of 8 on 2 key heads, tied, a tokenizer of ten tokens."""
    return {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.rope.freq_base": 100000.0,
        "llama.rope.dimension_count": 8,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3, 3, 1, 1, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b", "Ġ ab"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(value) -> tuple[int, bytes]:
    """(type, bytes) of a metadata value: bool, int (u32 or i32), float (f32), str or a list of one kind."""
    if isinstance(value, list):
        items = [entry(item) for item in value]
        return 9, struct.pack("<IQ", items[0][0], len(items)) + b"".join(data for _, data in items)
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return (4, struct.pack("<I", value)) if value >= 0 else (5, struct.pack("<i", value))
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    return 8, text(value)


def write_gguf(path: Path, meta: dict, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """tensors: name -> (kind, row-major shape, the bytes as stored)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    for key, value in meta.items():
        kind, data = entry(value)
        head += text(key) + struct.pack("<I", kind) + data
    body = b""
    for name, (kind, shape, data) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", KINDS[kind], len(body))
        body += data + b"\0" * (-len(data) % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)
    return path


def llama_tensors(rng: np.random.Generator, *, tied: bool = True) -> dict[str, np.ndarray]:
    """Random float32 weights for `metadata()`, in llama.cpp's names and row order."""
    shapes = {"token_embd": (10, 32), "output_norm": (32,)} | ({} if tied else {"output": (10, 32)})
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.{name}": shape
            for name, shape in {
                "attn_norm": (32,),
                "attn_q": (32, 32),
                "attn_k": (16, 32),
                "attn_v": (16, 32),
                "attn_output": (32, 32),
                "ffn_norm": (32,),
                "ffn_gate": (64, 32),
                "ffn_up": (64, 32),
                "ffn_down": (32, 64),
            }.items()
        }
    return {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def stored(arrays: dict[str, np.ndarray], kind: str = "F32") -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    dtype = {"F32": np.float32, "F16": np.float16}[kind]
    return {name: (kind, array.shape, array.astype(dtype).tobytes()) for name, array in arrays.items()}
