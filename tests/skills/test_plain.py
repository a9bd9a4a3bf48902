"""Who samples and who learns, token for token: every variant of Skill-SD on episodes of characters."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from jaxagent.batch.pack import pack
from jaxagent.collected import Collected, marked
from jaxagent.credit.group import group_mean, per_group
from jaxagent.envs.inline_pool import InlinePool
from jaxagent.errors import RolloutError
from jaxagent.recipes.table import RECIPES
from jaxagent.rollout.plans import run_plans
from jaxagent.skills.bank import Skill
from jaxagent.skills.plain import behind_plain_prompts
from jaxagent.teacher import taught
from jaxagent.train import credit
from jaxagent.types import Credited
from tests.envs.fake_envs import echo_spec, echo_task
from tests.recipes.test_stages import materials
from tests.rollout.fake_policy import CharRenderer, Scripted, char_runner
from tests.test_teacher import Positions

LESSON = Skill("", True, golden_workflow=("say end",))
TASKS = [echo_task("a"), echo_task("b")]  # "a" has a skill, "b" has none
PLAIN, SHOWN = "hello", "say end\n\nhello"


def stage_of(recipe, **options):
    """A stage whose bank knows one skill of task "a"."""
    made = materials(tasks=TASKS, renderer=CharRenderer())
    chosen = {"tasks": 2, "group_size": 2, "skill_text": "workflow", "reward": "success", **options}
    stage = RECIPES[recipe].stage(RECIPES[recipe].options.parse(chosen), made)
    stage.source.bank.add("a", LESSON)
    return stage


def rolled_out(stage):
    """One iteration's groups, by task; rollout 0 solves its task, rollout 1 does not."""
    generate = Scripted(lambda key: ("end", "no")[key.rollout] if key.step == 0 else "what")
    plans = sorted(stage.source.next(0), key=lambda plan: plan.task.task_id)
    runner = char_runner(echo_spec(max_steps=2), generate, InlinePool())
    groups, _ = asyncio.run(run_plans(plans, runner))
    weights = {plan.task.task_id: plan.weights for plan in plans}
    return [
        group
        if weights[group.task.task_id] == "current"
        else marked(Collected((group,), {}), "reference").groups[0]
        for group in groups
    ]


def scored(groups, stage):
    """Streams that say who scored what: -(position) - .5 for "old", - .25 for "reference"."""
    offsets = {"old": 0.5, "reference": 0.25}

    def add(segment):
        place_T = -np.arange(len(segment.ids_T), dtype=np.float32)
        more = {name: (place_T - offsets[name]) * segment.mask_T for name in stage.needs}
        return replace(segment, logprobs={**segment.logprobs, **more})

    return [
        replace(
            group,
            trajectories=tuple(replace(t, segments=tuple(map(add, t.segments))) for t in group.trajectories),
        )
        for group in groups
    ]


def samples_of(recipe, **options):
    """(stage, groups as sampled, samples) of one iteration; a sample's `trajectory` counts through the groups."""
    stage = stage_of(recipe, **options)
    groups = scored(rolled_out(stage), stage)
    credited = credit(stage, stage.reward(groups))
    scorer = Positions(row=64)
    credited, _ = taught(credited, stage.teacher, scorer, CharRenderer())
    return stage, groups, stage.samples(credited)


def text(ids):
    return "".join(map(chr, ids)).replace("\0", "$").replace("\1", ">").replace("\2", "|")


PLAYED = ["end$", "no$|1 no>what$"]  # after the opening, of rollouts 0 and 1


def assert_behind(samples, openings):
    """Every sample is an opening and the tokens of its rollout, and includes what was sampled, and nothing else."""
    for sample, opening in zip(samples, openings, strict=True):
        played = PLAYED[sample.trajectory % 2]
        assert text(sample.ids_T) == f"{opening}>{played}"
        sampled = [char for char, step in zip(text(sample.ids_T), sample.step_T) if step >= 0]
        assert "".join(sampled) == played.replace("|1 no>", "")
        assert (sample.include.get("pg", sample.step_T >= 0) == (sample.step_T >= 0)).all()


