"""What the decoder gets is what was trained: adapters merged, cast, placed, and seen in the checksum."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.decode.engine import Engine
from jaxagent.decode.handoff import hand_off
from jaxagent.mesh.mesh import MeshSpec, make_mesh
from jaxagent.model.lora import add_lora, merge_lora
from jaxagent.model.params import place
from jaxagent.model.spec import LoraSpec
from tests.decode.engines import BUCKETS, SPEC, prompt, request, run


def test_adapters_reach_the_decoder_and_every_bit_counts(model):
    graphdef, params = model
    base, plain = hand_off(graphdef, params, dtype=jnp.float32)
    lora_graphdef, lora_params = add_lora(graphdef, params, LoraSpec(rank=2, alpha=4.0), seed=0)
    untrained, same = hand_off(lora_graphdef, lora_params, dtype=jnp.float32)
    assert int(same) == int(plain)  # B = 0: nothing has been learnt yet
    assert untrained.layers[0].keys() == base.layers[0].keys()

    trained = jax.tree.map(lambda leaf: leaf + 0.01, lora_params)
    weights, changed = hand_off(lora_graphdef, trained, dtype=jnp.float32)
    merged, expected = hand_off(*merge_lora(lora_graphdef, trained), dtype=jnp.float32)
    assert int(changed) not in (int(plain), 0)
    np.testing.assert_allclose(weights.layers[1]["q"], merged.layers[1]["q"], atol=1e-6)
    assert expected.dtype == jnp.uint32

    swapped = jax.tree.map(lambda leaf: jnp.flip(leaf, -1) if leaf.ndim == 3 else leaf, params)
    assert int(hand_off(graphdef, swapped, dtype=jnp.float32)[1]) != int(plain)
    assert hand_off(graphdef, params, dtype=jnp.bfloat16)[0].embed_VD.dtype == jnp.bfloat16


def test_two_by_two_devices_decode_as_one_does(model, make_engine):
    contexts = [
        prompt(9),
        prompt(16, seed=1),
        prompt(23, seed=2),
        prompt(23, seed=2),
    ]  # the last two share theirs
    requests = [request(f"s{i}", ids, rollout=i, max_tokens=14) for i, ids in enumerate(contexts)]
    expected = run(make_engine(), *requests)
    mesh = make_mesh(MeshSpec(fsdp=2, tensor=2), jax.devices()[:4])
    engine = Engine(model[0], SPEC, slots=4, buckets=BUCKETS, tokens=8, mesh=mesh)
    engine.load(place(model[1], mesh), 0)
    assert engine.checksum == make_engine().checksum
    found = run(engine, *requests)
    assert engine.counts.copied == 22
    for one, other in zip(found, expected):
        assert one.ids_T.tolist() == other.ids_T.tolist()
        np.testing.assert_allclose(one.logprob_T, other.logprob_T, atol=2e-5)


def test_a_decoder_of_its_own_weights_outlives_the_parameters(model, make_engine):
    """An update donates its parameters while requests run: without copies the embedding would go with them."""
    params = jax.tree.map(jnp.array, model[1])
    engine = make_engine(copies=True)
    engine.load(params, 1)
    before = run(engine, request("a", prompt(8)))[0]
    for leaf in jax.tree.leaves(params):
        leaf.delete()
    after = run(engine, request("b", prompt(8)))[0]
    np.testing.assert_array_equal(before.ids_T, after.ids_T)
