"""jaxagent's side of benchmarks/decode.py: one shape, the peers' flags, one JSON line in --out."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxagent.decode.buckets import Buckets
from jaxagent.decode.engine import Engine
from jaxagent.model.spec import ModelSpec
from jaxagent.model.transformer import create
from jaxagent.types import GenerateRequest, SampleKey, Sampling


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in {
        "layers": 4, "hidden": 256, "ffn": 768, "heads": 4, "kv-heads": 2, "head-dim": 64, "vocab": 32_000,
        "batch": 8, "prompt": 256, "new": 128, "iters": 3, "turns": 4, "group": 4, "groups": 2, "obs": 32,
        "tokens": 16, "eos-every": 0,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--agent", action="store_true", help="the multi-turn agent instead of single calls")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def make_engine(args: argparse.Namespace, slots: int, buckets: Buckets) -> Engine:
    spec = ModelSpec(
        family="qwen3", vocab=args.vocab, width=args.hidden, layers=args.layers, heads=args.heads,
        kv_heads=args.kv_heads, head_dim=args.head_dim, mlp=args.ffn, tied=True, qk_norm=True,
    )  # fmt: skip
    graphdef, params = create(spec, seed=0)
    engine = Engine(graphdef, spec, slots=slots, buckets=buckets, tokens=args.tokens)
    engine.load(params, 0)
    return engine


def request(
    session: str, ids: np.ndarray, rollout: int, step: int, new: int, top_p: float
) -> GenerateRequest:
    key = SampleKey(seed=0, task=0, rollout=rollout, step=step)
    return GenerateRequest(session, ids, key, Sampling(max_tokens=new, top_p=top_p))


async def batch(engine: Engine, args: argparse.Namespace, new: int, rng: np.random.Generator) -> None:
    """One batch of unrelated prompts."""
    prompts = rng.integers(5, args.vocab - 5, (args.batch, args.prompt)).astype(np.int32)
    requests = [request(f"{i}", ids, i, 0, new, args.top_p) for i, ids in enumerate(prompts)]
    done = await asyncio.gather(*(engine(one) for one in requests))
    assert all(len(one.ids_T) == new for one in done)
    for one in requests:
        await engine.release(one.session)


def cpu_seconds(call: Callable[[], object], iters: int) -> tuple[float, float]:
    """Median CPU and wall seconds of a call."""
    times = []
    for _ in range(iters):
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        times.append((time.process_time() - cpu, time.perf_counter() - wall))
    return statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)


def single_calls(args: argparse.Namespace) -> dict:
    rows = min(args.batch, 8)
    whole = args.prompt + args.new
    buckets = Buckets(prefill=((rows, args.prompt),), decode=(args.batch,), lengths=(args.prompt, whole))
    engine = make_engine(args, args.batch, buckets)
    engine.warm_up()
    rng = np.random.default_rng(0)
    asyncio.run(batch(engine, args, 1, rng))
    one, _ = cpu_seconds(lambda: asyncio.run(batch(engine, args, 1, rng)), args.iters)
    full, wall = cpu_seconds(lambda: asyncio.run(batch(engine, args, args.new, rng)), args.iters)
    return {
        "generate_tok_cpu_s": args.batch * args.new / full,
        "decode_tok_cpu_s": args.batch * (args.new - 1) / (full - one),
        "prefill_tok_cpu_s": args.batch * args.prompt / one,
        "generate_tok_s": args.batch * args.new / wall,
    }


async def rollout(engine: Engine, args: argparse.Namespace, step: int) -> int:
    """Groups of episodes; every turn's observation is the same for all members. Returns tokens generated.

    With `--eos-every n` a turn ends after each token with probability 1 / n, as with the peer's many end ids, and an
    episode's turns share the tokens that full turns would have.
    """

    async def episode(group: int, member: int) -> int:
        rng, own = np.random.default_rng([step, group]), np.random.default_rng([step, group, member])
        name, tokens, left = f"{step}.{group}.{member}", 0, args.turns * args.new
        ids = rng.integers(5, args.vocab - 5, args.prompt).astype(np.int32)
        for turn in range(args.turns):
            limit = min(left, int(own.geometric(1 / args.eos_every))) if args.eos_every else args.new
            if limit == 0:
                break
            done = await engine(request(name, ids, member, turn, limit, args.top_p))
            tokens, left = tokens + len(done.ids_T), left - len(done.ids_T)
            observation = rng.integers(5, args.vocab - 5, args.obs).astype(np.int32)
            ids = np.concatenate([ids, done.ids_T, observation])
        await engine.release(name)
        return tokens

    members = [episode(group, member) for group in range(args.groups) for member in range(args.group)]
    return sum(await asyncio.gather(*members))


def agent(args: argparse.Namespace) -> dict:
    """Two steps of rollouts from a cold start, and one more when warm."""
    slots = args.groups * args.group
    whole = args.prompt + args.turns * (args.new + args.obs)
    buckets = Buckets(prefill=((2, args.prompt), (slots, args.obs + 1)), decode=(slots,), lengths=(whole,))
    start, tokens = time.perf_counter(), 0
    engine = make_engine(args, slots, buckets)
    engine.warm_up()
    for step in range(2):
        tokens += asyncio.run(rollout(engine, args, step))
    cold = tokens / (time.perf_counter() - start)
    start, cpu = time.perf_counter(), time.process_time()
    tokens = asyncio.run(rollout(engine, args, 2))
    return {
        "cold_tok_s": cold,
        "warm_tok_s": tokens / (time.perf_counter() - start),
        "warm_tok_cpu_s": tokens / (time.process_time() - cpu),
        "compilations": engine.compilations,
        "counts": vars(engine.counts),
    }


def main() -> None:
    args = arguments()
    result = agent(args) if args.agent else single_calls(args)
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
