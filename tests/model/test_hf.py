"""Loading: what is damaged, missing or left over is named; a mesh gives the same arrays; exports are
atomic."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from jaxagent.errors import ConfigError, DataError, DivergenceError
from jaxagent.export import export_adapter, export_model
from jaxagent.mesh.mesh import MeshSpec, make_mesh
from jaxagent.model.hf import check_tokenizer, load_hf, read_spec
from jaxagent.model.params import flat
from jaxagent.model.spec import ModelSpec
from jaxagent.model.transformer import create

SIZES = {"vocab": 64, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 48}
SPEC = ModelSpec(family="llama", **SIZES)
TIED = ModelSpec(family="llama", **SIZES, tied=True)
MOE = ModelSpec(family="qwen3_moe", **SIZES, qk_norm=True, experts=4, experts_per_token=2)


def written(folder, spec=SPEC):
    export_model(folder, *create(spec, seed=0))
    return folder


def change(folder, edit):
    """Rewrite the folder's tensors."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


Q = "model.layers.1.self_attn.q_proj.weight"
CASES = {
    "missing": (SPEC, lambda t: t.pop(Q), rf"{Q} of shape \(32, 32\) is missing"),
    "untied head missing": (
        SPEC,
        lambda t: t.pop("lm_head.weight"),
        "lm_head.weight .* tie_word_embeddings=false",
    ),
    "left over": (
        SPEC,
        lambda t: t.update({"model.extra": np.zeros(3, np.float32)}),
        "no place .*: model.extra",
    ),
    "shape": (
        SPEC,
        lambda t: t.update({Q: np.zeros((16, 32), np.float32)}),
        rf"{Q} has shape \(16, 32\), config.json asks for \(32, 32\)",
    ),
    "quantised": (
        SPEC,
        lambda t: t.update({Q: np.zeros((32, 32), np.int8)}),
        f"{Q} is I8, expected one of F32",
    ),
    "tied, another head": (
        TIED,
        lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}),
        "lm_head.weight is not the embedding",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_checkpoint_is_named(case, tmp_path):
    spec, edit, message = CASES[case]
    folder = written(tmp_path / "m", spec)
    change(folder, edit)
    with pytest.raises(DataError, match=message):
        load_hf(folder)


def test_tied_checkpoints_may_repeat_the_embedding(tmp_path):
    """Other trainers write the head of a tied model too."""
    folder = written(tmp_path / "m", TIED)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    change(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    _, params = load_hf(folder)
    assert "head" not in params


def test_folders_that_are_none(tmp_path):
    with pytest.raises(DataError, match=r"has no config.json; expected a model folder or hf://"):
        load_hf(tmp_path)
    folder = written(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"12345678901")
    with pytest.raises(DataError, match=r"model.safetensors is no readable safetensors file"):
        load_hf(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"holds no \*.safetensors"):
        load_hf(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config.json is not JSON"):
        read_spec(folder)


def test_a_name_that_cannot_be_downloaded():
    """The test session is offline (HF_HUB_OFFLINE)."""
    with pytest.raises(DataError, match="cannot download hf://nobody/nothing@main"):
        load_hf("hf://nobody/nothing@main")


def test_a_missing_shard_is_named(tmp_path):
    folder = tmp_path / "m"
    export_model(folder, *create(SPEC, seed=0), shard_bytes=20_000)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert set(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values()) == {
        shard.name for shard in shards
    }
    shards[1].unlink()
    with pytest.raises(DataError, match=f"lacks {shards[1].name}, which its index names"):
        load_hf(folder)


@pytest.mark.parametrize("spec", [SPEC, MOE], ids=["llama", "moe"])
def test_loading_onto_a_mesh_gives_the_same_arrays_in_pieces(spec, tmp_path):
    _, params = create(spec, seed=0)
    folder = written(tmp_path / "m", spec)
    _, loaded = load_hf(folder, mesh=make_mesh(MeshSpec(fsdp=4, tensor=2)))
    for name, leaf in flat(params).items():
        np.testing.assert_array_equal(flat(loaded)[name], leaf, err_msg=name)
    down = flat(loaded)["layers/down"]
    assert {shard.data.size for shard in down.addressable_shards} == {down.size // 8}


def test_tokenizer_must_fit():
    check_tokenizer(SPEC, 64)
    with pytest.raises(DataError, match="the tokenizer has 65 tokens, the model's embedding 64"):
        check_tokenizer(SPEC, 65)


def test_exports_replace_exports_only_and_copy_the_tokenizer(tmp_path):
    graphdef, params = create(SPEC, seed=0, param_dtype=jnp.bfloat16)
    source = tmp_path / "tokenizer"
    source.mkdir()
    with pytest.raises(DataError, match="holds no tokenizer"):
        export_model(tmp_path / "a", graphdef, params, tokenizer=source)
    assert not list(tmp_path.glob("a*")), "a failed export leaves nothing behind"
    (source / "tokenizer.json").write_text("{}")
    (source / "notes.txt").write_text("private")
    for _ in range(2):
        export_model(tmp_path / "a", graphdef, params, tokenizer=source)
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json"}
    assert json.loads((tmp_path / "a" / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_file(tmp_path / "a" / "model.safetensors")[Q].dtype == jnp.bfloat16
    with pytest.raises(DataError, match="is no earlier export; choose another folder"):
        export_model(source, graphdef, params)
    assert (source / "notes.txt").exists()
    with pytest.raises(ConfigError, match="no adapters; export it merged"):
        export_adapter(tmp_path / "b", graphdef, params, base="x")


def test_untrained_is_never_exported(tmp_path):
    """Every exported tensor is the parameter it is named after."""
    graphdef, params = create(SPEC, seed=0)
    params = nnx.to_pure_dict(params)
    params["layers"]["v"] = params["layers"]["v"] + 3.0
    tensors = load_file(export_model(tmp_path / "m", graphdef, params) / "model.safetensors")
    for layer in range(2):
        name = f"model.layers.{layer}.self_attn.v_proj.weight"
        np.testing.assert_array_equal(tensors[name], params["layers"]["v"][layer].T)


def test_a_diverged_model_is_not_exported(tmp_path):
    graphdef, params = create(SPEC, seed=0)
    params["final_norm"] = jax.tree.map(lambda x: x.at[3].set(jnp.nan), params["final_norm"])
    with pytest.raises(DivergenceError, match=r"model\.norm\.weight holds NaN"):
        export_model(tmp_path / "out", graphdef, params)
    assert not (tmp_path / "out").exists()
