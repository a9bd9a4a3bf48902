"""Slips: one word wrong, repaired at once, and never in the loss."""

from random import Random

import pytest

from jaxagent.data.slips import WORD, slip
from jaxagent.envs.world.spec import world_spec
from jaxagent.errors import ConfigError
from jaxagent.recipes.sft import SftOptions
from jaxagent.rollout.demonstrate import play

TEXT = 'apis.book.show(name="mezo")'


def test_one_word_is_replaced_and_nothing_else():
    for seed in range(20):
        wrong = slip(TEXT, Random(seed))
        assert WORD.split(wrong) == WORD.split(TEXT)
        changed = [a != b for a, b in zip(WORD.findall(wrong), WORD.findall(TEXT))]
        assert sum(changed) == 1
    assert slip("12 + 3", Random(0)) == "12 + 3"


def test_a_slip_is_answered_with_an_error_and_repaired():
    spec = world_spec("easy")
    slipped = 0
    for number, task in enumerate(spec.tasks("train")[:30]):
        played = play(spec, task, rng=Random(number), slips=0.5)
        assert played.evaluation.success
        for k, result in enumerate(played.results[1:]):
            if result.exec_status.failed:
                slipped += 1
                assert WORD.split(played.texts[k]) == WORD.split(played.texts[k + 1])
    assert slipped > 10


def test_the_same_seed_slips_the_same():
    spec = world_spec("easy")
    task = spec.tasks("train")[0]
    assert play(spec, task, rng=Random(3), slips=1.0) == play(spec, task, rng=Random(3), slips=1.0)


def test_slips_are_not_imitated():
    with pytest.raises(ConfigError, match="mask_errors"):
        SftOptions.parse({"slips": 0.3}, "options")
    with pytest.raises(ConfigError, match="drop `file`"):
        SftOptions.parse({"slips": 0.3, "mask_errors": True, "file": "x.jsonl"}, "options")
