"""ModelSpec from config.json in both spellings and back; refusals name the setting."""

from pathlib import Path

import pytest
import transformers
import yaml

from jaxagent.errors import ConfigError
from jaxagent.model.spec import LoraSpec, ModelSpec, Rope
from jaxagent.model.transformer import layer_shapes

QWEN25 = {  # config.json of Qwen/Qwen2.5-0.5B-Instruct
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MODELS = Path(__file__).parents[2] / "configs" / "models"


def test_qwen25_config():
    spec = ModelSpec.from_hf(QWEN25)
    assert (spec.width, spec.layers, spec.heads, spec.kv_heads, spec.head_dim) == (896, 24, 14, 2, 64)
    assert spec.rope == Rope(theta=1e6)
    assert (spec.tied, spec.qkv_bias, spec.o_bias, spec.qk_norm) == (True, True, False, False)
    assert spec.eos == (151645,)


def test_rope_in_both_spellings():
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    old = ModelSpec.from_hf(QWEN25 | {"rope_scaling": scaling})
    new = ModelSpec.from_hf(
        {k: v for k, v in QWEN25.items() if k != "rope_theta"}
        | {"rope_parameters": scaling | {"rope_theta": 1e6}}
    )
    older = ModelSpec.from_hf(QWEN25 | {"rope_scaling": {"type": "yarn", "factor": 4.0}})
    assert old == new == older
    assert old.rope == Rope(theta=1e6, kind="yarn", factor=4.0, original=32768)


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_models_survive_the_round_trip_through_hugging_face(path):
    spec = ModelSpec.from_file(path)
    config = spec.to_hf()
    assert ModelSpec.from_hf(config) == spec
    theirs = transformers.AutoConfig.for_model(**config)
    assert ModelSpec.from_hf(theirs.to_dict()) == spec


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen2.5-0.5b", 0.494),
        ("qwen2.5-7b", 7.616),
        ("qwen2.5-32b", 32.764),
        ("qwen3-0.6b", 0.596),
        ("qwen3-4b", 4.022),
        ("qwen3-8b", 8.191),
        ("qwen3-32b", 32.762),
        ("qwen3-30b-a3b", 30.532),
    ],
)
def test_parameter_counts_are_the_published_ones(name, billions):
    spec = ModelSpec.from_file(MODELS / f"{name}.yaml")
    count = spec.vocab * spec.width * (1 if spec.tied else 2) + spec.width
    for shape in layer_shapes(spec).values():
        size = 1
        for dimension in shape:
            size *= dimension
        count += size
    assert count / 1e9 == pytest.approx(billions, abs=6e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "gemma"},
            "model_type='gemma' is not supported; supported: qwen2, qwen3, qwen3_moe, llama",
        ),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "'dynamic' is not supported; supported: default",
        ),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks its factor"),
        ({"num_key_value_heads": 3}, "model.heads=14 is not a multiple of model.kv_heads=3"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_refusals_name_the_setting(change, message):
    config = {k: v for k, v in (QWEN25 | change).items() if v is not None}
    with pytest.raises(ConfigError, match=message):
        ModelSpec.from_hf(config)


def test_fields_are_checked():
    fields = yaml.safe_load((MODELS / "tiny.yaml").read_text())
    with pytest.raises(ConfigError, match=r"no field 'head'; did you mean 'heads'"):
        ModelSpec.from_fields(fields | {"head": 3})
    with pytest.raises(ConfigError, match=r"model.rope has no field 'teta'; did you mean 'theta'"):
        ModelSpec.from_fields(fields | {"rope": {"teta": 3}})
    with pytest.raises(ConfigError, match="lacks layers"):
        ModelSpec.from_fields({k: v for k, v in fields.items() if k != "layers"})
    with pytest.raises(ConfigError, match="head_dim=63 must be even"):
        ModelSpec.from_fields(fields | {"head_dim": 63})
    with pytest.raises(ConfigError, match=r"lora.targets='query' is unknown; known: q, k, v"):
        LoraSpec(rank=2, alpha=4.0, targets=("query",))
    with pytest.raises(ConfigError, match="does not exist"):
        ModelSpec.from_file("nowhere.yaml")
