"""AppWorld's server with a toy in place of AppWorld: the real serve.py, worlds of a dozen lines. Needs no package.

Code is a word: `save X` stores X, `show` answers what is stored, the others are the faults that tests want.
"""

import os
import time
from pathlib import Path

from jaxagent.envs.appworld import serve
from jaxagent.envs.confined import wire


class FakeWorld:
    def __init__(self, request):
        if request["task_id"] == "broken_1":
            raise KeyError("no such task")
        self.saved, self.count, self.limit = [], 0, request["max_interactions"]
        self.file = _file(request["experiment"], request["task_id"])
        self.file.parent.mkdir(parents=True)
        self.file.write_text("")

    def opening(self):
        person = {"first_name": "A", "last_name": "B", "email": "a@b", "phone_number": "1"}
        told = {"instruction": "Save: done", "supervisor": person, "datetime": "2023-05-18T12:00:00"}
        return told | {"apps": {"toy": "a toy"}, "state": "0", "walls": []}

    def execute(self, code):
        word, _, rest = code.partition(" ")
        if word in FAULTS:
            return FAULTS[word]()
        exhausted = self.count >= self.limit
        self.count += 1
        if word == "save":
            self.saved.append(rest)
            self.file.write_text("\n".join(self.saved))
        output = {"show": " ".join(self.saved), "pid": str(os.getpid()), "env": str(sorted(os.environ))}
        return {
            "output": output.get(word, "Execution successful."),
            "status": "ok",
            "interactions": self.count,
            "completed": "done" in self.saved,
            "exhausted": exhausted,
            "state": str(len(self.saved)),
        }


def _hang():
    time.sleep(60)


def _raw(data):
    """Bytes on every open socket of this process, as an agent's code could write them."""
    for descriptor in range(3, 64):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                os.write(descriptor, data)
        except OSError:
            continue
    time.sleep(60)


FAULTS = {
    "hang": _hang,
    "die": lambda: os._exit(3),
    "garbage": lambda: _raw(wire.HEADER.pack(5) + b"hello"),
    "flood": lambda: _raw(wire.HEADER.pack(2**31)),
    "empty": dict,
    "status": lambda: (
        {"output": "", "status": "great", "interactions": 1, "completed": False, "exhausted": False}
        | {"state": ""}
    ),
}


def _verdict(task_id, experiment):
    saved = _file(experiment, task_id).read_text().split("\n")
    report = _file(experiment, task_id).parents[1] / "evaluation"
    report.mkdir()
    return {"success": saved == ["done"], "passed": saved.count("done"), "total": 2, "failures": ["one"]}


def _file(experiment, task_id):
    outputs = Path(os.environ["APPWORLD_ROOT"]) / "experiments" / "outputs"
    return outputs / experiment / "tasks" / task_id / "dbs" / "toy.jsonl"


def _warm():
    """Nothing is imported."""


serve.World, serve._warm, serve._verdict = FakeWorld, _warm, _verdict
main = serve.main
