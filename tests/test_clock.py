"""Seconds of a run: every one counted, each once. Time is what the tests say it is."""

import pytest

from jaxagent.clock import Clock, Meter, divided, own_seconds
from jaxagent.compilations import COMPILE, Compilations


class Time:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_moment_counts_once_for_the_first_kind_that_is_active():
    time = Time()
    meter = Meter("decode", "environments", now=time)
    time.now += 1  # nothing
    with meter.during("environments"):
        time.now += 2  # environments
        with meter.during("environments"), meter.during("decode"):
            time.now += 4  # decode hides two open calls
        time.now += 8  # environments
        assert meter.seconds() == {"decode": 4.0, "environments": 10.0}
    time.now += 16
    assert meter.seconds() == {"decode": 4.0, "environments": 10.0}


def test_a_call_that_fails_is_over():
    time = Time()
    meter = Meter("environments", now=time)

    def fail():
        with meter.during("environments"):
            time.now += 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    time.now += 1
    assert meter.seconds() == {"environments": 1.0}


def test_laps_add_up_to_the_whole():
    time = Time()
    clock = Clock(now=time)
    time.now += 3
    clock.lap("imports")
    clock.take("start")
    counts = {
        "decode": 7.0,
        "environments": 0.0,
        "compilation": 1.0,
    }  # what was counted before does not matter
    clock.divide(lambda: dict(counts))
    time.now += 10
    counts.update(decode=12.0, environments=3.0, compilation=2.0)
    clock.lap("collect")
    time.now += 4
    counts.update(compilation=4.5)
    clock.lap("update")
    assert clock.take("loop") == {
        "seconds/collect": 10.0,
        "seconds/collect/decode": 5.0,
        "seconds/collect/decode/compilation": 1.0,
        "seconds/collect/environments": 3.0,
        "seconds/collect/python": 2.0,
        "seconds/update": 4.0,
        "seconds/update/compilation": 2.5,
        "seconds/total": 14.0,
    }
    parts = {"decode": 4.0, "compilation": 3.5, "environments": 3.0, "python": 2.0, "update": 1.5}
    loop = {part: seconds for part, seconds in clock.spent["loop"].items() if seconds}
    assert clock.spent["start"] == {"imports": 3.0}
    assert loop == parts
    assert clock.total == time.now - 100.0
    assert clock.take("loop") == {"seconds/total": 0.0}


def test_what_earlier_processes_spent_comes_first():
    time = Time()
    clock = Clock(now=time)
    time.now += 2
    clock.lap("imports")
    clock.take("start")
    clock.resume({"start": {"imports": 1.0, "build": 4.0}, "loop": {"update": 8.0}})
    assert clock.spent == {"start": {"imports": 3.0, "build": 4.0}, "loop": {"update": 8.0}}
    assert list(clock.spent) == ["start", "loop"]
    assert clock.total == 15.0


def test_a_lap_without_ticks_is_divided_by_what_it_compiled():
    assert divided("score", 3.0, {"decode": 0.0, "compilation": 1.0}) == {
        "score": 3.0,
        "score/compilation": 1.0,
    }


def test_parts_without_their_divisions():
    line = {"seconds/collect": 5.0, "seconds/collect/decode": 3.0, "seconds/update": 4.0, "reward": 1.0}
    line |= {"seconds/update/compilation": 1.0, "seconds/total": 10.0, "seconds/score": None}
    assert own_seconds(line) == {"collect": 2.0, "decode": 3.0, "update": 3.0, "compilation": 1.0}


def test_nested_spans_count_once():
    found = Compilations()
    found.close()  # only the spans of this test
    trace = "/jax/core/compile/jaxpr_trace_duration"
    for name, start, end in ((trace, 1.0, 2.0), (trace, 3.0, 4.0), (trace, 0.5, 5.0), (COMPILE, 5.0, 9.0)):
        found._on(name, start, end)
    found._on("/something/else", 9.0, 99.0)
    assert (found.count, found.seconds) == (1, 8.5)


def test_compilations_of_this_process_are_counted():
    import jax
    import jax.numpy as jnp

    found = Compilations()
    function = jax.jit(lambda x_3: (x_3 * 2.5).sum())
    function(jnp.arange(3.0)).block_until_ready()
    first = found.count
    assert first >= 1
    assert found.seconds > 0
    function(jnp.arange(3.0)).block_until_ready()
    assert found.count == first
    found.close()


def test_episodes_that_run_ahead_cost_the_update_no_time():
    now = [0.0]
    clock, ticks = Clock(lambda: now[0]), {"decode": 0.0}
    clock.divide(lambda: dict(ticks))
    now[0], ticks["decode"] = 4.0, 3.0
    clock.lap("update")
    now[0], ticks["decode"] = 6.0, 4.0
    clock.lap("collect")
    taken = clock.take("rl")
    assert taken["seconds/update"] == 4.0
    assert "seconds/update/decode" not in taken
    assert taken["seconds/collect/decode"] == 1.0
