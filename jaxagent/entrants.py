"""Who is evaluated: a policy of ours, a Hugging Face model, an endpoint, the environment's expert, or one that does
nothing.

    entrant = enter(config, asked, env, tasks)     checked; no device has started, no request was sent
    opened = entrant.open(stack)                   plays episodes until the stack is closed

A policy of ours is decoded token by token, with the model, tokenizer and template of its run; everything else of the
run file (environment, limits, mesh) is the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxagent.auxlm.chat import ChatAgent, ChatEndpoint, ChatRules
from jaxagent.auxlm.endpoint import EndpointBackend, EndpointConfig
from jaxagent.chat.tokenizer import HUB_PREFIX
from jaxagent.checkpoint_files import whole_steps
from jaxagent.clock import COMPILATION, DECODE, ENVIRONMENTS, Meter
from jaxagent.config import RunConfig
from jaxagent.envs.protocol import EnvSpec
from jaxagent.errors import ConfigError
from jaxagent.eval.settings import Asked
from jaxagent.model.spec import ModelSpec
from jaxagent.model_source import model_sizes
from jaxagent.prepare import Prepared, prepare_evaluation
from jaxagent.rollout.scripted import ExpertAgent, NoopAgent
from jaxagent.rollout.talk import Agent
from jaxagent.rollouts import Rollouts, open_rollouts, open_talks
from jaxagent.run_file import read_run
from jaxagent.types import Sampling, Task

Tasks = Mapping[str, Sequence[Task]]
CONFIG = "config.yaml"
CHECKPOINT = re.compile(r"(\d+)\.\d+")  # a folder in RUN_DIR/checkpoints
NOOP_STEPS = 1


@dataclass(frozen=True)
class Opened:
    """What plays. weights: checksum of what the decoder holds. chips: devices held; 0 is unknown.

    seconds: of this process's wall time so far, by what went on.
    """

    rollouts: Rollouts
    seconds: Callable[[], Mapping[str, float]]
    chips: int = 0
    device: str = ""
    weights: int | None = None


@dataclass(frozen=True)
class Entrant:
    """identity: what must be the same when the evaluation is started again. sizes: of the model, if they are known."""

    name: str
    identity: Mapping[str, Any]
    config: RunConfig
    open: Callable[[ExitStack], Opened]
    sizes: ModelSpec | None = None


def enter(config: RunConfig, asked: Asked, env: EnvSpec, tasks: Tasks) -> Entrant:
    """Check what `asked.policy` names. Raises ConfigError or DataError."""
    kinds = {"endpoint": _endpoint, "expert": _expert, "noop": _noop, "model": _own_model}
    if asked.policy in kinds:
        return kinds[asked.policy](config, asked, env, tasks)
    path = Path(asked.policy)
    if asked.policy.startswith(HUB_PREFIX) or (path / "config.json").is_file():
        return _hugging_face(config, asked, env, tasks)
    folder, step = _run_folder(path.resolve())
    if (folder / CONFIG).is_file():
        return _run(config, env, tasks, folder=folder, step=step)
    raise ConfigError(
        f"--policy {asked.policy!r} is no run folder or checkpoint (RUN_DIR, RUN_DIR/checkpoints/STEP.0), no Hugging "
        f"Face folder, no hf:// name and none of {', '.join(kinds)}"
    )


# --- policies of ours -------------------------------------------------------------------------------------


def _own_model(config: RunConfig, asked: Asked, env: EnvSpec, tasks: Tasks) -> Entrant:
    """The model that the run file starts from."""
    identity = {"kind": "model", "source": config.model.source, "init_seed": config.seed}
    return _decoded(prepare_evaluation(config, tasks, env), Path(config.model.source).name, identity)


def _hugging_face(config: RunConfig, asked: Asked, env: EnvSpec, tasks: Tasks) -> Entrant:
    plain = {"source": asked.policy, "lora": None, "train_last_layers": 0}
    changed = config.model_copy(
        update={
            "model": config.model.model_copy(update=plain),
            "tokenizer": config.tokenizer.model_copy(update={"source": "model"}),
        }
    )
    hub = asked.policy.startswith(HUB_PREFIX)
    # The same from every working directory.
    source = asked.policy if hub else str(Path(asked.policy).resolve())
    identity = {"kind": "hugging face", "source": source}
    return _decoded(prepare_evaluation(changed, tasks, env), Path(source).name, identity)


def _run_folder(path: Path) -> tuple[Path, int | None]:
    """(run folder, step) of a run folder or of one of its checkpoints."""
    found = CHECKPOINT.fullmatch(path.name)
    if found and path.parent.name == "checkpoints":
        return path.parent.parent, int(found[1])
    return path, None


def _run(config: RunConfig, env: EnvSpec, tasks: Tasks, *, folder: Path, step: int | None) -> Entrant:
    """A checkpoint of a run of ours. The newest one is pinned here: training may go on meanwhile."""
    theirs = read_run(folder / CONFIG)
    steps = whole_steps(folder / "checkpoints")
    if not steps or (step is not None and step not in steps):
        raise ConfigError(
            f"{folder} holds no whole checkpoint{'' if step is None else f' of step {step}'}; there are {steps}"
        )
    step = steps[-1] if step is None else step
    update = {
        "model": theirs.model,
        "tokenizer": theirs.tokenizer,
        "run_dir": str(folder),
        "seed": theirs.seed,
    }
    prepared = prepare_evaluation(config.model_copy(update=update), tasks, env)
    identity = {"kind": "run", "source": str(folder), "step": step}
    return _decoded(prepared, f"{folder.name}@{step}", identity, step=step)


def _decoded(
    prepared: Prepared, name: str, identity: Mapping[str, Any], *, step: int | None = None
) -> Entrant:
    config = prepared.config
    decoding = {
        "dtype": config.model.dtype,
        "template": config.tokenizer.template,
        "context": config.rollout.context,
    }
    return Entrant(
        name,
        {**identity, **decoding},
        config,
        open=lambda stack: _open_decoder(prepared, step, stack),
        sizes=prepared.model,
    )


def _open_decoder(prepared: Prepared, step: int | None, stack: ExitStack) -> Opened:
    """Load weights and start a decoder over them. step: of the run's checkpoint; None takes the model as it is."""
    from jaxagent.run import set_up_jax

    set_up_jax()
    import jax

    from jaxagent.checkpoint import Checkpointer
    from jaxagent.compilations import Compilations
    from jaxagent.policy import build_engine, build_policy

    meter, compilations = Meter(DECODE, ENVIRONMENTS), Compilations()
    stack.callback(compilations.close)
    policy = build_policy(prepared)
    params = policy.params
    if step is not None:
        checkpoints = Checkpointer(Path(prepared.config.run_dir) / "checkpoints")
        params = checkpoints.restore_params(params, step=step)
        checkpoints.close()
    engine = build_engine(prepared, policy, meter)
    engine.load(params, 0)
    rollouts = open_rollouts(prepared, engine, meter)
    stack.callback(rollouts.close)
    return Opened(
        rollouts,
        seconds=lambda: {**meter.seconds(), COMPILATION: compilations.seconds},
        chips=len(jax.devices()),
        device=jax.devices()[0].device_kind,
        weights=engine.checksum,
    )


