"""What runs ahead, what may not, and that nothing of it is left behind."""

import threading

import pytest

from jaxagent.ahead import Ahead
from jaxagent.collected import Collected


def never(done):
    return False


def begun(ahead, iteration, last=9, quiet=never):
    found = list(ahead.may_begin(iteration, last, quiet))
    for later in found:
        ahead.keep(later, lambda: Collected((), {}))
    return found


def test_no_lag_begins_nothing_and_runs_in_step():
    ahead = Ahead(0)
    assert begun(ahead, 0) == []
    ran = []
    waiting = ahead.run(lambda: ran.append(1) or Collected((), {}))
    assert ran == []
    waiting()
    assert ran == [1]
    ahead.close(lambda: pytest.fail("there is nothing to cancel"))


def test_as_many_as_the_lag_and_each_once():
    ahead = Ahead(2)
    assert begun(ahead, 0) == [1, 2]
    assert ahead.take(1) is not None
    assert begun(ahead, 1) == [3]
    assert begun(ahead, 8, last=9) == [9]
    assert ahead.pending
    ahead.close(lambda: None)
    assert not ahead.pending


def test_nothing_is_begun_past_a_checkpoint():
    """Saved after 2 and 4 iterations: iteration 2 (the third) waits until the first two are learnt from."""
    ahead, saves = Ahead(3), lambda done: done % 2 == 0
    assert begun(ahead, 0, quiet=saves) == [1]
    assert begun(ahead, 1, quiet=saves) == []
    assert begun(ahead, 2, quiet=saves) == [3]
    ahead.close(lambda: None)


def test_work_runs_while_its_caller_does_something_else():
    ahead, may_end = Ahead(1), threading.Event()

    def work():
        assert may_end.wait(10)
        return Collected((), {"rollout/kept": 1.0})

    waiting = ahead.run(work)
    may_end.set()
    assert waiting().metrics == {"rollout/kept": 1.0}
    ahead.close(lambda: None)


def test_a_failure_reaches_whoever_waits():
    ahead = Ahead(1)

    def fail():
        raise ValueError("no environment")

    waiting = ahead.run(fail)
    with pytest.raises(ValueError, match="no environment"):
        waiting()
    ahead.close(lambda: None)


def test_what_is_given_up_is_cancelled_and_has_ended():
    ahead, cancelled, ended = Ahead(1), threading.Event(), threading.Event()

    def work():
        assert cancelled.wait(10)
        ended.set()
        return Collected((), {})

    ahead.keep(1, ahead.run(work))
    ahead.clear(cancelled.set)
    assert ended.is_set()
    assert ahead.take(1) is None
    ahead.close(lambda: None)
