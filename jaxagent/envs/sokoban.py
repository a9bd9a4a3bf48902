"""Sokoban as text: push every box onto a target; a box in a corner is lost for good.

Each message holds up to `moves_per_turn` moves, as `<answer>Up || Left</answer>`. Levels are generated from the task's
seed, solvable (sokoban_levels.py), and dealt to the splits by a hash of the board: no board is in two splits. The
verdict counts boxes on targets; the step reward is gym-sokoban's: -0.1 a move, ±1 a box on or off a target, +10 at the
end.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from functools import partial
from random import Random

from pydantic import Field, model_validator

from jaxagent.envs.entry import Entry
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.sokoban_board import DIRECTIONS, Level, State, draw, move, placed, read, solved
from jaxagent.envs.sokoban_levels import make_board, solve
from jaxagent.envs.verdicts import verdict_means
from jaxagent.errors import ConfigError
from jaxagent.records import Record
from jaxagent.types import (
    Action,
    Evaluation,
    ExecStatus,
    Message,
    Metrics,
    Prompt,
    StepResult,
    Task,
    Trajectory,
)

SPLITS = {"train": range(6), "dev": range(6, 7), "test": range(7, 8)}  # residues of the board's hash, mod 8
ATTEMPTS = 5_000  # at a level; a 6x6 board with two boxes takes about 100 in `test`
ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)
SEPARATOR = re.compile(r"\|\||[,\n;]")
MOVE_COST, BOX, FINISHED = -0.1, 1.0, 10.0
SYSTEM = """\
You are solving a Sokoban puzzle. You are the player and must push every box onto a target.
Symbols: # wall, _ floor, O target, X box, √ box on a target, P player, S player on a target.
Moves: Up, Down, Left, Right. Moving towards a box pushes it if the cell beyond it is free; you cannot pull, and you \
cannot push two boxes at once, so a box pushed into a corner is lost.
In every turn you see the board and answer with at most {moves} move(s), between tags: <answer>{example}</answer>"""


class SokobanOptions(Record):
    """A level's size, and the length of an episode.

    tasks: number of levels by split. min_moves, max_moves: length of the shortest solution; max_moves 0 is no limit.
    bare: a message without tags is read as moves, for models too small to learn tags.
    """

    rows: int = Field(default=6, ge=5, le=10)
    columns: int = Field(default=6, ge=5, le=10)
    boxes: int = Field(default=2, ge=1, le=4)
    tasks: dict[str, int] = Field(default={"train": 96, "dev": 32, "test": 64})
    min_moves: int = Field(default=8, ge=1)
    max_moves: int = Field(default=0, ge=0)
    moves_per_turn: int = Field(default=5, ge=1)
    max_turns: int = Field(default=20, ge=1)
    bare: bool = False

    @model_validator(mode="after")
    def _fits(self) -> SokobanOptions:
        unknown = sorted(set(self.tasks) - set(SPLITS))
        if unknown:
            raise ValueError(f"tasks: there is no split {unknown[0]!r}; the splits are {', '.join(SPLITS)}")
        if self.max_moves and self.max_moves < self.min_moves:
            raise ValueError(
                f"max_moves={self.max_moves} is below min_moves={self.min_moves}; raise it, or set it to 0"
            )
        return self


def make_level(options: SokobanOptions, split: str, seed: int) -> tuple[Level, State]:
    """The level of a task. Raises ConfigError if the options leave too few boards."""
    rng = Random(f"sokoban/{options.rows}x{options.columns}/{options.boxes}/{split}/{seed}")
    for _ in range(ATTEMPTS):
        board = make_board(rng, rows=options.rows, columns=options.columns, boxes=options.boxes)
        if board is None or zlib.crc32(draw(*board).encode()) % 8 not in SPLITS[split]:
            continue
        solution = solve(*board)
        if solution and options.min_moves <= len(solution) <= (options.max_moves or len(solution)):
            return board
    raise ConfigError(
        f"no {options.rows}x{options.columns} board with {options.boxes} boxes and a shortest solution of "
        f"{options.min_moves} to {options.max_moves or 'any number of'} moves in {ATTEMPTS} attempts; widen the range"
    )


class Sokoban:
    """One puzzle. State: where the player and the boxes are, and the score so far."""

    def __init__(self, options: SokobanOptions):
        self._options = options

    def reset(self, task: Task) -> StepResult:
        self._level, self._state = make_level(self._options, task.split, task.seed)
        self._score, self._moves, self._turns = 0.0, 0, 0
        return self._answer("")

    def step(self, action: Action) -> StepResult:
        self._turns += 1
        if action.error:
            return self._answer(action.error, ExecStatus.INVALID)
        wanted, reward, done = action.text.split(), 0.0, []
        for direction in wanted[: self._options.moves_per_turn]:
            before, self._state = self._state, move(self._level, self._state, direction)
            reward += step_reward(self._level, before, self._state)
            done.append(direction if self._state != before else f"{direction} (blocked)")
            if solved(self._level, self._state):
                break
        self._moves += len(done)
        self._score += reward
        dropped = len(wanted) - len(done)
        text = f"Moves: {', '.join(done)}." + (f" {dropped} more were not made." if dropped else "")
        stuck = all(name.endswith(")") for name in done)
        status = ExecStatus.RUNTIME_ERROR if stuck else ExecStatus.OK
        return self._answer(text, status, reward=reward)

    def evaluate(self) -> Evaluation:
        on, boxes = placed(self._level, self._state), self._options.boxes
        failures = (f"{boxes - on} of {boxes} boxes are not on a target",) if on < boxes else ()
        info = {"score": round(self._score, 6), "moves": self._moves}
        return Evaluation(success=not failures, passed=on, total=boxes, failures=failures, info=info)

    def snapshot(self) -> bytes:
        state = [self._state.player, sorted(self._state.boxes), self._score, self._moves, self._turns]
        return json.dumps(state).encode()

    def restore(self, state: bytes) -> None:
        player, boxes, self._score, self._moves, self._turns = json.loads(state)
        self._state = State(player, frozenset(boxes))

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, text: str, status: ExecStatus = ExecStatus.OK, *, reward: float = 0.0) -> StepResult:
        board = draw(self._level, self._state)
        finished = solved(self._level, self._state)
        last = "Every box is on a target." if finished else ""
        lines = [line for line in (text, board, last) if line]
        done = finished or self._turns >= self._options.max_turns
        return StepResult("\n".join(lines), status, done=done, reward=reward, anchor=board)


def step_reward(level: Level, before: State, after: State) -> float:
    """gym-sokoban's reward of one move."""
    change = placed(level, after) - placed(level, before)
    return MOVE_COST + BOX * change + (FINISHED if solved(level, after) else 0.0)


