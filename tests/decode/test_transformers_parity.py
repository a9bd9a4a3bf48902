"""Greedy decoding equals transformers' generate on random tiny checkpoints, over two turns, from real folders."""

import asyncio

import numpy as np
import pytest
import torch
import transformers

from jaxagent.decode.buckets import Buckets
from jaxagent.decode.engine import Engine
from jaxagent.model.hf import load_hf
from jaxagent.model.transformer import abstract
from tests.decode.engines import request

SHAPE = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
}
EXPERTS = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}


def checkpoint(family, folder):
    torch.manual_seed(0)
    if family == "qwen2":
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(tie_word_embeddings=False, **SHAPE))
        for name, tensor in model.named_parameters():
            if name.endswith("proj.bias"):
                torch.nn.init.normal_(tensor, std=0.5)
    elif family == "qwen3":
        config = transformers.Qwen3Config(head_dim=16, tie_word_embeddings=True, **SHAPE)
        model = transformers.Qwen3ForCausalLM(config)
    else:
        config = transformers.Qwen3MoeConfig(head_dim=16, **EXPERTS, **SHAPE)
        model = transformers.Qwen3MoeForCausalLM(config)
    model.eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "qwen3_moe"])
def test_greedy_equals_generate(family, tmp_path):
    theirs = checkpoint(family, tmp_path)
    spec, params = load_hf(tmp_path)
    buckets = Buckets(prefill=((2, 8),), decode=(4,), lengths=(96,))
    engine = Engine(abstract(spec)[0], spec, slots=4, buckets=buckets, tokens=8)
    engine.load(params, 0)
    rng = np.random.default_rng(1)
    contexts = [rng.integers(0, 257, length) for length in (3, 11, 20)]

    def expected(context, new):
        ids = torch.tensor(context[None])
        out = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, eos_token_id=None
        )
        return out[0, len(context) :].tolist()

    async def turn(new):
        return await asyncio.gather(
            *(
                engine(request(f"{i}", context, temperature=0.0, max_tokens=new))
                for i, context in enumerate(contexts)
            )
        )

    for new in (12, 17):
        completions = asyncio.run(turn(new))
        for i, completion in enumerate(completions):
            assert completion.ids_T.tolist() == expected(contexts[i], new)
            contexts[i] = np.concatenate([contexts[i], completion.ids_T, rng.integers(0, 257, 5)])
