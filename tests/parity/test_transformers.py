"""Logits equal transformers', in float32 within 2e-4, on random tiny checkpoints; exports load back to the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import nnx

from jaxagent.export import export_adapter, export_model
from jaxagent.model.hf import load_hf
from jaxagent.model.lora import add_lora, merge_lora
from jaxagent.model.spec import LoraSpec
from jaxagent.model.transformer import Transformer, abstract

TOLERANCE = 2e-4
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
HEADS = {"head_dim": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}
MOE = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}
CASES = {
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", HEADS | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3_moe": ("Qwen3Moe", HEADS | MOE),
    "llama3-tied": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama-bias-linear": (
        "Llama",
        {
            "attention_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        },
    ),
}


def torch_model(case: str):
    """A random transformers model; norms and biases are random too, so that a swapped one shows."""
    family, extra = CASES[case]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(SIZES | extra), attn_implementation="eager")
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name or "bias" in name:
                value.add_(0.3 * torch.randn_like(value))
    return model


def torch_logits(model, ids: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    with torch.no_grad():
        kwargs = {} if mask is None else {"attention_mask": torch.tensor(mask)}
        return model(torch.tensor(ids), **kwargs).logits.float().numpy()


def load(folder, **options):
    spec, params = load_hf(folder)
    graphdef, _ = abstract(spec, **options)
    return graphdef, params


def our_logits(graphdef, params, token, position, segment) -> np.ndarray:
    @jax.jit
    def run(params, token, position, segment):
        model: Transformer = nnx.merge(graphdef, params)
        return jnp.einsum("btd,vd->btv", model.hidden(token, position, segment), model.head_VD)

    return np.asarray(run(params, *(jnp.asarray(x, jnp.int32) for x in (token, position, segment))))


def batch(seed: int = 0):
    """Rows of 20: a whole one, one padded on the right, one with two segments packed and padding."""
    ids = np.random.default_rng(seed).integers(0, SIZES["vocab_size"], (3, 20))
    segment = np.ones((3, 20), int)
    segment[1, 13:] = 0
    segment[2, 9:17], segment[2, 17:] = 2, 0
    position = np.tile(np.arange(20), (3, 1))
    position[2, 9:17] -= 9
    return ids, position, segment


def expected(model) -> np.ndarray:
    """Transformers on the same rows: padded by mask, the packed row's segments as separate inputs."""
    ids, _, segment = batch()
    out = np.zeros((*ids.shape, SIZES["vocab_size"]), np.float32)
    out[:2] = torch_logits(model, ids[:2], (segment[:2] > 0).astype(int))
    out[2, :9] = torch_logits(model, ids[2:, :9])[0]
    out[2, 9:17] = torch_logits(model, ids[2:, 9:17])[0]
    return out


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_and_the_export_loads_to_the_same(case, tmp_path):
    model = torch_model(case)
    model.save_pretrained(tmp_path / "hf", max_shard_size="20KB" if case == "qwen3" else "1GB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1 or case != "qwen3"
    graphdef, params = load(tmp_path / "hf")
    token, position, segment = batch()
    ours = our_logits(graphdef, params, token, position, segment)
    real = segment > 0
    reference = expected(model)
    assert np.abs(reference[real]).max() > 1, "logits too small for the comparison to mean anything"
    np.testing.assert_allclose(ours[real], reference[real], rtol=0, atol=TOLERANCE)

    export_model(tmp_path / "out", graphdef, params, shard_bytes=20_000 if case == "qwen3" else 10**9)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager")
    assert type(again) is type(model)
    before = model.state_dict()
    assert set(again.state_dict()) == set(before)
    for name, value in again.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[name]), name
    np.testing.assert_array_equal(torch_logits(again, token[:1]), torch_logits(model, token[:1]))


def test_adapter_and_merged_export_equal(tmp_path):
    """peft on the base with our adapter = our merged export = our adapted model."""
    from peft import PeftModel

    model = torch_model("qwen2-tied")
    model.save_pretrained(tmp_path / "hf")
    lora = LoraSpec(rank=3, alpha=12.0, targets=("q", "v", "o", "down"))
    graphdef, params = add_lora(*load(tmp_path / "hf"), lora, seed=1)
    keys = iter(jax.random.split(jax.random.key(2), 8))
    for target in lora.targets:  # an untrained B is zero and would test nothing
        leaf = params["lora"][f"{target}_b"]
        params["lora"][f"{target}_b"] = leaf.replace(0.1 * jax.random.normal(next(keys), leaf.shape))
    token, position, segment = batch()
    ours = our_logits(graphdef, params, token, position, segment)[:1]
    base = torch_logits(model, token[:1])
    assert np.abs(ours - base).max() > 0.1
    np.testing.assert_allclose(our_logits(*merge_lora(graphdef, params), *batch())[:1], ours, atol=TOLERANCE)

    export_model(tmp_path / "merged", graphdef, params)
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    np.testing.assert_allclose(torch_logits(merged, token[:1]), ours, rtol=0, atol=TOLERANCE)

    export_adapter(tmp_path / "adapter", graphdef, params, base=str(tmp_path / "hf"))
    adapted = PeftModel.from_pretrained(model, tmp_path / "adapter")
    np.testing.assert_allclose(torch_logits(adapted, token[:1]), ours, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_checkpoints_load_exactly_and_keep_their_dtype(dtype, tmp_path):
    model = torch_model("qwen3").to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "hf")
    spec, params = load_hf(tmp_path / "hf")
    assert params["embed"][...].dtype == jnp.float32
    graphdef, _ = abstract(spec)
    export_model(tmp_path / "out", graphdef, params, dtype=dtype)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    for name, value in again.state_dict().items():
        assert value.dtype == getattr(torch, dtype), name
        assert torch.equal(value, model.state_dict()[name]), name
