"""Tokenizers of the chat tests: a small one with Qwen's splitting rule, and the real one."""

import os
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from jaxagent.chat.tokenizer import load_tokenizer, wrap

TEMPLATES = Path(__file__).parent / "templates"
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "system\nuser\nassistant\nYou are a helpful assistant.\n\n# Tools\n\n",
    '<think>\n\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n',
    "\n\n\n\n  print(1)\n\n  print(2)\n\nHello there, what is the weather?\n",
] * 3


@pytest.fixture(scope="session")
def qwen_like():
    """ids as the real tokenizer orders them: bytes and merges first, control tokens last."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer=trainer)
    control = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    plain = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in plain])
    return wrap(backend, {})


@pytest.fixture(scope="session")
def real_qwen3():
    """The real Qwen3 tokenizer, if JAXAGENT_QWEN3_TOKENIZER names its folder."""
    folder = os.environ.get("JAXAGENT_QWEN3_TOKENIZER")
    if not folder:
        pytest.skip("set JAXAGENT_QWEN3_TOKENIZER to a folder with Qwen3's tokenizer.json and its config")
    return load_tokenizer(folder)


@pytest.fixture(scope="session")
def jinja():
    """The families' own templates, re-expressed, as transformers renders them: name -> text."""
    return lambda name: (TEMPLATES / f"{name}.jinja").read_text()
