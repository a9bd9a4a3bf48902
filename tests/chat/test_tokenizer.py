"""Loading of Hugging Face folders, SentencePiece ones included; clear errors; a quick import."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from transformers import AutoTokenizer, LlamaTokenizer

from jaxagent.chat.render import Renderer
from jaxagent.chat.tokenizer import load_tokenizer
from jaxagent.chat.train_tokenizer import train_tokenizer
from jaxagent.errors import DataError
from jaxagent.types import Message, Prompt

TEXTS = [
    f"The {a} fox number {i} jumps over {b} lazy dogs.\n"
    for i, (a, b) in enumerate([("red", 2), ("big", 7)] * 40)
]


def test_import_is_light():
    code = (
        "import sys, time; t = time.perf_counter(); import jaxagent.chat.render, "
        "jaxagent.chat.train_tokenizer, jaxagent.chat.tools; print(time.perf_counter() - t); "
        "assert not {'torch', 'jax', 'transformers'} & set(sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert float(out.stdout) < 1.0


def test_saved_folder_loads_to_equal_ids_here_and_in_transformers(tmp_path):
    tokenizer = train_tokenizer(TEXTS, 300)
    tokenizer.save(tmp_path / "t")
    again, theirs = load_tokenizer(tmp_path / "t"), AutoTokenizer.from_pretrained(tmp_path / "t")
    for text in (*TEXTS[:3], "<|user|>héllo\n\n  日本<|end|>", " lead", "tail \n"):
        ids = tokenizer.encode(text)
        assert again.encode(text) == ids
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids
        assert tokenizer.decode(ids) == again.decode(np.asarray(ids)) == theirs.decode(ids) == text
    assert again.specials == tokenizer.specials
    assert (theirs.eos_token, theirs.pad_token) == ("<|end|>", "<|pad|>")
    messages = [Message("user", "The red fox"), Message("assistant", "jumps")]
    hf = [{"role": m.role, "content": m.content} for m in messages]
    expected = theirs.apply_chat_template(hf, tokenize=True, return_dict=False)
    assert Renderer(again, "plain").whole(messages)[0].tolist() == expected


def test_sentencepiece_folder(tmp_path):
    """tokenizer.model only: same ids as transformers, and no stray space where a text is appended."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(TEXTS))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        user_defined_symbols=["<|im_start|>", "<|im_end|>"],
        minloglevel=2,
    )
    config = {"tokenizer_class": "LlamaTokenizer", "legacy": False, "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    theirs = LlamaTokenizer.from_pretrained(tmp_path)
    for text in (TEXTS[0], "  two spaces", "héllo"):
        assert tokenizer.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    renderer = Renderer(tokenizer, "chatml")
    prompt = Prompt((Message("user", "The red fox"),))
    said = [*tokenizer.encode("<|im_end|>The dogs jump")[1:], renderer.end_id]
    grown = renderer.open(prompt) + said + renderer.reply(Message("user", "number 7"))
    text = (
        "<|im_start|>user\nThe red fox<|im_end|>\n<|im_start|>assistant\nThe dogs jump<|im_end|>\n"
        "<|im_start|>user\nnumber 7<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.decode(grown) == text
    assert grown == tokenizer.encode(text)


def test_tokens_that_only_the_config_declares(tmp_path):
    tokenizer = train_tokenizer(TEXTS, 280)
    tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text())
    entry = {"content": "<|new|>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    file.write_text(json.dumps({**config, "added_tokens_decoder": {str(tokenizer.vocab_size): entry}}))
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode("a<|new|>b")[1] == tokenizer.vocab_size
    assert loaded.vocab_size == tokenizer.vocab_size + 1
    assert "<|new|>" in loaded.specials
    file.write_text(json.dumps({**config, "added_tokens_decoder": {"5000": entry}}))
    with pytest.raises(DataError, match="id 5000"):
        load_tokenizer(tmp_path)


def test_stored_truncation_is_off(tmp_path):
    tokenizer = train_tokenizer(TEXTS, 280)
    tokenizer.backend.enable_truncation(4)
    tokenizer.backend.enable_padding(length=9)
    tokenizer.backend.save(str(tmp_path / "tokenizer.json"))
    text = "The red fox jumps over"
    assert load_tokenizer(tmp_path).decode(load_tokenizer(tmp_path).encode(text)) == text


def test_errors_name_the_file_and_what_to_do(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no tokenizer.*empty folder"):
        load_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text('{"model": {')
    with pytest.raises(DataError, match="cannot be read as a tokenizer"):
        load_tokenizer(tmp_path)
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00")
    with pytest.raises(DataError, match="Git LFS pointer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        load_tokenizer(tmp_path)
    bad = tmp_path / "sp"
    bad.mkdir()
    (bad / "tokenizer.model").write_bytes(b"garbage")
    (bad / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(DataError, match="transformers cannot read"):
        load_tokenizer(bad)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "holds list, expected an object"),
        ('{"added_tokens_decoder": [1]}', "added_tokens_decoder is damaged"),
        ('{"added_tokens_decoder": {"x": {"content": "q"}}}', "added_tokens_decoder is damaged"),
        ('{"added_tokens_decoder": {"5": {}}}', "added_tokens_decoder is damaged"),
    ],
)
def test_a_damaged_tokenizer_config_is_one_message(tmp_path, text, words):
    train_tokenizer(["some text"], 300).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(DataError, match=words):
        load_tokenizer(tmp_path)


def test_hub_names_without_a_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="hf://nobody/nothing"):
        load_tokenizer("hf://nobody/nothing")
