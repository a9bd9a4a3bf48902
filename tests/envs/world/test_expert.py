"""The sloppy expert: how often it fails, how, and that it is reproducible."""

import random
from collections import Counter

import pytest

from jaxagent.envs.world import expert
from jaxagent.envs.world.tasks import build, tasks
from jaxagent.types import ExecStatus
from tests.envs.world.worlds import one_task, play


def outcomes(sloppiness: float, count: int) -> list[bool]:
    return [
        play(task, sloppiness, seed)[0].success for seed, task in enumerate(tasks("easy", "train")[:count])
    ]


def test_sloppiness_sets_the_success_rate():
    rate = sum(outcomes(0.75, 240)) / 240
    assert 0.3 < rate < 0.55  # what a warm start should imitate
    assert sum(outcomes(1.0, 120)) / 120 < 0.35


def test_every_kind_is_sometimes_solved_and_sometimes_failed():
    found: dict[str, Counter] = {}
    for seed, task in enumerate(tasks("easy", "train")[:600]):
        found.setdefault(task.type, Counter())[play(task, 0.75, seed)[0].success] += 1
    rate = {kind: counts[True] / sum(counts.values()) for kind, counts in found.items()}
    assert all(0.02 < value < 0.85 for value in rate.values()), rate
    # Weak and strong kinds: half of them mostly wrong, half mostly right.
    assert sorted(rate.values())[2] < 0.4 < 0.6 < sorted(rate.values())[-3], rate


def test_the_same_seed_makes_the_same_mistakes():
    for task in tasks("easy", "train")[:20]:
        assert play(task, 1.0, seed=7)[2] == play(task, 1.0, seed=7)[2]


@pytest.mark.parametrize(
    ("flaw", "kind", "symptom"),
    [
        (expert.no_login, "pay", "NameError"),
        (expert.guessed_password, "pay", "401 wrong pw"),
        (expert.wrong_argument, "copy", "422"),
        (expert.partial_loop, "finish", ""),
        (expert.guessed_answer, "balance", ""),
        (expert.giving_up, "copy", ""),
    ],
)
def test_each_flaw_shows(monkeypatch, flaw, kind, symptom):
    monkeypatch.setattr(expert, "FLAWS", (flaw,))
    monkeypatch.setattr(expert, "RECOVERY", 0.0)
    verdict, results, messages = play(one_task("easy", kind), 1.0)
    assert not verdict.success
    assert messages[-1].startswith("apis.me.done(")
    assert symptom in " ".join(result.observation for result in results)


@pytest.mark.parametrize("flaw", [expert.no_login, expert.guessed_password, expert.wrong_argument])
@pytest.mark.parametrize("kind", ["pay", "paynote", "balance", "sent"])
def test_a_noticed_error_is_repaired(monkeypatch, flaw, kind):
    monkeypatch.setattr(expert, "FLAWS", (flaw,))
    monkeypatch.setattr(expert, "RECOVERY", 1.0)
    verdict, results, _ = play(one_task("easy", kind), 1.0, seed=3)
    assert verdict.success
    assert any(result.exec_status == ExecStatus.RUNTIME_ERROR for result in results)


def test_the_full_level_has_a_sloppy_expert_too():
    verdicts = [play(task, 1.0, seed)[0].success for seed, task in enumerate(tasks("full", "train"))]
    assert 0.02 < sum(verdicts) / len(verdicts) < 0.6


def test_the_expert_reads_documentation_and_uses_what_it_saw():
    task = one_task("full", "settle")
    _, results, messages = play(task)
    code = "\n".join(messages)
    assert all(message.startswith("```python\n") for message in messages)
    assert code.index("show_app_descriptions") < code.index("show_api_doc(") < code.index("login(")
    world, _ = build(task)
    assert world.passwords["bank"] in code  # copied out of an observation
    assert any(world.passwords["bank"] in result.observation for result in results)


def test_a_finished_policy_ends_the_task():
    policy = expert.ScriptedPolicy(one_task("easy", "pay"), [], random.Random(0))
    assert policy.act("anything") == "apis.me.done()"
