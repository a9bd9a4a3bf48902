"""The owner of the episodes' loop: its policy can be asked from other threads and loops."""

import asyncio
import threading

import numpy as np
import pytest

from jaxagent.errors import RolloutError
from jaxagent.rollout.limits import EpisodeLimits
from jaxagent.rollout.plans import RolloutRules
from jaxagent.rollouts import Rollouts
from jaxagent.types import Completion, Generate, GenerateRequest, SampleKey, Sampling, Stop


class Pool:
    async def close(self):
        pass


class Policy:
    """Remembers on which threads it was asked."""

    def __init__(self):
        self.threads, self.released = [], []

    async def __call__(self, request):
        self.threads.append(threading.current_thread().name)
        if request.session == "broken":
            raise RolloutError("the history is no prefix")
        return Completion(request.ids_T + 1, np.zeros(1, np.float32), Stop.STOP, 7)

    async def release(self, session):
        self.released.append((threading.current_thread().name, session))


@pytest.fixture
def rollouts():
    made = Rollouts(lambda *args: None, limits=EpisodeLimits(context=8), rules=RolloutRules(), open_pool=Pool)
    yield made
    made.close()


def request(session):
    return GenerateRequest(session, np.array([4]), SampleKey(0, 0, 0, 0), Sampling(4))


def test_a_policy_is_asked_on_the_loop_of_the_episodes(rollouts):
    policy = Policy()
    reached = rollouts.reachable(policy)
    assert isinstance(reached, Generate)

    async def ask():
        answer = await reached(request("mine"))
        await reached.release("mine")
        return answer

    assert asyncio.run(ask()).ids_T.tolist() == [5]
    assert policy.threads == ["episodes"]
    assert policy.released == [("episodes", "mine")]


def test_its_errors_come_back(rollouts):
    reached = rollouts.reachable(Policy())

    async def ask():
        await reached(request("broken"))

    with pytest.raises(RolloutError, match="no prefix"):
        asyncio.run(ask())
