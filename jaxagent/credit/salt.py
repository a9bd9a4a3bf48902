"""SALT: steps that good and bad rollouts share get a neutral advantage, those that tell them apart keep a strong one.

In: a credit with one advantage a trajectory (arXiv 2510.20022). Out: one a step, the mean over its node:

    node of step k   (the last h (action, observation) pairs before it, its action); with fewer pairs a ROOT before them
    A[i,k]           mean of A[j] over the distinct trajectories j of the group that pass the node

The value of a node is the mean return of the trajectories through it; estimators are affine in the return, so averaging
advantages is the same for all of them. Means and standard deviations are never taken anew over steps or nodes.

    login → search → buy   1      node values  .5  .667  1        login starts all four rollouts: nothing is learnt from
    login → search → quit  0                   .5  .667  0        it; searching is a little better than guessing; buying
    login → guess  → quit  0                   .5   0    0        and quitting decide
    login → search → buy   1                   .5  .667  1
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from jaxagent.credit.group import ZERO_TOLERANCE, step_advantage
from jaxagent.errors import ConfigError
from jaxagent.stage import Credit
from jaxagent.types import Credited, Group, Step

Key = Literal["action", "message"]
DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class NodeRules:
    """Which steps are the same.

    history:      (action, observation) pairs before a step that must agree. 0: the action alone; as many as the longest
                  episode has steps: the whole past.
    key:          "action" compares what the environment was asked to do, "message" the whole text with its thoughts.
    key_post:     the observation that follows must agree too, for environments with chance in them.
    mask_numbers: any number is the same as any other, where ids are made up anew in every episode.
    """

    history: int = 3
    key: Key = "action"
    key_post: bool = False
    mask_numbers: bool = False

    def __post_init__(self) -> None:
        if self.history < 0:
            raise ConfigError(f"salt.history={self.history}; expected 0 or more steps")


def salt(base: Credit, rules: NodeRules | None = None, *, count_distinct: bool = True) -> Credit:
    """Average `base` over nodes. count_distinct: a trajectory counts once in a node that it passes twice.

    Logs salt/merge_ratio (nodes of all steps), salt/shared_frac (nodes that two trajectories or more pass),
    salt/abs_mean (mean |A| over steps) and salt/build_s (seconds of all groups together).
    """
    rules = rules or NodeRules()

    def credit(groups: Sequence[Group]) -> list[Credited]:
        credited = base(groups)
        start = time.perf_counter()
        out = list(credited)
        for members in _by_group(credited, groups):
            for index, item in zip(members, _averaged([credited[i] for i in members], rules, count_distinct)):
                out[index] = item
        spent = {"salt/build_s": time.perf_counter() - start}
        return [replace(item, measured={**item.measured, **spent}) for item in out]

    return credit


def _by_group(credited: Sequence[Credited], groups: Sequence[Group]) -> list[list[int]]:
    """Places in `credited`, by group. The base may have left trajectories out."""
    home = {id(t): number for number, group in enumerate(groups) for t in group.trajectories}
    members: list[list[int]] = [[] for _ in groups]
    for place, item in enumerate(credited):
        members[home[id(item.trajectory)]].append(place)
    return members


def _averaged(items: Sequence[Credited], rules: NodeRules, count_distinct: bool) -> list[Credited]:
    """One group's trajectories, with the mean advantage of each step's node."""
    value_G = np.array([trajectory_advantage(item) for item in items])
    nodes_K = node_ids([item.trajectory.steps for item in items], rules)
    mean_V, passing_V = node_means(value_G, nodes_K, count_distinct=count_distinct)
    if not passing_V.size:
        return list(items)
    advantages_K = [mean_V[node_K].astype(np.float32) for node_K in nodes_K]
    measured = {
        "salt/merge_ratio": passing_V.size / sum(len(node_K) for node_K in nodes_K),
        "salt/shared_frac": float((passing_V > 1).mean()),
        "salt/abs_mean": float(np.abs(np.concatenate(advantages_K)).mean()),
    }
    return [
        replace(item, advantage_K=advantage_K, measured={**item.measured, **measured})
        for item, advantage_K in zip(items, advantages_K)
    ]


def trajectory_advantage(item: Credited) -> float:
    """The one advantage of a trajectory; ConfigError if its steps have several."""
    advantage_K = step_advantage(item, "salt")
    if not advantage_K.size:
        return 0.0
    if np.ptp(advantage_K) > 0:
        raise ConfigError(
            f"salt averages one advantage a trajectory, but the base credit gives the steps of "
            f"{item.trajectory.traj_id!r} different ones ({advantage_K.min():.4g} to {advantage_K.max():.4g}); put "
            "salt directly over a trajectory-level estimator, and step-level credit after it"
        )
    return float(advantage_K[0])


def node_ids(episodes: Sequence[Sequence[Step]], rules: NodeRules) -> list[Int[np.ndarray, "_"]]:
    """The node of every step, [K] an episode, numbered within the group. Time: steps x history, and the texts once.

    Texts become numbers first, so that no prefix is ever written out as text.
    """
    texts: dict[str, int] = {}
    numbers: dict[Hashable, int] = {}  # pairs of two texts, and beginnings of episodes
    nodes: dict[Hashable, int] = {}
    out = []
    for steps in episodes:
        actions = [_number(texts, canonical(action_text(step, rules.key), rules)) for step in steps]
        after = [_number(texts, canonical(step.observation_after, rules)) for step in steps]
        pairs = [_number(numbers, ("pair", *pair)) for pair in zip(actions, after)]
        whole, node_K = -1, np.zeros(len(steps), int)
        for k, action in enumerate(actions):
            prefix = ("root", whole) if k < rules.history else tuple(pairs[k - rules.history : k])
            node_K[k] = _number(nodes, (prefix, action, after[k] if rules.key_post else -1))
            whole = _number(numbers, ("root", whole, pairs[k]))
        out.append(node_K)
    return out


def _number(known: dict, key: Hashable) -> int:
    """Equal keys get equal numbers, counted from 0."""
    return known.setdefault(key, len(known))


def canonical(text: str, rules: NodeRules) -> str:
    """Without blanks at the ends of the text and of its lines; with the rule, every number is "#"."""
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return DIGITS.sub("#", lines) if rules.mask_numbers else lines


def action_text(step: Step, key: Key) -> str:
    """What makes two actions equal: code or command and tool calls; for a message without a legal one, its error."""
    if key == "message":
        return f"{step.thinking or ''}\0{step.text}"
    calls = [
        f"{call.name} {json.dumps(call.arguments, sort_keys=True, default=str)}"
        for call in step.action.tool_calls
    ]
    return "\n".join(part for part in (step.action.text, *calls, step.action.error) if part)


def node_means(
    value_G: Float[np.ndarray, "G"], nodes_K: Sequence[Int[np.ndarray, "_"]], *, count_distinct: bool = True
) -> tuple[Float[np.ndarray, "V"], Int[np.ndarray, "V"]]:
    """Per node the mean value of the trajectories that pass it, and how many distinct ones do.

    A mean within float noise of 0 is 0: shared steps of rollouts that differ later must not be trained on noise.
    """
    visits_K = [np.unique(node_K) for node_K in nodes_K]
    passing_V = np.bincount(np.concatenate([*visits_K, np.zeros(0, int)]))
    counted_K = visits_K if count_distinct else nodes_K
    counted_X = np.concatenate([*counted_K, np.zeros(0, int)])
    owner_X = np.repeat(value_G, [len(node_K) for node_K in counted_K])
    mean_V = np.bincount(counted_X, owner_X) / np.maximum(np.bincount(counted_X), 1)
    noise = ZERO_TOLERANCE * np.abs(value_G).max(initial=0.0)
    return np.where(np.abs(mean_V) <= noise, 0.0, mean_V), passing_V
