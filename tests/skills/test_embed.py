"""Embeddings: hashed ones are equal everywhere, an endpoint's faults never become vectors."""

import importlib.util
import time
import zlib

import numpy as np
import pytest

from jaxagent.auxlm.client import AuxError, AuxLimits
from jaxagent.auxlm.endpoint import EndpointBackend, EndpointConfig
from jaxagent.errors import ConfigError
from jaxagent.skills.embed import (
    BATCH,
    EndpointEmbed,
    Remembered,
    SentenceTransformerEmbed,
    hashed,
    read_embeddings,
    unit_rows,
    word_ngrams,
)
from tests.auxlm.chat_server import serving


def test_word_ngrams():
    assert word_ngrams("Pay the bill!", (1, 2)) == ["pay", "the", "bill", "pay the", "the bill"]
    assert word_ngrams("pay", (1, 2, 3)) == ["pay"]
    assert word_ngrams("?!") == []


def test_hashed_cells_are_those_of_crc32():
    """One word is one cell, whose place and sign are fixed: no process, machine or hash seed changes them."""
    code = zlib.crc32(b"pay")
    assert code == 4270793276
    (row,) = hashed(["pay"], dimensions=16)
    assert row[(code >> 1) % 16] == (1.0 if code & 1 else -1.0)
    assert np.count_nonzero(row) == 1


def test_hashed_rows_have_length_one_and_know_words():
    same, near, far, empty = hashed(["pay the water bill", "pay the power bill", "delete all notes", ""])
    assert np.linalg.norm(same) == pytest.approx(1.0)
    assert not empty.any()
    assert same @ near > 0.3 > abs(same @ far)
    assert hashed(["PAY the water, bill"])[0] == pytest.approx(same)


def test_unit_rows():
    np.testing.assert_allclose(unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]])), [[0.6, 0.8], [0, 0]])


def test_a_text_is_asked_for_once():
    asked = []

    def embed(texts, /):
        asked.append(list(texts))
        return hashed(texts)

    remembered = Remembered(embed, kept=2)
    first = remembered(["a", "b", "a"])
    assert asked == [["a", "b"]]
    assert first.tolist() == hashed(["a", "b", "a"]).tolist()
    remembered(["b", "c"])  # "a" is forgotten
    remembered(["c"])
    remembered(["a"])
    assert asked == [["a", "b"], ["c"], ["a"]]


@pytest.fixture
def start(monkeypatch):
    with serving(monkeypatch) as begin:
        yield begin


def answer(*vectors):
    return {"data": [{"index": i, "embedding": v} for i, v in enumerate(vectors)]}


def embedder(server, *, retries=2, **config):
    backend = EndpointBackend(EndpointConfig(server.url, "embedder", timeout_s=2.0, **config))
    return EndpointEmbed(backend, AuxLimits(retries=retries, backoff_s=0.01, longest_wait_s=0.5))


def test_endpoint_request_and_order(start, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    swapped = {"data": list(reversed(answer([3.0, 4.0], [0.0, 2.0])["data"]))}
    server = start(lambda body, number: swapped)
    rows = embedder(server, api_key_env="MY_KEY")(["a", "b"])
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0.0, 1.0]], rtol=1e-6)
    path, headers, body = server.requests[0]
    assert path == "/v1/embeddings"
    assert headers["Authorization"] == "Bearer secret"
    assert body == {"model": "embedder", "input": ["a", "b"]}


def test_many_texts_are_asked_in_batches(start):
    server = start(lambda body, number: answer(*([1.0, float(number)] for _ in body["input"])))
    rows = embedder(server)([str(i) for i in range(BATCH + 1)])
    assert [len(body["input"]) for body in server.seen] == [BATCH, 1]
    assert rows.shape == (BATCH + 1, 2)
    assert rows[-1].tolist() == pytest.approx([0.5**0.5, 0.5**0.5])


@pytest.mark.parametrize(
    "fault",
    [
        (429, {}, b""),
        (503, {}, b"busy"),
        (200, {}, b"<html>"),
        (200, {}, {"data": []}),
        (200, {}, [1]),
        (200, {}, {"data": [{"index": 1, "embedding": [1.0]}]}),
        (200, {}, {"data": [{"index": 0, "embedding": ["x"]}]}),
        (200, {}, {"data": [{"index": 0, "embedding": []}]}),
        (200, {}, {"data": [{"index": 0, "embedding": [None]}]}),
        (200, {"Content-Length": "5000"}, b'{"data"'),
    ],
)
def test_passing_faults_are_tried_again(start, fault):
    server = start(lambda body, number: answer([2.0]) if number else fault)
    assert embedder(server)(["a"]).tolist() == [[1.0]]
    assert len(server.requests) == 2


def test_mistakes_of_the_configuration_are_not_repeated(start):
    server = start(lambda body, number: (401, {}, b"who are you"))
    with pytest.raises(AuxError, match="HTTP 401: who are you"):
        embedder(server)(["a"])
    assert len(server.requests) == 1


def test_a_silent_endpoint_is_an_error_and_never_a_vector(start):
    server = start(lambda body, number: (500, {}, b""))
    with pytest.raises(AuxError, match="HTTP 500"):
        embedder(server)(["a"])
    assert len(server.requests) == 3


def test_retry_after_is_respected_up_to_the_longest_wait(start):
    server = start(lambda body, number: answer([1.0]) if number else (429, {"Retry-After": "60"}, b""))
    began = time.monotonic()
    embedder(server)(["a"])
    assert 0.5 <= time.monotonic() - began < 5


def test_infinite_numbers_are_no_embedding():
    with pytest.raises(AuxError, match="expected finite rows"):
        read_embeddings(b'{"data": [{"index": 0, "embedding": [1e999]}]}', 1)


def test_sentence_transformers_must_be_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'jaxagent\[embeddings\]'"):
        SentenceTransformerEmbed()


def test_sentence_transformers_rows(tmp_path):
    """A tiny random BERT, from a folder (mean pooling): rows of length 1; a wrong name says so."""
    pytest.importorskip("sentence_transformers")
    from transformers import BertConfig, BertModel, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "pay", "the", "bill"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    sizes = BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    BertModel(sizes).save_pretrained(tmp_path / "bert")
    rows = SentenceTransformerEmbed(str(tmp_path / "bert"))(["pay the bill", "the", "pay the bill"])
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(3))
    assert rows[0] == pytest.approx(rows[2])
    assert abs(rows[0] @ rows[1]) < 0.9999
    with pytest.raises(ConfigError, match="cannot be loaded"):
        SentenceTransformerEmbed(str(tmp_path / "nothing"))(["x"])
