"""Slots, sharing, eviction and buckets, without a device."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.decode.buckets import Buckets
from jaxagent.decode.scheduler import Copy, Job, Scheduler, common_prefix, slot_of
from jaxagent.errors import ConfigError
from jaxagent.types import GenerateRequest, SampleKey, Sampling

BUCKETS = Buckets(prefill=((2, 8), (4, 8), (2, 32)), decode=(2, 4), lengths=(32, 64))


def job(session, ids):
    ids = np.asarray(ids, np.int32)
    asked = GenerateRequest(session, ids, SampleKey(0, 0, 0, 0), Sampling(max_tokens=4))
    return Job(asked, ids.tolist(), len(ids), ids.tobytes())


def prefill_all(scheduler):
    """(batches, copies) until nothing is missing."""
    batches, copies = [], []
    while True:
        copies += [copy for batch in scheduler.place() for copy in batch]
        batch = scheduler.next_prefill()
        if batch is None:
            return batches, copies
        scheduler.prefilled(batch)
        batches.append(batch)


def finish(scheduler, *jobs):
    for one in jobs:
        scheduler.decoded(one, [7], [-1.0])
        scheduler.finish(one)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"decode": (4, 2)}, "buckets.decode"),
        ({"lengths": ()}, "buckets.lengths"),
        ({"prefill": ((0, 8),)}, "buckets.prefill"),
        ({"prefill": ((2, 65),)}, "takes 65 tokens at once, the context is 64"),
    ],
)
def test_impossible_buckets_are_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        replace(BUCKETS, **sizes)


def test_common_prefix():
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 2, 4, 5])) == 2
    assert common_prefix(np.array([1, 2]), np.array([1, 2, 3])) == 2
    assert common_prefix(np.array([5]), np.array([6])) == 0
    assert common_prefix(np.array([], np.int32), np.array([6])) == 0


def test_followers_wait_for_the_leaders_prefill_and_copy_it():
    scheduler = Scheduler(slots=4, buckets=BUCKETS)
    group = [job(f"g{i}", range(50)) for i in range(3)]
    for one in group:
        scheduler.submit(one)
    batches, copies = prefill_all(scheduler)
    # One row, 32 then 17 tokens; the last token is left for the first decode call.
    assert [(len(b.jobs), b.counts, b.rows, b.queries, b.length) for b in batches] == [
        (1, (32,), 2, 32, 32),
        (1, (17,), 2, 32, 64),
    ]
    assert copies == [Copy(0, 1, 49), Copy(0, 2, 49)]
    assert scheduler.decodable() == group


def test_different_tasks_share_their_system_prompt():
    scheduler = Scheduler(slots=4, buckets=BUCKETS)
    one, two = job("a", [*range(20), 100, 101]), job("b", [*range(20), 200, 201, 202])
    scheduler.submit(one)
    scheduler.submit(two)
    batches, copies = prefill_all(scheduler)
    assert copies == [Copy(0, 1, 20)]
    assert [batch.counts for batch in batches] == [(21,), (2,)]


def test_a_turn_prefills_only_what_is_new():
    scheduler = Scheduler(slots=2, buckets=BUCKETS)
    first = job("a", range(10))
    scheduler.submit(first)
    prefill_all(scheduler)
    scheduler.decoded(first, [90, 91], [-1.0, -1.0])
    assert slot_of(first).held == 11  # 10 of the context, 1 of the two that were sampled
    scheduler.finish(first)
    second = job("a", [*range(10), 90, 91, 5, 6])
    scheduler.submit(second)
    batches, copies = prefill_all(scheduler)
    assert copies == []
    assert [batch.counts for batch in batches] == [(2,)]  # tokens 91 and 5; 6 leads the decode call


def test_released_slots_go_first_then_the_session_idle_for_longest():
    scheduler = Scheduler(slots=3, buckets=BUCKETS)
    jobs = {name: job(name, np.full(10, i)) for i, name in enumerate("abc")}
    for one in jobs.values():
        scheduler.submit(one)
        prefill_all(scheduler)
    finish(scheduler, jobs["b"], jobs["a"])  # "c" is at work
    scheduler.submit(job("d", np.full(10, 50)))
    prefill_all(scheduler)
    assert "a" in scheduler.by_session  # "b" was idle for longer
    assert "b" not in scheduler.by_session
    assert scheduler.evictions == 1
    scheduler.release("a")
    scheduler.submit(job("e", np.full(10, 60)))
    prefill_all(scheduler)
    assert scheduler.evictions == 1
    scheduler.submit(job("f", np.full(10, 70)))  # every slot is at work: wait
    prefill_all(scheduler)
    assert [one.request.session for one in scheduler.queue] == ["f"]


def test_a_returning_session_is_not_evicted_for_one_that_asked_before_it():
    scheduler = Scheduler(slots=1, buckets=BUCKETS)
    first = job("a", range(10))
    scheduler.submit(first)
    prefill_all(scheduler)
    finish(scheduler, first)
    scheduler.submit(job("new", range(30, 40)))
    scheduler.submit(job("a", [*range(10), 7, 1]))
    prefill_all(scheduler)
    assert [one.request.session for one in scheduler.live] == ["a"]
    assert scheduler.evictions == 0


def test_a_copy_does_not_read_a_slot_that_the_same_batch_overwrites():
    scheduler = Scheduler(slots=2, buckets=BUCKETS)
    source = job("a", range(20))
    scheduler.submit(source)
    prefill_all(scheduler)
    finish(scheduler, source)
    scheduler.release("a")
    other = job("b", [*range(18), 90, 91])
    scheduler.submit(other)
    batches = scheduler.place()
    assert batches == [[Copy(0, 1, 18)]]  # the empty slot is taken, the source's tokens stay
    third = job("c", [*range(18), 80, 81])
    scheduler.submit(third)
    assert scheduler.place() == []  # taken over where it lies
    assert slot_of(third).index == 0
    assert slot_of(third).held == 18


def test_invalidate_and_finish_keep_no_stale_tokens():
    scheduler = Scheduler(slots=2, buckets=BUCKETS)
    one = job("a", range(20))
    scheduler.submit(one)
    prefill_all(scheduler)
    scheduler.invalidate()
    assert scheduler.decodable() == []
    batches, _ = prefill_all(scheduler)
    assert [batch.counts for batch in batches] == [(19,)]
    scheduler.decoded(one, [1, 2, 3], [-1.0] * 3)
    del one.ids[21:]  # a stop string cut two tokens off
    scheduler.finish(one)
    follow = job("a", [*range(20), 1, 2, 3, 4])
    scheduler.submit(follow)
    scheduler.place()
    assert slot_of(follow).held == 20


def test_prefill_batches_take_jobs_of_one_width_first():
    scheduler = Scheduler(slots=4, buckets=BUCKETS)
    lengths = (5, 30, 6, 28)
    for i, length in enumerate(lengths):
        scheduler.submit(job(f"{i}", np.full(length, i)))
    scheduler.place()
    batch = scheduler.next_prefill()
    assert batch.counts == (4, 5)
    assert (batch.rows, batch.queries) == (2, 8)
    scheduler.prefilled(batch)
    batch = scheduler.next_prefill()
    assert batch.counts == (29, 27)
    assert (batch.rows, batch.queries) == (2, 32)


def test_more_jobs_than_rows_take_turns():
    scheduler = Scheduler(slots=6, buckets=BUCKETS)
    for i in range(6):
        scheduler.submit(job(f"{i}", np.full(3, i)))
    prefill_all(scheduler)
    first = {one.request.session for one in scheduler.decodable()}
    second = {one.request.session for one in scheduler.decodable()}
    assert len(first) == 4
    assert first | second == set("012345")
