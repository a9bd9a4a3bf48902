"""Agents that misbehave: each attack ends as an observation, nothing leaks, siblings go on."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxagent.envs.sandbox import RESTARTED, Sandbox, SandboxLimits
from jaxagent.envs.zygote_client import current_zygote
from jaxagent.types import ExecStatus

ROOT = Path(__file__).parents[2]
LIMITS = SandboxLimits(
    wall_s=2.0, cpu_s=0.4, grace_s=0.3, memory_mb=64, output_chars=5000, message_bytes=1 << 20
)
OS = "import random; os = random._os\n"  # the well-known ways around an import list
SYS = (
    "wrap = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close'][0]\n"
    "sys = wrap.__init__.__globals__['sys']\n"
)
CHANNEL = OS + (
    "def sockets():\n"
    "    out = []\n"
    "    for fd in range(3, 32):\n"
    "        try:\n"
    "            os.write(fd, b'')\n"
    "            out.append(fd)\n"
    "        except OSError: pass\n"
    "    return out\n"
)
linux = pytest.mark.skipif(sys.platform != "linux", reason="seccomp is a Linux feature")


def api(app: str, name: str, kwargs: dict) -> object:
    return str(kwargs)


def beside_a_sibling(limits: SandboxLimits):
    """A sandbox with a sibling that must live on and keep its variables."""
    with Sandbox(api, limits=LIMITS) as sibling, Sandbox(api, limits=limits) as sandbox:
        sibling.run("kept = 42")
        yield sandbox
        assert sibling.run("print(kept)").output == "42\n"
        assert sandbox.run("print('alive')").output == "alive\n"


@pytest.fixture
def box():
    yield from beside_a_sibling(LIMITS)


@pytest.fixture
def hasty():
    yield from beside_a_sibling(dataclasses.replace(LIMITS, wall_s=0.6))


@linux
def test_confinement_is_stated(box):
    assert "seccomp" in box.confinement
    assert "resource limits" in box.confinement
    if os.geteuid() == 0:
        assert {"network namespace", "empty root", "unprivileged user"} <= set(box.confinement)


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(1000)",
        "while True:\n  try:\n    while True: pass\n  except Exception: pass",
        "x = 1\nwhile True:\n  x = x * 3 % 1000003",
        "while True: print('x' * 1000)",
        "while True: apis.a.b()",
    ],
)
def test_a_hang_times_out_and_keeps_the_variables(box, code):
    box.run("mine = 7")
    start = time.monotonic()
    result = box.run(code)
    if "apis" in code and result.exec_status is ExecStatus.RUNTIME_ERROR:
        assert "Maximum number of API calls" in result.output  # whichever limit comes first
    else:
        assert result.exec_status is ExecStatus.TIMEOUT
        assert result.output == "Execution failed. Traceback:\nExecution timed out after 2 seconds."
    assert time.monotonic() - start < 6
    assert box.run("print(mine)").output == "7\n"


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        "10 ** 10 ** 8",
        "sum(range(10 ** 12))",
        "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
        "list(map(lambda n: n, iter(int, 1)))",
    ],
)
def test_a_hang_that_resists_interruption_ends_too(hasty, code):
    start = time.monotonic()
    result = hasty.run(code)
    assert result.exec_status in (ExecStatus.TIMEOUT, ExecStatus.RUNTIME_ERROR)
    assert result.exec_status is ExecStatus.TIMEOUT or "MemoryError" in result.output
    assert time.monotonic() - start < 6


@linux
@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(20 * 10 ** 9)",
        "x = [0] * (20 * 10 ** 9)",
        "x = 'x' * 10 ** 9\nprint(x)",
        "x = []\nwhile True: x.append(bytearray(10 ** 7))",
    ],
)
def test_allocation_is_a_memory_error(box, code):
    result = box.run(code)
    assert result.exec_status is ExecStatus.RUNTIME_ERROR
    assert result.error == "MemoryError"
    assert not result.restarted


def test_a_flood_of_output_is_cut_with_a_marker(box):
    result = box.run("for n in range(200): print('y' * 10 ** 6)")
    assert result.exec_status is ExecStatus.OK
    assert result.output == "y" * 5000 + f"\n[output cut: {200 * (10**6 + 1) - 5000} more characters]"


@pytest.mark.parametrize(
    "code",
    [
        OS + "os._exit(0)",
        OS + "os._exit(99)",
        CHANNEL + "for fd in sockets(): os.close(fd)",
        SYS
        + "sys.setrecursionlimit(10 ** 9)\nclass A:\n  def __repr__(self): return repr([self])\nrepr(A())",
    ],
)
def test_a_dead_interpreter_is_restarted_and_says_so(box, code):
    box.run("mine = 7")
    result = box.run(code)
    assert result.exec_status is ExecStatus.RUNTIME_ERROR
    assert result.restarted
    assert RESTARTED in result.output
    assert box.run("print(mine)").error == "NameError: name 'mine' is not defined"


@linux
@pytest.mark.parametrize(
    "call",
    [
        "os.fork()",
        "os.kill(os.getppid(), 9)",
        "os.kill(1, 9)",
        "os.kill(-1, 9)",
        "os.killpg(0, 9)",
        "os.open('/etc/passwd', os.O_RDONLY)",
        "os.listdir('/')",
        "os.stat('/proc')",
        "os.mkdir('x')",
        "os.execv('/bin/sh', ['sh'])",
        "os.system('true') == 0 or (_ for _ in ()).throw(PermissionError('refused'))",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "os.pipe()",
        "os.dup(0)",
        "os.setuid(0)",
        "os.nice(-5)",
        "os.memfd_create('x')",
        "os.chroot('/')",
        "os.unshare(0x40000000)" if hasattr(os, "unshare") else "os.setsid()",
    ],
)
def test_system_calls_are_refused(box, call):
    result = box.run(OS + call)
    assert "PermissionError" in result.output, result.output
    assert not result.restarted


@linux
def test_sockets_threads_and_ptrace_are_refused(box):
    code = SYS + (
        "import_ = sys.modules['importlib'].import_module\n"
        "def attempt(name, call):\n"
        "    try:\n"
        "        call()\n"
        "        print(name, 'WORKED')\n"
        "    except (OSError, RuntimeError, ImportError) as e: print(name, type(e).__name__)\n"
        "socket = sys.modules['socket']\n"
        "attempt('socket', lambda: socket.socket())\n"
        "attempt('pair', lambda: socket.socketpair())\n"
        "thread = sys.modules.get('_thread')\n"
        "attempt('thread', lambda: thread.start_new_thread(print, ()))\n"
        "ctypes = sys.modules['ctypes']\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print('ptrace', libc.ptrace(16, 1, 0, 0), ctypes.get_errno())\n"
        "print('limits', libc.prlimit(0, 9, 0, 0))\n"
        "print('seccomp', libc.prctl(22, 0, 0, 0, 0))\n"
    )
    assert box.run(code).output.splitlines() == [
        "socket PermissionError",
        "pair PermissionError",
        "thread RuntimeError",
        "ptrace -1 1",
        "limits -1",
        "seccomp -1",
    ]


def test_nothing_of_ours_is_in_the_agents_memory(box):
    code = (
        SYS
        + OS
        + (
            "names = sorted(sys.modules)\n"
            "print([n for n in names if n.split('.')[0] in ('jaxagent', 'jax', 'numpy', 'pytest', 'site')])\n"
            "print(sorted(n for n in names if n.startswith('confined')))\n"
            "print(sorted(os.environ), sys.argv, [p for p in sys.path if 'jaxagent' in p])\n"
        )
    )
    lines = box.run(code).output.splitlines()
    assert lines[0] == "[]"
    assert json.loads(lines[1]) == [
        "confined",
        *(f"confined.{n}" for n in ["interpreter", "seal", "wire", "zygote"]),
    ]
    assert lines[2] == "['LC_ALL', 'PYTHONHASHSEED'] ['-c'] []"


@pytest.mark.parametrize(
    "forged",
    [
        "b'\\xff' * 64",
        "b'\\x00\\x00\\x00\\x05hello'",
        "b'\\x00\\x00\\x00\\x02[]'",
        "b'\\x00\\x00\\x00\\x02{}'",
        "b'\\x7f\\xff\\xff\\xff' + b'x' * 1000",
        'frame(\'{"kind": "call", "id": "x", "app": 1, "api": [], "kwargs": 0}\')',
        'frame(\'{"kind": "call", "id": true, "app": "a", "api": "b", "kwargs": {}}\')',
        'frame(\'{"kind": "result", "output": 1, "error": "", "status": "ok"}\')',
        'frame(\'{"kind": "result", "output": "", "error": "", "status": "strange"}\')',
        "frame('[' * 100000)",
        'frame(\'{"kind": "call", "id": 1, "n": \' + \'9\' * 10000 + \'}\')',
        "frame('{\"n\": NaN}')",
        "frame('\\xff\\xfe')",
    ],
)
def test_forged_messages_break_nothing(box, forged):
    code = CHANNEL + (
        "def frame(text):\n"
        "    data = text.encode('latin-1')\n"
        "    return len(data).to_bytes(4, 'big') + data\n"
        f"os.write(sockets()[-1], {forged})\n"
    )
    result = box.run(code)
    assert result.exec_status in (ExecStatus.RUNTIME_ERROR, ExecStatus.TIMEOUT)
    assert result.restarted


def test_a_forged_result_reaches_only_the_forger(box):
    """Writing a well-formed result is like printing it: the agent lies to itself, once."""
    code = CHANNEL + (
        'data = b\'{"kind": "result", "output": "a\\\\ud800", "error": "", "status": "ok", "run": 1}\'\n'
        "os.write(sockets()[-1], len(data).to_bytes(4, 'big') + data)\n"
    )
    first = box.run(code)
    assert first.output == "a?"
    assert first.output.encode()


def test_surrogates_and_null_bytes_are_harmless(box):
    result = box.run("print('a\\ud800b\\0')")
    assert result.output == "a?b\0\n"
    assert (
        box.run("print(apis.a.b(x='a\\ud800', y=['\\ud83d\\ude00', '😀']))").output
        == "{'x': 'a?', 'y': ['😀', '😀']}\n"
    )
    assert box.run("x = '\ud800'").exec_status in (ExecStatus.SYNTAX_ERROR, ExecStatus.OK)
    assert box.run("x = '\0'").exec_status is ExecStatus.SYNTAX_ERROR
    assert box.run("(" * 5000).exec_status is ExecStatus.SYNTAX_ERROR
    assert box.run("-" * 200_000 + "1").exec_status in (ExecStatus.SYNTAX_ERROR, ExecStatus.RUNTIME_ERROR)


def test_a_failure_whose_description_hangs_ends_too(box):
    result = box.run("class E(Exception):\n  def __str__(self):\n    while True: pass\nraise E()")
    assert result.exec_status in (ExecStatus.TIMEOUT, ExecStatus.RUNTIME_ERROR)
    assert not result.restarted


def test_a_dead_zygote_is_replaced():
    """The children die with it; the next execution of each says so."""
    lonely = Sandbox(api, limits=LIMITS)
    current_zygote().close()
    result = lonely.run("print(1)")
    assert result.restarted
    assert lonely.run("print(1)").output == "1\n"
    lonely.close()


def test_no_process_is_left_behind():
    zygote = current_zygote()
    before = children_of(zygote)
    for _ in range(5):
        with Sandbox(api, limits=LIMITS) as sandbox:
            sandbox.run("x = 1")
    assert children_of(zygote) == before


def children_of(zygote) -> int:
    pid = zygote.process_id
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return len(file.read().split())


FALLBACK = """
import os, socket, sys
from jaxagent.envs.confined import seal
seal._program = None
print(seal.seal_child(memory_bytes=1 << 28, cpu_s=5))
for name, call in {
    "open": lambda: open("/etc/passwd"), "fork": os.fork, "kill": lambda: os.kill(os.getppid(), 9),
    "socket": socket.socket, "system": lambda: os.system("true"), "listdir": lambda: os.listdir("/"),
}.items():
    try:
        call()
        print(name, "WORKED")
    except PermissionError:
        print(name, "refused")
"""


def test_without_seccomp_an_audit_hook_refuses_and_the_weakness_is_stated():
    run = subprocess.run([sys.executable, "-c", FALLBACK], capture_output=True, text=True, cwd=ROOT)
    names = ("open", "fork", "kill", "socket", "system", "listdir")
    expected = ["['resource limits', 'audit hook']", *(f"{name} refused" for name in names)]
    assert run.stdout.splitlines() == expected, run.stderr


@linux
@pytest.mark.skipif(os.geteuid() != 0, reason="drops capabilities to try without them")
def test_without_privileges_the_interpreter_is_confined_too():
    code = (
        "import ctypes\n"
        "from jaxagent.envs.sandbox import Sandbox\n"
        "for capability in range(64): ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)\n"
        "with Sandbox(lambda *a: 1) as box:\n"
        "    print(box.confinement, box.run('print(apis.a.b())').output.strip(),\n"
        "          'PermissionError' in box.run('import random; random._os.listdir()').output)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.stdout == "('resource limits', 'seccomp') 1 True\n", run.stderr
