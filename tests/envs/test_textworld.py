"""TextWorld's games, made here; the package is needed for all but the words about text."""

from pathlib import Path
from random import Random

import pytest

from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.table import find_env
from jaxagent.envs.textworld.env import UNKNOWN, is_meta, is_typed, readable
from jaxagent.envs.textworld.making import Recipe, about, make
from jaxagent.envs.textworld.spec import arguments, metrics
from jaxagent.errors import ConfigError, DataError
from jaxagent.rollout.demonstrate import play
from jaxagent.types import Action, Evaluation, Prompt, Status, StepResult, Task, Trajectory
from tests.envs.contract import check_contract
from tests.envs.needs import package

PACKAGE = package("textworld", "pip install 'jaxagent[textworld]'")
QUIET = pytest.mark.filterwarnings("ignore")  # the package's own
COIN = {"game": "coin_collector", "level": 2, "train": 2, "make_s": 500}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("textworld"))


def spec_of(folder: str, **options: object) -> EnvSpec:
    return find_env("textworld", {**COIN, "folder": folder, **options})


def answers(spec: EnvSpec, task: Task, *commands: str) -> tuple[list[StepResult], Evaluation]:
    env = spec.make()
    results = [env.reset(task), *(env.step(Action(text=command)) for command in commands)]
    verdict = env.evaluate()
    env.close()
    return results, verdict


@PACKAGE
@QUIET
def test_contract(folder: str):
    """The walkthrough wins, replays agree, a faulty action is answered; the only point is the coin."""
    spec = spec_of(folder)
    played = check_contract(spec, spec.tasks("train")[0])
    assert played.evaluation == Evaluation(True, 1, 1, (), {"score": 1.0})
    assert [result.reward for result in played.results] == [0.0, 0.0, 1.0]


@PACKAGE
@QUIET
def test_what_the_policy_reads(folder: str):
    spec = spec_of(folder)
    results, verdict = answers(
        spec, spec.tasks("train")[0], "look", "dance", "take moon", "go up", "inventory"
    )
    assert "$$" not in results[0].observation
    assert results[1].observation.startswith("-= ")
    assert ">" not in results[1].observation
    statuses = [result.exec_status.value for result in results[1:]]
    assert statuses == ["ok", "runtime_error", "runtime_error", "runtime_error", "ok"]
    assert len({result.anchor for result in results}) == 1  # nothing has changed
    assert verdict == Evaluation(False, 0, 1, ("the game is not won: 0 of 1 points",), {"score": 0.0})


@PACKAGE
@QUIET
def test_nothing_is_taken_back_or_written(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    spec = spec_of(folder)
    task = spec.tasks("train")[0]
    first = play(spec, task, rng=Random(0)).actions[0].text
    commands = ["undo", "restart", "look. undo", "quit", "save", "script", "tw-print state"]
    commands += [
        "\x0e",
        "\x1ar",
        "\x1b[A",
        "日本",
        "look\x00",
        "x" * 5000,
    ]  # hot keys; what crashes the interpreter
    results, _ = answers(spec, task, first, *commands)
    assert [result.observation for result in results[2:]] == [UNKNOWN] * len(commands)
    assert {result.anchor for result in results[1:]} == {results[1].anchor} != {results[0].anchor}
    assert not list(tmp_path.iterdir())


@PACKAGE
@QUIET
def test_admissible_commands_are_an_option(folder: str):
    spec = spec_of(folder, admissible=True)
    results, _ = answers(spec, spec.tasks("train")[0])
    assert "Admissible commands: " in results[0].observation
    assert "'look'" in results[0].observation


@PACKAGE
@QUIET
@pytest.mark.slow
@pytest.mark.parametrize("game", ["cooking", "simple", "coin_collector", "treasure_hunter", "custom"])
def test_walkthroughs_win_every_kind_of_game_and_doing_nothing_none(game: str, folder: str):
    spec = spec_of(folder, game=game, level=2 if game in ("cooking", "custom", "treasure_hunter") else 1)
    for split in ("train", "test"):
        task = spec.tasks(split)[0]
        played = play(spec, task, rng=Random(0))
        verdict = played.evaluation
        assert verdict.success
        assert verdict.passed == verdict.total
        assert sum(result.reward for result in played.results) == pytest.approx(1.0)
        _, idle = answers(spec, task, "look", "inventory")
        assert (idle.success, idle.passed) == (False, 0)


@PACKAGE
@QUIET
def test_a_game_is_made_once(folder: str):
    recipe = Recipe(folder, arguments("coin_collector", 2, "train"), 0, 500.0)
    story = make(recipe)
    before = story.stat().st_mtime_ns
    assert make(recipe) == story
    assert story.stat().st_mtime_ns == before
    assert about(recipe)["walkthrough"][-1] == "take coin"
    assert {path.name for path in story.parent.iterdir()} >= {"game.z8", "game.json"}


@PACKAGE
@pytest.mark.slow
def test_a_seed_without_a_game_gets_another(tmp_path: Path):
    """Treasure Hunter's level 10 has no game for seed 2,000,002: "Try using a different value"."""
    recipe = Recipe(str(tmp_path), arguments("treasure_hunter", 10, "test"), 2_000_002, 500.0)
    assert about(recipe)["walkthrough"]
    assert make(recipe).parent.name == "seed-2000002"


@PACKAGE
def test_making_has_a_deadline_and_says_what_failed(tmp_path: Path):
    with pytest.raises(DataError, match=r"did not end in 0.01 s.*env\.options\.make_s"):
        make(Recipe(str(tmp_path), arguments("coin_collector", 2, "train"), 0, 0.01))
    with pytest.raises(DataError, match="tw-make tw-golf failed"):
        make(Recipe(str(tmp_path), ("tw-golf",), 0, 500.0))
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("seed-0") and path.is_dir()]


