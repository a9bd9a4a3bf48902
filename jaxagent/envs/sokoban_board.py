"""Sokoban's rules: a level that never changes, a state that does, one move, and both as text.

    ######      # wall   _ floor   O target   X box   √ box on a target   P player   S player on a target
    #_P_O#
    #_X__#      move(level, state, "Down") pushes the box: it goes on as long as the cell beyond it is free
    ######

Cells are numbered row by row. The border is wall, so a neighbour's number is always a neighbour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DIRECTIONS = ("Up", "Down", "Left", "Right")
SYMBOLS = "#_OX√PS"


@dataclass(frozen=True)
class Level:
    """floor: every cell that is no wall, the targets among them."""

    rows: int
    columns: int
    floor: frozenset[int]
    targets: frozenset[int]

    @property
    def offsets(self) -> Mapping[str, int]:
        return {"Up": -self.columns, "Down": self.columns, "Left": -1, "Right": 1}


@dataclass(frozen=True)
class State:
    player: int
    boxes: frozenset[int]


def move(level: Level, state: State, direction: str) -> State:
    """The state after one move; the same state if a wall or a second box is in the way."""
    offset = level.offsets[direction]
    to = state.player + offset
    if to not in level.floor:
        return state
    if to not in state.boxes:
        return State(to, state.boxes)
    beyond = to + offset
    if beyond not in level.floor or beyond in state.boxes:
        return state
    return State(to, state.boxes - {to} | {beyond})


def solved(level: Level, state: State) -> bool:
    return state.boxes == level.targets


def placed(level: Level, state: State) -> int:
    """Boxes on targets."""
    return len(state.boxes & level.targets)


def draw(level: Level, state: State) -> str:
    return "\n".join(
        "".join(_symbol(level, state, row * level.columns + column) for column in range(level.columns))
        for row in range(level.rows)
    )


def _symbol(level: Level, state: State, cell: int) -> str:
    target = cell in level.targets
    if cell not in level.floor:
        return "#"
    if cell in state.boxes:
        return "√" if target else "X"
    if cell == state.player:
        return "S" if target else "P"
    return "O" if target else "_"


def read(text: str) -> tuple[Level, State]:
    """The board in a text: its lines that consist of symbols only. Raises ValueError where there is none."""
    lines = [line for line in text.splitlines() if line and set(line) <= set(SYMBOLS)]
    cells = dict(enumerate("".join(lines)))
    players = [cell for cell, symbol in cells.items() if symbol in "PS"]
    if len(players) != 1 or len({len(line) for line in lines}) != 1:
        raise ValueError(f"no board with one player in {text!r}")
    level = Level(
        rows=len(lines),
        columns=len(lines[0]),
        floor=frozenset(cell for cell, symbol in cells.items() if symbol != "#"),
        targets=frozenset(cell for cell, symbol in cells.items() if symbol in "O√S"),
    )
    return level, State(players[0], frozenset(cell for cell, symbol in cells.items() if symbol in "X√"))
