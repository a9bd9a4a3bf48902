"""`jaxagent eval` from the command line: scripts and endpoints on a real pool, stops, refusals, faults, reports."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from jaxagent.cli import main
from jaxagent.envs.doors import DOORS
from jaxagent.errors import EXIT_INCOMPLETE
from tests.auxlm.chat_server import completion, serving
from tests.test_config import SMALLEST
from tests.test_prepare import DOORS as DOORS_RUN

ROOT = Path(__file__).parents[1]
ADDRESS = ["--base-url", "http://x/v1", "--model", "m"]
DEV = [task.task_id for task in DOORS.tasks("dev")]


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.yaml"
    rollout = {"max_steps": 2, "max_tokens": 8, "context": 256, "slots": 4, "retries": 1}
    path.write_text(yaml.safe_dump({**SMALLEST, **DOORS_RUN, "rollout": rollout, "run_dir": "nowhere"}))
    return path


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr("jaxagent.auxlm.chat.ChatRules.backoff_s", 0.01)
    with serving(monkeypatch) as start:
        yield start


def result(folder):
    return json.loads((folder / "result.json").read_text())


def solver(body, number=0):
    """Plays doors by reading: the door of the wanted item, then the item."""
    texts = [message["content"] for message in body["messages"] if message["role"] == "user"]
    wanted, colour = re.search(r"You need the (\w+)\. The \w+ is behind the (\w+) door", texts[2]).groups()
    return completion(wanted if "Take the" in texts[-1] else colour)


# --- scripts -----------------------------------------------------------------------------------------------


def test_ceiling_and_floor_come_from_the_same_code(tmp_path, run_file, capsys):
    expert, noop = tmp_path / "expert", tmp_path / "noop"
    words = ["eval", str(run_file), "--split", "dev", "--split", "test"]
    assert main([*words, "--policy", "expert", "--out", str(expert)]) == 0
    assert main([*words, "--policy", "noop", "--out", str(noop), "--against", str(expert)]) == 0
    top, bottom = result(expert), result(noop)
    assert [e["metrics"]["tgc"] for e in top["evaluations"]] == [100.0, 100.0]
    assert [e["metrics"]["door"] for e in top["evaluations"]] == [1.0, 1.0]  # the environment's own
    assert [e["metrics"]["tgc"] for e in bottom["evaluations"]] == [0.0, 0.0]
    assert {e["metrics"]["turns"] for e in bottom["evaluations"]} == {1.0}
    assert [len(e["records"]) for e in top["evaluations"]] == [16, 32]
    assert top["complete"]
    compared = json.loads((noop / "comparison.json").read_text())["splits"]
    assert [(c["tasks"], c["measures"][0]["difference"]) for c in compared] == [(16, -1.0), (32, -1.0)]
    assert compared[0]["measures"][0]["p"] == 2 / 2**16
    assert main(["compare", str(expert), str(noop)]) == 0
    shown = capsys.readouterr().out
    assert "expert on doors" in shown
    assert re.search(r"│ door +│ +1 │ +1 │", shown)
    assert top["evaluations"][0]["own"] == ["reward", "success", "door", "invalid"]
    assert "B - A over 32 tasks of both" in shown


def test_the_report_holds_everything_and_escapes_it(tmp_path, run_file):
    out = tmp_path / "out"
    words = [
        "--policy",
        "expert",
        "--sloppiness",
        "1",
        "--n",
        "2",
        "--greedy",
        "--limit",
        "3",
        "--split",
        "dev",
    ]
    assert main(["eval", str(run_file), *words, "--out", str(out)]) == 0
    page = (out / "report" / "index.html").read_text()
    assert "the first 3 of 16 tasks" in page
    assert "pass_at_2" in page
    assert page.count("<details>") == 3 + 6
    assert "data:image/png;base64" in page
    assert (out / "report" / "scores.png").stat().st_size > 10_000
    found = result(out)
    assert [(e["mode"], e["n"], e["of"]) for e in found["evaluations"]] == [
        ("greedy", 1, 16),
        ("sampled", 2, 16),
    ]
    assert [record["task_id"] for record in found["evaluations"][0]["records"]] == DEV[:3]


def test_a_finished_evaluation_is_shown_again_and_plays_nothing(tmp_path, run_file, monkeypatch):
    out = tmp_path / "out"
    words = ["eval", str(run_file), "--policy", "expert", "--split", "dev", "--out", str(out)]
    assert main(words) == 0
    first, lines = result(out), (out / "episodes" / "dev-greedy.jsonl").read_bytes()
    monkeypatch.setattr("jaxagent.entrants.open_talks", None)
    (out / "result.json").unlink()
    assert main(["eval", str(run_file), "env.workers=1", "rollout.slots=2", *words[2:]]) == 0
    assert (out / "episodes" / "dev-greedy.jsonl").read_bytes() == lines
    assert strip(result(out)) == strip(first)


def strip(found):
    """A result without what is measured by a clock."""
    for evaluation in found["evaluations"]:
        del evaluation["seconds"], evaluation["cost"]
    return found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "expert"], "no split is named"),
        (["--policy", "expert", "--split", "dve"], "no split 'dve'"),
        (["--policy", "expert", "--split", "dev", "--n", "-1"], "eval.n=-1"),
        (["--policy", "expert", "--split", "dev", "--n", "2", "--temperature", "0"], "eval.temperature=0"),
        (["--policy", "nowhere", "--split", "dev"], "none of endpoint, expert, noop, model"),
        (["--policy", "endpoint", "--split", "dev"], "--base-url ''"),
        (["--policy", "endpoint", "--base-url", "http://x/v1", "--split", "dev"], "needs --model"),
        (
            [
                "--policy",
                "endpoint",
                "--base-url",
                "http://x/v1",
                "--model",
                "m",
                "--api-key-env",
                "NO_SUCH_KEY",
            ],
            "NO_SUCH_KEY is not set",
        ),
        (["--policy", "endpoint", "--extra", "[1]", "--split", "dev"], "expected a JSON object"),
        (["--policy", "endpoint", "--extra", "{", "--split", "dev"], "is no JSON"),
        (["--policy", "endpoint", "--extra", '{"top_k": NaN}', "--split", "dev"], "is no JSON"),
        (["--policy", "endpoint", "--base-url", "http://[::1/v1", "--split", "dev"], "no URL"),
        (["--policy", "endpoint", "--base-url", "http://x:y/v1", "--split", "dev"], "no URL"),
        (["--policy", "endpoint", "--base-url", "http:///v1", "--split", "dev"], "a host, then a path"),
        (["--policy", "endpoint", "--base-url", "http://x y/v1", "--split", "dev"], "without blanks"),
        (
            ["--policy", "endpoint", *ADDRESS, "--extra", '{"stream": true}', "--split", "dev"],
            "stream cannot",
        ),
        (["--policy", "endpoint", *ADDRESS, "--api-key-env", "NEWLINE_KEY", "--split", "dev"], "line ends"),
        (["--policy", "model", *ADDRESS, "--split", "dev"], "--base-url says nothing here"),
        (["--policy", "noop", "--sloppiness", "1", "--split", "dev"], "needs --policy expert"),
        (["--policy", "expert", "--temperature", "0.5", "--split", "dev"], "needs --n"),
        (["--policy", "expert", "--against", "no/such", "--split", "dev"], "no/such cannot be read"),
        (["--policy", "model", "--split", "dev", "rollout.context=100"], "leaves no room to answer"),
        (["--policy", "hf://no/such", "--split", "dev"], "no/such"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path, run_file, capsys, monkeypatch, words, message
):
    monkeypatch.setenv("NEWLINE_KEY", "sk-secret\n")
    overrides = [word for word in words if word.startswith("rollout.")]
    flags = [word for word in words if word not in overrides]
    if "NO_SUCH_KEY" in flags:
        flags += ["--split", "dev"]
    out = tmp_path / "out"
    assert main(["eval", str(run_file), *overrides, *flags, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert "sk-secret" not in error
    assert not out.exists()


def test_other_settings_are_refused_by_name(tmp_path, run_file, capsys):
    out = tmp_path / "out"
    words = ["eval", str(run_file), "--policy", "noop", "--split", "dev", "--limit", "2", "--out", str(out)]
    assert main(words) == 0
    assert main([*words[:7], "3", *words[8:]]) == 2
    assert "limit: 2 there, 3 now" in capsys.readouterr().err
    assert main([*words[:2], "rollout.max_observation_chars=99", *words[2:]]) == 2
    assert "max_observation_chars: 16000 there, 99 now" in capsys.readouterr().err
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("")
    assert main([*words[:-1], str(other)]) == 2
    assert "is not empty and holds no evaluation" in capsys.readouterr().err


def test_a_folder_or_file_that_cannot_be_used_is_one_message(tmp_path, run_file, capsys):
    out = tmp_path / "out"
    words = ["eval", str(run_file), "--policy", "noop", "--split", "dev", "--limit", "99", "--out"]
    assert main([*words, str(out)]) == 0  # more than the split has is the whole split
    assert len(result(out)["evaluations"][0]["records"]) == 16
    assert main(["compare", str(out), str(out), "--json", str(tmp_path / "no" / "such.json")]) == 2
    assert "such.json cannot be written" in capsys.readouterr().err
    for name, text, message in (
        ("settings.json", "[]", "holds no settings"),
        ("settings.json", '{"poli', "settings.json cannot be read"),
        ("episodes/dev-greedy.jsonl", '{"task": "doors/dev/0", "rollout": 0}\n', "line 1 is no episode"),
    ):
        before = (out / name).read_text()
        (out / name).write_text(text)
        assert main([*words, str(out)]) == 2
        assert message in capsys.readouterr().err
        (out / name).write_text(before)
    assert main([*words, str(run_file / "out")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_policy_is_the_same_from_every_working_directory(tmp_path, run_file, monkeypatch, capsys):
    """--policy RUN_DIR is found, and refused, by its whole path."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(run_file.read_text())
    monkeypatch.chdir(tmp_path / "run")
    words = ["eval", str(run_file), "--split", "dev", "--out", str(tmp_path / "out"), "--policy"]
    for policy in (".", "checkpoints/00000040.0"):
        assert main([*words, policy]) == 2
        assert f"{tmp_path / 'run'} holds no whole checkpoint" in capsys.readouterr().err


