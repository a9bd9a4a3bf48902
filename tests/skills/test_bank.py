"""The bank, UCB's numbers, injection. Hand-computed values are those of the Skill-SD description."""

import json
import math

import pytest

from jaxagent.errors import ConfigError, DataError
from jaxagent.skills.bank import Skill, SkillBank
from jaxagent.skills.prompt import full_text, inject, workflow_text
from jaxagent.skills.retrieve import explores, pick_ucb, ucb_scores
from jaxagent.types import Message, Prompt


def skill(text="w", **kwargs):
    return Skill("", True, success_analysis=text, **kwargs)


THREE = [
    Skill("a", True, mean_return=0.8, retrievals=4),
    Skill("b", True, mean_return=0.5, retrievals=1),
    Skill("c", True, mean_return=0.2, retrievals=2),
]


def test_ucb_scores():
    assert ucb_scores(THREE, 7, c=1.0) == pytest.approx([1.497479, 1.894959, 1.186385], abs=1e-6)
    assert ucb_scores(THREE, 7, c=0.2) == pytest.approx([0.939496, 0.778992, 0.397277], abs=1e-6)
    assert pick_ucb(THREE, 7, c=1.0).skill_id == "b"
    assert pick_ucb(THREE, 7, c=0.2).skill_id == "a"


def test_untried_skills_come_first_in_order():
    skills = [*THREE, Skill("d", True), Skill("e", True)]
    assert pick_ucb(skills, 7).skill_id == "d"
    assert ucb_scores(skills, 7)[3] == math.inf


def test_one_retrieval_means_the_mean_alone_decides():
    assert ucb_scores([Skill("a", True, mean_return=0.3, retrievals=1)], 1, c=5.0) == [0.3]
    assert pick_ucb([], 0) is None


def test_exploration_is_what_the_mean_would_not_pick():
    assert not explores(THREE, THREE[0])
    assert explores(THREE, THREE[1])
    assert explores(THREE, Skill("d", True))


def test_running_mean():
    bank = SkillBank()
    bank.restore({"created": 1, "buffers": {"t": {"retrievals": 4, "skills": [_saved("s0", 0.8, 4)]}}})
    bank.credit("t", "s0", 0.3)
    (kept,) = bank.skills("t")
    assert kept.mean_return == pytest.approx(0.7)
    assert (kept.retrievals, bank.retrievals("t")) == (5, 5)


def test_buffers_are_apart_and_equal_content_is_stored_once():
    bank = SkillBank()
    assert bank.add("t1", skill("a"))
    assert not bank.add("t1", skill("a"))
    assert bank.add("t2", skill("a"))
    assert [s.skill_id for s in (*bank.skills("t1"), *bank.skills("t2"))] == ["s0", "s1"]
    assert bank.skills("t3") == ()
    assert bank.retrievals("t3") == 0
    assert len(bank) == 2


def test_a_full_buffer_loses_the_lowest_tried_skill():
    bank = SkillBank(capacity=3)
    for text in "abc":
        bank.add("t", skill(text))
    bank.credit("t", "s0", 0.9)
    bank.credit("t", "s2", 0.1)
    bank.add("t", skill("d"))
    assert [s.success_analysis for s in bank.skills("t")] == ["a", "b", "d"]
    assert bank.retrievals("t") == 2  # the evicted skill's retrieval still counts
    bank.credit("t", "s2", 1.0)  # picked before it was evicted
    assert bank.retrievals("t") == 3
    assert [s.retrievals for s in bank.skills("t")] == [1, 0, 0]


def test_a_full_buffer_of_untried_skills_loses_the_oldest():
    bank = SkillBank(capacity=2)
    for text in "abc":
        bank.add("t", skill(text))
    assert [s.success_analysis for s in bank.skills("t")] == ["b", "c"]


def test_state_is_json_and_restores_to_the_same_bank():
    bank = SkillBank(capacity=2)
    bank.add("t", skill("a", golden_workflow=("x", "y")))
    bank.add("t", skill("b"))
    bank.credit("t", "s1", 0.5)
    again = SkillBank(capacity=2)
    again.restore(json.loads(json.dumps(bank.state())))
    assert again.skills("t") == bank.skills("t")
    assert again.state() == bank.state()
    for each in (bank, again):
        each.add("t", skill("c"))
    assert again.state() == bank.state()
    with pytest.raises(DataError, match="damaged"):
        again.restore({"buffers": {"t": {"skills": [{"id": 1}], "retrievals": 0}}})


def test_a_bank_needs_room():
    with pytest.raises(ConfigError, match="buffer_max=0"):
        SkillBank(capacity=0)


LESSON = Skill("s", True, "it logged in", "forgot to log in", ("login()", "pay()"))


def test_texts():
    assert workflow_text(LESSON) == "login()\npay()"
    assert full_text(LESSON).splitlines()[1:] == [
        "What worked: it logged in",
        "What went wrong: forgot to log in",
        "Workflow:",
        "login()",
        "pay()",
    ]
    assert workflow_text(Skill("s", False, mistake_analysis="m")) == "m"


def test_injection_changes_the_opening_only():
    system, user = Message("system", "Rules {new}"), Message("user", "Task")
    prompt = Prompt((system, user), tools=({"name": "f"},))
    taught = inject(prompt, LESSON, text=workflow_text)
    assert taught.messages == (Message("system", "Rules {new}\n\nlogin()\npay()"), user)
    assert taught.tools == prompt.tools
    plain = inject(Prompt((user,)), LESSON, text=workflow_text)
    assert plain.messages == (Message("user", "login()\npay()\n\nTask"),)
    with pytest.raises(DataError, match="neither"):
        inject(Prompt(()), LESSON)


def _saved(skill_id, mean, n):
    return {
        "skill_id": skill_id,
        "success": True,
        "success_analysis": "a",
        "mistake_analysis": "",
        "golden_workflow": [],
        "mean_return": mean,
        "retrievals": n,
    }
