import io

from rich.console import Console

from jaxagent.console import RunConsole, duration


def ticking(seconds):
    state = iter(range(10_000))
    return lambda: next(state) * seconds


def test_plain_lines_with_rates_and_eta():
    out = io.StringIO()
    console = RunConsole(Console(file=out), clock=ticking(2.0))
    console.start("rl", 32)
    console.iteration(1, {"reward/mean": 0.25, "rollout/success": 0.5, "unknown": 1.0}, note="saved")
    console.iteration(2, {"ce/loss/total": 0.5, "entropy": 1.25})
    console.message("alarm: [b] look")
    console.stop()
    assert out.getvalue().splitlines() == [
        "rl 1/32  reward 0.250  success 50%  saved  2.0 s/it, at most 1:02 left",
        "rl 2/32  loss 0.5000  entropy 1.25  2.0 s/it, 1:00 left",
        "alarm: [b] look",
    ]


def test_a_resumed_stage_counts_only_what_it_did():
    out = io.StringIO()
    console = RunConsole(Console(file=out), clock=ticking(0.25))
    console.start("rl", 12, done=10)
    console.iteration(11, {})
    console.iteration(12, {})
    assert out.getvalue().splitlines() == [
        "rl 11/12  4.0 it/s, at most 0:00 left",
        "rl 12/12  4.0 it/s, 0:00 left",
    ]


def test_some_short_iterations_get_no_line_and_what_has_something_to_say_does():
    out = io.StringIO()
    console = RunConsole(Console(file=out), clock=ticking(0.5))
    console.start("sft", 12)
    for number in range(1, 13):
        console.iteration(number, {}, note="saved" if number == 3 else "")
    assert [line.split()[1] for line in out.getvalue().splitlines()] == [
        "1/12",
        "3/12",
        "7/12",
        "11/12",
        "12/12",
    ]


def test_a_first_iteration_that_compiles_does_not_slow_the_estimate():
    out = io.StringIO()
    times = iter([0.0, 60.0, 62.0, 64.0])
    console = RunConsole(Console(file=out), clock=lambda: next(times))
    console.start("rl", 31)
    for number in (1, 2, 3):
        console.iteration(number, {})
    assert [line.split("  ")[1] for line in out.getvalue().splitlines()] == [
        "60.0 s/it, at most 30:00 left",
        "2.0 s/it, 0:58 left",
        "2.0 s/it, 0:56 left",
    ]


def test_a_terminal_gets_the_same_lines_above_a_bar():
    out = io.StringIO()
    console = RunConsole(Console(file=out, force_terminal=True))
    console.start("rl", 3)
    console.iteration(1, {"loss/total": 0.25}, note="[x]")
    console.stop()
    assert "rl 1/3  loss 0.2500  [x]" in out.getvalue()


def test_duration():
    assert [duration(s) for s in (5.0, 75.0, 3675.0)] == ["0:05", "1:15", "1:01:15"]


def test_a_line_of_rollouts_shows_no_loss():
    out = io.StringIO()
    console = RunConsole(Console(file=out), clock=ticking(0.0))
    console.start("rl", 2)
    metrics = {"loss/total": 0.0, "rollout/success": 0.25, "rollout/exec_fail": 0.5, "rollout/turns": 2.5}
    console.iteration(1, metrics | {"pg/entropy": 0.3, "grad_norm": 0.1, "seconds/total": 3.0})
    assert (
        out.getvalue()
        == "rl 1/2  success 25%  failed steps 50%  turns 2.5  entropy 0.30  |g| 0.10  time 3.0s\n"
    )
