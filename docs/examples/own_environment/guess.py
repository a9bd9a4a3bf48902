"""A whole environment of one's own: find a digit in three guesses. Its run file is configs/runs/python_tiny.yaml."""

from jaxagent.envs.protocol import EnvSpec
from jaxagent.errors import ConfigError
from jaxagent.types import Action, Evaluation, ExecStatus, Message, Prompt, StepResult, Task


class Guess:
    def reset(self, task: Task) -> StepResult:
        self.secret, self.right = task.seed % 10, False
        return StepResult("Guess a digit.")

    def step(self, action: Action) -> StepResult:
        if action.error:
            return StepResult(action.error, ExecStatus.INVALID)
        digit = int(action.text)
        self.right = digit == self.secret
        return StepResult(
            "right" if self.right else "low" if digit < self.secret else "high", done=self.right
        )

    def evaluate(self) -> Evaluation:
        return Evaluation(success=self.right, passed=int(self.right), total=1)

    def close(self) -> None: ...


class Expert:
    def __init__(self, task: Task, rng, sloppiness: float):
        self.digit = task.seed % 10 if rng.random() >= sloppiness else rng.randrange(10)

    def act(self, observation: str) -> str:
        self.digit += {"low": 1, "high": -1}.get(observation, 0)
        return str(self.digit)


def tasks(split: str) -> list[Task]:
    if split not in ("train", "test"):
        raise ConfigError(f"guess has no split {split!r}; its splits are train and test")
    names = [f"{split}-{n}" for n in range(40)]
    return [Task(name, env="guess", split=split, scenario=name, seed=n) for n, name in enumerate(names)]


def prompt(task: Task, first: StepResult) -> Prompt:
    return Prompt((Message("user", first.observation),))


def parse(message: Message) -> Action:
    digit = message.content.strip()
    return Action(text=digit) if digit in list("0123456789") else Action(error="Answer with a digit.")


SPEC = EnvSpec("guess", Guess, tasks, prompt, parse, max_steps=3, expert=Expert)
