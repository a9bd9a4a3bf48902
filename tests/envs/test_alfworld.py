"""ALFWorld on generated games everywhere, on the real ones where their archive is, against the package where it is."""

import json
import pickle
import subprocess
import sys
import tarfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from jaxagent.envs.alfworld.engine import open_engine
from jaxagent.envs.alfworld.games import SPLITS, TYPES, Game, data_folder, official_tasks, read_game
from jaxagent.envs.alfworld.generate import generated_game
from jaxagent.envs.alfworld.problem import Goal, read_goal
from jaxagent.envs.commands import parse_command, spoken
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError, DataError
from jaxagent.rollout.demonstrate import play
from jaxagent.types import Action, Evaluation, ExecStatus, Message, Prompt, Status, Task, Trajectory
from tests.envs.contract import check_contract
from tests.envs.needs import data, package

PACKAGE = package("alfworld", "pip install 'jaxagent[alfworld]'")
ROOT = Path(__file__).parents[2]
QUIET = pytest.mark.filterwarnings("ignore")  # the package's own: regular expressions, regex flags, spaCy
# Official sizes by kind of task, in the order of TYPES.
COUNTS = {"valid_seen": (35, 13, 27, 16, 25, 24), "valid_unseen": (24, 18, 31, 23, 21, 17)}


def generated(**options: object) -> EnvSpec:
    return find_env("alfworld", {"games": "generated", **options})


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 274 evaluation games, unpacked."""
    root = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(data("alfworld_valid.tar.xz")) as archive:
        archive.extractall(root, filter="data")
    return root


def steps(spec: EnvSpec, task: Task, *commands: str):
    """The results of an episode, the reset first, and its verdict."""
    env = spec.make()
    results = [env.reset(task), *(env.step(Action(text=command)) for command in commands)]
    verdict = env.evaluate()
    env.close()
    return results, verdict


# --- generated games -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(TYPES)))
def test_contract(number: int):
    spec = generated(admissible=number % 2 == 0)
    task = spec.tasks("valid_unseen")[number]
    assert task.type == TYPES[number]
    played = check_contract(spec, task)
    assert played.results[-1].done
    assert sum(result.reward for result in played.results) == 1.0


def test_every_generated_game_is_won_by_its_walkthrough_and_not_sooner():
    spec = generated()
    for split in SPLITS:
        for task in spec.tasks(split):
            results, verdict = steps(spec, task, *generated_game(task).walkthrough)
            assert [result.done for result in results].count(True) == 1, task.task_id
            assert verdict == Evaluation(True, 1, 1, (), {"score": 1.0})


def test_splits_are_fixed_and_do_not_meet():
    spec = generated()
    names = {split: [task.task_id for task in spec.tasks(split)] for split in SPLITS}
    assert [len(found) for found in names.values()] == [600, 60, 60]
    assert len({name for found in names.values() for name in found}) == 720
    plans = {split: {task.meta["plan"] for task in spec.tasks(split)} for split in SPLITS}
    assert plans["valid_seen"] <= plans["train"]
    assert not plans["valid_unseen"] & plans["train"]
    game = generated_game(spec.tasks("train")[0])
    assert game.goal == "put some bowl on cabinet."
    with pytest.raises(ConfigError, match="no split 'test'; its splits are train, valid_seen, valid_unseen"):
        spec.tasks("test")


def test_types_select_tasks():
    spec = generated(types=["pick_heat_then_place_in_recep"])
    assert {task.type for task in spec.tasks("train")} == {"pick_heat_then_place_in_recep"}


@pytest.mark.parametrize("split", SPLITS)
def test_doing_nothing_wins_nothing(split: str):
    spec = generated()
    for task in spec.tasks(split)[:60]:
        results, verdict = steps(spec, task, "look", "inventory", "fly away")
        assert not verdict.success
        assert [result.exec_status for result in results[1:]] == ["ok", "ok", "runtime_error"]
        assert results[-1].observation == "Nothing happens."


def heat_task() -> Task:
    """put a hot mug in garbagecan: go to drawer 1, open it, take the mug, microwave, garbage can."""
    return generated().tasks("train")[3]


def test_a_game_by_hand():
    results, verdict = steps(
        generated(),
        heat_task(),
        "go to drawer 1",
        "open drawer 1",
        "take mug 1 from drawer 1",
        "inventory",
        "close drawer 1",
        "go to microwave 1",
        "heat mug 1 with microwave 1",
        "examine mug 1",
        "go to garbagecan 1",
        "go to garbagecan 1",
        "move mug 1 to garbagecan 1",
    )
    texts = [result.observation for result in results]
    assert texts[0].endswith("Your task is to: put a hot mug in garbagecan.")
    assert texts[1] == "You arrive at drawer 1. The drawer 1 is closed."
    assert texts[2] == (
        "You open the drawer 1. The drawer 1 is open. In it, you see a bread 2, a mug 1, and a spoon 1."
    )
    assert texts[3:6] == [
        "You pick up the mug 1 from the drawer 1.",
        "You are carrying: a mug 1.",
        "You close the drawer 1.",
    ]
    assert texts[7:9] == ["You heat the mug 1 using the microwave 1.", "This is a hot mug 1."]
    assert texts[10:] == ["Nothing happens.", "You move the mug 1 to the garbagecan 1."]
    assert [result.done for result in results] == [False] * 11 + [True]
    assert verdict.success


def test_the_old_verb_is_an_option():
    commands = [*generated_game(heat_task()).walkthrough[:-1], "put mug 1 in/on garbagecan 1"]
    assert not steps(generated(), heat_task(), *commands)[1].success
    assert steps(generated(old_put=True), heat_task(), *commands)[1].success


def test_admissible_commands_are_shown_and_all_do_something():
    spec = generated(admissible=True)
    text = spec.make().reset(heat_task()).observation
    listed = text.rpartition("Admissible commands: ")[2].rstrip(".").replace("'", "").split(", ")
    assert {"look", "inventory", "go to drawer 1"} <= set(listed)
    assert "help" not in listed
    for command in listed:
        assert steps(spec, heat_task(), command)[0][-1].exec_status is ExecStatus.OK


def test_anchors_group_by_text_or_by_state():
    """GiGPO's anchor is the raw answer; the digest tells the same answer in two states apart."""
    commands = ("look", "go to drawer 1", "inventory", "go to microwave 1", "inventory")
    by_text, _ = steps(generated(admissible=True), heat_task(), *commands)
    assert by_text[3].anchor == by_text[5].anchor == "You are not carrying anything."
    by_state, _ = steps(generated(anchor="state"), heat_task(), *commands)
    assert by_state[0].anchor == by_state[1].anchor
    assert by_state[3].anchor != by_state[5].anchor


