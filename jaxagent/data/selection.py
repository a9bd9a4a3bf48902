"""Rejection sampling: which episodes are worth imitating, and how many of each task.

In: finished episodes. Out: some of them, in order, or some of them more than once. An episode's raw verdict decides,
never its shaped return. A task without a success is absent, which biases what is learnt to easy tasks: it is counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from jaxagent.credit.chain import ChainKey, chain_key
from jaxagent.skills.functions import carried, used
from jaxagent.stage import Filter
from jaxagent.types import Credited, Group, Metrics, Trajectory

Select = Callable[[Sequence[Trajectory]], list[Trajectory]]


def solved(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    return [episode for episode in episodes if episode.success]


def skilled_chains(length: int) -> Select:
    """Chains of which every task is solved, and every task after the first by a function of an earlier one (SAGE).

    The episodes of a chain come in its order; a chain that is not whole is rejected.
    """

    def select(episodes: Sequence[Trajectory]) -> list[Trajectory]:
        chains: dict[ChainKey, list[Trajectory]] = defaultdict(list)
        for episode in episodes:
            chains[chain_key(episode)].append(episode)
        kept = {key for key, chain in chains.items() if len(chain) == length and _skilled(chain)}
        return [episode for episode in episodes if chain_key(episode) in kept]

    return select


def _skilled(chain: Sequence[Trajectory]) -> bool:
    reuse = (used(episode, carried(chain[:p])) for p, episode in enumerate(chain) if p)
    return all(episode.success for episode in chain) and all(reuse)


def capped(episodes: Sequence[Trajectory], most: int) -> list[Trajectory]:
    """The first `most` of every task; 0 keeps all."""
    seen: Counter[str] = Counter()
    kept = []
    for episode in episodes:
        seen[episode.task.task_id] += 1
        if not most or seen[episode.task.task_id] <= most:
            kept.append(episode)
    return kept


def balanced(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """Every task as often as the one that has most: its episodes are repeated in turn.  a a a b -> a a a b b b."""
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    for episode in episodes:
        by_task[episode.task.task_id].append(episode)
    most = max(map(len, by_task.values()), default=0)
    more = [chosen[i % len(chosen)] for chosen in by_task.values() for i in range(len(chosen), most)]
    return [*episodes, *more]


def selection(select: Select, *, most: int = 0, balance: bool = False) -> Select:
    """`select`, then at most so many a task, then as many of each."""

    def chosen(episodes: Sequence[Trajectory]) -> list[Trajectory]:
        kept = capped(select(episodes), most)
        return balanced(kept) if balance else kept

    return chosen


def selecting(select: Select) -> Filter:
    """Lift to a stage's filter."""

    def keep(credited: Sequence[Credited]) -> list[Credited]:
        of = {id(item.trajectory): item for item in credited}
        return [of[id(episode)] for episode in select([item.trajectory for item in credited])]

    return keep


def selection_metrics(groups: Sequence[Group], select: Select) -> Metrics:
    """What a selection keeps of an iteration's episodes. Repeated ones count once."""
    episodes = [episode for group in groups for episode in group.trajectories]
    kept = list({id(episode): episode for episode in select(episodes)}.values())
    tasks = {group.task.task_id for group in groups}
    steps = [step for episode in kept for step in episode.steps]
    return {
        "select/kept_frac": len(kept) / max(1, len(episodes)),
        "select/tasks_frac": len({episode.task.task_id for episode in kept}) / max(1, len(tasks)),
        "select/per_task": len(kept) / max(1, len(tasks)),
        "select/failed_step_frac": sum(step.exec_status.failed for step in steps) / max(1, len(steps)),
    }
