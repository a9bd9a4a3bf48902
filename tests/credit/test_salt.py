"""SALT at the specification's numbers, what it must reduce to, what it refuses, and its time."""

import time
from dataclasses import replace

import numpy as np
import pytest

from jaxagent.credit.filters import zero_std
from jaxagent.credit.gigpo import gigpo
from jaxagent.credit.group import group_mean, group_std, leave_one_out, per_group
from jaxagent.credit.gvpo import gvpo
from jaxagent.credit.salt import NodeRules, action_text, canonical, node_ids, node_means, salt
from jaxagent.credit.stats import credit_metrics
from jaxagent.errors import ConfigError
from jaxagent.types import Action, Credited, ExecStatus, Group, Status, ToolCall
from tests.made_episodes import make_step, make_task, make_trajectory

FOUR = ["login search buy", "login search quit", "login guess quit", "login search buy"]
TWO = ["guess search buy", "login search buy"]
GRPO, RLOO = per_group(group_std(ddof=1, eps=1e-6)), per_group(leave_one_out)


def group(actions, returns, task_id="t0"):
    """One rollout for each line of actions; what is observed follows from the action."""
    task = make_task(task_id)
    rollouts = []
    for i, (line, reward) in enumerate(zip(actions, returns)):
        steps = [
            replace(make_step(k, code=code), observation_after=f"after {code}")
            for k, code in enumerate(line.split())
        ]
        rollouts.append(make_trajectory(reward, steps=steps, rollout=i, task=task))
    return Group(task, tuple(rollouts))


def values(group, history):
    """V of every step's node."""
    nodes_K = node_ids([t.steps for t in group.trajectories], NodeRules(history=history))
    mean_V, _ = node_means(np.array([t.reward for t in group.trajectories]), nodes_K)
    return [mean_V[node_K].tolist() for node_K in nodes_K]


def advantages(credit, *groups):
    return [item.advantage_K for item in credit(groups)]


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


FOUR_VALUES = [[0.5, 2 / 3, 1], [0.5, 2 / 3, 0], [0.5, 0, 0], [0.5, 2 / 3, 1]]


@pytest.mark.parametrize(("history", "nodes"), [(0, 5), (1, 6), (3, 6)])
def test_values_and_nodes_of_four_rollouts(history, nodes):
    """12 steps; without a history both ways to quit are one node, of the same value."""
    made = group(FOUR, [1, 0, 0, 1])
    close(values(made, history), FOUR_VALUES)
    nodes_K = node_ids([t.steps for t in made.trajectories], NodeRules(history=history))
    assert (len(set(np.concatenate(nodes_K).tolist())), sum(map(len, nodes_K))) == (nodes, 12)


def test_advantages_over_grpo_and_rloo():
    found = advantages(salt(GRPO), group(FOUR, [1, 0, 0, 1]))
    strong, weak = 0.866024, 0.288675
    close(found, [[0, weak, strong], [0, weak, -strong], [0, -strong, -strong], [0, weak, strong]])
    assert all(advantage_K[0] == 0 for advantage_K in found)  # exactly: shared by all
    rloo = advantages(salt(RLOO), group(FOUR, [1, 0, 0, 1]))
    close(rloo, [[0, 2 / 9, 2 / 3], [0, 2 / 9, -2 / 3], [0, -2 / 3, -2 / 3], [0, 2 / 9, 2 / 3]])


@pytest.mark.parametrize(
    ("history", "expected"),
    [(3, [[0, 0, 0], [1, 1, 1]]), (1, [[0, 0, 0.5], [1, 1, 0.5]]), (0, [[0, 0.5, 0.5], [1, 0.5, 0.5]])],
)
def test_less_history_merges_more(history, expected):
    close(values(group(TWO, [0, 1]), history), expected)


