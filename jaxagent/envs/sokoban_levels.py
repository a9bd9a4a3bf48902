"""Sokoban levels that can be solved, and the shortest way to solve them.

A level is played backwards from its end: boxes stand on the targets and are pulled away, and every state reached so is
solvable by pushing along the same way. A search then gives the shortest solution, which is the scripted expert's and
decides whether the level is hard enough. Everything is a function of the random generator handed in.
"""

from __future__ import annotations

import heapq
import itertools
from random import Random

from jaxagent.envs.sokoban_board import DIRECTIONS, Level, State, move, solved

BRUSHES = (((0, 0), (0, 1)), ((0, 0), (1, 0)), ((0, 0), (0, 1), (1, 0)), ((0, 0), (0, 1), (0, 2)))
TURN = 0.35  # chance that the walk that digs the room changes its direction
PULL = 0.8  # chance that the backward player pulls when it can
NODES = 60_000  # states that a search may expand; boards beyond that are not used


def make_room(rng: Random, rows: int, columns: int) -> frozenset[int]:
    """Floor cells dug by a random walk with a small brush; the border stays wall, and the floor is connected."""
    row, column = rng.randrange(1, rows - 1), rng.randrange(1, columns - 1)
    step, floor = rng.choice(((0, 1), (1, 0), (0, -1), (-1, 0))), set[int]()
    for _ in range(int(1.7 * (rows + columns))):
        if rng.random() < TURN:
            step = rng.choice(((0, 1), (1, 0), (0, -1), (-1, 0)))
        for down, right in rng.choice(BRUSHES):
            if row + down < rows - 1 and column + right < columns - 1:
                floor.add((row + down) * columns + column + right)
        row = min(max(row + step[0], 1), rows - 2)
        column = min(max(column + step[1], 1), columns - 2)
    return frozenset(floor)


def play_backwards(rng: Random, level: Level, moves: int) -> State | None:
    """Of the states met by pulling boxes off the targets, the one whose boxes have gone farthest; None if none is free.

    No box of it stands on a target, so that doing nothing places none.
    """
    state = State(rng.choice(sorted(level.floor - level.targets)), level.targets)
    offsets, best, farthest = list(level.offsets.values()), None, 0
    for _ in range(moves):
        offset = rng.choice(offsets)
        to, behind = state.player + offset, state.player - offset
        if to not in level.floor or to in state.boxes:
            continue
        boxes = state.boxes
        if behind in boxes and rng.random() < PULL:
            boxes = boxes - {behind} | {state.player}
        state = State(to, boxes)
        distance = _pushes(level, state)
        if distance > farthest and not state.boxes & level.targets:
            best, farthest = state, distance
    return best


def make_board(rng: Random, *, rows: int, columns: int, boxes: int) -> tuple[Level, State] | None:
    """One attempt at a solvable board; None where the room is too small or no box got away."""
    floor = make_room(rng, rows, columns)
    if len(floor) < 3 * boxes + 3:
        return None
    level = Level(rows, columns, floor, frozenset(rng.sample(sorted(floor), boxes)))
    state = play_backwards(rng, level, 60 * boxes * max(rows, columns) // 6)
    return None if state is None else (level, state)


def solve(level: Level, state: State, *, nodes: int = NODES) -> tuple[str, ...] | None:
    """The shortest list of moves, by A* over pushes left; None if there is none, or none within `nodes` states."""
    live = _live(level)
    ticket = itertools.count()  # equal estimates: first in, first out, whatever sets do
    queue: list[tuple[int, int, State]] = [(_pushes(level, state), next(ticket), state)]
    came: dict[State, tuple[State, str] | None] = {state: None}
    cost = {state: 0}
    for _ in range(nodes):
        if not queue:
            return None
        estimate, _, at = heapq.heappop(queue)
        if solved(level, at):
            return _way(came, at)
        if estimate > cost[at] + _pushes(level, at):
            continue  # a shorter way here was found after this entry was made
        for direction in DIRECTIONS:
            after = move(level, at, direction)
            if after == at or cost.get(after, 1 << 30) <= cost[at] + 1 or not after.boxes <= live:
                continue
            cost[after], came[after] = cost[at] + 1, (at, direction)
            heapq.heappush(queue, (cost[after] + _pushes(level, after), next(ticket), after))
    return None


def _way(came: dict[State, tuple[State, str] | None], at: State) -> tuple[str, ...]:
    moves: list[str] = []
    while (step := came[at]) is not None:
        at, direction = step
        moves.append(direction)
    return tuple(reversed(moves))


def _pushes(level: Level, state: State) -> int:
    """A lower bound on the pushes left: each box to its nearest target, walls ignored."""
    columns = level.columns
    return sum(
        min(abs(box // columns - t // columns) + abs(box % columns - t % columns) for t in level.targets)
        for box in state.boxes
    )


def _live(level: Level) -> frozenset[int]:
    """Cells from which a box alone on the board could be pushed to some target: a box elsewhere is lost."""
    live, waiting = set(level.targets), list(level.targets)
    while waiting:
        cell = waiting.pop()
        for offset in level.offsets.values():
            before, player = cell - offset, cell - 2 * offset
            if before in level.floor and player in level.floor and before not in live:
                live.add(before)
                waiting.append(before)
    return frozenset(live)
