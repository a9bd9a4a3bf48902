"""Checker and scripted expert for the tasks of tasks.jsonl. The run file is configs/runs/mcp_tiny.yaml."""

import json

from jaxagent.types import Evaluation


def judge(task, transcript, final_message: str) -> Evaluation:
    """Two tests: the last note written has the wanted text, and the answer says "done"."""
    written = [call["arguments"] for call in transcript if call["name"] == "write_note" and not call["error"]]
    checks = {
        "the note has the wanted text": written[-1:] == [{"title": task["title"], "text": task["text"]}],
        "the answer says done": "done" in final_message.lower(),
    }
    failures = tuple(name for name, right in checks.items() if not right)
    return Evaluation(not failures, len(checks) - len(failures), len(checks), failures)


class Expert:
    def __init__(self, task, rng, sloppiness: float):
        arguments = {"title": task["title"], "text": task["text"] if rng.random() >= sloppiness else "?"}
        call = json.dumps({"name": "write_note", "arguments": arguments})
        self.messages = [f"<tool_call>\n{call}\n</tool_call>", "Done."]

    def act(self, observation: str) -> str:
        return self.messages.pop(0)
