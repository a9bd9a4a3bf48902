"""The host's end of AppWorld: start its server once in a process, ask it for worlds and verdicts, end them.

What comes back was written by a process that ran an agent's code: `Fork.ask` gives a JSON object within a deadline
or raises ChildGone, and its fields are for the caller to check.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jaxagent
from jaxagent.envs.channel import Channel, ChildGone
from jaxagent.errors import EnvFailure

START_S = 180.0  # the first world takes 5 s of processor time; on a crowded machine that can be minutes
LARGEST = 16 << 20  # bytes of one answer; an output has a million characters at most
_BOOT = (
    "import sys; sys.path.append({source!r}); import {module} as serve; sys.path.pop(); "
    "serve.main({fd}, {scratch!r})"
)


@dataclass(frozen=True)
class Installation:
    """python: the interpreter that has `appworld`. data: the folder with base_dbs, tasks, datasets.

    outputs: AppWorld root whose experiments/outputs takes what episodes leave; None is a folder that goes away.
    """

    python: Path
    data: Path
    outputs: Path | None = None
    module: str = "jaxagent.envs.appworld.serve"


class Fork:
    """Owner of one process of the server: a world, or a verdict in the making."""

    def __init__(self, end: socket.socket, deadline: float):
        self._channel = Channel(end, largest=LARGEST)
        try:
            self._pid = int(self._channel.receive(deadline)["pid"])
        except BaseException:
            self._channel.close()
            raise

    def ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """One exchange. Raises ChildGone (the process is then killed), or EnvFailure with its traceback."""
        deadline = time.monotonic() + seconds
        try:
            self._channel.send(message, deadline)
            answer = self._channel.receive(deadline)
        except ChildGone:
            self.kill()
            raise
        if "failed" in answer:
            raise EnvFailure("raised", str(answer["failed"]))
        return answer

    def kill(self) -> None:
        """End the process. Nothing happens when it is gone; the kernel has reaped it then."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._pid = 0
            self._channel.close()


class Server:
    """Owner of one server process and of its scratch folder."""

    def __init__(self, installation: Installation):
        ours, theirs = socket.socketpair()
        self._control, self._lock, self._owner = ours, threading.Lock(), os.getpid()
        self.scratch = Path(tempfile.mkdtemp(prefix="jaxagent-appworld-"))
        self.root = installation.outputs or self._throwaway_root(installation.data)
        source = str(Path(jaxagent.__file__).parents[1])
        boot = _BOOT.format(
            source=source, module=installation.module, fd=theirs.fileno(), scratch=str(self.scratch)
        )
        with open(self.scratch / "errors", "wb") as errors:
            self._process = subprocess.Popen(
                [installation.python, "-P", "-s", "-W", "ignore", "-c", boot],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=(theirs.fileno(),),
                cwd=self.scratch,
                start_new_session=True,
            )
        theirs.close()
        self._await_ready()

    @property
    def alive(self) -> bool:
        return self._owner == os.getpid() and self._control.fileno() >= 0 and self._process.poll() is None

    def fork(self, seconds: float) -> Fork:
        """A fresh process with AppWorld in memory. Raises EnvFailure when the server is gone or cannot fork."""
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            theirs.close()
            return Fork(ours, time.monotonic() + seconds)
        except (OSError, ChildGone) as exc:
            ours.close()
            raise EnvFailure("died", f"AppWorld's server made no process ({exc}). {self._errors()}") from exc
        finally:
            theirs.close()

    def close(self) -> None:
        """End the server; its worlds die with it."""
        self._control.close()
        if self._owner == os.getpid():  # a forked copy of this object does not own the process
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _throwaway_root(self, data: Path) -> Path:
        """An AppWorld root inside the scratch folder: real data, outputs that go away with the server."""
        root = self.scratch / "root"
        root.mkdir()
        (root / "data").symlink_to(data.resolve())
        return root

    def _environment(self) -> dict[str, str]:
        """Agents' code can read it: no secret of ours, nothing that differs between workers but the folders."""
        scratch = str(self.scratch)
        own = {
            "HOME": scratch,
            "IPYTHONDIR": scratch,
            "APPWORLD_ROOT": str(self.root),
            "APPWORLD_CACHE": scratch,
        }
        fixed = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", "PATH": os.defpath}
        return own | fixed

    def _await_ready(self) -> None:
        try:
            ready = Channel(self._control, largest=LARGEST).receive(time.monotonic() + START_S)
        except ChildGone as exc:
            ready = {"failed": f"{exc}. {self._errors()}"}
        self._control.settimeout(10.0)
        if "ready" not in ready:
            self.close()
            raise EnvFailure("reset", f"AppWorld's server failed to start: {ready.get('failed')}")

    def _errors(self) -> str:
        """The end of what the server's process wrote."""
        with contextlib.suppress(OSError):
            return (self.scratch / "errors").read_text(errors="replace")[-2000:]
        return ""


_servers: dict[Installation, Server] = {}
_servers_lock = threading.Lock()


def current_server(installation: Installation) -> Server:
    """This process's server of an installation, started at the first call and again if it died."""
    with _servers_lock:
        server = _servers.get(installation)
        if server is None or not server.alive:
            server = _servers[installation] = Server(installation)
            atexit.register(server.close)
        return server


def probe(python: Path) -> dict[str, Any]:
    """What an interpreter has of AppWorld: {"version": "" if missing, "unpacked": bool}.

    Raises OSError, ValueError or subprocess.TimeoutExpired when it does not run.
    """
    done = subprocess.run(
        [python, "-P", "-s", "-c", _PROBE],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.defpath},
        check=False,
    )
    if done.returncode:
        raise ValueError(f"it ended with exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


_PROBE = """
import importlib.metadata, importlib.util, json, os
found = importlib.util.find_spec("appworld")
folder = os.path.dirname(found.origin) if found and found.origin else ""
apps = os.path.join(folder, "apps", "spotify", "apis.py")
version = importlib.metadata.version("appworld") if found else ""
print(json.dumps({"version": version, "unpacked": os.path.exists(apps)}))
"""
