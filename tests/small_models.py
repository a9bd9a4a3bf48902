"""A model small enough for every test that needs one; tests replace what they are about."""

from jaxagent.model.spec import ModelSpec

DENSE = ModelSpec(
    family="qwen3",
    vocab=64,
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp=48,
    tied=True,
    qk_norm=True,
)
