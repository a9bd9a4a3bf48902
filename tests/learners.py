"""A learner and a decoder around one tiny model, and episodes that they both see."""

import numpy as np

from jaxagent.batch.targets import token_mean
from jaxagent.config import PackConfig
from jaxagent.decode.engine import Engine
from jaxagent.learn.forward import Execution
from jaxagent.learn.state import train_all
from jaxagent.learn.terms import cross_entropy
from jaxagent.learner import Learner, Model
from jaxagent.stage import Stage, Term, Update
from jaxagent.types import Segment
from tests.decode.engines import BUCKETS, request, run

IMITATION = {"ce": Term(cross_entropy(), token_mean)}
TURNS = ((17, 6), (5, 9))  # tokens that the policy is shown, tokens it samples, of each turn


def make_learner(
    graphdef,
    params,
    *,
    terms=None,
    partition=None,
    temperature=1.0,
    rows=4,
    version=0,
    teacher=None,
    **update,
):
    """A learner of one stage; `update` are fields of stage.Update."""
    stage = Stage("stage", None, 1, None, terms or IMITATION, Update(**{"learning_rate": 1e-2} | update))
    model = Model(graphdef, partition or train_all(), Execution(temperature=temperature), {}, teacher)
    return Learner(model, params, stage, PackConfig(rows=rows, length=64), version=version)


def logprobs(learner, segments, *, weights="current"):
    """Log-prob of every sampled token, [T] a segment."""
    return [scores.logprob_T for scores in learner.token_scores(segments, weights=weights)]


def make_engine(graphdef, params, spec, **options):
    engine = Engine(graphdef, spec, slots=4, buckets=BUCKETS, tokens=8, **options)
    engine.load(params, 0)
    return engine


def episodes(engine, *, count=3, temperature=1.0, seed=0):
    """Segments of `count` episodes of two turns, sampled side by side; every one opens with a prompt of its own."""
    rng = np.random.default_rng(seed)
    vocab = engine.spec.vocab
    parts = [[] for _ in range(count)]  # (ids, log-probs or None)
    for step, (shown, sampled) in enumerate(TURNS):
        for part in parts:
            part.append((rng.integers(0, vocab, shown), None))
        asked = [
            request(
                f"{seed}/{engine.version}/{i}",
                np.concatenate([ids for ids, _ in part]),
                rollout=i,
                step=step,
                temperature=temperature,
                max_tokens=sampled,
            )
            for i, part in enumerate(parts)
        ]
        for part, completion in zip(parts, run(engine, *asked)):
            part.append((completion.ids_T, completion.logprob_T))
    return [_segment(part) for part in parts]


def _segment(part):
    lengths = [len(ids) for ids, _ in part]
    mask = np.repeat([logprobs is not None for _, logprobs in part], lengths)
    step = np.repeat([i // 2 if i % 2 else -1 for i in range(len(part))], lengths)
    behaviour = [np.zeros(len(ids), np.float32) if lp is None else lp for ids, lp in part]
    ids = np.concatenate([ids for ids, _ in part]).astype(np.int32)
    return Segment(ids, mask, step.astype(np.int32), {"behaviour": np.concatenate(behaviour)})
