"""The two planes never import each other; importing the package is quick and touches no device."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jaxagent"
HOST = ("chat", "envs", "rollout", "rewards", "credit", "skills", "data", "auxlm", "batch", "monitors")
DEVICE = ("mesh", "kernels", "model", "decode", "learn")
JAX = ("jax", "flax", "optax", "orbax")


def imports(path: Path) -> set[str]:
    """Absolute module names that a file imports, at any depth of nesting."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
    return found


def files(*packages: str) -> list[Path]:
    return sorted(path for name in packages for path in (PACKAGE / name).rglob("*.py"))


def reaches(names: set[str], roots: tuple[str, ...]) -> set[str]:
    return {name for name in names if any(name == root or name.startswith(root + ".") for root in roots)}


@pytest.mark.parametrize("path", files(*HOST), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_host_plane_imports_no_jax(path):
    assert not reaches(imports(path), JAX + tuple(f"jaxagent.{name}" for name in DEVICE))


@pytest.mark.parametrize("path", files(*DEVICE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_device_plane_imports_no_host_code(path):
    assert not reaches(imports(path), tuple(f"jaxagent.{name}" for name in HOST))


def test_decode_and_learn_are_strangers():
    assert not [path for path in files("decode") if reaches(imports(path), ("jaxagent.learn",))]
    assert not [path for path in files("learn") if reaches(imports(path), ("jaxagent.decode",))]


def test_the_loop_knows_no_recipe():
    for name in ("train.py", "stage.py", "teacher.py"):
        path = PACKAGE / name
        if path.exists():
            assert not reaches(imports(path), ("jaxagent.recipes",)), name


def test_import_is_quick_and_touches_no_device():
    """CPU seconds, so that a busy machine changes nothing."""
    code = (
        "import sys, time; start = time.process_time(); import jaxagent, jaxagent.types, jaxagent.stage; "
        "seconds = time.process_time() - start; assert 'jax' not in sys.modules, 'jax was imported'; print(seconds)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert float(out.stdout) < 1.0
