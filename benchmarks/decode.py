"""Decoder speed beside its peers, same shapes, one run: tokens per CPU-second on one core.

    python benchmarks/decode.py --bench-dir DIR [--tunix-python PY] [--hf-python PY] [--vocab 32000 151936]
                                [--batch 8 32] [--turns-too] [--out results.md]

DIR holds the peers' programs (bench_tunix_sampler.py, bench_hf_torch.py, bench_tunix_multiturn.py); each runs
in its own environment. Every program runs `--rounds` times, peers and jaxagent alternating, pinned to one
core; medians of the rounds. generate = prefill + decode; decode = (all tokens) - (one token), prefill =
prompt tokens with one new token, as in the peers' programs. Quote ratios, not absolute times.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHAPE = {"layers": 4, "hidden": 256, "ffn": 768, "heads": 4, "kv-heads": 2, "head-dim": 64}
RATES = ("generate", "decode", "prefill")
ONE_CORE = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # jaxagent's programs ask for huge pages; here everybody does
}


def run(python: str, program: Path, flags: dict[str, object], core: str) -> dict:
    """One program's JSON result."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        words = [str(word) for name, value in {**flags, "out": out}.items() for word in (f"--{name}", value)]
        command = ["taskset", "-c", core, python, str(program), *[word for word in words if word != "True"]]
        done = subprocess.run(command, env={**os.environ, **ONE_CORE}, capture_output=True, text=True)
        if not out.exists():
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return json.loads(out.read_text().splitlines()[-1])


def programs(args: argparse.Namespace) -> dict[str, tuple[str, Path, dict[str, object]]]:
    found = {"jaxagent": (sys.executable, HERE / "decode_ours.py", {})}
    if args.tunix_python:
        found["tunix"] = (args.tunix_python, args.bench_dir / "bench_tunix_sampler.py", {})
    if args.hf_python:
        found["hf"] = (
            args.hf_python,
            args.bench_dir / "bench_hf_torch.py",
            {"skip-train": True, "threads": 1},
        )
    return found


def compare(args: argparse.Namespace, vocab: int, batch: int) -> list[str]:
    """Table rows of one shape: rates of each program, and our ratio to it."""
    flags = {
        **SHAPE,
        "vocab": vocab,
        "batch": batch,
        "prompt": args.prompt,
        "new": args.new,
        "iters": args.iters,
    }
    results: dict[str, list[dict]] = {}
    for _ in range(args.rounds):
        for name, (python, program, extra) in programs(args).items():
            results.setdefault(name, []).append(run(python, program, {**flags, **extra}, args.core))
    medians = {
        name: {rate: statistics.median(one[f"{rate}_tok_cpu_s"] for one in many) for rate in RATES}
        for name, many in results.items()
    }
    rows = []
    for name, rates in medians.items():
        cells = [f"{rates[rate]:,.0f}" for rate in RATES]
        ratios = [f"{medians['jaxagent'][rate] / rates[rate]:.2f}" for rate in RATES]
        rows.append(f"| {vocab:,} | {batch} | {name} | " + " | ".join(cells + ratios) + " |")
        print(rows[-1], flush=True)
    return rows


def compare_turns(args: argparse.Namespace) -> list[str]:
    """A 4-turn agent, group of 4: generated tokens per wall second, compilation included."""
    flags = {
        **SHAPE,
        "vocab": 32_000,
        "prompt": args.prompt,
        "new": args.new,
        "turns": 4,
        "group": 4,
        "groups": 2,
        "obs": 32,
        "eos-every": args.eos_every,
    }
    rows = []
    ours = run(sys.executable, HERE / "decode_ours.py", {**flags, "agent": True}, args.core)
    rows.append(
        f"| jaxagent | {ours['cold_tok_s']:.1f} | {ours['warm_tok_s']:.1f} | {ours['compilations']} | | |"
    )
    if args.tunix_python:
        program = args.bench_dir / "bench_tunix_multiturn.py"
        theirs = run(args.tunix_python, program, flags, args.core)
        speed = theirs["generated_tok_s"]  # its learner steps and the compilations of each new shape included
        cold, warm = ours["cold_tok_s"] / speed, ours["warm_tok_s"] / speed
        rows.append(f"| tunix | {speed} | | {theirs['compiles_total']} | {cold:.0f} | {warm:.0f} |")
    print("\n".join(rows), flush=True)
    return rows


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bench-dir", type=Path, default=Path("."), help="folder of the peers' programs")
    parser.add_argument("--tunix-python", default="", help="python with google-tunix")
    parser.add_argument("--hf-python", default="", help="python with torch and transformers")
    parser.add_argument("--vocab", type=int, nargs="*", default=[32_000, 151_936])
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iters", type=int, default=1)
    parser.add_argument("--core", default="1", help="core to pin to")
    parser.add_argument("--turns-too", action="store_true", help="also the 4-turn agent")
    parser.add_argument(
        "--eos-every", type=int, default=0, help="mean tokens of an agent's turn; 0: full turns"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines = [
        f"command: `{' '.join(sys.argv)}`",
        f"commit {commit()}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, pinned to "
        f"one, load {os.getloadavg()[0]:.1f}",
        "",
        "| V | batch | program | generate tok/CPU-s | decode | prefill | ours/it | decode | prefill |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for vocab in args.vocab:
        for batch in args.batch:
            lines += compare(args, vocab, batch)
    if args.turns_too:
        lines += ["", "| program | tok/s from cold start | warm | compilations | ours/it cold | warm |"]
        lines += ["|---|---|---|---|---|---|"]
        print("\n".join(lines[-3:]), flush=True)
        lines += compare_turns(args)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
