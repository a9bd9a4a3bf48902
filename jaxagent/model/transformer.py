"""The decoder-only transformer as a Flax NNX module: parameters, and the training forward pass.

Layers are stacked: each parameter of `layers` has a leading axis L and one compiled block is scanned over it,
so compile time does not grow with depth. `nnx.split(model)` gives (graphdef, params); params is the pytree
that is trained, saved and handed to the decoder, with paths like `layers/q`, `embed`, `lora/q_a` (see
model/params.py). Matrices are stored [in, out]; the embedding and the head [V, D].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxagent.errors import ConfigError
from jaxagent.kernels.attention import SAVED, Kernel, attend
from jaxagent.mesh.rules import constrain, platform
from jaxagent.model.layer import block, rms_norm
from jaxagent.model.params import shardings
from jaxagent.model.rope import rope_tables
from jaxagent.model.spec import CriticSpec, LoraSpec, ModelSpec

REMAT: Mapping[
    str, Callable[..., bool] | None
] = {  # policy of jax.checkpoint; "none" is no checkpoint at all
    "full": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "attention": jax.checkpoint_policies.save_only_these_names(SAVED),
}
# Layers in a row that a CPU runs without a loop if it recomputes nothing: a loop copies all that the backward pass
# reads (4 layers of width 256: 190 of 1,100 ms).
UNROLLED = 8
ONE_DRAW = 1 << 26  # numbers drawn by one generator call; larger models draw leaf by leaf


class LoraParam(nnx.Param):
    """A parameter of an adapter: where adapters exist, they alone are trained."""


class Layers(nnx.Module):
    """The stacked layers' parameters; see `layer_shapes`."""

    def __init__(self, values: Mapping[str, Array], kind: type[nnx.Param]):
        for name, value in values.items():
            setattr(self, name, kind(value))


def layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every stacked layer parameter."""
    L, D, F, E, H = spec.layers, spec.width, spec.mlp, spec.experts, spec.head_dim
    NH, KH = spec.heads * H, spec.kv_heads * H
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (L, D),
        "q": (L, D, NH),
        "k": (L, D, KH),
        "v": (L, D, KH),
        "o": (L, NH, D),
        "mlp_norm": (L, D),
    }
    if spec.qkv_bias:
        shapes |= {"q_bias": (L, NH), "k_bias": (L, KH), "v_bias": (L, KH)}
    if spec.o_bias:
        shapes["o_bias"] = (L, D)
    if spec.qk_norm:
        shapes |= {"q_norm": (L, H), "k_norm": (L, H)}
    if E:
        return shapes | {"router": (L, D, E), "gate": (L, E, D, F), "up": (L, E, D, F), "down": (L, E, F, D)}
    return shapes | {"gate": (L, D, F), "up": (L, D, F), "down": (L, F, D)}


def lora_shapes(spec: ModelSpec, lora: LoraSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape: `q_a` [L, in, r] and `q_b` [L, r, out] for each target."""
    layers = layer_shapes(spec)
    shapes: dict[str, tuple[int, ...]] = {}
    for target in lora.targets:
        if len(layers[target]) != 3:
            raise ConfigError(f"lora.targets has {target!r}: adapters on expert weights are not supported")
        L, rows, columns = layers[target]
        shapes |= {f"{target}_a": (L, rows, lora.rank), f"{target}_b": (L, lora.rank, columns)}
    return shapes


