"""Everything about a run that can be decided, and can be wrong, before a device starts.

In: a `RunConfig`. Out: `Prepared`: environment, tasks, tokenizer, model sizes, checked recipe options. Every fault is
a ConfigError or DataError with one message. Loading weights, and building stages (which may play demonstrations),
come later.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from jaxagent.chat.render import Renderer
from jaxagent.chat.tokenizer import Tokenizer
from jaxagent.config import PackConfig, RunConfig
from jaxagent.data.rollout_codec import encode
from jaxagent.data.rollout_store import Origin
from jaxagent.data.tasks import easier, fingerprint
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError, DataError
from jaxagent.model.hf import check_tokenizer
from jaxagent.model.spec import CriticSpec, LoraSpec, ModelSpec
from jaxagent.model_source import model_sizes, tokenizer_of
from jaxagent.recipes.base import Recipe
from jaxagent.recipes.table import find_recipe
from jaxagent.records import Record
from jaxagent.types import Sampling, Task

TRACKER_MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb"}
PROMPTS = 8  # tasks whose prompt is measured


@dataclass(frozen=True)
class Entry:
    """One stage of the run file, checked."""

    name: str
    recipe: Recipe
    options: Record
    pack: PackConfig

    @property
    def needs_critic(self) -> bool:
        return self.recipe.critic(self.options)


@dataclass(frozen=True)
class Prepared:
    config: RunConfig
    env: EnvSpec
    tasks: Mapping[str, Sequence[Task]]
    renderer: Renderer
    model: ModelSpec
    lora: LoraSpec | None
    entries: tuple[Entry, ...]

    @property
    def critic(self) -> CriticSpec | None:
        """The value head, if a stage needs one."""
        if not any(entry.needs_critic for entry in self.entries):
            return None
        given = self.config.model.critic
        return CriticSpec(**given.model_dump()) if given else CriticSpec()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.renderer.tokenizer

    @property
    def train_tasks(self) -> Sequence[Task]:
        """The tasks that stages are built from."""
        env, tasks = self.config.env, self.tasks[self.config.env.train_split]
        return easier(tasks, env.max_difficulty) if env.max_difficulty else tasks

    @property
    def sampling(self) -> Sampling:
        """The sampling rule of training rollouts."""
        rollout = self.config.rollout
        return Sampling(
            max_tokens=rollout.max_tokens,
            temperature=rollout.temperature,
            top_k=rollout.top_k,
            top_p=rollout.top_p,
            stop_ids=self.renderer.stop_ids,
            tool_epsilon=rollout.tool_epsilon,
        )

    @property
    def origin(self) -> Origin:
        """What the token ids and log-probs of this run's rollouts belong to."""
        vocabulary = self.tokenizer.backend.get_vocab(with_added_tokens=True)
        sizes = fingerprint([f"{name}={value}" for name, value in asdict(self.model).items()])
        return Origin(
            tokenizer=fingerprint(sorted(f"{index} {token}" for token, index in vocabulary.items())),
            template=self.config.tokenizer.template,
            model=f"{self.model.layers} layers, vocabulary {self.model.vocab}, sizes {sizes}",
            temperature=self.config.rollout.temperature,
            schedule=self.config.rollout.heating,
        )

    @property
    def summary(self) -> str:
        stages = ", ".join(entry.name for entry in self.entries)
        tasks = ", ".join(f"{split} {len(found)}" for split, found in self.tasks.items())
        return (
            f"Environment {self.env.name} (tasks: {tasks}); vocabulary {self.model.vocab}; stages: {stages}."
        )


def prepare(config: RunConfig) -> Prepared:
    """Check a run file and everything it names. Raises ConfigError or DataError; starts no device."""
    entries = tuple(_entry(index, config) for index in range(len(config.all_stages)))
    _check_names(entries)
    _check_critic(config, entries)
    if any(entry.recipe.rolls_out for entry in entries):
        _check_sampling(config)
    for entry in entries:
        if entry.recipe.rolls_out:
            _check_rows(config, entry)
    _check_trackers(config)
    env = find_env(config.env.name, config.env.options)
    tasks = {
        split: env.tasks(split) for split in dict.fromkeys((config.env.train_split, *config.eval.splits))
    }
    _check_kept(config, tasks[config.env.train_split])
    prepared = _fitted(config, env, tasks, entries)
    if not prepared.train_tasks:
        raise ConfigError(f"env.train_split={config.env.train_split!r} holds no tasks; choose another split")
    if config.eval.splits or any(entry.recipe.rolls_out for entry in entries):
        _check_prompts(prepared, prepared.train_tasks)
    return prepared


def prepare_evaluation(config: RunConfig, tasks: Mapping[str, Sequence[Task]], env: EnvSpec) -> Prepared:
    """Check what playing these tasks takes of a run file: stages, training rows and trackers do not count."""
    prepared = _fitted(config, env, tasks, ())
    _check_prompts(prepared, [task for found in tasks.values() for task in found])
    return prepared


