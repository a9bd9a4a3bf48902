"""What is refused between the run file and the first device: combinations, names, missing packages."""

import json
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxagent.config import RunConfig
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError, DataError
from jaxagent.prepare import prepare
from tests.test_config import SMALLEST

DOORS = {"env": {"name": "doors"}, "tokenizer": {"source": "train", "vocab_size": 300, "template": "plain"}}
LOOP, SFT = {"recipe": "loop"}, {"recipe": "sft"}


def read(tmp_path, **changes):
    return RunConfig.parse({**SMALLEST, **DOORS, "run_dir": str(tmp_path / "run"), **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pack": {"length": 64}}, "stage 0-loop: pack.length=64 is shorter than rollout.context=100"),
        ({"pack": {"length": 128, "scored": 20}}, "30 tokens that an episode can sample"),
        (
            {"warm_start": [LOOP | {"pack": {"length": 64}}], "stages": [SFT]},
            "stage 0-loop: pack.length=64 is shorter",
        ),
        ({"stages": [LOOP | {"name": "a"}, SFT | {"name": "a"}]}, "stage name 'a' is taken"),
        ({"stages": [LOOP | {"name": "start"}]}, "'start' is taken"),
        ({"rollout": SMALLEST["rollout"] | {"top_p": 0.9}}, "cannot reproduce log-probs"),
        ({"rollout": SMALLEST["rollout"] | {"temperature": 0}}, "makes all rollouts of a task equal"),
        ({"model": {"source": "tiny", "train_last_layers": 9}}, "the model has 3 layers"),
        ({"pack": {"length": 256}, "rollout": SMALLEST["rollout"] | {"context": 150}}, "150 leaves no room"),
        (
            {"model": {"source": "tiny", "critic": {"hidden": [8]}}},
            "no stage of this run .0-loop. learns values",
        ),
        ({"stages": [{"recipe": "critic", "options": {"solved_nll": 0.1}}]}, "belong to a policy term"),
        ({"stages": [{"recipe": "vtrace", "options": {"c_bar": 2.0}}]}, "is above rho_bar=1.0; lower it"),
        ({"stages": [{"recipe": "ppo", "options": {"gamma_turn": 0.9}}]}, "is read with level: bilevel"),
        (
            {"stages": [{"recipe": "ppo", "options": {"value_min": 1.0, "value_max": 0.0}}]},
            "not below value_max",
        ),
        (
            {
                "stages": [{"recipe": "ppo", "options": {"bootstrap_truncated": True}}],
                "pack": {"length": 100},
            },
            "not the 1 more that these options need",
        ),
        ({"trackers": ["wandb"]}, r"pip install 'jaxagent\[wandb\]'"),
        ({"env": {"name": "doors", "max_difficulty": 1, "train_split": "trian"}}, "no split 'trian'"),
        ({"stages": [SFT | {"options": {"adam_learning_rate": 0.1}}]}, "goes with optimizer muon"),
    ],
)
def test_what_cannot_work_is_refused_before_a_device_starts(tmp_path, monkeypatch, changes, words):
    monkeypatch.setattr("jaxagent.prepare.TRACKER_MODULES", {"wandb": "no_such_package"})
    with pytest.raises(ConfigError, match=words):
        prepare(read(tmp_path, **changes))
    assert not (tmp_path / "run").exists()


def test_tasks_that_a_store_cannot_hold_are_refused_before_a_device_starts(tmp_path, monkeypatch):
    spec = find_env("doors", {})
    odd = [replace(task, meta={**task.meta, "since": date(2026, 1, 1)}) for task in spec.tasks("train")]
    monkeypatch.setattr("jaxagent.prepare.find_env", lambda *_: replace(spec, tasks=lambda split: odd))
    config = read(tmp_path, stages=[SFT])
    prepare(config)
    with pytest.raises(ConfigError, match=r"keep_rollouts=1, task .*meta\['since'\] is a date"):
        prepare(config.model_copy(update={"keep_rollouts": 1}))


def test_a_stage_that_rolls_nothing_out_takes_shorter_rows_and_any_sampling_rule(tmp_path):
    rollout = SMALLEST["rollout"] | {"top_p": 0.9}
    prepared = prepare(read(tmp_path, stages=[SFT], pack={"length": 64}, rollout=rollout))
    assert prepared.entries[0].pack.length == 64
    assert prepared.sampling.top_p == 0.9


def test_training_tasks_go_up_to_a_difficulty_and_evaluations_do_not(tmp_path):
    world = {"name": "world", "options": {"level": "full"}}
    room = {"rollout": SMALLEST["rollout"] | {"context": 2000}, "pack": {"length": 2000}}
    prepared = prepare(read(tmp_path, env=world | {"max_difficulty": 2}, eval={"splits": ["train"]}, **room))
    assert {task.difficulty for task in prepared.train_tasks} == {1, 2}
    assert 3 in {task.difficulty for task in prepared.tasks["train"]}


HF = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "tie_word_embeddings": True,
}


def test_weights_that_do_not_fit_are_refused_from_their_headers(tmp_path):
    """Reading them takes a device; their names and shapes do not."""
    (tmp_path / "config.json").write_text(json.dumps(HF))
    model = {"source": str(tmp_path)}
    with pytest.raises(DataError, match=r"holds no \*\.safetensors"):
        prepare(read(tmp_path, model=model))
    save_file({"model.embed_tokens.weight": np.zeros((64, 16), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"has shape \(64, 16\), config.json asks for \(64, 32\)"):
        prepare(read(tmp_path, model=model))
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    with pytest.raises(DataError, match="no readable safetensors file"):
        prepare(read(tmp_path, model=model))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps(HF | {"num_hidden_layers": "32"}), "model.layers='32': expected a whole number"),
        (json.dumps(HF | {"num_attention_heads": None}), "no usable number"),
        (json.dumps(HF | {"rope_theta": "big"}), "no usable number"),
        (json.dumps(HF | {"rope_scaling": "x"}), "rope_scaling='x', expected an object"),
        ("[]", "holds list"),
        ("{", "is not JSON"),
    ],
)
def test_a_damaged_config_json_is_one_message(tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises((ConfigError, DataError), match=words):
        prepare(read(tmp_path, model={"source": str(tmp_path)}))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("vocab: many", "model.vocab='many': expected a whole number"),
        ("vocab: true", "model.vocab=True"),
        ("norm_eps: .nan", "model.norm_eps=nan: expected a number"),
        ("tied: 'no'", "expected true or false"),
        ("rope: x", "model.rope='x'"),
        ("rope: {theta: big}", "model.rope.theta='big': expected a number"),
        ("rope: {theta: 0.0}", "rope.theta=0.0 must be above 0"),
        ("a: [", "not a readable YAML file"),
    ],
)
def test_a_damaged_model_file_is_one_message(tmp_path, line, words):
    sizes = {"family": "llama", "vocab": 64, "width": 32, "layers": 1, "heads": 2, "kv_heads": 1}
    sizes |= {"head_dim": 16, "mlp": 48}
    key = line.split(":")[0]
    kept = [f"{name}: {value}" for name, value in sizes.items() if name != key]
    (tmp_path / "m.yaml").write_text("\n".join([*kept, line]))
    with pytest.raises(ConfigError, match=words):
        prepare(read(tmp_path, model={"source": str(tmp_path / "m.yaml")}))