def test_an_unparseable_message_is_answered_and_moves_nothing():
    spec = generated(anchor="state")
    env = spec.make()
    first = env.reset(heat_task())
    answer = env.step(spec.parse(Message("assistant", "I go to the drawer.")))
    assert (answer.exec_status, answer.anchor) == (ExecStatus.INVALID, first.anchor)
    assert "between <action> and </action>" in answer.observation


def test_metrics_are_pooled_and_by_kind():
    """9 of 10 pick, 3 of 5 heat: 12/15 = .8 over all, not the mean of the kinds, .75."""
    kinds = ["pick_and_place_simple"] * 10 + ["pick_heat_then_place_in_recep"] * 5
    wins = [True] * 9 + [False] + [True] * 3 + [False] * 2
    found = generated().metrics(
        [_trajectory(k, w, n) for n, (k, w) in enumerate(zip(kinds, wins, strict=True))]
    )
    assert found == {"success": 0.8, "success_pick": 0.9, "success_heat": 0.6}
    assert (found["success_pick"] + found["success_heat"]) / 2 == pytest.approx(0.75)
    assert generated().metrics([]) == {}


def _trajectory(kind: str, won: bool, number: int) -> Trajectory:
    return Trajectory(
        f"t{number}",
        Task(f"t{number}", "alfworld", "valid_seen", type=kind),
        0,
        Status.DONE,
        Prompt(()),
        (),
        (),
        Evaluation(won, int(won), 1),
    )


def test_spec_reaches_a_worker_process():
    spec = generated()
    make = pickle.loads(pickle.dumps(spec.make))
    assert make().reset(heat_task()) == spec.make().reset(heat_task())


def test_sloppy_experts_take_detours():
    spec = generated()
    played = play(spec, heat_task(), rng=Random(1), sloppiness=1.0)
    assert played.evaluation.success
    assert len(played.texts) > len(generated_game(heat_task()).walkthrough)


# --- how a message becomes a command -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "style", "command"),
    [
        ("<think>a mug</think><action>go to desk 1</action>", "think", "go to desk 1"),
        ("<action>Take  Mug 1\nfrom desk 1</action>", "think", "take mug 1 from desk 1"),
        ("<think>or <action>look</action>?</think>\n<action>inventory</action>", "think", "inventory"),
        ("<action>look</action> You see <action>open it</action>", "action", "look"),
        ("<ACTION>look</ACTION>", "action", "look"),
        ("> go to desk 1\n", "bare", "go to desk 1"),
    ],
)
def test_commands_are_found(text: str, style, command: str):
    assert parse_command(Message("assistant", text), style) == Action(text=command)


