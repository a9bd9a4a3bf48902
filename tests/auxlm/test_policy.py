"""The policy as its own auxiliary model: rendered as a chat, sampled by `Generate`, sessions released."""

import asyncio

import numpy as np
import pytest
from pydantic import BaseModel

from jaxagent.auxlm.client import AuxLimits, AuxLM
from jaxagent.auxlm.policy import PolicyBackend
from jaxagent.auxlm.role import Role
from jaxagent.chat.render import Renderer
from jaxagent.chat.train_tokenizer import train_tokenizer
from jaxagent.errors import RolloutError
from jaxagent.types import Completion, Sampling, Stop


class Answer(BaseModel):
    score: int


ROLE = Role("judge", Answer, "Score the text.")


class Scripted:
    """A `Generate` that says these texts in turn."""

    def __init__(self, renderer, *texts, stop=Stop.STOP):
        self.renderer, self.texts, self.stop = renderer, list(texts), stop
        self.requests, self.released = [], []

    async def __call__(self, request):
        self.requests.append(request)
        text = self.texts.pop(0)
        if isinstance(text, Exception):
            raise text
        ids = self.renderer.sampled(text)
        return Completion(np.asarray(ids, np.int32), np.zeros(len(ids), np.float32), self.stop, 4)

    async def release(self, session):
        self.released.append(session)


@pytest.fixture(scope="module")
def renderer():
    return Renderer(train_tokenizer(['{"score": 1}'] * 3, 270), "plain")


def ask(renderer, generate):
    backend = PolicyBackend(generate, renderer, Sampling(32), seed=5)
    lm = AuxLM(backend, AuxLimits(backoff_s=0.0, cached=0))
    return asyncio.run(lm.complete(ROLE, {"text": "x"}))


def test_the_policy_answers(renderer):
    generate = Scripted(renderer, '{"score": 2}')
    assert ask(renderer, generate) == Answer(score=2)
    asked = renderer.tokenizer.decode(generate.requests[0].ids_T)
    assert asked.startswith("<|system|>Score the text.")
    assert asked.endswith("</data><|assistant|>")
    assert generate.requests[0].sampling.stop_ids == renderer.stop_ids
    assert generate.released == [generate.requests[0].session]


def test_every_attempt_has_its_own_key_and_a_repeated_run_the_same(renderer):
    first, second = (Scripted(renderer, "no", '{"score": 2}') for _ in range(2))
    assert ask(renderer, first) == ask(renderer, second) == Answer(score=2)
    keys = [request.key for request in first.requests]
    assert keys == [request.key for request in second.requests]
    assert keys[0] != keys[1]
    assert keys[0].seed == 5


def test_a_broken_session_is_released_and_tried_again(renderer):
    generate = Scripted(renderer, RolloutError("rewritten"), '{"score": 2}')
    assert ask(renderer, generate) == Answer(score=2)
    assert len(generate.released) == 2


def test_a_full_context_is_hopeless(renderer):
    generate = Scripted(renderer, "", '{"score": 2}', stop=Stop.CONTEXT)
    assert ask(renderer, generate) is None
    assert len(generate.requests) == 1
