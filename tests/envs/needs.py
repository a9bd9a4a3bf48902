"""What a test of a real environment needs beside the test extra. Without it the test skips and says what to install."""

import importlib.util
import os
from pathlib import Path

import pytest

DATA = "JAXAGENT_TEST_DATA"


def package(module: str, install: str) -> pytest.MarkDecorator:
    """Mark for tests that import `module`."""
    found = importlib.util.find_spec(module) is not None
    return pytest.mark.skipif(not found, reason=f"needs the package {module}: {install}")


def data(name: str) -> Path:
    """A data file for tests; skips where the folder is not there."""
    folder = os.environ.get(DATA, "")
    path = Path(folder) / name
    if not folder or not path.exists():
        pytest.skip(f"needs {name} in the folder that ${DATA} names")
    return path
