"""Text Sokoban: rules by hand and against gym-sokoban, levels, rewards, parsing, the expert."""

import importlib.resources
import importlib.util
import random
import sys
import types
import warnings
from random import Random

import numpy as np
import pytest

from jaxagent.envs.sokoban import Sokoban, SokobanOptions, make_level, parse, step_reward
from jaxagent.envs.sokoban_board import DIRECTIONS, draw, move, placed, read, solved
from jaxagent.envs.sokoban_levels import solve
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError
from jaxagent.rollout.demonstrate import play
from jaxagent.types import Action, ExecStatus, Message
from tests.envs.contract import check_contract
from tests.envs.needs import package

SPEC = find_env("sokoban", {})
PINNED = """\
######
#_X_O#
#___O#
#_X#_#
#_P__#
######"""
BOARD = """\
######
#_P_O#
#_X__#
#__X_#
#O___#
######"""


def after(board: str, *moves: str) -> str:
    level, state = read(board)
    for direction in moves:
        state = move(level, state, direction)
    return draw(level, state)


def test_the_contract_on_three_tasks():
    for split, number in (("train", 0), ("dev", 1), ("test", 2)):
        played = check_contract(SPEC, SPEC.tasks(split)[number])
        assert played.results[0].anchor == played.results[0].observation
        assert played.results[-1].done


def test_moves_pushes_and_walls_by_hand():
    assert draw(*read(BOARD)) == BOARD
    assert after(BOARD, "Up") == BOARD  # a wall
    assert after(BOARD, "Left").splitlines()[1] == "#P__O#"
    pushed = after(BOARD, "Down")
    assert pushed.splitlines()[1:4] == ["#___O#", "#_P__#", "#_XX_#"]
    twice = after(BOARD, "Down", "Left", "Down", "Right")  # two boxes in a row do not move
    assert twice.splitlines()[3] == "#PXX_#"
    assert after(BOARD, "Down", "Down").splitlines()[3:5] == ["#_PX_#", "#OX__#"]


def test_boxes_and_player_on_targets_are_shown():
    level, state = read("#####\n#OXP#\n#####")
    state = move(level, state, "Left")
    assert draw(level, state) == "#####\n#√P_#\n#####"
    assert solved(level, state)
    assert draw(*read("#####\n#SX_#\n#####")) == "#####\n#SX_#\n#####"


def test_step_rewards_by_hand():
    one, state = read("######\n#OXPO#\n#__X_#\n#____#\n######")
    on = move(one, state, "Left")
    assert step_reward(one, state, on) == pytest.approx(0.9)
    assert step_reward(one, on, on) == pytest.approx(-0.1)
    last, state = read("#####\n#OXP#\n#####")
    done = move(last, state, "Left")
    assert step_reward(last, state, done) == pytest.approx(10.9)
    off, state = read("######\n#_√P_#\n#____#\n######")
    assert step_reward(off, state, move(off, state, "Left")) == pytest.approx(-1.1)


def test_the_solver_is_shortest_and_knows_what_is_lost():
    assert solve(*read("######\n#PX_O#\n######")) == ("Right", "Right")
    assert solve(*read(BOARD)) is not None
    assert solve(*read("######\n#X__O#\n#_P__#\n######")) is None  # in a corner
    assert solve(*read("#####\n#√_P#\n#####")) == ()


def breadth_first(level, state) -> int:
    """Length of the shortest solution, without a heuristic."""
    seen, layer, depth = {state}, [state], 0
    while not any(solved(level, at) for at in layer):
        layer = [move(level, at, direction) for at in layer for direction in DIRECTIONS]
        layer = [at for at in dict.fromkeys(layer) if at not in seen]
        seen.update(layer)
        depth += 1
        assert layer, "unsolvable"
    return depth


