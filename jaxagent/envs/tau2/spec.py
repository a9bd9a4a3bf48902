"""tau2-bench as the run refers to it: options, tasks, prompt, metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Literal

from pydantic import model_validator

from jaxagent.auxlm.blocking import EndpointOptions
from jaxagent.chat.tools import parse_tool_calls
from jaxagent.envs.entry import Entry
from jaxagent.envs.pool import Deadlines
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.tau2.data import Domain, find_domain
from jaxagent.envs.tau2.env import Players, Tau2
from jaxagent.envs.tau2.expert import Expert
from jaxagent.errors import ConfigError
from jaxagent.records import Record
from jaxagent.types import Message, Metrics, Prompt, StepResult, Task, Trajectory

MAX_STEPS = 100  # agent messages; upstream ends after 200 messages of agent, user and tools together
CALL_S = 5.0  # of a step without a language model; calls take milliseconds

INSTRUCTION = """You are a customer service agent. Serve the customer, and keep to the policy below without exception.
In each message do one of two things, never both: call a tool, or write to the customer. Text outside tool calls is \
sent to the customer as it stands.

# Policy

{policy}"""

SHORT = """You are a customer service agent. In each message either call one tool or write to the customer.
A tool call: <tool_call>
{{"name": …, "arguments": {{…}}}}
</tool_call>
Tools: {tools}"""


class Tau2Options(Record):
    """user: who plays the customer. endpoint: the language model that does, for user=llm.

    judge: an endpoint that judges NL_ASSERTION; without one that part of the reward is left out.
    prompt: "full" has the policy and the tools' schemas; "short" has neither, for tiny models.
    """

    domain: Literal["retail", "airline"] = "retail"
    user: Literal["scripted", "llm"] = "scripted"
    endpoint: EndpointOptions | None = None
    judge: EndpointOptions | None = None
    prompt: Literal["full", "short"] = "full"

    @model_validator(mode="after")
    def _fits(self) -> Tau2Options:
        if (self.user == "llm") != (self.endpoint is not None):
            raise ValueError(
                f"user={self.user} and endpoint={self.endpoint}: user=llm needs an endpoint (base_url, model), "
                "and user=scripted takes none"
            )
        return self


def make_spec(options: Tau2Options) -> EnvSpec:
    """Raises ConfigError when a wheel is missing, or an endpoint cannot work."""
    domain = find_domain(options.domain)
    _check_endpoint("endpoint", options.endpoint, Deadlines().reset_s)
    _check_endpoint("judge", options.judge, Deadlines().evaluate_s)
    longest_s = options.endpoint.longest_s if options.endpoint else 0.0
    return EnvSpec(
        name="tau2",
        make=partial(Tau2, options.domain, Players(options.endpoint, options.judge)),
        tasks=partial(tasks, domain),
        prompt=partial(prompt, domain, short=options.prompt == "short"),
        parse=partial(parse_tool_calls, tools=domain.tools, text_ok=True),
        observe=observe,
        max_steps=MAX_STEPS,
        metrics=metrics,
        expert=partial(expert, domain),
        rehearse=partial(Tau2, options.domain, Players()),
        worker={"step_s": CALL_S + longest_s},
    )


def _check_endpoint(name: str, options: EndpointOptions | None, deadline_s: float) -> None:
    """A call that outlasts the pool's deadline would look like an environment that hangs."""
    if options is None:
        return
    options.backend().close()
    if options.longest_s > deadline_s - CALL_S:
        raise ConfigError(
            f"env.options.{name}: {options.retries + 1} attempts of {options.timeout_s:g} s and the waits between them "
            f"take {options.longest_s:g} s; at most {deadline_s - CALL_S:g} s fit; lower timeout_s or retries"
        )


def tasks(domain: Domain, split: str) -> list[Task]:
    """A split as the benchmark publishes it. `meta.noop`: a conversation without any call earns the reward."""
    if split not in domain.splits:
        raise ConfigError(
            f"tau2 {domain.name} has no split {split!r}; its splits are {sorted(domain.splits)}"
        )
    return [
        Task(
            task_id=f"tau2/{domain.name}/{number}",
            env="tau2",
            split=split,
            scenario=f"{domain.name}/{number}",
            type=domain.name,
            meta={"id": number, "noop": noop_solves(domain, domain.tasks[number]["evaluation_criteria"])},
        )
        for number in map(str, domain.splits[split])
    ]


def noop_solves(domain: Domain, criteria: Mapping[str, Any]) -> bool:
    """Whether the reference changes nothing and the user must be told nothing (as far as both are rewarded)."""
    if "COMMUNICATE" in criteria["reward_basis"] and criteria["communicate_info"]:
        return False
    return not domain.reference(criteria)


def prompt(domain: Domain, task: Task, first: StepResult, *, short: bool) -> Prompt:
    opening = Message("user", first.observation)
    if not short:
        return Prompt((Message("system", INSTRUCTION.format(policy=domain.policy)), opening), domain.tools)
    signatures = ", ".join(_signature(tool["function"]) for tool in domain.tools)
    return Prompt((Message("system", SHORT.format(tools=signatures)), opening))


def _signature(function: Mapping[str, Any]) -> str:
    return f"{function['name']}({', '.join(function['parameters']['properties'])})"


def observe(text: str) -> Message:
    return Message("tool", text)


def expert(domain: Domain, task: Task, rng: Random, sloppiness: float) -> Expert:
    return Expert(domain.tasks[str(task.meta["id"])]["evaluation_criteria"], rng, sloppiness)


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Means over episodes. reward: the benchmark's. reward_needing_action: of the tasks that doing nothing does not
    solve. db, communicate, nl_assertion: the parts, over the tasks that have them. ended: not cut.
    """
    judged = [(one.task, one.evaluation) for one in trajectories if one.evaluation is not None]
    if not judged:
        return {}
    found = {
        "reward": [float(verdict.success) for _, verdict in judged],
        "reward_needing_action": [
            float(verdict.success) for task, verdict in judged if not task.meta["noop"]
        ],
        "ended": [float(verdict.info["ended"]) for _, verdict in judged],
    }
    for part in ("DB", "COMMUNICATE", "NL_ASSERTION"):
        parts = [verdict.info["reward_basis"] for _, verdict in judged]
        found[part.lower()] = [one[part] for one in parts if part in one]
    return {name: sum(values) / len(values) for name, values in found.items() if values}


ENTRY = Entry(Tau2Options, make_spec)
