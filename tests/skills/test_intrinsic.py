"""The bank of SIRI: the moving average by hand, states, the slot of candidates, exact restoring."""

import json
from random import Random

import numpy as np
import pytest

from jaxagent.checkpoint_state import host_json
from jaxagent.errors import ConfigError, DataError
from jaxagent.skills.intrinsic import IntrinsicBank, IntrinsicSkill, State, Thresholds, evaluated
from jaxagent.skills.retrieve import jaccard

RULES = Thresholds()


def after(deltas, rules=RULES):
    """The skill after each of the evaluations."""
    skills = [IntrinsicSkill("s0", "c", "s")]
    for delta in deltas:
        skills.append(evaluated(skills[-1], delta, rules))
    return skills[1:]


def test_utility_by_hand():
    utilities = [skill.utility for skill in after([0.5, 0.25, -0.25, 0.5])]
    assert utilities == pytest.approx([0.15, 0.18, 0.051, 0.1857])
    assert [skill.evaluations for skill in after([0.5, 0.25, -0.25, 0.5])] == [1, 2, 3, 4]


def test_a_candidate_is_promoted_after_n_eval_with_positive_utility():
    assert [skill.state for skill in after([0.5, 0.25, -0.25])] == ["candidate", "candidate", "active"]
    assert after([0.0, 0.0, 0.0])[-1].state is State.CANDIDATE  # u = 0 is not above u_min = 0
    assert after([0.5] * 3, Thresholds(u_min=0.4))[-1].state is State.CANDIDATE


def test_a_skill_retires_after_a_streak_of_negative_utility():
    states = [skill.state for skill in after([-0.5, -0.5, -0.5])]
    assert states == ["candidate", "candidate", "retired"]
    # U = -.15, .165, -.1545, -.378: the streak began anew.
    assert after([-0.5, 0.9, -0.9, -0.9])[-1].negative == 2
    fallen = after([0.5, 0.5, 0.5, -1, -1, -1, -1, -1])
    assert fallen[2].state is State.ACTIVE
    assert [skill.negative for skill in fallen[2:6]] == [0, 1, 2, 3]  # u = .3285, -.0701, -.349, -.544
    assert [skill.state for skill in fallen[4:6]] == ["active", "retired"]
    assert after([-0.5] * 4, Thresholds(n_eval=5))[-1].state is State.CANDIDATE
    assert after([-0.1] * 5, Thresholds(u_ret=0.2))[-1].state is State.CANDIDATE


@pytest.mark.parametrize("change", [{"alpha": 0.0}, {"n_eval": 0}, {"n_neg": 0}, {"u_ret": -1.0}])
def test_impossible_thresholds(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        Thresholds(**change)


def bank_of(*conditions):
    bank = IntrinsicBank()
    for condition in conditions:
        bank.add(condition, f"do {condition}", ["t1"])
    return bank


def test_words_are_stored_once_even_after_they_were_retired():
    bank = bank_of("pay a bill")
    assert not bank.add(" pay a bill ", "do pay a bill\n", ["t2"])
    for _ in range(3):
        bank.evaluate("s0", -1.0)
    assert bank.count() == {"candidate": 0, "active": 0, "retired": 1}
    assert not bank.add("pay a bill", "do pay a bill", ["t3"])
    assert len(bank) == 1


def test_retrieval_by_condition_above_the_floor():
    bank = bank_of("pay a bill", "delete all notes")
    find = lambda request, **k: bank.retrieve(request, jaccard, floor=0.2, **k)  # noqa: E731
    assert find("delete my notes").skill_id == "s1"
    assert find("sing a song") is None
    assert find("") is None
    for _ in range(3):
        bank.evaluate("s1", -1.0)
    assert find("delete my notes") is None  # retired


def test_unproven_candidates_get_their_slot():
    """s0 is nearest and proven; the slot shows s1 until it has been evaluated often enough, then s2 is next."""
    bank = bank_of("pay the bill", "pay the rent", "pay the fee")
    for _ in range(3):
        bank.evaluate("s0", 0.5)
    likeness = lambda request, texts: np.array([0.9, 0.8, 0.7])[: len(texts)]  # noqa: E731

    def shown(slot, floor=0.4):
        found = [
            bank.retrieve("pay the bill", likeness, floor=floor, slot=slot, draw=Random(i))
            for i in range(200)
        ]
        return [sum(skill.skill_id == f"s{n}" for skill in found) for n in range(3)]

    assert shown(0.0) == [200, 0, 0]
    assert shown(1.0) == [0, 200, 0]
    half = shown(0.5)
    assert half[2] == 0
    assert 70 < half[1] < 130
    assert shown(1.0, floor=0.85) == [200, 0, 0]  # no candidate reaches the floor
    for _ in range(3):
        bank.evaluate("s1", 0.0)  # still a candidate, but evaluated
    assert shown(1.0) == [0, 0, 200]


def test_state_is_json_and_restores_to_the_same_bank():
    bank = bank_of("pay a bill", "delete all notes")
    for delta in (0.5, 0.25, -0.25):
        bank.evaluate("s0", delta)
    again = IntrinsicBank()
    again.restore(json.loads(host_json({"bank": bank.state()}))["bank"])
    assert again.skills == bank.skills
    assert bank.state()[0]["state"] == "active"
    for each in (bank, again):
        each.evaluate("s1", -1.0)
        each.add("new", "words", ["t9"])
    assert again.state() == bank.state()
    with pytest.raises(DataError, match="damaged"):
        again.restore([{"skill_id": "s0"}])
