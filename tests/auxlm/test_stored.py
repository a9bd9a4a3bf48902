"""Answers kept in a folder: shared by threads and processes, whole or not there."""

import asyncio
import threading
from pathlib import Path

from jaxagent.auxlm.client import AuxRequest, ScriptedBackend
from jaxagent.auxlm.stored import StoredBackend
from jaxagent.types import Message

REQUEST = AuxRequest("judge", {"a": 1}, (Message("user", "?"),), 0)


def test_two_judges_of_one_model_may_store_the_same_answer_at_once(tmp_path, monkeypatch):
    """An ensemble may name a model twice; each judge has its own thread, and both ask the same."""
    meet, replace = threading.Barrier(2), Path.replace

    def both_have_written(path, target):
        meet.wait(timeout=10)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", both_have_written)
    answers = []

    def ask():
        backend = StoredBackend(ScriptedBackend({"judge": lambda request: "{}"}), tmp_path)
        answers.append(asyncio.run(backend(REQUEST)))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["{}", "{}"]
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