def _fitted(
    config: RunConfig, env: EnvSpec, tasks: Mapping[str, Sequence[Task]], entries: tuple[Entry, ...]
) -> Prepared:
    """Model, tokenizer and context, checked against each other."""
    model = model_sizes(config.model.source)
    lora = LoraSpec(**config.model.lora.model_dump()) if config.model.lora else None
    if config.model.train_last_layers > model.layers:
        raise ConfigError(
            f"model.train_last_layers={config.model.train_last_layers}, but the model has {model.layers} layers"
        )
    tokenizer = tokenizer_of(config, env, tasks)
    renderer = Renderer(tokenizer, config.tokenizer.template)
    if config.tokenizer.source == "train":
        model = replace(model, vocab=tokenizer.vocab_size, eos=renderer.stop_ids, pad=0, bos=None)
    check_tokenizer(model, tokenizer.vocab_size)
    if config.rollout.context > model.max_positions:
        raise ConfigError(
            f"rollout.context={config.rollout.context} exceeds the model's {model.max_positions} positions; "
            "lower it, or give the model a rope scaling in its config.json"
        )
    return Prepared(config, env, tasks, renderer, model, lora, entries)


def _check_prompts(prepared: Prepared, tasks: Sequence[Task]) -> None:
    """A prompt that fills the context ends every episode before its first token, in a run that looks well."""
    env, context = prepared.env, prepared.config.rollout.context
    if env.expert is None:
        return  # nothing says that the environment may be opened in this process
    lengths = []
    for task in tasks[:: -(-len(tasks) // PROMPTS)]:
        opened = (env.rehearse or env.make)()
        try:
            lengths.append(len(prepared.renderer.open(env.prompt(task, opened.reset(task)))))
        finally:
            opened.close()
    if min(lengths) >= context:
        raise ConfigError(
            f"rollout.context={context} leaves no room to answer: the prompts of environment {env.name!r} have "
            f"{min(lengths)} to {max(lengths)} tokens; raise rollout.context (and pack.length)"
        )


def _check_critic(config: RunConfig, entries: Sequence[Entry]) -> None:
    if config.model.critic is not None and not any(entry.needs_critic for entry in entries):
        recipes = ", ".join(entry.name for entry in entries)
        raise ConfigError(
            f"model.critic is the shape of a value head, but no stage of this run ({recipes}) learns values; drop it, "
            "or add a stage that does, e.g. recipe ppo"
        )


def _check_sampling(config: RunConfig) -> None:
    """Training needs log-probs that the trainer can reproduce: temperature yes, truncation no."""
    rollout = config.rollout
    if rollout.top_k or rollout.top_p < 1:
        raise ConfigError(
            f"rollout.top_k={rollout.top_k}, rollout.top_p={rollout.top_p}: the trainer cannot reproduce log-probs of "
            "a truncated distribution, and every importance ratio would be wrong; use top_k=0 and top_p=1"
        )
    if rollout.temperature == 0:
        raise ConfigError(
            "rollout.temperature=0 makes all rollouts of a task equal; set it above 0 (1.0 is usual)"
        )


def _check_rows(config: RunConfig, entry: Entry) -> None:
    """Whatever an episode can become must fit a training row."""
    rollout, shape = config.rollout, entry.pack
    if shape.length < rollout.context:
        raise ConfigError(
            f"stage {entry.name}: pack.length={shape.length} is shorter than rollout.context={rollout.context}: an "
            "episode that fills its context could not be trained on; raise pack.length or lower rollout.context"
        )
    if shape.length < rollout.context + (spare := entry.recipe.spare(entry.options)):
        raise ConfigError(
            f"stage {entry.name}: pack.length={shape.length} holds an episode of rollout.context={rollout.context} "
            f"tokens, but not the {spare} more that these options need; raise pack.length or lower rollout.context"
        )
    sampled = min(rollout.context, rollout.max_steps * rollout.max_tokens)
    if shape.slots < sampled:
        raise ConfigError(
            f"stage {entry.name}: pack.scored={shape.scored} is less than the {sampled} tokens that an episode can "
            "sample (rollout.context, or max_steps x max_tokens); raise it, or set it to 0"
        )


def _check_names(entries: Sequence[Entry]) -> None:
    """Evaluations and metrics are known by the name of their stage."""
    names = ["start", *(entry.name for entry in entries)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"stage name {twice[0]!r} is taken ('start' is the evaluation before the first stage); rename it"
        )


def _check_trackers(config: RunConfig) -> None:
    for tracker, module in TRACKER_MODULES.items():
        if tracker in config.trackers and importlib.util.find_spec(module) is None:
            raise ConfigError(f"trackers: {tracker} is not installed; pip install 'jaxagent[{tracker}]'")


def _entry(index: int, config: RunConfig) -> Entry:
    stage = config.all_stages[index]
    recipe = find_recipe(stage.recipe)
    options = recipe.options.parse(stage.options, f"{_where(index, config)}.options")
    return Entry(stage.name or f"{index}-{stage.recipe}", recipe, options, stage.pack or config.pack)


def _where(index: int, config: RunConfig) -> str:
    """The path of a stage in the run file."""
    before = len(config.warm_start)
    return f"warm_start.{index}" if index < before else f"stages.{index - before}"


def _check_kept(config: RunConfig, tasks: Sequence[Task]) -> None:
    """What an environment puts into its tasks is stored with their rollouts."""
    if not config.keep_rollouts:
        return
    for task in tasks:
        try:
            encode(task)
        except DataError as error:
            raise ConfigError(
                f"keep_rollouts={config.keep_rollouts}, task {task.task_id!r}: {error}"
            ) from error