def test_averaging_advantages_is_the_estimator_on_node_values():
    """n/(n-1) (V - mean), and (V - mean) / std of the trajectories' returns: nothing is normalised over steps."""
    reward_G = np.array([1.0, 0, 0, 1])
    made = group(FOUR, reward_G.tolist())
    node_values = [np.array(v) for v in values(made, 3)]
    close(advantages(salt(RLOO), made), [4 / 3 * (v - reward_G.mean()) for v in node_values])
    std = reward_G.std(ddof=1) + 1e-6
    close(advantages(salt(GRPO), made), [(v - reward_G.mean()) / std for v in node_values])


@pytest.mark.parametrize("base", [GRPO, RLOO, per_group(group_mean)])
def test_disjoint_rollouts_are_the_base_and_identical_ones_nothing(base):
    disjoint = group(["a b", "c d", "e f"], [1, 0, 0])
    close(advantages(salt(base), disjoint), advantages(base, disjoint))
    same = group(["a b c"] * 3, [1, 1, 0])
    close(values(same, 3), [[2 / 3] * 3] * 3)
    assert all((advantage_K == 0).all() for advantage_K in advantages(salt(base), same))


def test_disjoint_rollouts_at_the_worked_value():
    close(advantages(salt(GRPO), group("abc", [1, 0, 0])), [[1.154699], [-0.577349], [-0.577349]])


def test_a_trajectory_counts_once_in_a_node_that_it_visits_often():
    close(values(group(["a a a", "b"], [0, 1]), 0), [[0, 0, 0], [1]])
    loop = group(["a a a", "a"], [0, 1])
    close(values(loop, 0), [[0.5] * 3, [0.5]])
    close(advantages(salt(RLOO, NodeRules(history=0)), loop), [[0] * 3, [0]])
    often = salt(RLOO, NodeRules(history=0), count_distinct=False)  # three visits at -1, one at 1
    close(advantages(often, loop), [[-0.5] * 3, [-0.5]])


def test_the_root_is_part_of_a_short_history():
    """The first step is no other rollout's later step, however short the history, unless there is none."""
    early_late = group(["x", "y x"], [0, 1])
    close(values(early_late, 1), [[0], [1, 1]])
    close(values(early_late, 0), [[0.5], [1, 0.5]])


def test_what_is_seen_afterwards_may_count():
    plain = group(["open", "open"], [0, 1])
    lucky = replace(plain.trajectories[1].steps[0], observation_after="a prize")
    chance = replace(
        plain, trajectories=(plain.trajectories[0], replace(plain.trajectories[1], steps=(lucky,)))
    )
    close(advantages(salt(RLOO), chance), [[0], [0]])
    close(advantages(salt(RLOO, NodeRules(key_post=True)), chance), [[-1], [1]])


def test_texts_are_compared_without_blanks_and_thoughts_and_numbers_if_asked():
    rules = NodeRules()
    assert canonical("  a \n  b\t\n", rules) == "a\n  b"  # indentation is code
    assert canonical("id 17 of 3", NodeRules(mask_numbers=True)) == "id # of #"
    thought = replace(make_step(0, text="I think. <go>", code="go"), thinking="hm")
    assert action_text(thought, "action") == "go"
    assert action_text(thought, "message") == "hm\0I think. <go>"
    calls = [ToolCall("f", {"a": 1, "b": 2}), ToolCall("f", {"b": 2, "a": 1})]
    one, other = (replace(make_step(0), action=Action(tool_calls=(call,))) for call in calls)
    assert action_text(one, "action") == action_text(other, "action")
    illegal = replace(make_step(0), action=Action(error="no code found"))
    assert action_text(illegal, "action") == "no code found"


def test_tasks_and_dropped_members_stay_apart():
    made = group(FOUR, [1, 0, 0, 1])
    lost = make_trajectory(99.0, steps=made.trajectories[0].steps, rollout=9, status=Status.ENV_FAILED)
    other = group(["login search buy"], [0], "t1")
    found = advantages(salt(GRPO), replace(made, trajectories=(lost, *made.trajectories)), other)
    close(found[:4], advantages(salt(GRPO), made))
    assert found[4].tolist() == [0, 0, 0]


