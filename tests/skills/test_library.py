"""SkillRL's bank and source: its JSON, retrieval, growth of weak kinds, a source that resumes exactly."""

import json
from dataclasses import replace

import pytest

from jaxagent.auxlm.background import Background
from jaxagent.auxlm.client import AuxLimits, AuxLM, AuxRequest, ScriptedBackend
from jaxagent.checkpoint_state import host_json
from jaxagent.data.tasks import TaskSource
from jaxagent.errors import DataError
from jaxagent.skills.evolve import WRITE, script_write
from jaxagent.skills.library import (
    Library,
    Mistake,
    Principle,
    full_library_text,
    principles_alone,
    read_library,
)
from jaxagent.skills.retrieve import jaccard
from jaxagent.skills.shown import LibraryRules, LibrarySource
from jaxagent.stage import Source
from jaxagent.types import ExecStatus, Group, Message, Prompt
from tests.made_episodes import make_step, make_task, make_trajectory

PUBLISHED = {
    "general_skills": [
        {
            "skill_id": "gen_001",
            "title": "Search",
            "principle": "Look everywhere once.",
            "when_to_apply": "find things",
            "example": "left out",
        }
    ],
    "task_specific_skills": {
        "pick": [{"skill_id": "p1", "title": "Path", "principle": "Go there.", "when_to_apply": "put things"}]
    },
    "common_mistakes": [
        {"mistake_id": "err_001", "description": "find and find again", "how_to_avoid": "Try another place."}
    ],
}


def library():
    made = Library()
    made.restore(PUBLISHED)
    return made


def test_the_published_layout_is_read_and_written():
    made = library()
    assert made.general == [Principle("gen_001", "Search", "Look everywhere once.", "find things")]
    assert made.by_kind["pick"][0].title == "Path"
    assert made.mistakes[0].why_it_happens == ""
    again = Library()
    again.restore(json.loads(json.dumps(made.state())))
    assert again == made


def test_a_null_is_a_field_that_is_not_there():
    """Written as the word None it would stand in every prompt."""
    library = Library()
    skill = {"skill_id": "a", "title": "t", "principle": "p", "when_to_apply": None}
    library.restore({**PUBLISHED, "general_skills": [skill]})
    assert library.general == [Principle("a", "t", "p", "")]
    for bad in (None, ["p"], {"a": 1}):
        with pytest.raises(DataError, match="no skill bank"):
            library.restore({**PUBLISHED, "general_skills": [skill | {"principle": bad}]})


