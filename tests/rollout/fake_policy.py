"""A scripted policy and a character renderer. Token = code point; 0 ends a turn, 1 opens one, 2 is a line."""

import asyncio
import functools
from collections.abc import Callable, Sequence

import numpy as np

from jaxagent.rollout.episode import EpisodeLimits, run_episode
from jaxagent.types import Completion, GenerateRequest, Message, Prompt, SampleKey, Sampling, Stop

END, OPEN, LINE = 0, 1, 2


class CharRenderer:
    """open: the contents and OPEN. reply: LINE, the observations, OPEN. close: END if the message lacks it."""

    stop_ids: tuple[int, ...] = (END,)

    def open(self, prompt: Prompt) -> list[int]:
        return [ord(char) for message in prompt.messages for char in message.content] + [OPEN]

    def reply(self, *messages: Message) -> list[int]:
        return [LINE, *(ord(char) for message in messages for char in message.content), OPEN]

    def close(self, ids: Sequence[int] = ()) -> list[int]:
        return [] if ids and ids[-1] == END else [END]

    def sampled(self, message: str) -> list[int]:
        return [*(ord(char) for char in message), END]

    def parse(self, ids: Sequence[int]) -> Message:
        return Message("assistant", "".join(chr(i) for i in ids if i > LINE))


class Scripted:
    """Says `script(key)`, END appended, cut at max_tokens. Log-prob of token t of step k is -(k + t / 100).

    `delay(key)` awaits so many event-loop turns first, to shuffle the order of arrival.
    """

    def __init__(
        self, script: Callable[[SampleKey], str], *, delay: Callable[[SampleKey], int] = lambda key: 0
    ):
        self.script, self.delay = script, delay
        self.requests: list[GenerateRequest] = []
        self.released: list[str] = []
        self.live = self.most_live = 0

    async def __call__(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        self.live += 1
        self.most_live = max(self.live, self.most_live)
        try:
            for _ in range(self.delay(request.key)):
                await asyncio.sleep(0)
        finally:
            self.live -= 1
        ids = [*(ord(char) for char in self.script(request.key)), END]
        cut = len(ids) > request.sampling.max_tokens
        ids = ids[: request.sampling.max_tokens]
        return Completion(
            ids_T=np.asarray(ids, np.int32),
            logprob_T=-(request.key.step + np.arange(len(ids)) / 100).astype(np.float32),
            stop=Stop.MAX_TOKENS if cut else Stop.STOP,
            version=7,
        )

    async def release(self, session: str) -> None:
        self.released.append(session)


def char_runner(spec, generate, pool, *, key_seed=1, max_tokens=20, context=400, **limits):
    """What plays one episode of characters; `limits` are those of EpisodeLimits."""
    return functools.partial(
        run_episode,
        spec,
        generate=generate,
        pool=pool,
        renderer=CharRenderer(),
        sampling=Sampling(max_tokens=max_tokens),
        limits=EpisodeLimits(context=context, **limits),
        key_seed=key_seed,
    )
