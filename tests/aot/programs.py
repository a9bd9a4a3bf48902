"""Compile one of the device programs for four chips of TPU v5e on this machine; print what the compiler says.

python -m tests.aot.programs '{"program": "update", "model": "dense", "axes": {"fsdp": 4}}'
"""

import json
import sys

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh

from jaxagent.batch.targets import seq_mean_token_mean
from jaxagent.decode.buckets import Buckets
from jaxagent.decode.handoff import hand_off, weight_shardings
from jaxagent.decode.programs import Programs
from jaxagent.learn.forward import SCORED, TOKENS, Execution
from jaxagent.learn.optim import OptimizerSpec, make_optimizer
from jaxagent.learn.state import TrainState, train_all, train_only
from jaxagent.learn.step import make_update
from jaxagent.learn.terms import clipped_pg
from jaxagent.mesh.mesh import MeshSpec, make_mesh
from jaxagent.mesh.rules import sharding
from jaxagent.model.cache import cache_formats, cache_shape
from jaxagent.model.params import shardings
from jaxagent.model.spec import LoraSpec, ModelSpec
from jaxagent.model.transformer import abstract
from jaxagent.model_source import MODELS
from jaxagent.policy import exact_float32
from jaxagent.stage import Term

SIZES = {
    "vocab": 1024,
    "width": 512,
    "layers": 4,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 128,
    "qk_norm": True,
}
DENSE = ModelSpec(family="qwen3", mlp=1024, **SIZES)
MOE = ModelSpec(family="qwen3_moe", mlp=256, experts=8, experts_per_token=2, **SIZES)
LORA = LoraSpec(rank=8, alpha=16.0)


def placed(tree, places):
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), tree, places
    )


def lower_update(graphdef, params, mesh: Mesh, *, rows: int, length: int, lora: bool):
    """The whole training step: forward, backward, fused log-probs, AdamW."""
    partition = train_only(lambda name: name.startswith("lora/")) if lora else train_all()
    optimizer = make_optimizer(OptimizerSpec(1e-3))
    moments = jax.eval_shape(optimizer.init, partition.split(params)[0])

    def scalar(dtype, shape=()):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding((None,) * len(shape), shape, mesh))

    def array(dtype, second=None):
        shape = (rows, length)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(("batch", second), shape, mesh))

    number, norms = scalar(jnp.int32), scalar(jnp.float32, (3,))
    state = TrainState(params, placed(moments, shardings(moments, mesh)), number, number, number, norms)
    batch = {name: array(jnp.int32, "sequence") for name in TOKENS}
    batch |= {name: array(jnp.float32 if name == "advantage_BS" else jnp.int32) for name in SCORED}
    batch |= {"logprobs": {"old": array(jnp.float32)}, "weight": {"pg": array(jnp.float32)}}
    batch["count"] = {"pg": scalar(jnp.float32)}
    terms = {"pg": Term(clipped_pg(), seq_mean_token_mean)}
    update = make_update(graphdef, terms, optimizer, partition=partition, execution=Execution(mesh))
    with jax.set_mesh(mesh):
        return update._build(state)["single"].lower(state, batch)


def compile_decoder(graphdef, params, spec: ModelSpec, mesh: Mesh, dtype):
    """Hand-off, and the decoder's programs by kind and rows."""
    weights, _ = jax.eval_shape(lambda params: hand_off(graphdef, params, dtype=dtype), params)
    found = {"hand_off": hand_off.lower(graphdef, params, dtype=dtype, mesh=mesh).compile()}
    weights = placed(weights, weight_shardings(weights, mesh))
    cache = cache_shape(spec, slots=16, length=32768, dtype=dtype)
    programs = Programs(spec, tokens=8, mesh=mesh)
    buckets = Buckets(prefill=((2, 256),), decode=(2, 16), lengths=(32768,))
    programs.warm_up(weights, placed(cache, cache_formats(cache, mesh)), buckets)
    for (kind, _, shapes), program in programs._compiled.items():
        found[f"{kind}/{shapes[0][0]}"] = program
    return found


def facts(compiled) -> dict[str, int]:
    text, memory = compiled.as_text(), compiled.memory_analysis()
    return {
        "kernels": text.count("tpu_custom_call"),
        "all_to_all": text.count(" all-to-all("),
        "peak": memory.peak_memory_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
    }


def main(wanted: dict) -> dict:
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    mesh = make_mesh(MeshSpec(**wanted["axes"]), topology.devices)
    quickstart = wanted["model"] == "quickstart"
    spec = (
        ModelSpec.from_file(MODELS / "tiny.yaml")
        if quickstart
        else {"dense": DENSE, "moe": MOE}[wanted["model"]]
    )
    dtype = jnp.dtype("float32" if quickstart else "bfloat16")
    exact_float32(dtype.name, "tpu")
    lora = wanted.get("lora", False)
    graphdef, params = abstract(spec, dtype=dtype, remat="full", lora=LORA if lora else None)
    params = placed(params, shardings(params, mesh))
    if wanted["program"] == "decoder":
        found = compile_decoder(graphdef, params, spec, mesh, dtype)
        return {name: facts(compiled) for name, compiled in found.items()}
    rows, length = (8, 192) if quickstart else (4, 1024)
    return facts(lower_update(graphdef, params, mesh, rows=rows, length=length, lora=lora).compile())


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
