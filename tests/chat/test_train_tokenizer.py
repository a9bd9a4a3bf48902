"""The tokenizer trained on the spot: copy-friendly, lossless, deterministic."""

import subprocess
import sys
from pathlib import Path

import pytest

from jaxagent.chat.plain import PLAIN_SPECIALS
from jaxagent.chat.train_tokenizer import train_tokenizer
from jaxagent.errors import ConfigError

NAMES = ("mezo", "tarik", "lumo", "resa")
TEXTS = [
    f"apis.bank.login(user='{name}', password='{name}{i}')\nprint({i})\n    x = '{name}' don't {name}"
    for i in range(20)
    for name in NAMES
]


def pieces(tokenizer, text):
    return [tokenizer.decode([i]) for i in tokenizer.encode(text)]


def test_a_name_has_one_spelling():
    """After a quote, a space, an equals sign or an apostrophe: the same token."""
    tokenizer = train_tokenizer(TEXTS, 400)
    for text in ("'mezo'", "password='mezo')", " mezo", "(mezo", "n'mezo"):
        assert "mezo" in pieces(tokenizer, text), text


def test_digits_stand_alone():
    assert pieces(train_tokenizer(TEXTS + ["1234 1234"] * 50, 400), "1234") == ["1", "2", "3", "4"]


def test_newline_keeps_its_indentation():
    assert "\n    " in pieces(train_tokenizer(TEXTS, 400), "x\n    x")


def test_every_text_survives():
    tokenizer = train_tokenizer(TEXTS, 400)
    for text in ("", "héllo 日本 🎉\t\r\n\x00", "  <think> </s> ", "".join(map(chr, range(256)))):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_what_no_text_holds_does_not_raise():
    """Lone surrogates from an environment, and ids beyond the vocabulary from a model with a padded head."""
    tokenizer = train_tokenizer(TEXTS, 400)
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"
    assert tokenizer.decode([*tokenizer.encode("ab"), 99_999]) == "ab"


def test_ids_of_the_specials_come_first():
    tokenizer = train_tokenizer(TEXTS, 400)
    assert [tokenizer.id(token) for token in PLAIN_SPECIALS] == list(range(len(PLAIN_SPECIALS)))
    assert tokenizer.specials == PLAIN_SPECIALS
    assert tokenizer.vocab_size <= 400
    assert pieces(tokenizer, "a<|end|>b") == ["a", "<|end|>", "b"]


def test_same_texts_same_tokenizer_in_another_process():
    root = Path(__file__).parents[2]
    code = (
        "from tests.chat.test_train_tokenizer import TEXTS, train_tokenizer; "
        "print(train_tokenizer(TEXTS, 400).backend.to_str())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert run.stdout.strip() == train_tokenizer(TEXTS, 400).backend.to_str()


def test_refusals():
    with pytest.raises(ConfigError, match="vocab_size=100 is too small"):
        train_tokenizer(TEXTS, 100)
    with pytest.raises(ConfigError, match="all different"):
        train_tokenizer(TEXTS, 400, ("<|a|>", "<|a|>"))