@pytest.mark.parametrize("teacher", ["dynamic", "frozen"])
def test_on_policy_the_student_samples_plainly_and_the_teacher_scores(teacher):
    stage, groups, samples = samples_of("skill_sd", teacher=teacher)
    assert stage.teacher.weights == {"dynamic": "current", "frozen": "reference"}[teacher]
    assert_behind(samples, [PLAIN] * 4)
    lesson = len(SHOWN) - len(PLAIN)
    for sample in samples:
        place_T = np.arange(len(sample.ids_T)) * (sample.step_T >= 0)
        if sample.trajectory < 2:  # task "a"
            np.testing.assert_array_equal(sample.logprobs["teacher"], -(place_T + lesson * (place_T > 0)))
            assert (sample.include["distill"] == (sample.step_T >= 0)).all()
        else:
            assert "teacher" not in sample.logprobs
            assert not sample.include["distill"].any()
    assert all("weights" not in t.extra for group in groups for t in group.trajectories)


@pytest.mark.parametrize(("teacher", "offset"), [("dynamic", 0.5), ("frozen", 0.25)])
def test_off_policy_the_teacher_samples_with_its_skill_and_the_student_is_plain(teacher, offset):
    stage, groups, samples = samples_of("skill_sd", teacher=teacher, sampling="teacher")
    first, second = groups
    for trajectory in first.trajectories:
        assert text(trajectory.segments[0].ids_T).startswith(SHOWN + ">")
        assert (
            trajectory.extra.get("weights", "current")
            == {"dynamic": "current", "frozen": "reference"}[teacher]
        )
    for trajectory in second.trajectories:
        assert text(trajectory.segments[0].ids_T).startswith(PLAIN + ">")
        assert "weights" not in trajectory.extra
    assert_behind(samples, [PLAIN] * 4)
    lesson = len(SHOWN) - len(PLAIN)
    for sample in samples:
        sampled_T = sample.step_T >= 0
        place_T = np.arange(len(sample.ids_T), dtype=np.float32)
        if (
            sample.trajectory < 2
        ):  # scored where it was sampled: behind the skill, by the weights that sampled
            expected_T = -(place_T + lesson + offset) * sampled_T
            np.testing.assert_array_equal(sample.logprobs["old"], expected_T)
            np.testing.assert_array_equal(sample.logprobs["teacher"], expected_T)
        else:
            np.testing.assert_array_equal(sample.logprobs["old"], -(place_T + 0.5) * sampled_T)
            assert "teacher" not in sample.logprobs
        assert (sample.include["distill"] != 0).any() == (sample.trajectory < 2)
        # rollout 0 solved its task: z-scores of 1 and 0 are +-.7071
        sign = 1 if sample.trajectory % 2 == 0 else -1
        np.testing.assert_allclose(sample.advantage_T[sampled_T], sign * np.sqrt(0.5), atol=1e-5)
    (part,) = pack(samples, stage.terms, rows=4, length=64)
    assert set(part.batch.logprobs) >= {"old", "teacher"}


def test_skill_augmented_grpo_trains_where_it_sampled():
    stage, _, samples = samples_of("skill_grpo")
    assert stage.teacher is None
    assert_behind(samples, [SHOWN, SHOWN, PLAIN, PLAIN])
    for sample in samples:
        assert set(sample.include) == {"pg"}


@pytest.mark.parametrize("teacher", ["self", "frozen", "ema"])
def test_opd_learns_from_taught_tokens_alone(teacher):
    stage, _, samples = samples_of("opd", teacher=teacher)
    assert stage.teacher.weights == {"self": "current", "frozen": "reference", "ema": "ema"}[teacher]
    assert_behind(samples, [PLAIN] * 4)
    for sample in samples:
        assert set(sample.include) == {"distill"}
        assert (sample.include["distill"] == ((sample.step_T >= 0) & (sample.trajectory < 2))).all()


def test_the_return_with_the_skill_is_the_skills_value():
    for sampling in ("student", "teacher"):
        stage = stage_of("skill_sd", sampling=sampling)
        groups = stage.reward(rolled_out(stage))
        stage.source.teacher(groups[0].trajectories[0])
        stage.source.observe(groups)
        (skill,) = stage.source.bank.skills("a")
        assert (skill.mean_return, skill.retrievals) == (0.5, 1)
        assert stage.source.bank.retrievals("b") == 0
        stage.close()


def test_credit_per_token_does_not_move():
    stage = stage_of("skill_sd", sampling="teacher")
    groups = scored(rolled_out(stage), stage)
    (item, *_) = per_group(group_mean)(groups)
    fine = Credited(item.trajectory, item.advantage_K, (np.zeros(len(item.trajectory.segments[0].ids_T)),))
    with pytest.raises(RolloutError, match="advantage per token"):
        behind_plain_prompts([fine], CharRenderer())
