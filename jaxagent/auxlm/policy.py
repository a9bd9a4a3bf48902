"""Back end: the policy itself, through the rollout's `Generate`. In: an `AuxRequest`. Out: text.

Answers belong to the weights that are loaded when they are sampled; give `AuxLimits(cached=0)` where a
cached answer of older weights would be wrong. The sampling key depends on the request alone.
"""

from __future__ import annotations

import hashlib

import numpy as np

from jaxagent.auxlm.client import AuxError, AuxRequest
from jaxagent.auxlm.role import canonical
from jaxagent.chat.render import Renderer
from jaxagent.errors import RolloutError
from jaxagent.types import Generate, GenerateRequest, Prompt, SampleKey, Sampling, Stop


class PolicyBackend:
    """Asks the live policy. Must run on the event loop of its `Generate`."""

    def __init__(self, generate: Generate, renderer: Renderer, sampling: Sampling, *, seed: int = 0):
        self.generate = generate
        self.renderer = renderer
        self.sampling = sampling
        self.seed = seed
        self.name = "policy"

    async def __call__(self, request: AuxRequest) -> str:
        content = f"{request.role}\0{canonical(request.payload)}".encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(content).digest()
        key = SampleKey(self.seed, int.from_bytes(digest[:4], "big"), request.attempt, 0)
        session = f"auxlm/{digest.hex()[:16]}/{request.attempt}"
        ids_T = np.asarray(self.renderer.open(Prompt(tuple(request.messages))), np.int32)
        try:
            completion = await self.generate(GenerateRequest(session, ids_T, key, self._sampling()))
        except RolloutError as error:
            raise AuxError(f"the policy did not answer: {error}") from error
        finally:
            await self.generate.release(session)
        if completion.stop is Stop.CONTEXT:
            raise AuxError(f"the policy's context is full ({len(ids_T)} tokens asked)", retry=False)
        return self.renderer.parse(completion.ids_T).content

    def close(self) -> None:
        """The policy is not ours to end."""

    def _sampling(self) -> Sampling:
        if self.sampling.stop_ids:
            return self.sampling
        s = self.sampling
        return Sampling(
            s.max_tokens, s.temperature, s.top_k, s.top_p, s.min_p, self.renderer.stop_ids, s.stop_strings
        )
