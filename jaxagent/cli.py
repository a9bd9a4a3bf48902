"""The `jaxagent` command: words in, an exit code out. What the commands do lives in run.py and the packages below.

Exit codes: 0 done, 2 bad input (one message, before any device starts), 3 training diverged, 75 preempted (saved;
start the same command again to go on), 130 interrupted from the keyboard.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxagent.clock import Clock
from jaxagent.errors import ConfigError, DataError, DivergenceError

ROOT = Path(__file__).parents[1]
EXIT_INTERRUPTED = 130  # what shells call the end by SIGINT
QUICKSTART = ROOT / "configs" / "runs" / "quickstart.yaml"


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        return parsed.command(parsed)
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except DivergenceError as error:
        print(f"stopped: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("interrupted; a run goes on from its newest checkpoint at the same command", file=sys.stderr)
        return EXIT_INTERRUPTED


def _train(parsed: argparse.Namespace) -> int:
    clock = Clock()
    from jaxagent.config import read_run
    from jaxagent.run import run_training

    config = read_run(*_run_file(parsed))
    clock.lap("imports")
    return run_training(config, clock=clock)


def _check(parsed: argparse.Namespace) -> int:
    from jaxagent.config import read_run
    from jaxagent.run import build_stages, prepare

    path, overrides = _run_file(parsed)
    prepared = prepare(read_run(path, overrides))
    for stage in build_stages(prepared):
        stage.close()
    print(f"{path}: fits. {prepared.summary}")
    return 0


def _run_file(parsed: argparse.Namespace) -> tuple[Path, list[str]]:
    """Path and overrides. `train key=value` without a run file means the quickstart with overrides."""
    if "=" in parsed.run and not Path(parsed.run).exists():
        return QUICKSTART, [parsed.run, *parsed.overrides]
    return Path(parsed.run), parsed.overrides


def _export(parsed: argparse.Namespace) -> int:
    from jaxagent.run import export_run

    print(export_run(Path(parsed.run_dir), Path(parsed.out), form=parsed.form))
    return 0


def _report(parsed: argparse.Namespace) -> int:
    from jaxagent.report.run import write_report

    write_report(Path(parsed.run_dir))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxagent", description="Train tool-using LLM agents by RL, in JAX."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command)
        return sub

    for name, command, text in (
        ("train", _train, "Run the stages of a run file; started again, it goes on where it stopped."),
        (
            "check",
            _check,
            "Read a run file, everything it names and its demonstrations, without starting a device.",
        ),
    ):
        sub = add(name, command, text)
        sub.add_argument("run", nargs="?", default=str(QUICKSTART), help="run file (default: the quickstart)")
        sub.add_argument(
            "overrides", nargs="*", metavar="key=value", help="for example seed=3 rollout.max_steps=8"
        )
    sub = add("report", _report, "Draw the curves and the page of a run folder, finished or not.")
    sub.add_argument("run_dir")
    sub = add("export", _export, "Write the newest checkpoint of a run as a Hugging Face folder.")
    sub.add_argument("run_dir")
    sub.add_argument("out")
    sub.add_argument(
        "--form", choices=["merged", "adapter"], default="merged", help="LoRA runs: merged or adapter"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