@pytest.mark.parametrize("split", ["train", "test"])
def test_levels_can_be_solved_start_with_no_box_placed_and_are_long_enough(split):
    options = SokobanOptions()
    for seed in range(6):
        level, state = make_level(options, split, seed)
        assert (level.rows, level.columns, len(state.boxes), placed(level, state)) == (6, 6, 2, 0)
        assert len(solve(level, state)) == breadth_first(level, state) >= 8


def test_levels_depend_on_the_seed_alone_and_no_board_is_in_two_splits():
    options = SokobanOptions(min_moves=4)
    boards = {
        split: {draw(*make_level(options, split, seed)) for seed in range(12)} for split in options.tasks
    }
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert draw(*make_level(options, "train", 3)) in boards["train"]
    assert len(boards["train"]) >= 10
    assert not boards["train"] & boards["test"]
    assert not boards["train"] & boards["dev"]
    assert not boards["dev"] & boards["test"]


def test_a_task_is_the_same_in_every_process_and_version():
    assert Sokoban(SokobanOptions()).reset(SPEC.tasks("train")[0]).observation == PINNED


def test_other_sizes():
    options = SokobanOptions(rows=8, columns=7, boxes=3, tasks={"train": 1}, min_moves=6, max_moves=60)
    level, state = make_level(options, "train", 0)
    assert (level.rows, level.columns, len(state.boxes)) == (8, 7, 3)
    with pytest.raises(ConfigError, match="widen the range"):
        make_level(SokobanOptions(rows=5, columns=5, boxes=1, min_moves=90), "train", 0)


def open_board(board: str, **options) -> Sokoban:
    env = Sokoban(SokobanOptions(**options))
    env.reset(SPEC.tasks("train")[0])
    env._level, env._state = read(board)
    return env


def test_a_turn_is_cut_at_the_limit_and_at_the_end():
    env = open_board("#######\n#PX__O#\n#######", moves_per_turn=2, boxes=1)
    first = env.step(Action("Right Left Right"))
    assert first.observation.splitlines()[0] == "Moves: Right, Left. 1 more were not made."
    assert first.reward == pytest.approx(-0.2)
    last = env.step(Action("Right Right Up"))
    assert (last.done, last.reward) == (False, pytest.approx(-0.2))
    last = env.step(Action("Right Up"))
    assert (last.done, last.reward) == (True, pytest.approx(10.9))
    assert last.observation.endswith("Every box is on a target.")
    verdict = env.evaluate()
    assert (verdict.success, verdict.passed, verdict.total) == (True, 1, 1)
    assert verdict.info == {"score": pytest.approx(10.5), "moves": 5}


def test_blocked_and_faulty_messages():
    env = open_board(BOARD)
    blocked = env.step(Action("Up"))
    assert blocked.exec_status is ExecStatus.RUNTIME_ERROR
    assert blocked.observation == f"Moves: Up (blocked).\n{BOARD}"
    assert env.step(Action("Up Left")).exec_status is ExecStatus.OK
    invalid = env.step(Action(error="no"))
    assert (invalid.exec_status, invalid.reward) == (ExecStatus.INVALID, 0.0)
    assert env.evaluate().passed == 0


def test_an_episode_ends_at_the_turn_limit():
    env = open_board(BOARD, max_turns=2)
    assert not env.step(Action("Left")).done
    assert env.step(Action("Right")).done


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("<answer>Up</answer>", "Up"),
        ("I go <answer>left || DOWN || Up</answer> now", "Left Down Up"),
        ("<answer>Up</answer> no: <answer>Right, Left.</answer>", "Right Left"),
        ("<answer>Up\nDown", "Up Down"),
    ],
)
def test_parse(text, moves):
    assert parse(SokobanOptions(), Message("assistant", text)) == Action(text=moves)


@pytest.mark.parametrize(
    "text", ["", "Up", "<answer></answer>", "<answer>jump</answer>", "<answer>Up Down</answer>"]
)
def test_parse_answers_anything_else_in_words(text):
    assert parse(SokobanOptions(), Message("assistant", text)).error


