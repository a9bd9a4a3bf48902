"""The `jaxagent` command: words in, an exit code out. What the commands do lives in run.py and the packages below.

Exit codes: 0 done, 2 bad input (one message, before any device starts) or a disk that refuses, 3 training diverged, 4
rollouts or what they need failed (start the same command again to play what is missing), 5 stopped by a collapse alarm
(saved, with a report), 75 preempted (saved; start the same command again to go on), 130 interrupted from the keyboard.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from jaxagent.clock import Clock
from jaxagent.errors import EXIT_INCOMPLETE, ConfigError, DataError, DivergenceError, JaxagentError
from jaxagent.huge_pages import ask_for_huge_pages

ROOT = Path(__file__).parents[1]
EXIT_INTERRUPTED = 130  # what shells call the end by SIGINT
GOES_ON = "a run goes on from its newest checkpoint at the same command, an evaluation from its last episode"
DISK = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE, errno.EROFS),
    *(errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG),
)
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
    except JaxagentError as error:  # of rollouts, environments, language models that are asked
        print(f"stopped: {error}\n{GOES_ON}", file=sys.stderr)
        return EXIT_INCOMPLETE
    except OSError as error:
        if error.errno not in DISK:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"error: {where}{error.strerror}; free space, or give another path that can be written\n{GOES_ON}",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; {GOES_ON}", file=sys.stderr)
        return EXIT_INTERRUPTED


def _train(parsed: argparse.Namespace) -> int:
    clock = Clock()
    from jaxagent.run import run_training
    from jaxagent.run_file import read_run

    config = read_run(*_run_file(parsed))
    clock.lap("imports")
    return run_training(config, clock=clock)


def _check(parsed: argparse.Namespace) -> int:
    from jaxagent.run import build_stages, opened
    from jaxagent.run_file import read_run

    path, overrides = _run_file(parsed)
    prepared = opened(read_run(path, overrides))
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


def _credit(parsed: argparse.Namespace) -> int:
    from jaxagent.data.rollout_store import RolloutStore
    from jaxagent.report.credit import report_credit
    from jaxagent.rescore import every_method, read_methods, read_reward

    methods = read_methods(parsed.methods) if parsed.methods else every_method()
    reward, store = read_reward(parsed.reward), RolloutStore(Path(parsed.store))
    out = Path(parsed.out) if parsed.out else store.path.parent / "report" / "credit.html"
    report_credit(store, methods, reward, out, iteration=parsed.iteration, task=parsed.task)
    return 0


def _eval(parsed: argparse.Namespace) -> int:
    from jaxagent.eval.compare import read_evaluations
    from jaxagent.eval.settings import asked
    from jaxagent.evaluate import run_evaluation
    from jaxagent.report.evaluation import write_evaluation_report
    from jaxagent.run_file import read_run

    config, out = read_run(*_run_file(parsed)), Path(parsed.out)
    if parsed.against:
        read_evaluations(Path(parsed.against))  # a wrong path is said now, not after hours
    code = run_evaluation(config, asked(vars(parsed)), out)
    write_evaluation_report(out)
    if parsed.against:
        _show_comparison(Path(parsed.against), out, out / "comparison.json")
    return code


def _compare(parsed: argparse.Namespace) -> int:
    _show_comparison(Path(parsed.a), Path(parsed.b), Path(parsed.json) if parsed.json else None)
    return 0


def _show_comparison(a: Path, b: Path, out: Path | None) -> None:
    from jaxagent.eval.compare import compare
    from jaxagent.eval.settings import write_json
    from jaxagent.report.comparison import show_comparison

    compared = compare(a, b)
    show_comparison(compared, a, b)
    if out is not None:
        write_json(out, {"a": str(a), "b": str(b), "splits": [asdict(item) for item in compared]})


def _serve_env(parsed: argparse.Namespace) -> int:
    from jaxagent.envs.server import main as serve

    return serve([parsed.env, *parsed.rest])


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
        _add_run_file(add(name, command, text))
    sub = add("eval", _eval, "Measure a policy on the environment of a run file; started again, it goes on.")
    _add_run_file(sub)
    _add_eval(sub)
    sub = add("compare", _compare, "Compare two evaluations task by task: difference, interval, p-value.")
    sub.add_argument("a", metavar="A", help="folder of jaxagent eval, or a JSON file of RUN_DIR/evaluations")
    sub.add_argument("b", metavar="B")
    sub.add_argument("--json", metavar="FILE", help="write the comparison there too")
    sub = add("report", _report, "Draw the curves and the page of a run folder, finished or not.")
    sub.add_argument("run_dir")
    _add_credit(add("credit", _credit, "Score stored rollouts again under several methods, step by step."))
    sub = add("serve-env", _serve_env, "Host an environment over HTTP (docs/environments/http.md).")
    sub.add_argument("env", help="a name of the table of environments, or a run file")
    sub.add_argument(
        "rest", nargs=argparse.REMAINDER, help="python -m jaxagent.envs.server --help lists them"
    )
    sub = add("export", _export, "Write the newest checkpoint of a run as a Hugging Face folder.")
    sub.add_argument("run_dir")
    sub.add_argument("out")
    sub.add_argument(
        "--form", choices=["merged", "adapter"], default="merged", help="LoRA runs: merged or adapter"
    )
    return parser


def _add_run_file(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("run", nargs="?", default=str(QUICKSTART), help="run file (default: the quickstart)")
    sub.add_argument(
        "overrides", nargs="*", metavar="key=value", help="for example seed=3 rollout.max_steps=8"
    )


def _add_credit(sub: argparse.ArgumentParser) -> None:
    """See docs/methods/stored_rollouts.md."""
    sub.add_argument(
        "store", metavar="RUN_OR_STORE", help="run folder with keep_rollouts, or its rollouts.bin"
    )
    methods = (
        "recipes with options, such as grpo,gvpo,'gigpo{w: 0.5}' (default: every recipe that has a credit)"
    )
    sub.add_argument("--methods", metavar="LIST", help=methods)
    reward = "stored (as trained), success, test_fraction, score, or a record such as '{outcome: success, format: 0.2}'"
    sub.add_argument("--reward", default="stored", help=reward)
    sub.add_argument("--iteration", type=int, metavar="N", help="which stored iteration (default: the last)")
    sub.add_argument("--task", metavar="ID", help="show this task alone")
    sub.add_argument("--out", metavar="FILE", help="HTML page (default: report/credit.html beside the store)")


def _add_eval(sub: argparse.ArgumentParser) -> None:
    """What `eval` takes beside the run file; see docs/evaluation.md."""
    who = "run folder or one of its checkpoints, Hugging Face folder, hf://name, model, endpoint, expert or noop"
    sub.add_argument("--policy", required=True, help=who)
    sub.add_argument("--out", required=True, help="folder of the result; it goes on where it stopped")
    sub.add_argument(
        "--split", action="append", dest="splits", metavar="NAME", help="repeatable; default eval.splits"
    )
    sub.add_argument("--limit", type=int, metavar="N", help="the first N tasks of each split")
    sub.add_argument("--n", type=int, metavar="N", help="sampled rollouts of each task (default 0)")
    sub.add_argument("--greedy", action="store_true", help="one greedy rollout too (the default without --n)")
    sub.add_argument("--temperature", type=float, help="of sampled rollouts (default 1.0)")
    sub.add_argument(
        "--seed", type=int, help="of sampled rollouts (default 0: the streams that training evaluates by)"
    )
    sub.add_argument("--sloppiness", type=float, help="of the expert, 0 (never errs) to 1")
    sub.add_argument("--against", metavar="DIR", help="compare with this evaluation, task by task")
    server = sub.add_argument_group("--policy endpoint: any OpenAI-compatible server")
    server.add_argument("--base-url", help="up to the version, for example http://127.0.0.1:8000/v1")
    server.add_argument("--model", help="the server's name of the model")
    server.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the key")
    server.add_argument("--timeout-s", type=float, metavar="S", help="of one request (default 300)")
    server.add_argument("--extra", metavar="JSON", help="fields added to each request; null takes one away")
    server.add_argument(
        "--sizes", metavar="MODEL", help="model of configs/models or folder, to count FLOPs by"
    )
    server.add_argument("--chips", type=int, metavar="N", help="chips that the server holds, for the cost")


def program() -> int:
    """`main` as a process of its own."""
    ask_for_huge_pages()
    return main()


if __name__ == "__main__":
    sys.exit(program())