class Expert:
    """Solves the board that it sees by the shortest way. At each turn it errs with probability `sloppiness`."""

    def __init__(self, options: SokobanOptions, task: Task, rng: Random, sloppiness: float):
        self._options, self._rng, self._sloppiness = options, rng, sloppiness

    def act(self, observation: str) -> str:
        way = solve(*read(observation))
        if self._rng.random() < self._sloppiness or not way:  # a lost board has no way
            way = (self._rng.choice(DIRECTIONS),)
        text = " || ".join(way[: self._options.moves_per_turn])
        return text if self._options.bare else f"<answer>{text}</answer>"


def tasks(options: SokobanOptions, split: str) -> Sequence[Task]:
    if split not in options.tasks:
        raise ConfigError(f"sokoban has no split {split!r}; its splits are {sorted(options.tasks)}")
    name = f"sokoban/{split}/{options.rows}x{options.columns}-{options.boxes}"
    return [Task(f"{name}/{n}", "sokoban", split, f"{name}/{n}", seed=n) for n in range(options.tasks[split])]


def prompt(options: SokobanOptions, task: Task, first: StepResult) -> Prompt:
    example = " || ".join(("Right", "Up")[: options.moves_per_turn])
    rules = SYSTEM.format(moves=options.moves_per_turn, example=example)
    if options.bare:
        return Prompt((Message("user", first.observation),))
    return Prompt((Message("system", rules), Message("user", first.observation)))


def parse(options: SokobanOptions, message: Message) -> Action:
    """Moves of the last answer; any case, separated by ||, commas or lines."""
    answers = ANSWER.findall(message.content)
    if not answers and not options.bare:
        return Action(error="Found no moves. Write them as <answer>Up || Left</answer>.")
    words = [word.strip().strip(".") for word in SEPARATOR.split(answers[-1] if answers else message.content)]
    words = [word.capitalize() for word in words if word]
    unknown = [word for word in words if word not in DIRECTIONS]
    if unknown or not words:
        found = repr(unknown[0][:40]) if unknown else "an empty answer"
        return Action(error=f"{found} is no move. The moves are {', '.join(DIRECTIONS)}, separated by ||.")
    return Action(text=" ".join(words))


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Means over episodes: accuracy (solved), completion (boxes placed), score (gym-sokoban's return), moves."""
    measures = {
        "accuracy": lambda verdict: verdict.success,
        "completion": lambda verdict: verdict.passed / verdict.total,
        "score": lambda verdict: verdict.info["score"],
        "moves": lambda verdict: verdict.info["moves"],
    }
    return verdict_means(trajectories, measures)


def sokoban_spec(options: SokobanOptions) -> EnvSpec:
    """Makes a level of every split, so that options without boards are known before the run."""
    for split in options.tasks:
        make_level(options, split, 0)
    return EnvSpec(
        name="sokoban",
        make=partial(Sokoban, options),
        tasks=partial(tasks, options),
        prompt=partial(prompt, options),
        parse=partial(parse, options),
        metrics=metrics,
        max_steps=options.max_turns,
        expert=partial(Expert, options),
    )


ENTRY = Entry(SokobanOptions, sokoban_spec)