def test_bare_moves_are_an_option():
    assert parse(SokobanOptions(bare=True), Message("assistant", "up || left")).text == "Up Left"


def test_a_sloppy_expert_fails_sometimes_and_a_faultless_one_never():
    tasks = SPEC.tasks("train")[:8]
    sloppy = [play(SPEC, task, rng=Random(n), sloppiness=0.9).evaluation for n, task in enumerate(tasks)]
    assert not all(verdict.success for verdict in sloppy)


@pytest.mark.slow
def test_the_expert_solves_every_task_and_doing_nothing_none():
    for split in ("train", "dev", "test"):
        for task in SPEC.tasks(split):
            assert play(SPEC, task, rng=Random(0)).evaluation.success, task.task_id
            idle = SPEC.make()
            idle.reset(task)
            assert idle.evaluate().passed == 0


def test_options_are_checked():
    with pytest.raises(ConfigError, match="no split 'valid'"):
        find_env("sokoban", {"tasks": {"valid": 3}})
    with pytest.raises(ConfigError, match="max_moves=3"):
        find_env("sokoban", {"max_moves": 3})
    with pytest.raises(ConfigError, match=r"\['dev', 'test', 'train'\]"):
        SPEC.tasks("valid")


def import_theirs(monkeypatch):
    """gym-sokoban asks for two things that are gone: numpy's bool8 and, of setuptools, one function."""
    if importlib.util.find_spec("pkg_resources") is None:
        stand_in = types.ModuleType("pkg_resources")
        stand_in.resource_filename = lambda package, name: str(importlib.resources.files(package) / name)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "pkg_resources", stand_in)
    monkeypatch.setattr(np, "bool8", np.bool_, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gym speaks of its end at import
        return importlib.import_module("gym_sokoban.envs.sokoban_env").SokobanEnv


@package("gym_sokoban", "pip install gym-sokoban")
def test_a_random_walk_is_gym_sokobans(monkeypatch):
    """Board, reward and end of every move equal gym-sokoban's on the same level."""
    theirs = import_theirs(monkeypatch)(dim_room=(6, 6), num_boxes=2, max_steps=10_000, reset=False)
    rng = Random(0)
    for seed in range(4):
        level, state = make_level(SokobanOptions(), "train", seed)
        _open_theirs(theirs, level, state)
        moves = [*solve(level, state)] if seed == 0 else [rng.choice(DIRECTIONS) for _ in range(120)]
        for direction in moves:
            before, state = state, move(level, state, direction)
            _, reward, done, _ = theirs.step(
                1 + DIRECTIONS.index(direction), observation_mode="tiny_rgb_array"
            )
            assert (_their_board(theirs), done) == (draw(level, state), solved(level, state))
            assert reward == pytest.approx(step_reward(level, before, state))
            if done:
                break


def _open_theirs(env, level, state):
    """gym-sokoban's codes: 0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player."""
    shape = (level.rows, level.columns)
    fixed = np.array([0 if n not in level.floor else 1 for n in range(36)])
    fixed[sorted(level.targets)] = 2
    room = fixed.copy()
    for box in state.boxes:
        room[box] = 3 if box in level.targets else 4
    room[state.player] = 5
    env.room_fixed, env.room_state = fixed.reshape(shape), room.reshape(shape)
    env.player_position = np.argwhere(env.room_state == 5)[0]
    env.num_env_steps, env.reward_last, env.box_mapping = 0, 0, {}
    env.boxes_on_target = placed(level, state)


def _their_board(env) -> str:
    rows = []
    for state_row, fixed_row in zip(env.room_state, env.room_fixed):
        symbols = [
            "S" if code == 5 and fixed == 2 else "#_O√XP"[code] for code, fixed in zip(state_row, fixed_row)
        ]
        rows.append("".join(symbols))
    return "\n".join(rows)
