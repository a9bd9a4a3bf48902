"""What `model.source` and `tokenizer.source` of a run file stand for: sizes or a checkpoint; a folder, or a small
tokenizer that the run trains on what the environment's expert says. Starts no device, loads no weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from jaxagent.chat.tokenizer import Tokenizer, load_tokenizer
from jaxagent.chat.train_tokenizer import train_tokenizer
from jaxagent.config import RunConfig
from jaxagent.envs.protocol import EnvSpec
from jaxagent.errors import ConfigError
from jaxagent.model.hf import check_weights, read_spec
from jaxagent.model.spec import ModelSpec
from jaxagent.rollout.demonstrate import play
from jaxagent.types import Task

MODELS = Path(__file__).parents[1] / "configs" / "models"
TRAINED = "tokenizer"  # folder of the tokenizer trained by a run, inside its run folder
TEXT_EPISODES = 400  # expert episodes that a tokenizer is trained on, at most
# Enough text for a small tokenizer; episodes of real environments are long and cost seconds.
TEXT_CHARS = 150_000


def is_sizes(source: str) -> bool:
    """Whether a model source names sizes (random weights) rather than a checkpoint."""
    return source.endswith((".yaml", ".yml")) or (MODELS / f"{source}.yaml").is_file()


def model_sizes(source: str) -> ModelSpec:
    """Of a checkpoint, whose weights are checked too, or of a file of sizes."""
    if not is_sizes(source):
        if not source.startswith("hf://") and not Path(source).is_dir():
            known = ", ".join(sorted(path.stem for path in MODELS.glob("*.yaml")))
            raise ConfigError(
                f"model.source={source!r} is no folder, no hf:// name and no model of configs/models ({known})"
            )
        spec = read_spec(source)
        check_weights(source, spec)
        return spec
    named = MODELS / f"{source}.yaml"
    return ModelSpec.from_file(named if named.is_file() else source)


def tokenizer_of(config: RunConfig, env: EnvSpec, tasks: Mapping[str, Sequence[Task]]) -> Tokenizer:
    source = config.tokenizer.source
    if source == "train":
        saved = Path(config.run_dir) / TRAINED
        if saved.is_dir():
            return load_tokenizer(saved)
        if not is_sizes(config.model.source):
            raise ConfigError(
                "tokenizer.source='train' needs a model with random weights; a checkpoint has its own"
            )
        split = config.env.train_split  # an evaluation plays others
        texts = _texts(env, tasks[split] if split in tasks else env.tasks(split))
        return train_tokenizer(texts, config.tokenizer.vocab_size)
    if source == "model":
        if is_sizes(config.model.source):
            raise ConfigError(
                f"tokenizer.source='model', but model.source={config.model.source!r} are sizes without a tokenizer; "
                "give a tokenizer folder, or 'train' for a small one made from demonstrations"
            )
        source = config.model.source
    return load_tokenizer(source)


def _texts(env: EnvSpec, tasks: Sequence[Task]) -> list[str]:
    """What the environment and its expert say in a few hundred episodes."""
    texts: list[str] = []
    for number, task in zip(range(TEXT_EPISODES), itertools.cycle(tasks)):
        if sum(map(len, texts)) > TEXT_CHARS:
            break
        played = play(env, task, rng=Random(f"tokenizer/{number}"), sloppiness=0.5)
        texts += [message.content for message in played.messages(env)]
    return texts