# --- agents that speak in messages ------------------------------------------------------------------------


def _expert(config: RunConfig, asked: Asked, env: EnvSpec, tasks: Tasks) -> Entrant:
    """The ceiling: the environment's own step limit holds, unless `eval.max_steps` is set."""
    agent = ExpertAgent(env, seed=asked.seed, sloppiness=asked.sloppiness)
    identity = {"kind": "expert", "sloppiness": asked.sloppiness}
    return _scripted(_with_steps(config, env.max_steps), env, agent, identity)


def _noop(config: RunConfig, asked: Asked, env: EnvSpec, tasks: Tasks) -> Entrant:
    """The floor: what scores without doing anything."""
    return _scripted(_with_steps(config, NOOP_STEPS), env, NoopAgent(), {"kind": "noop"})


def _with_steps(config: RunConfig, steps: int) -> RunConfig:
    measured = config.eval.model_copy(update={"max_steps": config.eval.max_steps or steps})
    return config.model_copy(update={"eval": measured})


def _scripted(config: RunConfig, env: EnvSpec, agent: Agent, identity: Mapping[str, Any]) -> Entrant:
    def start(stack: ExitStack) -> Opened:
        return _talking(config, env, lambda sampling, seed: agent, stack)

    return Entrant(str(identity["kind"]), identity, config, open=start)


def _endpoint(config: RunConfig, asked: Asked, env: EnvSpec, tasks: Tasks) -> Entrant:
    settings = asked.endpoint
    settings.check()
    if config.rollout.top_k:
        raise ConfigError(
            f"rollout.top_k={config.rollout.top_k} is no part of the chat-completions protocol; set it to 0, and pass "
            "it by --extra '{\"top_k\": …}' if the server takes it"
        )
    sizes = model_sizes(settings.sizes) if settings.sizes else None
    slots = config.rollout.slots

    def start(stack: ExitStack) -> Opened:
        backend = EndpointBackend(
            EndpointConfig(
                settings.base_url,
                settings.model,
                api_key_env=settings.api_key_env,
                timeout_s=settings.timeout_s,
                concurrency=slots,
            )
        )
        stack.callback(backend.close)
        rules = ChatRules(patience=max(ChatRules.patience, 2 * slots), extra=settings.extra)
        endpoint = ChatEndpoint(backend, rules)

        def agent(sampling: Sampling, seed: int) -> ChatAgent:
            return ChatAgent(endpoint, sampling, seed=seed)

        return _talking(config, env, agent, stack, chips=settings.chips)

    identity = {"kind": "endpoint", **settings.model_dump(include={"base_url", "model", "extra"})}
    return Entrant(settings.model, identity, config, open=start, sizes=sizes)


def _talking(
    config: RunConfig,
    env: EnvSpec,
    agent: Callable[[Sampling, int], Agent],
    stack: ExitStack,
    *,
    chips: int = 0,
) -> Opened:
    meter = Meter(ENVIRONMENTS)
    rollouts = open_talks(config, env, agent, meter)
    stack.callback(rollouts.close)
    return Opened(rollouts, seconds=meter.seconds, chips=chips)
