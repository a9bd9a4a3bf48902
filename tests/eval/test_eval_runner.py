import asyncio
import json
import random

import pytest

from jaxagent.errors import ConfigError, DataError, RolloutError
from jaxagent.eval.runner import evaluate
from jaxagent.types import Dropped, Group, Sampling
from tests.made_episodes import make_task, make_trajectory

TASKS = [make_task(f"s{i // 3}_{i % 3}", scenario=f"s{i // 3}", split="dev") for i in range(6)]
GREEDY = Sampling(max_tokens=8, temperature=0.0)
SAMPLED = Sampling(max_tokens=8, temperature=1.0)


class Policy:
    """Solves the first four tasks greedily; sampling adds noise from its own generator."""

    def __init__(self, seed=0):
        self.random, self.seen = random.Random(seed), []

    async def __call__(self, plans, sampling):
        self.seen.append(sampling)
        groups = []
        for i, plan in enumerate(plans):
            await asyncio.sleep(0)
            members = []
            for rollout in range(plan.n):
                noise = sampling.temperature * self.random.random()
                members.append(
                    make_trajectory(float(noise < (0.8 if i < 4 else 0)), task=plan.task, rollout=rollout)
                )
            groups.append(Group(plan.task, tuple(members)))
        return groups


def run(policy, **kwargs):
    return asyncio.run(evaluate(TASKS, policy, **kwargs))


def test_two_greedy_evaluations_agree_exactly():
    policy = Policy()
    first, second = run(policy, sampling=GREEDY), run(policy, sampling=GREEDY)
    assert first.metrics == second.metrics
    assert first.records == second.records
    assert first.mode == "greedy"
    assert first.metrics["tgc"] == pytest.approx(100 * 4 / 6)
    assert first.metrics["sgc"] == 50.0


def test_the_sampling_rule_reaches_the_policy_and_n_is_applied_once():
    policy = Policy()
    out = run(policy, sampling=SAMPLED, n=4)
    assert policy.seen == [SAMPLED]
    assert out.mode == "sampled"
    assert all(record.rollout == (0, 1, 2, 3) for record in out.records)
    assert out.metrics["pass_at_4"] >= out.metrics["pass_at_1"]
    assert out.metrics["tgc_low"] < out.metrics["tgc"] < out.metrics["tgc_high"]


def test_names_and_file(tmp_path):
    out = run(Policy(), sampling=GREEDY, benchmark=lambda ts: {"tgc": -1.0, "own": float(len(ts))})
    assert out.named["eval/dev/greedy/tgc"] == out.metrics["tgc"] > 0
    assert out.metrics["own"] == 6
    out.write(tmp_path / "deep" / "eval.json")
    read = json.loads((tmp_path / "deep" / "eval.json").read_text())
    assert read["records"][0]["task_id"] == "s0_0"
    assert read["metrics"]["tgc"] == out.metrics["tgc"]


def test_dropped_rollouts_are_counted_and_their_task_fails():
    async def lossy(plans, sampling):
        groups = list(await Policy()(plans, sampling))
        return [Group(TASKS[0], (), (Dropped("s0_0", 0, "hang"),)), *groups[1:]]

    out = run(lossy, sampling=GREEDY)
    assert out.dropped == {"hang": 1}
    assert out.metrics["missing"] == 1
    assert out.metrics["sgc"] == 0


def test_nothing_finished():
    async def broken(plans, sampling):
        return [Group(plan.task, (), (Dropped(plan.task.task_id, 0, "died"),)) for plan in plans]

    def benchmark(trajectories):
        return {"share": 1 / len(trajectories)}

    out = run(broken, sampling=GREEDY, benchmark=benchmark)
    assert (out.metrics["tgc"], out.metrics["missing"]) == (0, 6)
    assert out.dropped == {"died": 6}


def test_n_applied_twice_is_noticed():
    async def doubled(plans, sampling):
        groups = await Policy()(plans, sampling)
        return [Group(g.task, g.trajectories * 2) for g in groups]

    with pytest.raises(RolloutError, match="applied twice"):
        run(doubled, sampling=GREEDY)


def test_a_metric_of_the_environment_that_is_no_number_is_named():
    with pytest.raises(DataError, match="metric 'rate' is nan"):
        run(Policy(), sampling=GREEDY, benchmark=lambda trajectories: {"fine": 1.0, "rate": float("nan")})


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"sampling": GREEDY, "n": 2}, "temperature 0 repeats"), ({"sampling": SAMPLED, "n": 0}, "n=0")],
)
def test_impossible_requests(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        run(Policy(), **kwargs)
    with pytest.raises(ConfigError, match="no tasks"):
        asyncio.run(evaluate([], Policy(), sampling=GREEDY))
