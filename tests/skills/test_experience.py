"""The pool of experiences: what is kept, what is found, how it is shown, what a script writes."""

import json
from dataclasses import replace

import pytest

from jaxagent.auxlm.client import AuxRequest
from jaxagent.errors import ConfigError, DataError
from jaxagent.skills.experience import (
    Experience,
    ExperiencePool,
    WrittenExperiences,
    guidance,
    payload_of,
    script_experience,
)
from jaxagent.skills.mine import episode_record
from jaxagent.skills.retrieve import jaccard
from jaxagent.types import Message, Prompt
from tests.made_episodes import make_step, make_trajectory

PAY, RENT, SING = (Experience(when, f"how to {when}") for when in ("pay the bill", "pay the rent", "sing"))


def test_the_most_alike_are_found_above_the_floor():
    pool = ExperiencePool()
    assert [pool.add(one) for one in (SING, RENT, PAY, PAY)] == [True, True, True, False]
    assert pool.retrieve("pay the bill", jaccard, k=5, floor=0.1) == [PAY, RENT]
    assert pool.retrieve("pay the bill", jaccard, k=1, floor=0.1) == [PAY]
    assert pool.retrieve("pay the bill", jaccard, k=5, floor=0.5) == [PAY]
    assert pool.retrieve(" ", jaccard, k=5, floor=0.0) == []
    assert ExperiencePool().retrieve("pay", jaccard, k=5, floor=0.0) == []


def test_a_full_pool_loses_the_oldest_and_restores_exactly():
    pool = ExperiencePool(capacity=2)
    for one in (PAY, RENT, SING):
        pool.add(one)
    assert len(pool) == 2
    again = ExperiencePool(capacity=2)
    again.restore(json.loads(json.dumps(pool.state())))
    assert again.state() == pool.state()
    assert again.retrieve("pay the bill", jaccard, k=5, floor=0.9) == []
    with pytest.raises(DataError, match="damaged"):
        again.restore([{"when": "x"}])
    with pytest.raises(ConfigError, match="pool of 0"):
        ExperiencePool(capacity=0)


def test_a_long_text_is_cut_and_its_tags_are_not():
    assert guidance([PAY], max_chars=100) == "<EXP>\nWhen pay the bill:\nhow to pay the bill\n</EXP>"
    assert guidance([PAY, RENT], max_chars=8) == "<EXP>\nWhen pay\n</EXP>"


def written(*episodes):
    """What the script writes of (actions, statuses, solved)."""
    records = []
    for actions, statuses, solved in episodes:
        steps = [make_step(k, code=a, status=s) for k, (a, s) in enumerate(zip(actions, statuses))]
        made = replace(make_trajectory(steps=steps), prompt=Prompt((Message("user", "pay 12 to mezo"),)))
        records.append((episode_record(made), solved))
    answer = script_experience(AuxRequest("", payload_of(records), (), 0))
    return [
        (one.when_to_use, one.content) for one in WrittenExperiences.model_validate_json(answer).experiences
    ]


def test_a_script_writes_what_works_and_what_to_avoid():
    success = (["pay(to='mezo', amount=12)"], ["ok"], True)
    failure = (["look()", "pay(12)", "pay()"], ["ok", "runtime_error", "timeout"], False)
    assert written(success, failure) == [
        ("pay to", "pay(to=_, amount=_)"),
        ("pay 12 to mezo", "Avoid: pay(12)"),
    ]
    slipped = (["pay(1)", "pay(to='mezo', amount=12)"], ["runtime_error", "ok"], True)
    assert written(slipped) == [("pay to", "pay(to=_, amount=_)")]  # a success's slip is nothing to avoid
    assert written((["look()"], ["ok"], False)) == []
    assert written() == []