def test_files(tmp_path):
    path = tmp_path / "bank.json"
    path.write_text(json.dumps(PUBLISHED))
    assert read_library(str(path)) == library()
    assert len(read_library("")) == 0
    for text, words in (
        ("{", "cannot be read"),
        ("[]", "no skill bank"),
        ('{"general_skills": []}', "expected"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            read_library(str(path))
    with pytest.raises(DataError, match="cannot be read"):
        read_library(str(tmp_path / "nothing.json"))


def test_retrieval_takes_skills_of_every_kind_and_mistakes_above_the_floor():
    made = library()
    skills, mistakes = made.retrieve("find things", jaccard, k=6, floor=0.1)
    assert [skill.skill_id for skill in skills] == ["gen_001", "p1"]
    assert [mistake.mistake_id for mistake in mistakes] == ["err_001"]
    assert made.retrieve("find things", jaccard, k=1, floor=0.1)[0] == skills[:1]
    assert made.retrieve("find things", jaccard, k=6, floor=0.9) == (skills[:1], [])
    assert made.retrieve("", jaccard, k=6, floor=0.0) == ([], [])


def test_texts():
    assert full_library_text(library().principles[:1], library().mistakes) == (
        "Skills from earlier experience:\n- Search: Look everywhere once. (when: find things)\n"
        "Mistakes to avoid:\n- find and find again Instead: Try another place."
    )
    assert full_library_text([], []) == ""
    assert principles_alone(library().principles, [Mistake("m", "d")]) == "Look everywhere once."
    assert principles_alone([], [Mistake("m", "d")]) == ""


def test_words_are_stored_once():
    made = library()
    assert not made.add_skill("other", "Title", " Look everywhere once. ", "find things")
    assert made.add_skill("other", "Title", "Look everywhere once.", "elsewhere")
    assert made.add_skill("", "General", "Be brief.", "")
    assert [skill.skill_id for skill in (*made.by_kind["other"], made.general[-1])] == ["dyn_003", "dyn_004"]
    assert made.add_mistake("new", "", "")
    assert not made.add_mistake(" new ", "why", "")


# --- the source -----------------------------------------------------------------------------------------------

OK, ERROR = ExecStatus.OK, ExecStatus.RUNTIME_ERROR
TASKS = [make_task(f"{kind}{n}", type=kind) for n in range(2) for kind in ("pay", "sing")]


def rollout(task, solved, number=0):
    steps = [
        replace(
            make_step(0, code=f'{task.type}("x")', status=OK if solved else ERROR), observation_after="oh no"
        )
    ]
    made = make_trajectory(float(solved), task=task, rollout=number, steps=steps)
    return replace(made, prompt=Prompt((Message("user", f"{task.type} {task.task_id}"),)))


def played(plans, rates):
    """Groups in which a kind's share of rollouts is solved."""
    return [
        Group(
            plan.task,
            tuple(rollout(plan.task, i < rates[plan.task.type] * plan.n, i) for i in range(plan.n)),
        )
        for plan in plans
    ]


@pytest.fixture
def make():
    made = []

    def build(*, script=script_write, **rules):
        writer = Background(AuxLM(ScriptedBackend({WRITE.name: script}), AuxLimits(backoff_s=0.0)))
        values = {"every": 2, "floor": 0.1, **rules}
        source = LibrarySource(
            TaskSource(TASKS, tasks=4, rollouts=4, seed=0), Library(), writer, LibraryRules(jaccard, **values)
        )
        made.append(source)
        return source

    yield build
    for source in made:
        source.close()


def go(source, iteration, **rates):
    plans = source.next(iteration)
    return plans, source.observe(played(plans, {"pay": 1.0, "sing": 1.0} | rates))


def test_only_weak_kinds_get_skills_and_only_at_an_update(make):
    source = make()
    assert isinstance(source, Source)
    _, metrics = go(source, 0, sing=0.25)
    assert (metrics["skillrl/added"], metrics["skillrl/weak_kinds"]) == (0.0, 0.0)
    _, metrics = go(source, 1, sing=0.25)
    assert (metrics["skillrl/added"], metrics["skillrl/weak_kinds"]) == (1.0, 1.0)
    assert list(source.library.by_kind) == ["sing"]
    (skill,) = source.library.by_kind["sing"]
    assert (skill.principle, skill.when_to_apply) == ('sing("x")', "sing sing0")
    assert source.library.mistakes[0].description == 'sing("x")'
    assert source.library.mistakes[0].why_it_happens == "oh no"
    assert source._records == {}  # the next update counts anew


def test_an_update_is_due_after_every_iteration_that_was_learnt_from_whatever_was_asked_for(make):
    """every 2, one iteration ahead: the updates come with the second and the fourth observed."""
    source = make()
    plans = source.next(0)
    weak = []
    for ahead in range(1, 5):
        later = source.next(ahead)
        weak.append(source.observe(played(plans, {"pay": 1.0, "sing": 0.25}))["skillrl/weak_kinds"])
        plans = later
    assert weak == [0.0, 1.0, 0.0, 1.0]


def test_the_threshold_is_exclusive(make):
    source = make(threshold=0.5)
    assert go(source, 1, sing=0.5)[1]["skillrl/weak_kinds"] == 0.0


def test_at_most_so_many_new_skills_of_one_update_the_weakest_first(make):
    def script(request):
        skills = [
            {"title": f"t{n}", "principle": f"{request.payload['kind']} {n}", "when_to_apply": "w"}
            for n in range(request.payload["most"])
        ]
        return json.dumps({"skills": skills})

    source = make(script=script, most=3)
    _, metrics = go(source, 1, sing=0.25, pay=0.0)
    assert metrics["skillrl/added"] == 3.0
    assert {kind: len(skills) for kind, skills in source.library.by_kind.items()} == {"pay": 3}


def test_a_writer_that_fails_adds_nothing(make):
    source = make(script=lambda request: "no")
    _, metrics = go(source, 1, sing=0.0)
    assert metrics["skillrl/added"] == 0.0
    assert metrics["auxlm/skillrl.write/failures"] == 1.0


def test_skills_are_in_the_prompt_of_every_rollout_and_of_evaluations(make):
    source = make()
    opening = Prompt((Message("user", "sing sing0"),))
    (plan, *_), _ = go(source, 1, sing=0.25)
    assert source.opening(TASKS[0], opening) == plan.prompt(opening)
    (message,) = plan.prompt(opening).messages
    assert message.content.startswith("Skills from earlier experience:\n- sing 1: sing")
    assert message.content.endswith("\n\nsing sing0")
    assert source.opening(TASKS[0], Prompt((Message("user", "unlike"),))).messages[0].content == "unlike"


def test_resuming_gives_the_same_bank(make):
    straight, resumed = make(), make()
    for iteration in range(4):
        rates = {"sing": 0.25 * (iteration % 2), "pay": 0.0}
        (_, metrics), (_, same) = (go(each, iteration, **rates) for each in (straight, resumed))
        assert {k: v for k, v in metrics.items() if "auxlm" not in k} == {
            k: v for k, v in same.items() if "auxlm" not in k
        }
        state = json.loads(host_json(resumed.state()))
        assert state == json.loads(host_json(straight.state()))
        resumed = make()
        resumed.restore(state)
    assert len(straight.library) > 0


def test_the_script_copies_workflows_and_first_errors():
    step = {"action": 'pay(to="mezo")', "status": "ok", "observation": "ok"}
    bad = {"action": "pay()", "status": "runtime_error", "observation": "Traceback\nTypeError: to"}
    payload = {
        "kind": "pay",
        "most": 3,
        "successes": [{"request": "pay mezo", "steps": [step], "task": "t"}] * 2,
        "failures": [{"request": "pay mezo", "steps": [step, bad], "task": "t"}],
    }
    assert json.loads(script_write(AuxRequest(WRITE.name, payload, (), 0))) == {
        "skills": [{"title": "pay 1", "principle": "pay(to=_)", "when_to_apply": "pay"}],
        "common_mistakes": [{"description": "pay()", "why_it_happens": "TypeError: to"}],
    }
