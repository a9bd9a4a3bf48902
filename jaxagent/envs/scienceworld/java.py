"""The ScienceWorld simulator: a Java process with one world. In: a task, commands. Out: what the world answers.

The process is started here rather than through `scienceworld.ScienceWorldEnv`, which takes no Java options (2.1 GB of
memory instead of 0.35), and lists every valid action after every step (most of a step's time). It ends with its
parent, however that one ends: Java reads our end of a pipe and leaves when it closes.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import subprocess
from dataclasses import dataclass
from types import ModuleType

from jaxagent.envs.entry import need
from jaxagent.errors import ConfigError

INSTALL = "pip install 'jaxagent[scienceworld]', and a Java runtime if there is no `java` on PATH"
JAVA = "ScienceWorld needs a Java runtime and there is no `java` on PATH; apt-get install openjdk-17-jre-headless"
JAVA_OPTIONS = ["-Xmx512m", "-XX:+UseSerialGC"]


@dataclass(frozen=True)
class World:
    """One world: a task type, one of its variations, and the benchmark's simplifications ("easy")."""

    task: str
    variation: int
    simplifications: str


@dataclass(frozen=True)
class Answer:
    """What a command led to. score: 0 to 100, negative after a fatal mistake. look, inventory: the state in words."""

    text: str
    score: int
    done: bool
    look: str
    inventory: str


def check_java() -> tuple[ModuleType, ModuleType]:
    """py4j's gateway and the simulator's paths. Raises ConfigError when they or Java are missing; starts nothing."""
    package = need("scienceworld.constants", install=INSTALL)
    py4j = need("py4j.java_gateway", install=INSTALL)
    if shutil.which("java") is None:
        raise ConfigError(JAVA)
    return py4j, package


Place = tuple[World, tuple[str, ...]]


class Simulator:
    """Owner of one Java process, which holds one world at a time. `at` says which one, and what was done in it."""

    def __init__(self) -> None:
        py4j, package = check_java()
        port, token, self.process = py4j.launch_gateway(
            classpath=package.JAR_PATH,
            cwd=package.BASEPATH,
            javaopts=JAVA_OPTIONS,
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what it logs as errors, it raises as well
        parameters = py4j.GatewayParameters(port=port, auth_token=token, auto_field=True)
        self._gateway = py4j.JavaGateway(gateway_parameters=parameters)
        self._server = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
        self.at: Place | None = None

    def load(self, world: World) -> Answer:
        """Build a world and look around in it."""
        self.at = None
        self._server.load(world.task, world.variation, world.simplifications, False)
        self._server.reset()
        answer = self._answer("look around")
        self.at = (world, ())
        return answer

    def step(self, command: str) -> Answer:
        assert self.at is not None, "no world is loaded"
        world, before = self.at
        answer = self._answer(command)
        self.at = (world, (*before, command))
        return answer

    def _answer(self, command: str) -> Answer:
        text = str(self._server.step(command))
        score = round(100 * float(self._server.getScore()))
        return Answer(
            text=text,
            score=score,
            done=bool(self._server.getCompleted()) or score < 0,
            look=str(self._server.freeActionLook()),
            inventory=str(self._server.freeActionInventory()),
        )

    def description(self) -> str:
        """The loaded world's task in words."""
        return str(self._server.freeActionTaskDesc())

    def gold(self, world: World) -> tuple[str, ...]:
        """The simulator's own solution. Replaces the loaded world."""
        self.at = None
        self._server.load(world.task, world.variation, world.simplifications, True)
        return tuple(str(command) for command in self._server.getGoldActionSequence())

    def close(self) -> None:
        """End the process, by force if it does not listen."""
        if self.process.poll() is None:
            self._gateway.shutdown()
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_held: dict[str, Simulator] = {}


def simulator() -> Simulator:
    """This process's simulator: started once, used by one episode after the other, replaced when it has died."""
    held = _held.get("simulator")
    if held is not None and held.process.poll() is not None:
        close()
        held = None
    if held is None:
        held = _held["simulator"] = Simulator()
    return held


@atexit.register
def close() -> None:
    """End this process's simulator, if one runs."""
    if _held:
        _held.popitem()[1].close()
