"""The run file: unknown and ill-typed keys, extends, overrides; every shipped file reads."""

import re
from pathlib import Path

import pytest
import yaml

from jaxagent.chat.render import find_template
from jaxagent.config import RunConfig
from jaxagent.errors import ConfigError
from jaxagent.recipes.table import RECIPES, find_recipe
from jaxagent.run_file import read_run, write_run

RUNS = Path(__file__).parents[1] / "configs" / "runs"
SHIPPED = sorted(path for path in RUNS.glob("*.yaml") if path.stem != "appworld_base")
SMALLEST = {
    "run_dir": "r",
    "model": {"source": "tiny"},
    "env": {"name": "world"},
    "rollout": {"max_steps": 3, "max_tokens": 10, "context": 100},
    "stages": [{"recipe": "loop"}],
}


def written(folder, values, name="run.yaml"):
    path = folder / name
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_run_files_are_valid(path):
    config = read_run(path)
    find_template(config.tokenizer.template)
    for stage in config.all_stages:
        find_recipe(stage.recipe).options.parse(stage.options)


NO_SETUP = {  # whose papers print no set-up on an environment of ours
    "rpp",
    "gspo",
    "cispo",
    "starpo",
    "starpo_s",
    "vapo",
    "vtrace",
}


def test_every_recipe_has_a_run_file_for_the_world_and_for_its_paper():
    worlds = [path for path in SHIPPED if path.stem.startswith("world_")]
    papers = [path for path in SHIPPED if path not in worlds and not path.stem.endswith("_tiny")]
    shown, used = (
        {stage.recipe for path in paths for stage in read_run(path).all_stages} for paths in (worlds, papers)
    )
    for recipe in RECIPES:
        assert recipe in shown, recipe
        assert recipe in used | NO_SETUP, recipe


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rolout": {}}, "rolout: unknown key; did you mean 'rollout'?"),
        ({"rollout": {"max_step": 3, "max_tokens": 10, "context": 100}}, "did you mean 'max_steps'?"),
        (
            {"rollout": {"max_steps": 3, "max_tokens": 200, "context": 100}},
            "lower max_tokens or raise context",
        ),
        ({"seed": "three"}, "seed='three': input should be a valid integer"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"model": {"source": "tiny", "dtype": "float8"}}, "model.dtype='float8'"),
        ({"pack": {"length": 128, "scored": 256}}, "lower scored"),
        (
            {"model": {"source": "tiny", "train_last_layers": 2, "lora": {"rank": 1, "alpha": 1}}},
            "drop one of them",
        ),
        ({"rollout": SMALLEST["rollout"] | {"cache_buckets": [200]}}, "from 1 to context=100"),
        ({"rollout": SMALLEST["rollout"] | {"query_buckets": []}}, "one size or more"),
        ({"rollout": SMALLEST["rollout"] | {"temperature": 1e-4}}, "at least 0.001"),
        ({"stages": [{"recipe": "loop", "name": "a/b"}]}, "stages.0.name='a/b'"),
        ({"stages": []}, "stages"),
        ({"stages": [{"recpe": "loop"}]}, "stages.0.recpe: unknown key; did you mean 'recipe'?"),
        ({"model": None}, "model"),
        ({"mesh": {"fsdp": 0}}, "fsdp=0: give the number of devices, or -1"),
        ({"model": {"source": "tiny", "lora": {"rank": 1, "alpha": float("inf")}}}, "a finite number"),
        ({"rollout": SMALLEST["rollout"] | {"temperature": 1e30}}, "less than or equal to 10000"),
        ({"extends": ["a.yaml"]}, "extends=['a.yaml']: expected the name of one run file"),
    ],
)
def test_what_cannot_work_is_refused_in_words(tmp_path, change, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_run(written(tmp_path, SMALLEST | change))


def test_one_size_stands_without_brackets():
    """Run folders from before there could be several hold `prefill_rows: 8`; they can still be resumed and measured."""
    rollout = RunConfig.parse({**SMALLEST, "rollout": SMALLEST["rollout"] | {"prefill_rows": 4}}).rollout
    assert rollout.prefill_rows == (4,)
    assert rollout.decode_rows == (8,)
    for wrong in (True, "8", 8.5, None, {"a": 1}):
        with pytest.raises(ConfigError, match="prefill_rows="):
            RunConfig.parse({**SMALLEST, "rollout": SMALLEST["rollout"] | {"prefill_rows": wrong}})


def test_a_wrong_stage_is_one_message(tmp_path):
    """Not a second one that says there are no stages."""
    with pytest.raises(ConfigError) as error:
        read_run(written(tmp_path, SMALLEST | {"stages": [{"recipe": None}]}))
    assert str(error.value) == "stages.0.recipe=None: input should be a valid string"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: 1\nmodel: {source: tiny, source: other}\n", "the key 'source' stands twice"),
        ("a: " + "[" * 3000, "nested too deeply"),
        ("", "expected a mapping"),
        ("seed:\t1", "not a readable YAML file"),
    ],
)
def test_a_file_that_is_no_run_file_is_refused_in_words(tmp_path, text, words):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_run(tmp_path / "run.yaml")


