"""reasoning-gym's items and scores. Runs in a child that can be killed (judge_process.py): scorers evaluate text."""

from __future__ import annotations

import functools
import json
from typing import Any

from jaxagent.envs.entry import need
from jaxagent.envs.reasoning_guard import guard, refuse

INSTALL = "pip install 'jaxagent[reasoning]'"
_library = need("reasoning_gym", install=INSTALL)
guard("reasoning_gym")


@functools.lru_cache(maxsize=64)
def _dataset(name: str, config: str) -> Any:
    return _library.create_dataset(name, **json.loads(config))


def ask(name: str, config: str, index: int, answer: str | None) -> dict[str, Any]:
    """The item (question, stored answer) where `answer` is None, else the official score of `answer`, in [0, 1].

    config: JSON of the generator's keyword arguments, seed and size among them.
    """
    dataset = _dataset(name, config)
    item = dataset[index]
    if answer is None:
        stored = item["answer"]
        return {"question": str(item["question"]), "answer": "" if stored is None else str(stored)}
    refuse(name, answer)
    return {"score": float(dataset.score_answer(answer, item))}