def test_empty_groups_single_steps_and_episodes_without_a_step():
    assert salt(GRPO)([Group(make_task(), ())]) == salt(GRPO)([]) == []
    close(advantages(salt(RLOO), group(["a", "a", "b"], [1, 0, 0])), [[0.25], [0.25], [-0.5]])
    nothing = make_trajectory(0.0, steps=[], rollout=7)
    some = group(["a"], [1])
    found = advantages(salt(RLOO), replace(some, trajectories=(nothing, *some.trajectories)))
    assert [advantage_K.tolist() for advantage_K in found] == [[], [1.0]]
    assert advantages(salt(RLOO), Group(make_task(), (nothing, nothing)))[0].shape == (0,)


def test_a_base_may_leave_groups_out():
    flat, made = group(["a", "b"], [1, 1], "t1"), group(FOUR, [1, 0, 0, 1])
    close(advantages(salt(zero_std(RLOO)), flat, made), advantages(salt(RLOO), made))


def test_gvpo_over_salt_corrects_failed_steps_by_their_own_advantage():
    made = group(FOUR, [1, 0, 0, 1])
    failing = tuple(
        replace(t, steps=tuple(replace(s, exec_status=ExecStatus.RUNTIME_ERROR) for s in t.steps))
        for t in made.trajectories[:2]
    )
    found = advantages(gvpo(salt(RLOO)), replace(made, trajectories=(*failing, *made.trajectories[2:])))
    close(found[:2], [[-0.2, 0, 0], [-0.2, 0, -0.8]])
    close(found[2:], [[0, -2 / 3, -2 / 3], [0, 2 / 9, 2 / 3]])


def test_bases_per_step_or_token_are_refused():
    made = group(FOUR, [1, 0, 0, 1])
    failed = replace(made.trajectories[0].steps[1], exec_status=ExecStatus.TIMEOUT)
    steps = (made.trajectories[0].steps[0], failed, made.trajectories[0].steps[2])
    shaped = replace(made, trajectories=(replace(made.trajectories[0], steps=steps), *made.trajectories[1:]))
    for base in (gigpo(), gvpo(RLOO)):
        with pytest.raises(ConfigError, match="put salt directly over a trajectory-level estimator"):
            salt(base)([shaped])

    def per_token(groups):
        return [
            Credited(t, np.zeros(3, np.float32), (np.zeros(7, np.float32),)) for t in groups[0].trajectories
        ]

    for method in (salt, gvpo):
        with pytest.raises(ConfigError, match="one per token, which would be lost"):
            method(per_token)([made])
    with pytest.raises(ConfigError, match="history=-1"):
        NodeRules(history=-1)


def test_what_is_logged():
    out = credit_metrics(salt(RLOO)([group(FOUR, [1, 0, 0, 1])]))
    assert out["salt/merge_ratio"] == 6 / 12
    assert out["salt/shared_frac"] == 3 / 6  # login, search after it, buy after that
    assert out["salt/abs_mean"] == pytest.approx((3 * 2 / 9 + 5 * 2 / 3) / 12)
    assert 0 <= out["salt/build_s"] < 60


def test_time_is_linear_in_the_steps_of_an_episode():
    """Ten times the steps take about ten times as long, also with a history of many steps: no text of prefixes."""

    def seconds(steps):
        made = group([" ".join(f"a{k % 7}" for k in range(steps))] * 2, [0, 1]).trajectories
        start = time.process_time()
        node_ids([t.steps for t in made], NodeRules(history=10**9))
        return time.process_time() - start

    seconds(100)
    assert min(seconds(20_000) for _ in range(3)) < 40 * max(min(seconds(2_000) for _ in range(3)), 1e-3)
