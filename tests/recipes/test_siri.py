"""SIRI as a whole, on the host: a closed gate is GiGPO, an open one adds samples and changes none; bad options."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest

from jaxagent.auxlm.background import Background
from jaxagent.batch.pack import pack
from jaxagent.errors import ConfigError
from jaxagent.recipes import gigpo, siri
from jaxagent.recipes.retrieval import RetrieverOptions
from jaxagent.recipes.siri import SiriOptions
from jaxagent.rollout.episode import PLAIN
from jaxagent.skills.halves import DELTA, SKILL
from jaxagent.skills.halves import PLAIN as PLAIN_HALF
from jaxagent.types import Completion, Group, Message, Prompt, Segment, Stop
from tests.made_episodes import make_step, make_task, make_trajectory
from tests.recipes.test_stages import materials, scored
from tests.rollout.fake_policy import CharRenderer

OPTIONS = {"miner": "script", "kl_coef": 0.0, "reward": "success", "lambda_warm": 1}


class Tokenizer:
    def decode(self, ids):
        return "".join(map(chr, ids))


class Chars(CharRenderer):
    tokenizer = Tokenizer()


RENDERER = Chars()


def episode(reward, label, number, *, text="go"):
    """Two messages that are all action, under the prompt of its half."""
    plain = Prompt((Message("user", "task"),))
    shown = Prompt((Message("user", "skill task"),)) if label == SKILL else plain
    steps = []
    for k in range(2):
        ids = np.array([*map(ord, text), 0], np.int32)
        made = make_step(k, text=text)
        steps.append(replace(made, ids_T=ids, logprob_T=np.zeros(len(ids), np.float32), anchor=f"s{k}"))
    ids, owner = list(RENDERER.open(shown)), [-1] * len(RENDERER.open(shown))
    for step in steps:
        ids += [*step.ids_T, 1]
        owner += [step.k] * len(step.ids_T) + [-1]
    step_T = np.array(owner, np.int32)
    segment = Segment(
        np.array(ids, np.int32), step_T >= 0, step_T, {"behaviour": np.zeros(len(ids), np.float32)}
    )
    made = make_trajectory(reward, steps=steps, rollout=number, task=make_task("a"))
    extra = {"label": label} | ({PLAIN: plain} if label == SKILL else {})
    return replace(
        made, traj_id=f"a:{number}:{label}", prompt=shown, segments=(segment,), extra=extra, reward=0.0
    )


def paired(with_skill, without):
    halves = [episode(r, SKILL, i) for i, r in enumerate(with_skill)]
    halves += [episode(r, PLAIN_HALF, i) for i, r in enumerate(without)]
    return Group(make_task("a"), tuple(halves))


def built(recipe, *, past_warm_up=True, **options):
    chosen = recipe.RECIPE.options.parse(options)
    stage = recipe.RECIPE.stage(chosen, materials(renderer=RENDERER))
    if past_warm_up and recipe is siri:
        stage.source.since = 0
        stage.source._flight.asked(5)
    return stage


def samples_of(stage, group):
    return stage.samples(stage.credit(stage.reward([scored(group, stage.needs)])))


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected):
        assert mine.trajectory == theirs.trajectory
        assert mine.include.keys() == theirs.include.keys()
        assert mine.logprobs.keys() == theirs.logprobs.keys()
        for name in mine.include:
            np.testing.assert_array_equal(mine.include[name], theirs.include[name])
        for field in ("ids_T", "step_T", "advantage_T"):
            np.testing.assert_array_equal(getattr(mine, field), getattr(theirs, field))


GIGPO = {"kl_coef": 0.0, "reward": "success"}
GROUP = paired([1, 1, 0, 1], [1, 0, 0, 0])
WORSE = paired([1, 0, 0, 0], [1, 1, 0, 1])


@pytest.mark.parametrize(
    ("change", "past", "group"),
    [
        ({"gate": "closed"}, True, GROUP),
        ({"lambda_max": 0.0}, True, GROUP),
        ({}, True, WORSE),  # Delta < 0
        ({}, True, paired([1, 0], [0, 1])),  # Delta = 0: the gate is closed
        ({}, True, paired([], [1, 0, 1])),
        ({}, True, paired([1, 0, 1], [])),  # one half failed
        ({}, False, GROUP),  # the warm-up
    ],
    ids=["closed", "no strength", "worse", "equal", "all plain", "no plain half", "warm-up"],
)
def test_with_its_gate_closed_siri_is_gigpo_bit_for_bit(change, past, group):
    mine = built(siri, past_warm_up=past, **OPTIONS | change)
    assert_equal(samples_of(mine, group), samples_of(built(gigpo, **GIGPO), group))


def test_terms_beside_the_policys_leave_internalised_samples_alone():
    stage = built(siri, **OPTIONS, entropy_coef=0.01, solved_nll=0.1)
    found = samples_of(stage, GROUP)
    internal = [sample for sample in found if "pg" not in sample.include]
    assert internal
    assert not any(sample.include[name].any() for sample in internal for name in ("entropy", "solved"))


def test_a_masked_episode_is_not_internalised():
    stage = built(siri, **OPTIONS)
    masked = replace(GROUP, trajectories=tuple(replace(t, masked=True) for t in GROUP.trajectories))
    assert not any(value.any() for sample in samples_of(stage, masked) for value in sample.include.values())


def test_an_open_gate_adds_samples_and_changes_none():
    """Delta .5: the skill half's solved episodes are learnt under the plain prompt; gigpo's samples stay."""
    stage = built(siri, **OPTIONS)
    found = samples_of(stage, GROUP)
    expected = samples_of(built(gigpo, **GIGPO), GROUP)
    assert_equal(found[: len(expected)], expected)
    more = found[len(expected) :]
    assert [sample.trajectory for sample in more] == [0, 1, 3]  # 2 failed
    n = len(RENDERER.open(Prompt((Message("user", "task"),))))
    for sample in more:
        assert "".join(map(chr, sample.ids_T[: n - 1])) == "task"
        kept_T = sample.include["internal"] > 0
        assert kept_T.sum() == 6  # two messages that are all action, ends of turn included
        advantage = found[sample.trajectory].advantage_T.max()
        np.testing.assert_allclose(sample.advantage_T[kept_T], 0.1 * min(2.0, advantage), rtol=1e-6)
    assert stage.source.noted == {
        "internal/episodes": 4.0,
        "internal/kept_tokens": 18.0,
        "internal/steps_without_span": 0.0,
    }
    (packed,) = pack(found, stage.terms, rows=16, length=32)
    assert packed.batch.count["internal"] == 18
    assert packed.batch.weight["internal"].sum() == 18


def test_gate_open_takes_every_skill_episode_whatever_delta_says():
    found = samples_of(built(siri, **OPTIONS | {"gate": "open"}), WORSE)
    assert [s.trajectory for s in found if "internal" in s.include] == [0]  # the one that did well


def test_baseline_of_the_group_or_of_each_branch():
    """Mean only, w 0: returns 1 1 0 1 | 1 0 0 0 around .5, or around .75 and .25."""
    plain = {"mode": "mean", "w": 0.0}

    def advantages(baseline):
        stage = built(siri, **OPTIONS | plain | {"baseline": baseline})
        credited = stage.credit(stage.reward([GROUP]))
        return [float(item.advantage_K[0]) for item in credited]

    assert advantages("group") == pytest.approx([0.5, 0.5, -0.5, 0.5, 0.5, -0.5, -0.5, -0.5])
    assert advantages("branch") == pytest.approx([0.25, 0.25, -0.75, 0.25, 0.75, -0.25, -0.25, -0.25])


def test_the_gate_is_of_outcomes_not_of_scaled_returns():
    """Reward 10 for success and a penalty: Delta stays .5."""
    stage = built(siri, **OPTIONS | {"reward": {"outcome": "success", "scale": 10.0, "invalid_action": -0.1}})
    (group,) = stage.reward([GROUP])
    assert [t.reward for t in group.trajectories[:3]] == [10.0, 10.0, 0.0]
    assert {t.extra[DELTA] for t in group.trajectories} == {0.5}


def test_the_policy_mines_for_itself():
    """The answer comes from the generator that the stage was handed, under the weights at hand: nothing is cached."""
    asked = []

    class Policy:
        async def __call__(self, request):
            asked.append("".join(map(chr, request.ids_T)))
            text = json.dumps({"skills": [{"condition": f"c{len(asked)}", "strategy": "s"}]})
            ids = np.array([*map(ord, text), 0], np.int32)
            assert request.sampling.temperature == 0.0
            assert request.sampling.max_tokens == 77
            return Completion(ids, np.zeros(len(ids), np.float32), Stop.STOP, 3)

        async def release(self, session):
            pass

    stage = built(siri, **OPTIONS | {"miner": "policy", "mine_tokens": 77})
    stage.meet_policy(Policy())
    try:
        for expected in ("c1", "c2"):
            ((tasks, skill),) = stage.source.miner.mine([[{"task": "t", "request": "pay", "steps": []}]])
            assert (tasks, skill.condition) == (("t",), expected)
        assert '"request": "pay"' in asked[0]
    finally:
        stage.close()
    assert built(siri, **OPTIONS).meet_policy is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"warmup_min": 9, "warmup_max": 3}, "warmup_min=9 is above warmup_max=3"),
        ({"retriever": {"by": "endpoint"}}, "base_url belongs to by: endpoint"),
        ({"retriever": {"by": "hashed", "base_url": "http://x/v1"}}, "base_url belongs to by: endpoint"),
        ({"retriever": {"request": "Task: .*"}}, "needs a group"),
        ({"retriever": {"request": "("}}, "no regular expression"),
        ({"gate": "ajar"}, "gate"),
    ],
)
def test_options_that_cannot_work(options, words):
    with pytest.raises(ConfigError, match=words):
        SiriOptions.parse(options)


def test_retrievers_by_name(monkeypatch):
    ngram = RetrieverOptions.parse({"by": "ngram"}).likeness()
    assert ngram("pay the bill", ["pay the rent"]).tolist() == pytest.approx([1 / 3])
    hashed = RetrieverOptions.parse({"by": "hashed"}).likeness()
    assert hashed("pay", ["pay", "sing"]).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
        RetrieverOptions.parse(
            {"by": "endpoint", "base_url": "http://x/v1", "api_key_env": "NO_SUCH_KEY"}
        ).likeness()
    asked = RetrieverOptions.parse({"request": "Your task is to: (.*)"}).asked()
    opening = Prompt((Message("user", "You are in a room.\nYour task is to: put a mug in desk."),))
    assert asked(opening) == "put a mug in desk."
    assert asked(Prompt((Message("user", "no such words"),))) == "no such words"


def test_a_background_is_closed_with_its_stage():
    stage = built(siri, **OPTIONS)
    background = stage.source.miner._background
    assert isinstance(background, Background)
    stage.source.miner.mine([[{"task": "t", "request": "x", "steps": []}]])
    stage.close()
    assert background._thread is None
    assert not asyncio.all_tasks(background._loop) if background._loop else True
