"""The real AppWorld for tests: its Python, and a root with the rebuilt train and dev data. Skips visibly without."""

import functools
import os
import subprocess
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from jaxagent.envs.appworld.env import AppWorldEnv
from jaxagent.envs.appworld.spec import PYTHON, ROOT, VERSION, AppWorldOptions, appworld_spec
from jaxagent.envs.protocol import EnvSpec
from tests.envs import needs

BUNDLE = "appworld_train_dev_013.bundle"
UNSOLVED = {
    "7d7fbf6_2",
    "7d7fbf6_3",
    "68ee2c9_1",
}  # stored solutions that fail on 0.1.3.post1 with these data
_UNPACK = """
import sys
from appworld.common.constants import PASSWORD, SALT
from appworld.common.utils import unpack_bundle
unpack_bundle(bundle_file_path=sys.argv[1], base_directory=sys.argv[2], password=PASSWORD, salt=SALT)
"""


def python() -> Path:
    """AppWorld's interpreter."""
    found = Path(os.environ.get(PYTHON, "missing"))
    if not found.exists():
        how = f"a venv with `pip install appworld=={VERSION}` and `appworld install`"
        pytest.skip(f"needs ${PYTHON}: the Python of {how}")
    return found


@functools.cache
def _unpacked(interpreter: Path, bundle: Path) -> Path:
    """The carried data, unpacked (licence: it may be passed on in encrypted form only) until the tests end."""
    folder = tempfile.TemporaryDirectory(prefix="appworld-data-")
    _kept.append(folder)
    subprocess.run([interpreter, "-W", "ignore", "-c", _UNPACK, bundle, folder.name], check=True)
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def root() -> Path:
    """$APPWORLD_ROOT, or else the carried bundle unpacked."""
    interpreter = python()
    if os.environ.get(ROOT):
        return Path(os.environ[ROOT])
    return _unpacked(interpreter, needs.data(BUNDLE))


def spec(**options: object) -> EnvSpec:
    interpreter, folder = python(), root()
    made = appworld_spec(AppWorldOptions.parse({"python": str(interpreter), "root": str(folder), **options}))
    assert isinstance(made.make, partial)
    patient = replace(made.make.args[0], answer_s=600.0)  # test machines are busy
    return replace(made, make=partial(AppWorldEnv, patient))