# --- endpoints ---------------------------------------------------------------------------------------------


def endpoint_words(run_file, server, out, *more):
    words = ["--policy", "endpoint", "--base-url", server.url, "--model", "tiny", "--timeout-s", "60"]
    return ["eval", str(run_file), *more, *words, "--split", "dev", "--limit", "4", "--out", str(out)]


def test_an_endpoint_is_measured_like_any_policy(tmp_path, run_file, serve, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    server = serve(solver)
    out = tmp_path / "out"
    words = [*endpoint_words(run_file, server, out), "--n", "2", "--api-key-env", "MY_KEY", "--sizes", "tiny"]
    assert main([*words, "--chips", "4"]) == 0
    (found,) = result(out)["evaluations"]
    assert found["metrics"]["tgc"] == 100
    assert found["metrics"]["pass_hat_2"] == 1
    assert (found["metrics"]["action_tokens"], found["metrics"]["total_tokens"]) == (8.0, 24.0)
    assert found["metrics"]["flops"] > 0
    assert found["cost"]["chip_s_per_solved"] == pytest.approx(4 * found["cost"]["wall_s"] / 8)
    assert len(server.seen) == 16
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert "secret" not in (out / "settings.json").read_text() + (out / "result.json").read_text()


FAULTS = {
    "429": (429, {}, b"slow down"),
    "500": (500, {}, b"oops"),
    "malformed": (200, {}, b'{"choices": [{"mess'),
    "slow": None,
}


@pytest.mark.parametrize("fault", [*FAULTS.values()], ids=[*FAULTS])
def test_a_lasting_fault_drops_the_episode_which_is_counted_and_never_zero(
    tmp_path, run_file, serve, capsys, monkeypatch, fault
):
    monkeypatch.setattr("jaxagent.auxlm.chat.ChatRules.retries", 0)
    failing = [True]

    def reply(body, number):
        asked = " ".join(message["content"] for message in body["messages"])
        bad = failing[0] and asked == asked_of(1)
        return (fault or server.hang) if bad else solver(body)

    def asked_of(index):
        """The opening of a task, by which the server knows it."""
        task = DOORS.tasks("dev")[index]
        env = DOORS.make()
        prompt = DOORS.prompt(task, env.reset(task))
        return " ".join(message.content for message in prompt.messages)

    server, out = serve(reply), tmp_path / "out"
    words = endpoint_words(run_file, server, out)
    if fault is None:
        words[words.index("60")] = "3"
    assert main(words) == EXIT_INCOMPLETE
    found = result(out)
    metrics = found["evaluations"][0]["metrics"]
    assert not found["complete"]
    assert found["evaluations"][0]["dropped"] == {"endpoint": 1}
    assert (metrics["tasks"], metrics["missing"], metrics["tgc"]) == (4, 1, 100)
    assert "INCOMPLETE: 1 episodes were dropped" in capsys.readouterr().err
    noted = [json.loads(line) for line in (out / "episodes" / "failures.jsonl").read_text().splitlines()]
    assert [(line["task"], line["kind"]) for line in noted] == [(DEV[1], "endpoint")] * 2
    failing[0] = False
    before = len(server.seen)
    assert main(words) == 0
    assert len(server.seen) == before + 2  # only the dropped episode is played
    assert result(out)["complete"]
    assert result(out)["evaluations"][0]["metrics"]["missing"] == 0


def test_a_dead_server_is_one_line_and_what_is_finished_is_kept(tmp_path, run_file, serve, capsys):
    server, out = serve(solver), tmp_path / "out"
    server.close()
    assert main(endpoint_words(run_file, server, out)) == EXIT_INCOMPLETE
    error = capsys.readouterr().err
    assert "stopped: not one of 4 episodes survived: {'endpoint': 4}" in error
    assert "Traceback" not in error
    assert not (out / "result.json").exists()


def test_a_wrong_key_is_one_line(tmp_path, run_file, serve, capsys):
    server = serve(lambda body, number: (401, {}, b"who are you"))
    assert main(endpoint_words(run_file, server, tmp_path / "out")) == 2
    assert "the endpoint refuses" in capsys.readouterr().err


def test_a_killed_evaluation_goes_on_to_the_same_result(tmp_path, run_file, serve):
    """The server stops answering in the third episode; the process is killed there, and leaves half a line."""
    hanging = [True]

    def reply(body, number):
        return server.hang if hanging[0] and number >= 5 else solver(body)

    server, out, whole = serve(reply), tmp_path / "out", tmp_path / "whole"
    words = endpoint_words(run_file, server, out, "rollout.slots=1")
    command = [sys.executable, "-m", "jaxagent.cli", *words]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stdout=log, stderr=log)
    for _ in range(3000):
        if len(server.seen) >= 6:
            break
        assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    hanging[0] = False
    path = out / "episodes" / "dev-greedy.jsonl"
    assert path.read_bytes().count(b"\n") == 2
    with path.open("a") as file:
        file.write('{"task": "doors/dev/')
    before = len(server.seen)
    assert main(words) == 0
    assert len(server.seen) == before + 4
    assert main(endpoint_words(run_file, server, whole)) == 0
    assert strip(result(out))["evaluations"] == strip(result(whole))["evaluations"]


def test_an_interrupt_ends_an_evaluation_that_waits_for_its_server(tmp_path, run_file, serve):
    """The first one: a loop that is blocked would swallow it, and open requests would hold the process."""
    server, out = serve(lambda body, number: server.hang), tmp_path / "out"
    start = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    start += "from jaxagent.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", start, *endpoint_words(run_file, server, out)]
    process = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stderr=subprocess.PIPE, text=True)
    for _ in range(3000):
        if len(server.seen) == 4 or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=30)[1]  # requests time out after 60
    assert process.returncode == 130, error
    assert error.splitlines()[-1].startswith("interrupted; ")
