"""One AppWorld world in this process, which was forked for it. Runs in AppWorld's Python.

In: what to open, then code. Out: AppWorld's own texts, and how each execution ended. The ground truth is not loaded
here, and where the kernel allows it not readable either: verdicts are made in another process, from what a world saves.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxagent.envs.appworld.seal import seal

MAX_TEXT = 1_000_000  # characters of one answer
SYSTEM_PATHS = ("/usr", "/lib", "/lib64", "/etc", "/dev/null", "/dev/urandom")
FAILED = "Execution failed. Traceback:\n"


class World:
    """Owner of an open world.

    request: task_id, experiment, max_interactions, timeout_s, seed, memory_gb, raises.
    """

    def __init__(self, request: Mapping[str, Any]):
        appworld = importlib.import_module("appworld")
        self._world = appworld.AppWorld(
            task_id=request["task_id"],
            experiment_name=request["experiment"],
            max_interactions=request["max_interactions"],
            timeout_seconds=request["timeout_s"],
            random_seed=request["seed"],
            raise_on_failure=request["raises"],
            load_ground_truth=False,
        )
        self._dbs = Path(self._world.output_db_home_path_on_disk)
        self._late = importlib.import_module("appworld.common.utils").TimeoutError
        self._result: Any = None
        shell = self._world.shell
        original = shell.run_cell

        def run_cell(raw_cell: str) -> Any:  # its name is part of AppWorld's time-out message
            self._result = original(raw_cell)
            return self._result

        shell.run_cell = run_cell
        self.walls = self._confine(Path(appworld.__path__[0]), request["memory_gb"])

    def opening(self) -> dict[str, Any]:
        """What an agent is told at the start; `walls` names the confinement that holds."""
        task = self._world.task
        person = {
            name: str(getattr(task.supervisor, name))
            for name in ("first_name", "last_name", "email", "phone_number")
        }
        return {
            "instruction": task.instruction,
            "supervisor": person,
            "datetime": task.datetime.isoformat(),
            "apps": dict(task.app_descriptions),
            "state": self._state(),
            "walls": self.walls,
        }

    def execute(self, code: str) -> dict[str, Any]:
        """Run code; the official text, its status, whether the task was ended, and whether code still counts."""
        world, before = self._world, self._world.num_interactions
        full = before >= world.max_interactions
        self._result = None
        try:
            output = world.execute(code)
        except (
            BaseException
        ) as exc:  # SystemExit and KeyboardInterrupt of the agent's code are its own failures
            output = self._recover(code, exc)
        status = self._status(code, executed=world.num_interactions > before)
        return {
            "output": cut(output),
            "status": status,
            "interactions": world.num_interactions,
            "completed": bool(world.task_completed()),
            "exhausted": full,
            "state": self._state(),
        }

    def _recover(self, code: str, exc: BaseException) -> str:
        """Put the world in order after an exception that AppWorld let through, as its own execute would."""
        self._world.safety_guard.disable()
        # A null byte or too deep nesting: nothing ran.
        self._world.num_interactions += not _is_malformed(code)
        message = f"{FAILED}{type(exc).__name__}: {exc}".rstrip(": ")
        self._world.environment_io.append({"input": code, "output": cut(message)})
        self._world._save_state(self._world.output_db_home_path_on_disk)
        self._world.save_logs()
        return message

    def _status(self, code: str, *, executed: bool) -> str:
        if not executed:
            return "syntax_error" if _is_malformed(code) else "invalid"
        if self._result is None:  # the shell never answered
            return "runtime_error"
        error = self._result.error_in_exec or self._result.error_before_exec
        if isinstance(error, self._late):
            return "timeout"
        return "ok" if self._result.success else "runtime_error"

    def _state(self) -> str:
        """A hash of the databases, as their differences from the base ones."""
        digest = hashlib.sha256()
        for path in sorted(self._dbs.glob("*.jsonl")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()[:20]

    def _confine(self, package: Path, memory_gb: float) -> list[str]:
        held = ["memory"] if _limit_memory(memory_gb) else []
        paths = importlib.import_module("appworld.common.path_store").path_store
        data, task = Path(paths.data), Path(paths.data) / "tasks" / self._world.task_id
        readable = [
            package,
            *map(Path, (sys.prefix, sys.base_prefix, *SYSTEM_PATHS)),
            *map(Path, filter(None, sys.path)),
        ]
        readable += [data / "base_dbs", data / "api_docs", task / "dbs", task / "specs.json"]
        if seal(readable=readable, writable=[Path(self._world.output_directory)]):
            held.append("landlock")
        try:
            (task / "ground_truth" / "metadata.json").read_bytes()
        except PermissionError:
            held.append("answers hidden")
        return held


def cut(text: str) -> str:
    """At most MAX_TEXT characters, with a marker that says how many are missing."""
    lost = len(text) - MAX_TEXT
    return text if lost <= 0 else f"{text[:MAX_TEXT]}\n[output cut: {lost} more characters]"


def _is_malformed(code: str) -> bool:
    try:
        ast.parse(code.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: a null byte
        return True
    return False


def _limit_memory(gigabytes: float) -> bool:
    """Address space on top of what the process has mapped now. False where that cannot be limited (macOS)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * os.sysconf("SC_PAGE_SIZE") + int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    except (OSError, ValueError):
        return False
    return True
