"""The policy's parameters and the programs around them, from a prepared run. The first file that starts a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from jaxagent.clock import Meter
from jaxagent.config import MeshConfig
from jaxagent.decode.buckets import Buckets
from jaxagent.decode.engine import Engine
from jaxagent.errors import ConfigError
from jaxagent.learn.forward import Execution
from jaxagent.learn.state import Partition, train_all, train_also, train_last_layers, train_only
from jaxagent.learner import Network
from jaxagent.mesh.mesh import MeshSpec, make_mesh
from jaxagent.model.critic import PREFIX, add_critic
from jaxagent.model.hf import load_hf, read_spec
from jaxagent.model.lora import add_lora
from jaxagent.model.params import place
from jaxagent.model.transformer import abstract, create
from jaxagent.model_source import is_sizes
from jaxagent.prepare import Prepared


@dataclass(frozen=True)
class Policy:
    """graphdef and parameters on the mesh; which of them are trained; how programs run."""

    graphdef: nnx.GraphDef
    params: Any
    partition: Partition
    execution: Execution


def build_policy(prepared: Prepared) -> Policy:
    """Random parameters, or those of a checkpoint, placed on the mesh; fresh adapters and a fresh value head if the run
    asks for them."""
    config = prepared.config
    if jax.process_count() > 1:
        raise ConfigError(
            f"this run was started on {jax.process_count()} hosts; training across hosts is not supported yet. "
            "Start it on one host (for example a v5litepod-8 or v6e-8)"
        )
    mesh = _mesh(config.mesh)
    exact_float32(config.model.dtype, jax.default_backend())
    options = {
        "dtype": jnp.dtype(config.model.dtype),
        "remat": config.model.remat,
        "fixed_layers": _fixed_layers(prepared),
    }
    if is_sizes(config.model.source):
        graphdef, params = create(prepared.model, seed=config.seed, mesh=mesh, **options)
    else:
        _, params = load_hf(config.model.source, spec=prepared.model, mesh=mesh)
        graphdef, _ = abstract(prepared.model, **options)
    if prepared.lora is not None:
        graphdef, params = add_lora(graphdef, params, prepared.lora, seed=config.seed)
    if prepared.critic is not None:
        graphdef, params = add_critic(graphdef, params, prepared.critic, seed=config.seed)
    if mesh is not None and (prepared.lora or prepared.critic):
        params = place(params, mesh)
    return Policy(graphdef, params, _partition(prepared), Execution(mesh=mesh))


def load_network(source: str, prepared: Prepared, mesh: Mesh | None) -> Network:
    """Another network of the same tokens, from its folder or hf:// name, on the mesh of the policy."""
    config, spec = prepared.config.model, read_spec(source)
    if spec.vocab < prepared.model.vocab:
        raise ConfigError(
            f"{source} knows {spec.vocab} token ids, the policy may sample {prepared.model.vocab}: it cannot score the "
            "others; choose a network with at least as many"
        )
    _, params = load_hf(source, spec=spec, mesh=mesh)
    graphdef, _ = abstract(spec, dtype=jnp.dtype(config.dtype), remat="none")
    return Network(graphdef, params)


def exact_float32(dtype: str, platform: str) -> None:
    """Make float32 mean float32: TPUs and GPUs round the factors of a product to 8 or 11 bits unless told
    otherwise, and decoder and trainer would differ by more than rounding. A setting that is there stays.

    Not for bf16, whose products are exact anyway: the attention kernel does not compile under this setting.
    """
    if dtype == "float32" and platform != "cpu" and jax.config.values["jax_default_matmul_precision"] is None:
        jax.config.update("jax_default_matmul_precision", "highest")


def _mesh(config: MeshConfig) -> Mesh | None:
    """The mesh of the run file; None on a single device, if the run file asks for no more."""
    spec, devices = MeshSpec(**config.model_dump()), len(jax.devices())
    spec.shape(devices)  # raises if the sizes do not fit
    return make_mesh(spec) if devices > 1 else None


def _partition(prepared: Prepared) -> Partition:
    last = prepared.config.model.train_last_layers
    if prepared.lora is not None:
        policy = train_only(lambda name: name.startswith("lora/"))
    else:
        policy = train_last_layers(last) if last else train_all()
    return policy if prepared.critic is None else train_also(policy, lambda name: name.startswith(PREFIX))


def _fixed_layers(prepared: Prepared) -> int:
    """Layers below the lowest trained one."""
    last = prepared.config.model.train_last_layers
    return prepared.model.layers - last if last else 0


def build_engine(prepared: Prepared, policy: Policy, meter: Meter) -> Engine:
    """The decoder, without weights yet."""
    rollout = prepared.config.rollout
    lengths = tuple(sorted({*rollout.cache_buckets, rollout.context}))
    queries = sorted({min(size, rollout.context) for size in rollout.query_buckets})
    prefilled = sorted({min(rows, rollout.slots) for rows in rollout.prefill_rows})
    decoded = sorted({min(rows, rollout.slots) for rows in (*rollout.decode_rows, rollout.slots)})
    return Engine(
        policy.graphdef,
        prepared.model,
        slots=rollout.slots,
        buckets=Buckets(
            prefill=tuple((rows, size) for rows in prefilled for size in queries),
            decode=tuple(decoded),
            lengths=lengths,
        ),
        tokens=rollout.tokens_per_call,
        dtype=jnp.dtype(prepared.config.model.dtype),
        decode=prepared.tokenizer.decode,
        mesh=policy.execution.mesh,
        meter=meter,
        copies=rollout.max_lag > 0,
    )
