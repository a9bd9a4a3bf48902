"""Libraries at test time: the order of play, what each kind of retrieval hands a task, and that rollouts stay apart."""

import asyncio
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from jaxagent.plan import Plan
from jaxagent.skills.embed import hashed
from jaxagent.skills.functions import carried
from jaxagent.skills.hand_on import handed
from jaxagent.skills.retrieve import cosine, jaccard
from jaxagent.skills.shelf import (
    GrowingLibraries,
    Shelved,
    by_function,
    by_request,
    in_rounds,
    same_scenario,
)
from jaxagent.types import Group, Message, Prompt, Sampling
from tests.made_episodes import make_step, make_task, make_trajectory
from tests.skills.test_functions import episode

TASKS = {
    name: make_task(name, scenario=name[0], split="test") for name in ("a1", "a2", "a3", "b1", "b2", "c1")
}
REQUESTS = {
    "a1": "pay the bill",
    "a2": "pay the rent",
    "a3": "walk home",
    "b1": "play a song",
    "b2": "pay the bill now",
    "c1": "",
}


def left(name, code):
    return Shelved(TASKS[name], REQUESTS[name], carried([episode(code, task=name)]))


SHELF = [left("a1", "def settle(bill): pass"), left("b1", "def play(song): pass"), left("c1", "x = 1")]


def names(library):
    return [function.name for function in library]


def test_the_oracle_gives_the_scenarios_own_functions():
    assert names(same_scenario(TASKS["a2"], "", SHELF)) == ["settle"]
    assert names(same_scenario(TASKS["c1"], "", SHELF)) == []


def test_requests_are_compared_by_ngrams_or_embeddings():
    """ "pay the bill" and "pay the rent" share 3 of 9 n-grams; "walk home" shares none with any."""
    assert jaccard(REQUESTS["a2"], [REQUESTS["a1"]]) == pytest.approx([1 / 3])
    for likeness in (jaccard, cosine(hashed)):
        assert names(by_request(likeness, 1, 0.0)(TASKS["b2"], REQUESTS["b2"], SHELF)) == ["settle"]
        assert names(by_request(likeness, 2, 0.0)(TASKS["b2"], REQUESTS["b2"], SHELF))[0] == "settle"
        assert by_request(likeness, 3, 0.2)(TASKS["a3"], REQUESTS["a3"], SHELF) == ()
        assert by_request(likeness, 3, -1.0)(TASKS["c1"], " ", SHELF) == ()
    assert names(by_request(jaccard, 9, 0.0)(TASKS["b2"], "pay", SHELF)) == ["settle", "play"]


def test_functions_are_compared_by_signature_and_docstring():
    shelf = [*SHELF, left("b1", 'def go(x):\n    """Walk home at night."""')]
    pick = by_function(cosine(hashed), 1, 0.0)
    assert names(pick(TASKS["a3"], "walk home", shelf)) == ["go"]
    assert names(pick(TASKS["a3"], "settle the bill", shelf)) == ["settle"]
    assert by_function(jaccard, 1, 0.0)(TASKS["a3"], "walk", []) == ()


def test_scenarios_are_played_side_by_side_and_their_tasks_in_a_seeded_order():
    plans = [Plan(task, 1) for task in TASKS.values()]
    rounds = in_rounds(plans, 0)
    assert [len(part) for part in rounds] == [3, 2, 1]
    assert all(len({plan.task.scenario for plan in part}) == len(part) for part in rounds)
    assert {plan.task.task_id for part in rounds for plan in part} == set(TASKS)
    assert in_rounds(plans, 0) == rounds
    orders = {tuple(p.task.task_id for part in in_rounds(plans, s) for p in part) for s in range(8)}
    assert len(orders) > 1
    bare = [Plan(replace(TASKS["a1"], scenario="", task_id=str(n)), 1) for n in range(3)]
    assert [len(part) for part in in_rounds(bare, 0)] == [3]


class Player:
    """Every episode defines <task id>() and calls what it was shown; keeps what it was given."""

    def __init__(self):
        self.shown: dict[tuple[str, int], list[str]] = {}
        self.defined: dict[tuple[str, int], list[str]] = {}

    async def __call__(self, plans, sampling):
        groups: dict[str, list] = {}
        for plan in plans:
            (number,) = range(plan.first, plan.first + plan.n)
            plain = Prompt((Message("user", REQUESTS[plan.task.task_id]),))
            opening = plan.prompt(plain)
            key = plan.task.task_id, number
            self.shown[key] = opening.messages[0].content.splitlines()[:-2]
            self.defined[key] = [action.text for action in plan.before(plain)]
            calls = "".join(f"{line[4:-2]}()\n" for line in self.shown[key])
            code = f"{calls}def {plan.task.task_id}_{number}(): pass"
            made = make_trajectory(task=plan.task, rollout=number, steps=[make_step(0, code=code)])
            made = replace(made, prompt=opening, extra={"plain_prompt": plain})
            groups.setdefault(plan.task.task_id, []).append(made)
        return [Group(TASKS[name], tuple(items)) for name, items in groups.items()]


def play(pick, n=1, seed=0):
    player = Player()
    libraries = GrowingLibraries(pick, partial(handed, heading=""), seed=seed)
    plans = [Plan(task, n) for task in TASKS.values()]
    groups = asyncio.run(libraries.way(player)(plans, Sampling(max_tokens=8)))
    return player, libraries, groups


def test_libraries_grow_task_by_task_within_a_scenario_and_rollouts_do_not_share():
    player, libraries, groups = play(same_scenario, n=2)
    assert [group.task.task_id for group in groups] == list(TASKS)
    assert [[t.rollout for t in group.trajectories] for group in groups] == [[0, 1]] * 6
    order = [name for part in libraries.state()["order"] for name in part if name[0] == "a"]
    for number in (0, 1):
        for place, name in enumerate(order):
            earlier = [f"{before}_{number}" for before in order[:place]]
            assert player.shown[name, number] == [f"def {each}()" for each in earlier]
            assert player.defined[name, number] == [f"def {each}(): pass" for each in earlier]


def test_other_kinds_see_what_earlier_rounds_of_every_scenario_left():
    player, libraries, _ = play(by_request(lambda request, texts: np.ones(len(texts)), 99, 0.0))
    first, second, third = libraries.state()["order"]
    assert all(player.shown[name, 0] == [] for name in first)
    for name in second:
        assert set(player.shown[name, 0]) == {f"def {each}_0()" for each in first}
    assert set(player.shown[third[0], 0]) == {f"def {each}_0()" for each in (*first, *second)}


def test_order_seed_and_libraries_are_reported():
    _, libraries, _ = play(same_scenario, seed=5)
    state = json.loads(json.dumps(libraries.state()))
    assert state["seed"] == 5
    assert sorted(name for part in state["order"] for name in part) == sorted(TASKS)
    assert state["used_frac"] == 1.0  # by all who had a library
    assert [entry["functions"][0]["name"] for entry in state["functions"]["0"]] == [
        f"{name}_0" for part in state["order"] for name in part
    ]
    assert play(same_scenario, seed=5)[1].state() == libraries.state()
