"""The same stored rollouts under several methods: what each of them credits, step by step. No device is used.

In: the groups of an iteration, and methods as recipes with options ("gvpo", "gigpo{w: 0.5}"). Out: one advantage a step
and method. The credit is the recipe's own (`Stage.credit`); what the update would then leave out or clip is not shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import yaml
from jaxtyping import Float

from jaxagent.errors import ConfigError, DataError, JaxagentError
from jaxagent.recipes.base import Materials, Recipe
from jaxagent.recipes.rewards import OUTCOMES, RewardOptions, returns_of
from jaxagent.recipes.table import RECIPES, find_recipe
from jaxagent.rewards.returns import mapped
from jaxagent.stage import Credit, Returns, Stage
from jaxagent.types import Group, Sampling, Step, Task, Trajectory
from jaxagent.yaml_files import parse_yaml

STORED = "stored"  # the returns that the run trained on


@dataclass(frozen=True)
class Method:
    """A recipe and its options; label: as it was asked for."""

    label: str
    recipe: Recipe
    options: Mapping[str, Any]


@dataclass(frozen=True)
class StepRow:
    """A step of a stored trajectory."""

    group: int
    trajectory: Trajectory
    step: Step


@dataclass(frozen=True, eq=False)
class Rescored:
    """advantage_XM: of each step under each method; nan where a method gives it no credit at all.

    groups: with the chosen returns. failed: why a method could not be computed, by its label. finer: methods that
    credit tokens, of which a step's mean is shown.
    """

    groups: tuple[Group, ...]
    methods: tuple[str, ...]
    rows: tuple[StepRow, ...]
    advantage_XM: Float[np.ndarray, "X M"]
    failed: Mapping[str, str]
    finer: tuple[str, ...]


def read_methods(text: str) -> list[Method]:
    """ "grpo,gigpo{w: 0.5}" -> methods. Raises ConfigError for an unknown recipe or one that does not roll out."""
    methods = []
    for word in _words(text):
        name, brace, options = word.partition("{")
        try:
            values = parse_yaml(brace + options) if brace else {}
        except yaml.YAMLError as error:
            raise ConfigError(f"--methods {word!r}: the options are not YAML: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"--methods {word!r}: expected options as {{name: value, …}}")
        recipe = find_recipe(name.strip())
        if not recipe.rolls_out:
            known = ", ".join(sorted(method.label for method in every_method()))
            raise ConfigError(
                f"--methods {name.strip()}: it credits nothing, having no rollouts of its own; expected one of {known}"
            )
        recipe.options.parse(values, f"--methods {name.strip()}")
        methods.append(Method(word, recipe, values))
    if len({method.label for method in methods}) < len(methods):
        raise ConfigError(f"--methods {text!r} names one method twice; give it other options")
    return methods


def every_method() -> list[Method]:
    """Every recipe that learns from its own rollouts, with its defaults."""
    return [Method(name, recipe, {}) for name, recipe in RECIPES.items() if recipe.rolls_out]


def only(scored: Rescored, task: str) -> Rescored:
    """What concerns one task; its credit was computed among all groups of the iteration. Raises DataError."""
    chosen = [number for number, group in enumerate(scored.groups) if group.task.task_id == task]
    if not chosen:
        known = ", ".join(sorted({group.task.task_id for group in scored.groups}))
        raise DataError(f"task {task!r} is not in the stored iteration; it has {known}")
    index = [x for x, row in enumerate(scored.rows) if row.group in chosen]
    return replace(
        scored,
        groups=tuple(scored.groups[number] for number in chosen),
        rows=tuple(replace(scored.rows[x], group=chosen.index(scored.rows[x].group)) for x in index),
        advantage_XM=scored.advantage_XM[index],
    )


def _words(text: str) -> list[str]:
    """Split at the commas that are in no braces or brackets."""
    words, depth = [""], 0
    for character in text:
        depth += (character in "{[") - (character in "}]")
        if character == "," and depth == 0:
            words.append("")
        else:
            words[-1] += character
    found = [word.strip() for word in words if word.strip()]
    if not found:
        raise ConfigError(f"--methods {text!r} names no method; known recipes: {', '.join(sorted(RECIPES))}")
    return found


def read_reward(text: str) -> Returns | None:
    """ "stored" (None), an outcome, or a record as in a run file: "{outcome: success, format: 0.2}"."""
    if text == STORED:
        return None
    if text in OUTCOMES:
        return returns_of(cast(Any, text))
    try:
        values = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--reward {text!r} is not YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"--reward {text!r}: expected {STORED}, {', '.join(OUTCOMES)}, or a record in braces"
        )
    return returns_of(RewardOptions.parse(values, "--reward"))


def rescore(groups: Sequence[Group], methods: Sequence[Method], reward: Returns | None) -> Rescored:
    """Credit of whole groups under each method. One whose credit cannot be computed from the store says why."""
    groups = _named_apart(groups)
    chosen = tuple(reward(groups) if reward else groups)
    rows = tuple(
        StepRow(number, trajectory, step)
        for number, group in enumerate(chosen)
        for trajectory in group.trajectories
        for step in trajectory.steps
    )
    columns: dict[str, np.ndarray] = {}
    failed: dict[str, str] = {}
    finer = []
    for method in methods:
        try:
            columns[method.label], by_token = _credit(method, chosen, groups, rows)
        except (JaxagentError, LookupError) as error:
            failed[method.label] = _reason(error, chosen)
            continue
        if by_token:
            finer.append(method.label)
    advantage_XM = np.stack([*columns.values()], axis=1) if columns else np.zeros((len(rows), 0))
    return Rescored(chosen, tuple(columns), rows, advantage_XM, failed, tuple(finer))


def _credit(
    method: Method, chosen: Sequence[Group], stored: Sequence[Group], rows: Sequence[StepRow]
) -> tuple[Float[np.ndarray, "X"], bool]:
    """(advantage of every row, whether the method credits tokens). Options that name a reward set their own returns."""
    options = method.recipe.options.parse(method.options)
    stage = method.recipe.stage(options, _materials([group.task for group in stored]))
    try:
        groups = chosen
        if "reward" in method.options and stage.reward is not None:
            groups = stage.reward(stored)
        credited = _credit_of(stage, method)(groups)
    finally:
        stage.close()
    value = {
        (item.trajectory.traj_id, step.k): float(a)
        for item in credited
        for step, a in zip(item.trajectory.steps, item.advantage_K, strict=True)
    }
    found = [value.get((row.trajectory.traj_id, row.step.k), np.nan) for row in rows]
    return np.array(found, np.float64), any(item.advantage_T for item in credited)


def _named_apart(groups: Sequence[Group]) -> list[Group]:
    """Trajectory ids that no two share: a task that was asked for twice in an iteration has each of them twice."""
    seen: Counter[str] = Counter()

    def renamed(trajectory: Trajectory) -> Trajectory:
        seen[trajectory.traj_id] += 1
        number = seen[trajectory.traj_id]
        return trajectory if number == 1 else replace(trajectory, traj_id=f"{trajectory.traj_id}#{number}")

    return mapped(groups, renamed)


def _credit_of(stage: Stage, method: Method) -> Credit:
    if stage.credit is None:
        raise ConfigError(f"{method.label} credits nothing: it imitates every step alike")
    return stage.credit


def _materials(tasks: Sequence[Task]) -> Materials:
    """What a stage is built from where only its credit is wanted: nothing of it plays, renders or trains."""
    absent = cast(Any, _Absent())
    unique = {task.task_id: task for task in tasks}
    return Materials(
        name="credit",
        spec=absent,
        tasks=list(unique.values()),
        renderer=absent,
        sampling=Sampling(max_tokens=1),
        row=1 << 30,
        seed=0,
        demonstrate=lambda tasks, sloppiness, slips: [],
    )


class _Absent:
    """Stands for the environment and the renderer of the run; a method that asks them while it is built is told so."""

    def __getattr__(self, name: str) -> Any:
        raise ConfigError(
            f"it asks the environment or the renderer for {name!r}, and a store of rollouts has neither"
        )


def _reason(error: Exception, groups: Sequence[Group]) -> str:
    """A stream that was not stored is the usual reason; other errors speak for themselves."""
    if not isinstance(error, LookupError):
        return str(error)
    segments = (s for group in groups for t in group.trajectories for s in t.segments)
    streams = sorted({name for segment in segments for name in segment.logprobs})
    return (
        f"needs {error}, which the store does not hold; its token streams are {', '.join(streams) or 'none'}"
    )