@pytest.mark.parametrize(
    ("text", "style", "error"),
    [
        ("", "think", "Found no <action>"),
        ("<think>hm", "think", "ended while thinking"),
        ("<action>go to", "action", "ended before </action>"),
        ("<action>  </action>", "action", "is empty"),
        ("look\ninventory", "bare", "Found 2 lines"),
        ("", "bare", "Found 0 lines"),
    ],
)
def test_faulty_messages_say_what_is_wrong(text: str, style, error: str):
    action = parse_command(Message("assistant", text), style)
    assert error in action.error
    assert not action.text


@pytest.mark.parametrize("style", ["think", "action", "bare"])
def test_spoken_commands_parse(style):
    assert parse_command(Message("assistant", spoken("go to desk 1", style)), style).text == "go to desk 1"


# --- configuration ---------------------------------------------------------------------------------------------


def test_commands_are_found_in_linear_time():
    """Thousands of tags that nothing closes took seconds, in the trainer's event loop."""
    start = time.process_time()
    for text in ("<action>" * 50_000, "<think>" * 50_000, "</action>" * 50_000):
        assert parse_command(Message("assistant", text), "action").error
    assert time.process_time() - start < 1.0


def test_missing_games_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setattr("jaxagent.envs.alfworld.spec.DEFAULT_DATA", tmp_path / "none")
    with pytest.raises(ConfigError, match=r"alfworld-download.*env.options.games=generated"):
        find_env("alfworld", {})
    with pytest.raises(ConfigError, match="does not exist"):
        find_env("alfworld", {"data": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="holds no ALFWorld games"):
        find_env("alfworld", {"data": str(tmp_path)})


def test_unknown_options_name_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'admissible'"):
        generated(admisible=True)
    with pytest.raises(ConfigError, match=r"env\.options\.types"):
        generated(types=["pick"])


def _write(folder: Path, name: str, fields: object) -> Path:
    path = folder / "valid_seen" / name / "trial_1" / "game.tw-pddl"
    path.parent.mkdir(parents=True)
    path.write_text(fields if isinstance(fields, str) else json.dumps(fields))
    return path


def test_listing_keeps_what_the_package_keeps(tmp_path: Path):
    """Solvable games only, whatever the order of the keys; nothing movable, nothing sliced."""
    game = generated_game(heat_task())
    fields = {
        "pddl_domain": "",
        "grammar": "",
        "pddl_problem": game.problem,
        "solvable": True,
        "walkthrough": [],
    }
    _write(tmp_path, "pick_and_place_simple-Mug-None-Desk-1", fields)
    _write(tmp_path, "pick_and_place_simple-Mug-None-Desk-2", {**fields, "solvable": False})
    padded = {"solvable": True, "pddl_problem": "x" * 10_000}
    _write(tmp_path, "pick_and_place_simple-Mug-None-Desk-3", padded)
    _write(tmp_path, "pick_and_place_simple-AppleSliced-None-Desk-4", fields)
    _write(tmp_path, "pick_and_place_with_movable_recep-Pen-Mug-Desk-5", fields)
    (tmp_path / "valid_seen" / "pick_and_place_simple-Mug-None-Desk-6" / "trial_1").mkdir(parents=True)
    tasks = official_tasks(str(tmp_path), TYPES, "valid_seen")
    assert [task.scenario[-1] for task in tasks] == ["1", "3"]
    with pytest.raises(ConfigError, match="split 'train' is not in"):
        official_tasks(str(tmp_path), TYPES, "train")


def test_damaged_games_and_foreign_rules(tmp_path: Path):
    _write(tmp_path, "look_at_obj_in_light-Pen-None-DeskLamp-1", '{"solvable": true, "walk')
    tasks = official_tasks(str(tmp_path), TYPES, "valid_seen")
    with pytest.raises(DataError, match="cannot be read as an ALFWorld game"):
        read_game(str(tmp_path), tasks[0])
    game = replace(generated_game(heat_task()), domain="(define (domain other))", grammar="")
    with pytest.raises(DataError, match="engine=textworld"):
        open_engine("python", game)


def test_goals():
    two = """(and (exists (?r - receptacle) (exists (?o1 - object) (and (objecttype ?o1 pentype)
        (receptacletype ?r desktype) (inreceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2))
        (objecttype ?o2 pentype) (receptacletype ?r desktype) (inreceptacle ?o2 ?r)))))))"""
    assert read_goal(two) == Goal("pentype", "desktype", count=2)
    with pytest.raises(DataError, match="another form"):
        read_goal("(forall (?o - object) (objecttype ?o pentype))")


# --- the real games --------------------------------------------------------------------------------------------


def test_all_real_evaluation_games_are_listed_and_won(real: Path):
    """134 unseen and 140 seen games, by the stored walkthroughs; 1 s."""
    spec = alfworld_spec_of(real)
    for split, counts in COUNTS.items():
        tasks = spec.tasks(split)
        assert tuple(Counter(task.type for task in tasks)[kind] for kind in TYPES) == counts
        for task in tasks:
            walkthrough = read_game(str(data_folder(real)), task).walkthrough
            results, verdict = steps(spec, task, *walkthrough)
            assert verdict.success, task.task_id
            assert [result.done for result in results].count(True) == 1, task.task_id
            assert not any(result.exec_status.failed for result in results)
            assert len(walkthrough) <= spec.max_steps


def alfworld_spec_of(root: Path, **options: object) -> EnvSpec:
    return find_env("alfworld", {"data": str(root), **options})


def test_contract_on_a_real_game(real: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(real / "json_2.1.1"))
    spec = find_env("alfworld", {"admissible": True})
    task = spec.tasks("valid_unseen")[0]
    check_contract(spec, task)
    prompt = spec.prompt(task, spec.make().reset(task)).messages
    assert [message.role for message in prompt] == ["user"]
    assert "Your task is to: " in prompt[0].content


def test_no_op_on_real_games(real: Path):
    spec = alfworld_spec_of(real)
    verdicts = [steps(spec, task, "look")[1].success for split in COUNTS for task in spec.tasks(split)]
    assert np.mean(verdicts) == 0.0


# --- against the package ---------------------------------------------------------------------------------------


RARE = ("heat", "cool", "clean", "slice", "use")


def same_play(game: Game, wander: int, seed: int) -> Counter[str]:
    """Both engines, first along the walkthrough, then on a random walk that likes rare commands: texts, commands,
    facts and verdicts agree throughout. Returns how often each verb did something, and `won`."""
    rng, done = Random(seed), Counter[str]()
    for plan in (list(game.walkthrough), []):
        engines = [open_engine(name, game) for name in ("textworld", "python")]
        texts = [engine.start() for engine in engines]
        for _ in range(2 * len(plan) if plan else wander):
            assert texts[0] == texts[1]
            commands = engines[0].admissible()
            assert commands == engines[1].admissible()
            assert engines[0].facts() == engines[1].facts()
            assert engines[0].won == engines[1].won
            command = _next_command(commands, plan, rng)
            texts = [engine.step(command) for engine in engines]
            done[command.split()[0]] += texts[0] != "Nothing happens."
            done["won"] += engines[1].won
        assert texts[0] == texts[1]
        assert engines[0].won == engines[1].won
        for engine in engines:
            engine.close()
    return done


def _next_command(commands: list[str], plan: list[str], rng: Random) -> str:
    """Along a plan every second command is the plan's; otherwise rare verbs and knives, then places to use them."""
    if plan and rng.random() < 0.6:
        return plan.pop(0)
    if rng.random() < 0.05:
        return "jump"
    rare = [c for c in commands if c.startswith(RARE) or (c.startswith("take") and "knife" in c)]
    useful = [
        c for c in commands if c.startswith("go to") and c.split()[2] in ("microwave", "fridge", "sinkbasin")
    ]
    held = not any(command.startswith("take") for command in commands)
    wanted = (
        rare
        if rare and rng.random() < 0.5
        else useful
        if held and useful and rng.random() < 0.2
        else commands
    )
    if plan:  # keeps the plan playable
        wanted = [c for c in commands if c.startswith(("examine", "look", "inventory", "help"))]
    verb = rng.choice(sorted({command.split()[0] for command in wanted}))
    return rng.choice([command for command in wanted if command.split()[0] == verb])


@PACKAGE
@QUIET
def test_the_package_says_the_same_on_a_generated_game():
    assert same_play(generated_game(heat_task()), wander=8, seed=0)["heat"]


@PACKAGE
@QUIET
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_package_says_the_same_on_real_games(real: Path):
    """Two games of each kind from each split; every verb does something, and games are won."""
    folder, done = str(data_folder(real)), Counter[str]()
    for split in COUNTS:
        for kind in TYPES:
            for number, task in enumerate(Random(0).sample(official_tasks(folder, (kind,), split), 2)):
                done += same_play(read_game(folder, task), wander=40, seed=number)
    verbs = ("go", "open", "close", "take", "move", "examine", "look", "inventory", "help", *RARE)
    assert all(done[verb] >= 3 for verb in verbs), done
    assert done["won"] >= 24


@PACKAGE
@pytest.mark.slow
def test_engines_are_given_back_and_the_process_ends_in_peace():
    """fast_downward.close_lib, the package's own way, crashes the process at its end."""
    program = (
        "from jaxagent.envs.alfworld import engine, generate as g\n"
        "for task in g.generated_tasks(g.TYPES, 'train')[:3]:\n"
        "    game = engine.open_engine('textworld', g.generated_game(task))\n"
        "    game.start(); game.close(); game.close()\n"
        "print(len(engine.IDLE))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


@PACKAGE
@QUIET
@pytest.mark.slow
def test_contract_with_the_package():
    spec = generated(engine="textworld")
    check_contract(spec, replace(spec.tasks("train")[0]), prefix=1)
