"""Time one policy-gradient update of jaxagent against peers, on the same shape, in the same run.

Each program runs in its own process, pinned to one core, alternating with the others; what counts is tokens
per CPU-second (median over the rounds) and the peak resident memory. A bare matrix product of the LM head's
FLOPs is timed beside it, to say how far from the machine's limit the update is.

    python benchmarks/update.py --vocab 151936 \
        --peer "hf=PYTHON PROGRAM --skip-gen --threads 1" --peer "tunix=PYTHON PROGRAM --beta 0"

A peer's command gets the shape flags (--vocab, --layers, …) and --iters appended and must print, as its last
line, one JSON object with `update_tok_cpu_s` and `peak_rss_gb`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from decode import ONE_CORE

if TYPE_CHECKING:
    from jaxagent.model.spec import ModelSpec

ROOT = Path(__file__).parents[1]
SHAPE = {
    "layers": 4, "hidden": 256, "ffn": 768, "heads": 4, "kv-heads": 2, "head-dim": 64,
    "vocab": 151_936, "batch": 8, "prompt": 256, "new": 128, "iters": 3,
}  # fmt: skip


def cpu_seconds(call: Callable[[], object], times: int) -> float:
    """Median CPU-seconds of a blocking call, after one warm-up."""
    call()
    out = []
    for _ in range(times):
        start = time.process_time()
        call()
        out.append(time.process_time() - start)
    return statistics.median(out)


def own(args: argparse.Namespace) -> dict:
    """One process of jaxagent: the update, then the bare products."""
    import jax
    import numpy as np

    from jaxagent.batch.pack import pack
    from jaxagent.batch.targets import seq_mean_token_mean
    from jaxagent.learn.optim import OptimizerSpec, make_optimizer
    from jaxagent.learn.state import init_state
    from jaxagent.learn.step import make_update
    from jaxagent.learn.terms import clipped_pg
    from jaxagent.model.spec import ModelSpec
    from jaxagent.model.transformer import create
    from jaxagent.stage import Term
    from jaxagent.types import Sample

    length = args.prompt + args.new
    spec = ModelSpec(
        "qwen3", args.vocab, args.hidden, args.layers, args.heads, args.kv_heads, args.head_dim, args.ffn,
        tied=True, qk_norm=True,
    )  # fmt: skip
    # Recomputing each block is no slower on a CPU: what it would read back does not fit in the cache.
    graphdef, params = create(spec, seed=0, remat=args.remat)
    rng = np.random.default_rng(0)
    mask_T = np.arange(length) >= args.prompt
    samples = [
        Sample(
            trajectory=index,
            ids_T=rng.integers(5, args.vocab - 5, length),
            step_T=np.where(mask_T, 0, -1).astype(np.int32),
            advantage_T=(rng.normal() * mask_T).astype(np.float32),
            include={"pg": mask_T.astype(np.float32)},
        )
        for index in range(args.batch)
    ]
    terms = {"pg": Term(clipped_pg(0.2), seq_mean_token_mean)}
    batches = [p.batch for p in pack(samples, terms, rows=args.batch, length=length, scored=args.new)]
    optimizer = make_optimizer(OptimizerSpec(1e-5))
    state = [init_state(params, optimizer)]
    del params
    update = make_update(graphdef, terms, optimizer)

    def step() -> None:
        state[0], _ = update(state[0], batches)

    seconds = cpu_seconds(step, args.iters)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    state.clear()
    scored, head = args.batch * args.new, args.vocab * args.hidden
    flops = 8 * scored * head + 6 * args.batch * length * sum(x.size for x in _layers(spec))
    left = jax.random.normal(jax.random.key(0), (scored, args.hidden))
    right = jax.random.normal(jax.random.key(1), (args.hidden, args.vocab))
    product = jax.jit(lambda a, b: a @ b)
    rate = 2 * scored * head / cpu_seconds(lambda: jax.block_until_ready(product(left, right)), args.iters)
    return {
        "update_tok_cpu_s": args.batch * length / seconds,
        "peak_rss_gb": round(peak, 3),
        "cpu_s": round(seconds, 3),
        "update_gflops": round(flops / seconds / 1e9, 1),
        "bare_product_gflops": round(rate / 1e9, 1),
    }


def _layers(spec: ModelSpec) -> list:
    """Shapes of the matrices inside the layers (no embedding, no head)."""
    import jax

    from jaxagent.model.transformer import abstract

    _, params = abstract(spec)
    named = jax.tree_util.tree_leaves_with_path(params)
    return [leaf for path, leaf in named if "layers" in jax.tree_util.keystr(path) and leaf.ndim == 3]


def launch(command: list[str], args: argparse.Namespace) -> dict:
    """Run one program on one core; its last line is the result."""
    env = os.environ | ONE_CORE | {"PYTHONPATH": str(ROOT)}
    flags = [part for name in SHAPE for part in (f"--{name}", str(getattr(args, name.replace("-", "_"))))]
    pinned = ["taskset", "-c", str(args.core), *command, *flags]
    done = subprocess.run(pinned, capture_output=True, text=True, env=env, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{shlex.join(pinned)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(args: argparse.Namespace) -> None:
    programs = {"jaxagent": [sys.executable, str(Path(__file__).resolve()), "--own", "--remat", args.remat]}
    for peer in args.peer:
        name, _, command = peer.partition("=")
        programs[name] = shlex.split(command)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    print(f"command  {shlex.join([sys.executable, *sys.argv])}\ncommit   {commit.stdout.strip()}")
    print(f"machine  {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    results: dict[str, list[dict]] = {name: [] for name in programs}
    for turn in range(args.rounds):
        for name, command in programs.items():
            results[name].append(launch(command, args))
            print(f"round {turn} {name}: {_line(results[name][-1])}", flush=True)
    rate = {n: statistics.median(r["update_tok_cpu_s"] for r in rs) for n, rs in results.items()}
    memory = {n: max(r["peak_rss_gb"] for r in rs) for n, rs in results.items()}
    print(f"\nV={args.vocab}, batch {args.batch}, prompt {args.prompt}, new {args.new}")
    for name in programs:
        own_rate, own_memory = rate["jaxagent"] / rate[name], memory["jaxagent"] / memory[name]
        print(
            f"{name:10} {rate[name]:8.0f} tokens/CPU-s, {memory[name]:.2f} GB peak; "
            f"jaxagent is {own_rate:.2f} x as fast with {own_memory:.2f} x the memory"
        )


def _line(result: dict) -> str:
    shown = ("update_tok_cpu_s", "peak_rss_gb", "cpu_s", "update_gflops", "bare_product_gflops")
    return ", ".join(f"{key} {result[key]}" for key in shown if key in result)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in SHAPE.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--peer", action="append", default=[], help='"name=python program flags"')
    parser.add_argument("--rounds", type=int, default=1, help="how often each program runs")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--remat", default="full", help="jaxagent's recomputation policy")
    parser.add_argument(
        "--own", action="store_true", help="run jaxagent's program only and print its JSON line"
    )
    args = parser.parse_args()
    if args.own:
        print(json.dumps(own(args)))
    else:
        compare(args)


if __name__ == "__main__":
    main()
