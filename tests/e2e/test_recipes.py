"""Every recipe trains end to end on the embedded world, from its shipped run file: nothing lost, nothing leaked."""

import json

import numpy as np
import pytest

from jaxagent.metrics import read_metrics
from jaxagent.run import export_run, run_training
from tests.e2e.run_files import small_run

RECIPES = ("sft", "grpo", "loop", "gvpo", "skill_sd", "siri", "skillrl")
WITH_SKILLS = ("skill_sd", "siri", "skillrl")
OPTION = "stages.0.options."
CHANGES = {  # to two iterations
    "sft": ["eval.every=1"],
    "siri": [
        f"{OPTION}{change}"
        for change in ("warmup_steps=0", "warmup_min=0", "warmup_max=1", "success_at=0.0", "miner=policy")
    ],
    "skillrl": [f"{OPTION}{change}" for change in ("warmup_steps=0", "update_every=1")],
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_trains_from_its_run_file(tmp_path, recipe):
    folder = tmp_path / "run"
    assert run_training(small_run(f"world_{recipe}", folder, *CHANGES.get(recipe, ()))) == 0

    records = [record for record in read_metrics(folder / "metrics.jsonl") if "when" not in record]
    assert [record["step"] for record in records] == list(range(6))
    rolled = [record for record in records if "rollout/submitted" in record]
    assert len(rolled) == (0 if recipe == "sft" else 2)
    for record in rolled:
        assert record["rollout/submitted"] == 8 == record["rollout/kept"] + record["rollout/dropped"]

    result = json.loads((folder / "result.json").read_text())
    plain = {"test_normal/greedy", "test_normal/sampled"}
    skilled = {f"{mode}+skills" for mode in plain} if recipe in WITH_SKILLS else set()
    assert set(result["after"]) == plain | skilled
    assert set(result["before"]) == plain  # of the stage before
    if recipe == "siri":  # the policy was asked, and had nothing to say
        assert records[-1]["auxlm/siri.mine/calls"] == 2 == records[-1]["auxlm/siri.mine/failures"]
    if skilled:
        assert json.loads((folder / f"{recipe}.skills.json").read_text()) is not None
    assert {"tgc", "sgc"} <= set(result["before"]["test_normal/greedy"])
    assert result["compilations"] > 0
    spent = sum(sum(parts.values()) for parts in result["seconds"].values())
    assert spent == pytest.approx(result["minutes"] * 60)
    assert {"decode", "environments", "compilation", "python"} <= set(result["seconds"]["evaluation"])
    for file in ("report/index.html", "report/curves.png", "config.yaml", "export/model.safetensors"):
        assert (folder / file).stat().st_size > 0


def test_an_exported_run_loads_in_transformers_to_the_same_logits(tmp_path):
    torch = pytest.importorskip("torch")
    import jax.numpy as jnp
    from flax import nnx
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from jaxagent.model.hf import load_hf
    from jaxagent.model.transformer import abstract

    folder = tmp_path / "run"
    run_training(small_run("world_sft", folder))
    out = export_run(folder, tmp_path / "again", form="merged")
    ours = (folder / "export" / "model.safetensors").read_bytes()
    assert (out / "model.safetensors").read_bytes() == ours

    ids = np.asarray(AutoTokenizer.from_pretrained(out).encode("print(1)<|end|>"))[None]
    theirs = AutoModelForCausalLM.from_pretrained(out)(torch.tensor(ids)).logits.detach().numpy()
    spec, params = load_hf(out)
    model = nnx.merge(abstract(spec)[0], params)
    token_BT = jnp.asarray(ids, jnp.int32)
    hidden = model.hidden(token_BT, jnp.arange(ids.shape[1])[None], jnp.ones_like(token_BT))
    np.testing.assert_allclose(np.asarray(hidden @ model.head_VD.T), theirs, atol=2e-4)