def _draw(key: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Independent standard normals, by name. One generator call where it fits: each costs 0.2 s of
    compilation."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    if sum(sizes.values()) > ONE_DRAW:
        keys = jax.random.split(key, len(shapes))
        return {name: jax.random.normal(keys[i], shape) for i, (name, shape) in enumerate(shapes.items())}
    flat = jax.random.normal(key, (sum(sizes.values()),))
    out, start = {}, 0
    for name, shape in shapes.items():
        out[name] = flat[start : start + sizes[name]].reshape(shape)
        start += sizes[name]
    return out


def _initial(spec: ModelSpec, lora: LoraSpec | None, key: Array) -> dict[str, dict[str, Array]]:
    """Random values by group: matrices N(0, init_std), norms 1, biases 0, LoRA A N(0, 1/in) and B 0."""
    shapes = {f"layers/{name}": shape for name, shape in layer_shapes(spec).items()}
    shapes["top/embed"] = (spec.vocab, spec.width)
    shapes["top/final_norm"] = (spec.width,)
    if not spec.tied:
        shapes["top/head"] = (spec.vocab, spec.width)
    if lora:
        shapes |= {f"lora/{name}": shape for name, shape in lora_shapes(spec, lora).items()}

    def constant(name: str) -> float | None:
        if name.endswith("norm"):
            return 1.0
        return 0.0 if name.endswith("_bias") or (name.startswith("lora/") and name.endswith("_b")) else None

    normals = _draw(key, {name: shape for name, shape in shapes.items() if constant(name) is None})
    out: dict[str, dict[str, Array]] = {"layers": {}, "top": {}, "lora": {}}
    for name, shape in shapes.items():
        group, leaf = name.split("/")
        value = constant(name)
        if value is not None:
            out[group][leaf] = jnp.full(shape, value)
        else:
            out[group][leaf] = normals[name] * (shape[-2] ** -0.5 if group == "lora" else spec.init_std)
    return out


class Transformer(nnx.Module):
    """dtype: compute dtype of matrices and activations; param_dtype: of the stored (master) weights.

    remat: what the backward pass recomputes: "none", "full" (everything but each block's input), "dots" (all
    but matrix products), "attention" (all but attention outputs).   kernel: see kernels/attention.py.
    fixed_layers: the first so many layers are never trained: no gradient runs back through them.
    critic: parameters of a value head, if one was added (critic.py).
    """

    critic: Layers

    def __init__(
        self,
        spec: ModelSpec,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
        remat: str = "none",
        lora: LoraSpec | None = None,
        kernel: Kernel = "auto",
        fixed_layers: int = 0,
    ):
        self.spec, self.lora_spec = spec, lora
        self.critic_spec: CriticSpec | None = None
        self.dtype = jnp.dtype(dtype)
        if remat not in ("none", *REMAT):
            raise ConfigError(f"remat={remat!r} is unknown; known: none, {', '.join(REMAT)}")
        self.remat = remat
        if not 0 <= fixed_layers < spec.layers:
            raise ConfigError(f"fixed_layers={fixed_layers} of {spec.layers} layers; at least one is trained")
        self.fixed_layers = fixed_layers
        self.kernel: Kernel = kernel
        values = jax.tree.map(lambda x: x.astype(param_dtype), _initial(spec, lora, rngs.params()))
        self.embed = nnx.Param(values["top"]["embed"])
        self.layers = Layers(values["layers"], nnx.Param)
        self.final_norm = nnx.Param(values["top"]["final_norm"])
        if not spec.tied:
            self.head = nnx.Param(values["top"]["head"])
        if lora:
            self.lora = Layers(values["lora"], LoraParam)

    @property
    def lora_scale(self) -> float:
        return self.lora_spec.scale if self.lora_spec else 0.0

    @property
    def head_VD(self) -> Float[Array, "V D"]:
        """LM head in the compute dtype: logits = hidden @ head.T."""
        return (self.embed if self.spec.tied else self.head)[...].astype(self.dtype)

    def stacked(self) -> dict[str, Array]:
        """Every per-layer parameter [L, …], adapters included, in its stored dtype: what the layer scan
        runs over."""
        groups = [self.layers, *([self.lora] if self.lora_spec else [])]
        return {name: leaf[...] for group in groups for name, leaf in nnx.state(group).items()}

    def cast(self, weights: Mapping[str, Array]) -> dict[str, Array]:
        """One layer's weights in the compute dtype; inside the scan, so that only one layer is ever cast."""
        return {name: value.astype(self.dtype) for name, value in weights.items()}

    def embedded(self, token_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        x = jnp.take(self.embed[...], token_BT, axis=0).astype(self.dtype)
        return constrain(x, "batch", "residual", None)

    def normed(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The final norm."""
        return rms_norm(x_BTD, self.final_norm[...], self.spec.norm_eps)

    def hidden(
        self, token_BT: Int[Array, "B T"], position_BT: Int[Array, "B T"], segment_BT: Int[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """Hidden states after the final norm. Packed rows: attention stays within equal segment ids."""
        tables = rope_tables(self.spec.rope, self.spec.head_dim, position_BT)

        def attention(q: Array, k: Array, v: Array) -> tuple[Array, None]:
            return attend(q, k, v, segment_BT, kernel=self.kernel), None

        def body(x: Array, weights: dict[str, Array]) -> tuple[Array, None]:
            x, _ = block(self.spec, self.cast(weights), x, tables, attention, self.lora_scale)
            return x, None

        x, weights = self.embedded(token_BT), self.stacked()
        if fixed := self.fixed_layers:
            x, _ = jax.lax.scan(body, x, {name: leaf[:fixed] for name, leaf in weights.items()})
            x = jax.lax.stop_gradient(x)
            weights = {name: leaf[fixed:] for name, leaf in weights.items()}
        free = self.remat == "none" and platform() == "cpu"
        unroll = min(self.spec.layers, UNROLLED) if free else 1
        x, _ = jax.lax.scan(rematerialised(body, self.remat), x, weights, unroll=unroll)
        return self.normed(x)


def rematerialised(body: Callable[..., Any], remat: str) -> Callable[..., Any]:
    """`body` with the named recomputation policy."""
    if remat == "none":
        return body
    # prevent_cse is needed outside of a scan only, and costs speed inside one.
    return jax.checkpoint(body, policy=REMAT[remat], prevent_cse=False)


def create(
    spec: ModelSpec, *, seed: int, mesh: Mesh | None = None, **options
) -> tuple[nnx.GraphDef, nnx.State]:
    """(graphdef, random params); options are Transformer's. One compiled program; under a mesh every device
    makes its own part, and the values are the same on any number of devices."""
    build = functools.partial(Transformer, spec, **options)
    graphdef, template = abstract(spec, **options)
    layout = None if mesh is None else shardings(template, mesh)
    draw = jax.jit(lambda key: nnx.state(build(rngs=nnx.Rngs(params=key))), out_shardings=layout)
    return graphdef, draw(jax.random.key(seed))


def abstract(spec: ModelSpec, **options) -> tuple[nnx.GraphDef, nnx.State]:
    """(graphdef, params as ShapeDtypeStruct): nothing is computed or allocated."""
    return nnx.split(nnx.eval_shape(lambda: Transformer(spec, rngs=nnx.Rngs(0), **options)))
