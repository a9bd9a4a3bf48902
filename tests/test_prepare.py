"""What is refused between the run file and the first device: combinations, names, missing packages."""

import pytest

from jaxagent.config import RunConfig
from jaxagent.errors import ConfigError
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


def test_a_stage_that_rolls_nothing_out_takes_shorter_rows_and_any_sampling_rule(tmp_path):
    rollout = SMALLEST["rollout"] | {"top_p": 0.9}
    prepared = prepare(read(tmp_path, stages=[SFT], pack={"length": 64}, rollout=rollout))
    assert prepared.entries[0].pack.length == 64
    assert prepared.sampling.top_p == 0.9


def test_training_tasks_go_up_to_a_difficulty_and_evaluations_do_not(tmp_path):
    world = {"name": "world", "options": {"level": "full"}}
    prepared = prepare(read(tmp_path, env=world | {"max_difficulty": 2}, eval={"splits": ["train"]}))
    assert {task.difficulty for task in prepared.train_tasks} == {1, 2}
    assert 3 in {task.difficulty for task in prepared.tasks["train"]}
