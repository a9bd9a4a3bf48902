"""A user's own environment by import path: the example of docs/, and what is said when it does not fit."""

import asyncio
import sys
from pathlib import Path

import pytest

from jaxagent.envs.pool import EnvPool
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError
from jaxagent.run_file import read_run
from jaxagent.types import Action
from tests.envs.contract import check_contract

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "own_environment"
OPTIONS = {"spec": "guess:SPEC", "path": str(EXAMPLE)}


@pytest.fixture(autouse=True)
def same_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_example_is_short_and_keeps_the_contract():
    assert len((EXAMPLE / "guess.py").read_text().splitlines()) < 60
    spec = find_env("python", OPTIONS)
    played = check_contract(spec, spec.tasks("train")[3])
    assert played.texts == ("3",)


def test_workers_find_the_module_in_the_given_folder():
    async def run():
        spec = find_env("python", OPTIONS)
        async with EnvPool(1) as pool:
            handle = await pool.open(spec, spec.tasks("test")[7])
            low = await handle.step(Action("5"))
            right = await handle.step(Action("7"))
            return low.observation, right.done, (await handle.evaluate()).success

    assert asyncio.run(run()) == ("low", True, True)


def test_the_run_file_names_the_example():
    config = read_run(ROOT / "configs" / "runs" / "python_tiny.yaml")
    assert config.env.name == "python"
    assert (ROOT / config.env.options["path"]).samefile(EXAMPLE)


MODULE = """
from functools import partial
from jaxagent.records import Record
from jaxagent.envs.doors import DOORS
from jaxagent.envs.entry import Entry
from dataclasses import replace

class Options(Record):
    steps: int = 2

def make(steps: int, name: str = "mine"):
    return replace(DOORS, name=name, max_steps=steps)

ENTRY = Entry(Options, lambda options: make(options.steps))
LOCAL = replace(DOORS, make=lambda: None)
NUMBER = 7
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a module `made_here`, forgotten afterwards."""
    (tmp_path / "made_here.py").write_text(MODULE)
    (tmp_path / "broken_here.py").write_text("import no_such_package")
    yield str(tmp_path)
    for name in ("made_here", "broken_here"):
        sys.modules.pop(name, None)


def test_functions_and_entries_take_options(mine):
    made = find_env("python", {"spec": "made_here:make", "path": mine, "options": {"steps": 5}})
    assert (made.name, made.max_steps) == ("mine", 5)
    assert find_env("python", {"spec": "made_here:ENTRY", "path": mine}).max_steps == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spec": "made_here.make"}, "package.module:NAME"),
        ({"spec": "made_here:maker"}, "did you mean 'make'"),
        ({"spec": "broken_here:SPEC"}, "no_such_package"),
        ({"spec": "nowhere_at_all:SPEC"}, "nowhere_at_all"),
        ({"spec": "made_here:NUMBER"}, "gives int; expected an EnvSpec"),
        ({"spec": "made_here:LOCAL"}, "importable by the worker processes"),
        ({"spec": "made_here:make"}, "missing a required argument: 'steps'"),
        ({"spec": "made_here:make", "options": {"step": 1}}, "do not fit"),
        ({"spec": "made_here:ENTRY", "options": {"step": 1}}, "did you mean 'steps'"),
        ({"spec": "json:loads"}, "rename your module"),
        ({"spec": "made_here:make", "path": "/no/such/folder"}, "does not exist"),
    ],
)
def test_what_does_not_fit_is_a_config_error(mine, options, message):
    with pytest.raises(ConfigError, match=message):
        find_env("python", {"path": mine, **options})


def test_the_users_folder_shadows_nothing(mine):
    find_env("python", {"spec": "made_here:make", "path": mine, "options": {"steps": 1}})
    assert sys.path[-1] == mine
