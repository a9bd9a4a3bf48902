"""An environment with one tool, for tests of tool calls: add the two numbers of the task, then report the sum."""

from functools import partial

from jaxagent.chat.tools import parse_tool_calls
from jaxagent.envs.protocol import EnvSpec
from jaxagent.types import Evaluation, ExecStatus, Message, Prompt, StepResult, Task

ADD = {
    "name": "add",
    "description": "Add two whole numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


class Sums:
    """Each call gives a tool message; a text ends the episode and must hold the sum."""

    def reset(self, task):
        self.numbers, self.added, self.said = task.meta["numbers"], False, ""
        return StepResult(f"Add {self.numbers[0]} and {self.numbers[1]}.", anchor="start")

    def step(self, action):
        if action.error:
            return StepResult(action.error, ExecStatus.INVALID)
        if not action.tool_calls:
            self.said = action.text
            return StepResult("Thank you.", done=True)
        sums = [call.arguments["a"] + call.arguments["b"] for call in action.tool_calls]
        self.added = self.added or sum(self.numbers) in sums
        messages = tuple(Message("tool", str(value)) for value in sums)
        return StepResult("\n".join(message.content for message in messages), messages=messages)

    def evaluate(self):
        right = self.added and str(sum(self.numbers)) in self.said
        return Evaluation(right, int(right), 1, info={"score": float(right) + 0.5 * self.added})

    def close(self):
        """Nothing is held."""


def tasks(split):
    return [
        Task(f"sums/{split}/{n}", "sums", split, scenario=f"s{n}", meta={"numbers": [n, 10 * n]})
        for n in range(1, 5)
    ]


def prompt(task, first):
    return Prompt((Message("system", "Use the tool."), Message("user", first.observation)), (ADD,))


def observe(text):
    return Message("user", text)


SUMS = EnvSpec(
    name="sums",
    make=Sums,
    tasks=tasks,
    prompt=prompt,
    parse=partial(parse_tool_calls, tools=(ADD,), text_ok=True),
    observe=observe,
    max_steps=4,
)