@PACKAGE
def test_splits_are_seed_ranges(folder: str):
    spec = spec_of(folder, train=3)
    assert [task.seed for task in spec.tasks("train")] == [0, 1, 2]
    assert [task.seed for task in spec.tasks("test")][:2] == [2_000_000, 2_000_001]
    assert spec.tasks("valid")[0].task_id == "textworld/coin_collector-2/valid/1000000"
    with pytest.raises(ConfigError, match="no split 'dev'; its splits are train, valid, test"):
        spec.tasks("dev")
    with pytest.raises(ConfigError, match="treasure_hunter has levels 1 to 30"):
        spec_of(folder, game="treasure_hunter", level=31)


def test_arguments_of_tw_make():
    assert arguments("cooking", 1, "valid") == (
        "tw-cooking",
        "--recipe",
        "1",
        "--take",
        "1",
        "--split",
        "valid",
    )
    assert arguments("simple", 1, "test")[-1] == "--test"
    assert arguments("treasure_hunter", 7, "train") == ("tw-treasure_hunter", "--level", "7")


def test_texts_lose_logo_prompt_and_status_line():
    raw = "\n   | $$   | $$__  \n\nHead west.\n\n\n\n-= Cellar =-\nA coin.   \n\n>       -= Cellar =-0/1"
    assert readable(raw) == "Head west.\n\n-= Cellar =-\nA coin."
    assert readable("You take it.\n\n>") == "You take it."
    assert readable("") == ""


@pytest.mark.parametrize(
    ("command", "meta"),
    [
        ("undo", True),
        ("Look then restart", True),
        ("tw-print state", True),
        ("take coin", False),
        ("", False),
    ],
)
def test_commands_to_the_interpreter(command: str, meta: bool):
    assert is_meta(command) is meta


def test_lines_that_can_be_typed():
    assert is_typed("take the (red) coin, quickly!")
    assert is_typed("x" * 190)
    assert not any(is_typed(line) for line in ("x" * 191, "é", "a\nb", "\x1b", "\t"))


def test_metrics_are_means_over_episodes():
    """One game won with 6 of 6 points, one lost with 2 of 8: success 0.5, score (1 + 0.25) / 2."""
    verdicts = (Evaluation(True, 6, 6), Evaluation(False, 2, 8))
    found = metrics([_trajectory(number, verdict) for number, verdict in enumerate(verdicts)])
    assert found == {"success": 0.5, "score": 0.625}
    assert metrics([]) == {}


def _trajectory(number: int, verdict: Evaluation) -> Trajectory:
    task = Task(f"t{number}", "textworld", "test")
    return Trajectory(task.task_id, task, 0, Status.DONE, Prompt(()), (), (), verdict)