def test_a_number_without_a_point_is_a_number_and_quoted_text_stays_text(tmp_path):
    """YAML 1.1 calls 1e-5 text; what is written must read back the same."""
    override = ["stages.0.options.learning_rate=1e-5", "run_dir='1e5'"]
    config = read_run(written(tmp_path, SMALLEST), override)
    assert config.stages[0].options == {"learning_rate": 1e-5}
    write_run(config, tmp_path / "config.yaml")
    assert read_run(tmp_path / "config.yaml") == config
    assert config.run_dir == "1e5"


def test_a_missing_key_is_named(tmp_path):
    values = {key: value for key, value in SMALLEST.items() if key != "env"}
    with pytest.raises(ConfigError, match="env: missing"):
        read_run(written(tmp_path, values))


def test_extends_merges_mappings_and_replaces_lists(tmp_path):
    written(tmp_path, SMALLEST, "base.yaml")
    child = {"extends": "base.yaml", "rollout": {"max_steps": 7}, "stages": [{"recipe": "gvpo"}]}
    config = read_run(written(tmp_path, child))
    assert config.rollout.max_steps == 7
    assert config.rollout.max_tokens == 10
    assert [stage.recipe for stage in config.stages] == ["gvpo"]


def test_a_circle_of_extends_is_refused(tmp_path):
    written(tmp_path, {"extends": "b.yaml"}, "a.yaml")
    written(tmp_path, {"extends": "a.yaml"}, "b.yaml")
    with pytest.raises(ConfigError, match="circle"):
        read_run(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed", "expected key=value"),
        ("=3", "expected key=value"),
        ("stages.4.recipe=sft", "not an index below 1"),
        ("seed.deeper=3", "seed is not a mapping"),
        ("seed.deeper.still=3", "nothing below 'deeper'"),
        ("seed=[1", "not YAML"),
        ("stages.²=1", "not an index below 1"),
        ("rollout.max_step=3", "did you mean 'max_steps'?"),
    ],
)
def test_bad_overrides_are_refused(tmp_path, override, words):
    with pytest.raises(ConfigError) as error:
        read_run(written(tmp_path, SMALLEST | {"seed": 1}), [override])
    assert words in str(error.value)


def test_overrides_reach_into_lists(tmp_path):
    config = read_run(written(tmp_path, SMALLEST), ["stages.0.options.iterations=5", "seed=9"])
    assert config.stages[0].options == {"iterations": 5}
    assert config.seed == 9


@pytest.mark.parametrize("name", ["missing.yaml", "folder"])
def test_unreadable_files_are_config_errors(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError):
        read_run(tmp_path / name)


def test_a_resolved_configuration_reads_back_equal(tmp_path):
    config = RunConfig.parse(SMALLEST)
    write_run(config, tmp_path / "config.yaml")
    assert read_run(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("alarms", "message"),
    [
        ({"thresholds": {"entropy": 0.2}}, "did you mean 'entropy_collapse'"),
        ({"thresholds": {"clip": True}}, "an alarm is on by default"),
        ({"thresholds": {"reward_hacking": 2}}, "greater than or equal to 3"),
        ({"on_collapse": "rewind"}, "'warn', 'stop' or 'rollback'"),
        ({"collapse": ["entropy"]}, "did you mean 'entropy_collapse'"),
        (
            {"collapse": ["clip"], "thresholds": {"clip": "off"}, "on_collapse": "stop"},
            "is off in thresholds",
        ),
        ({"rollback": {"learning_rate": 1, "reseed": False}}, "change nothing"),
        ({"rollback": {"limit": 0}}, "greater than or equal to 1"),
    ],
)
def test_alarms_that_cannot_work(tmp_path, alarms, message):
    with pytest.raises(ConfigError, match=message):
        read_run(written(tmp_path, SMALLEST | {"alarms": alarms}))


def test_a_rollback_needs_checkpoints_to_go_back_to(tmp_path):
    values = SMALLEST | {"alarms": {"on_collapse": "rollback"}, "checkpoint": {"every": 0}}
    with pytest.raises(ConfigError, match=r"set checkpoint\.every"):
        read_run(written(tmp_path, values))


@pytest.mark.parametrize(
    ("rollout", "other", "message"),
    [
        ({"max_lag": -1}, {}, "greater than or equal to 0"),
        ({"partial": True, "max_lag": 1}, {}, "partial needs a quorum below 1"),
        ({"partial": True, "quorum": 0.8}, {}, "max_lag 1, or 2"),
        ({"max_lag": 1}, {"checkpoint": {"every": 1}}, "leaves nothing to run ahead"),
        ({"max_lag": 1}, {"eval": {"every": 1}}, "eval.every=1 leaves nothing to run ahead"),
    ],
)
def test_lags_that_cannot_work(tmp_path, rollout, other, message):
    values = SMALLEST | other | {"rollout": SMALLEST["rollout"] | rollout}
    with pytest.raises(ConfigError, match=message):
        read_run(written(tmp_path, values))


def test_a_study_names_run_files_and_methods_that_exist():
    for path in RUNS.parent.joinpath("studies").glob("*.yaml"):
        study = yaml.safe_load(path.read_text())
        names = [method["name"] for method in study["methods"]]
        assert len(set(names)) == len(names)
        for file in (study["warm"], *(method["run"] for method in study["methods"])):
            assert (path.parent / file).is_file(), file
        started = {
            f"{method['name']}, warm start" for method in study["methods"] if method.get("own_warm_start")
        }
        for claim in study["claims"]:
            assert {claim["better"], claim["worse"]} <= {*names, *started}, claim["name"]
