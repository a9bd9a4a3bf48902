"""What `jaxagent eval` is asked for beside the run file, and what of both decides its result.

The second is written into the folder: an evaluation goes on only under the same. How fast episodes are played
(workers, slots, mesh) is not among it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from jaxagent.auxlm.endpoint import key_fault, url_fault
from jaxagent.chat.tools import STRICT_JSON
from jaxagent.config import RunConfig
from jaxagent.errors import ConfigError, DataError
from jaxagent.records import Record

SETTINGS = "settings.json"
Settings = dict[str, Any]
FIXED_FIELDS = {"messages", "model", "n", "stream", "tools"}  # of a request


class EndpointSettings(Record):
    """An OpenAI-compatible server. base_url goes up to and including the version: http://127.0.0.1:8000/v1

    api_key_env: the variable that holds the key; the key itself is never written anywhere. extra: fields added to each
    request's body, null takes one away. sizes: a model of configs/models or a folder, by which FLOPs are counted.
    """

    base_url: str = ""
    model: str = ""
    api_key_env: str = ""
    timeout_s: float = Field(default=300.0, gt=0)
    extra: dict[str, Any] = Field(default_factory=dict)
    sizes: str = ""
    chips: int = Field(default=0, ge=0)

    def check(self) -> None:
        """What can be wrong before the first request. Raises ConfigError."""
        if fault := url_fault(self.base_url):
            raise ConfigError(f"--base-url {self.base_url!r}: {fault}")
        if not self.model:
            raise ConfigError(
                "--policy endpoint needs --model: the name under which the server knows the model"
            )
        if self.api_key_env and (fault := key_fault(self.api_key_env)):
            raise ConfigError(f"--api-key-env: {fault}")
        if fixed := sorted(FIXED_FIELDS & self.extra.keys()):
            raise ConfigError(
                f"--extra: {', '.join(fixed)} cannot be changed; an answer comes whole, once a message"
            )


class Asked(Record):
    """policy: a run folder or one of its checkpoints, a Hugging Face folder or hf:// name, or one of KINDS.

    n: sampled rollouts a task. greedy: one at temperature 0. limit: the first tasks of each split; 0 is all.
    """

    policy: str
    splits: tuple[str, ...] = ()
    limit: int = Field(default=0, ge=0)
    n: int = Field(default=0, ge=0)
    greedy: bool = True
    temperature: float = Field(default=1.0, ge=1e-3, le=100)
    seed: int = Field(default=0, ge=0, lt=2**20)
    sloppiness: float = Field(default=0.0, ge=0, le=1)
    endpoint: EndpointSettings = EndpointSettings()

    @model_validator(mode="after")
    def _something(self) -> Asked:
        if not self.greedy and not self.n:
            raise ValueError("nothing is asked for: give --n rollouts a task, --greedy, or both")
        return self


def asked(words: Mapping[str, Any]) -> Asked:
    """From the command line's words; None is "not given"."""
    given = {name: value for name, value in words.items() if value is not None}
    endpoint = {name: given[name] for name in EndpointSettings.model_fields if name in given}
    if "extra" in endpoint:
        endpoint["extra"] = _read_object(endpoint["extra"])
    values = {name: given[name] for name in Asked.model_fields if name in given}
    _check_of_use(given, tuple(endpoint))
    values["greedy"] = bool(given.get("greedy")) or not given.get("n")
    return Asked.parse({**values, "endpoint": endpoint}, "eval")


def _check_of_use(given: Mapping[str, Any], endpoint: tuple[str, ...]) -> None:
    """A word that would change nothing is a misunderstanding. Raises ConfigError."""
    policy = given.get("policy")
    for name, condition, needs in (
        *((name, policy == "endpoint", "--policy endpoint") for name in endpoint),
        ("sloppiness", policy == "expert", "--policy expert"),
        ("temperature", bool(given.get("n")), "--n, for greedy rollouts have none"),
    ):
        if name in given and not condition:
            raise ConfigError(f"--{name.replace('_', '-')} says nothing here: it needs {needs}")


def _read_object(text: str) -> dict[str, Any]:
    try:
        value = STRICT_JSON.decode(text)
    except ValueError as error:
        raise ConfigError(f"--extra {text!r} is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"--extra {text!r}: expected a JSON object such as '{{\"top_k\": 20}}'")
    return value


def recorded(config: RunConfig, asked: Asked, policy: Mapping[str, Any], splits: tuple[str, ...]) -> Settings:
    """Everything that decides the result. policy: what it is, and which version of it."""
    rollout = config.rollout
    settings = {
        "policy": dict(policy),
        "env": {"name": config.env.name, "options": config.env.options},
        "splits": list(splits),
        **asked.model_dump(include={"limit", "n", "greedy", "seed"}),
        "temperature": asked.temperature if asked.n else 0.0,
        "max_steps": config.eval.max_steps or rollout.max_steps,
        **rollout.model_dump(
            include={"max_tokens", "max_observation_chars", "step_seconds", "top_k", "top_p"}
        ),
    }
    return json.loads(json.dumps(settings))


def check_folder(out: Path, settings: Settings) -> None:
    """A folder holds one evaluation. Raises ConfigError for one of other settings, or of something else."""
    path = out / SETTINGS
    if path.is_file():
        before = read_json(path)
        if not isinstance(before, dict):
            raise DataError(
                f"{path} holds no settings of an evaluation; choose another --out, or remove the folder"
            )
        changed = [name for name in sorted({*before, *settings}) if before.get(name) != settings.get(name)]
        if changed:
            shown = "; ".join(f"{k}: {before.get(k)!r} there, {settings.get(k)!r} now" for k in changed)
            raise ConfigError(
                f"{out} holds an evaluation with other settings ({shown}); choose another --out, or remove the folder"
            )
    elif out.exists() and (not out.is_dir() or any(not p.name.startswith(".") for p in out.iterdir())):
        raise ConfigError(f"{out} is not empty and holds no evaluation; choose another --out")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error})") from error


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all. Raises DataError where nothing can be written."""
    partial = path.with_name(f".{path.name}.partial")
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error})") from error
