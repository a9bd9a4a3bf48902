"""The decoder as a whole: what it samples, its log-probs, and what must not influence them."""

import asyncio

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxagent.decode.buckets import Buckets
from jaxagent.errors import DivergenceError, RolloutError
from jaxagent.model.cache import keys_layout
from jaxagent.types import Stop
from tests.decode.engines import SPEC, prompt, request, run

TOLERANCE = 2e-5  # float32: prefill, decode and full forward; never loosened


@pytest.fixture(scope="module")
def full_logprobs(model):
    """ids -> log-softmax [T, V] of the training forward pass."""
    graphdef, params = model

    @jax.jit
    def forward(token_BT):
        model = nnx.merge(graphdef, params)
        T = token_BT.shape[1]
        hidden = model.hidden(token_BT, jnp.arange(T)[None], jnp.ones((1, T), jnp.int32))
        return jax.nn.log_softmax(hidden[0] @ model.head_VD.T, axis=-1)

    def compute(ids):
        padded = np.zeros((1, 96), np.int32)
        padded[0, : len(ids)] = ids
        return np.asarray(forward(padded))[: len(ids)]

    return compute


def scored(full_logprobs, context, completion, temperature=1.0):
    ids = np.concatenate([context, completion.ids_T])
    logits = full_logprobs(ids)[len(context) - 1 : -1] / temperature
    logits = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits[np.arange(len(completion.ids_T)), completion.ids_T]


def test_log_probs_equal_the_full_forward_pass_over_turns(make_engine, full_logprobs):
    engine = make_engine()
    context = prompt(21)
    for step, observation in enumerate((5, 1, 12)):  # prefill of one and of several chunks, then of one token
        (completion,) = run(engine, request("s", context, step=step, temperature=0.7))
        expected = scored(full_logprobs, context, completion, temperature=0.7)
        np.testing.assert_allclose(completion.logprob_T, expected, atol=TOLERANCE)
        context = np.concatenate([context, completion.ids_T, prompt(observation, seed=step)])
    assert engine.counts.prefilled == 20 + 5 + 1  # what each turn added, the sampled last token included


def test_greedy_follows_the_argmax_of_the_full_forward_pass(make_engine, full_logprobs):
    context = prompt(13)
    (completion,) = run(make_engine(), request("s", context, temperature=0.0, max_tokens=20))
    logprobs = full_logprobs(np.concatenate([context, completion.ids_T]))[len(context) - 1 : -1]
    assert completion.ids_T.tolist() == logprobs.argmax(-1).tolist()
    np.testing.assert_allclose(completion.logprob_T, logprobs.max(-1), atol=TOLERANCE)


def test_filters_renormalise_the_log_probs(make_engine, full_logprobs):
    context = prompt(13)
    (completion,) = run(make_engine(), request("s", context, top_k=3, max_tokens=20))
    logprobs = full_logprobs(np.concatenate([context, completion.ids_T]))[len(context) - 1 : -1]
    for row, token, got in zip(logprobs, completion.ids_T, completion.logprob_T):
        best = np.sort(row)[-3:]
        assert row[token] >= best[0]
        np.testing.assert_allclose(got, row[token] - np.log(np.exp(best).sum()), atol=TOLERANCE)


def test_results_do_not_depend_on_company_slots_or_order(make_engine):
    contexts = [prompt(length, seed=length) for length in (5, 30, 17, 9, 24, 12)]
    requests = [
        request(f"s{i}", context, rollout=i, max_tokens=6 + 3 * i) for i, context in enumerate(contexts)
    ]
    engine = make_engine()
    alone = [run(engine, one)[0] for one in requests]
    together = run(make_engine(), *requests)  # six sessions in four slots
    two_slots = run(
        make_engine(slots=2, buckets=Buckets(prefill=((1, 16),), decode=(2,), lengths=(48, 96))),
        *reversed(requests),
    )[::-1]
    for one, two, three in zip(alone, together, two_slots):
        assert one.ids_T.tolist() == two.ids_T.tolist() == three.ids_T.tolist()
        np.testing.assert_allclose(one.logprob_T, two.logprob_T, atol=TOLERANCE)
        np.testing.assert_allclose(one.logprob_T, three.logprob_T, atol=TOLERANCE)


def test_a_group_prefills_its_prompt_once_and_its_members_differ(make_engine):
    engine = make_engine()
    context = prompt(40)
    group = run(engine, *(request(f"g{i}", context, rollout=i) for i in range(4)))
    assert engine.counts.prefilled == 39
    assert engine.counts.copied == 3 * 39
    assert len({tuple(one.ids_T) for one in group}) == 4
    alone = [run(make_engine(), request("x", context, rollout=i))[0] for i in (0, 3)]
    assert [one.ids_T.tolist() for one in alone] == [group[0].ids_T.tolist(), group[3].ids_T.tolist()]


def test_where_the_keys_lie_in_memory_changes_no_result(make_engine, monkeypatch):
    """The layout of TPUs, on this platform: through prefill, copies, and decode calls over some and all slots."""
    requests = [request(f"g{i}", prompt(40), rollout=i) for i in range(4)]
    buckets = Buckets(prefill=((2, 8),), decode=(2, 4), lengths=(96,))
    expected = run(make_engine(buckets=buckets), *requests)
    layout = keys_layout("tpu")
    monkeypatch.setattr("jaxagent.model.cache.keys_layout", lambda platform: layout)
    engine = make_engine(buckets=buckets)
    assert engine._worker.cache.keys[0].format.layout.major_to_minor == (0, 1, 3, 2)
    for one, other in zip(run(engine, *requests), expected):
        assert one.ids_T.tolist() == other.ids_T.tolist()
        np.testing.assert_allclose(one.logprob_T, other.logprob_T, atol=TOLERANCE)
    run(engine, request("g1", np.concatenate([prompt(40), expected[1].ids_T, prompt(3)]), step=1))
    assert engine._worker.cache.keys[0].format.layout.major_to_minor == (0, 1, 3, 2)


def test_an_evicted_session_is_prefilled_again_to_the_same_results(make_engine):
    engine = make_engine()
    first = prompt(20)
    (one,) = run(engine, request("kept", first))
    follow = np.concatenate([first, one.ids_T, prompt(6, seed=9)])
    run(engine, *(request(f"other{i}", prompt(20, seed=50 + i)) for i in range(4)))
    assert engine.counts.evictions == 1
    before = engine.counts.prefilled
    (two,) = run(engine, request("kept", follow, step=1))
    assert engine.counts.prefilled - before == len(follow) - 1
    fresh = make_engine()
    (expected,) = run(fresh, request("fresh", follow, step=1))
    assert two.ids_T.tolist() == expected.ids_T.tolist()
    np.testing.assert_allclose(two.logprob_T, expected.logprob_T, atol=TOLERANCE)


def test_new_weights_drop_every_cached_token(model, make_engine):
    engine = make_engine()
    context = prompt(30)
    run(engine, request("s", context))
    old = engine.checksum
    changed = jax.tree.map(lambda leaf: leaf * 1.3, model[1])
    engine.load(changed, 7)
    assert engine.checksum != old
    (after,) = run(engine, request("s2", context))  # shares the whole prompt with what slot 0 held
    (cold,) = run(make_engine(params=changed), request("s2", context))
    assert after.version == 7
    np.testing.assert_allclose(after.logprob_T, cold.logprob_T, atol=TOLERANCE)
    assert after.ids_T.tolist() == cold.ids_T.tolist()
    with pytest.raises(RolloutError, match="version 3 came after version 7"):
        engine.load(changed, 3)


def test_stop_ids_strings_and_limits(make_engine):
    context = prompt(9)
    (free,) = run(make_engine(), request("s", context, max_tokens=12))
    ids = free.ids_T.tolist()
    assert free.stop is Stop.MAX_TOKENS
    at = next(i for i in range(4, 12) if ids[i] not in ids[:i])
    (stopped,) = run(make_engine(), request("s", context, max_tokens=12, stop_ids=(299, ids[at])))
    assert stopped.stop is Stop.STOP
    assert stopped.ids_T.tolist() == ids[: at + 1]

    engine = make_engine(decode=lambda ids: "".join(f"<{i}>" for i in ids))
    string = f"{ids[5]}><{ids[6]}>"
    (cut,) = run(engine, request("s", context, max_tokens=12, stop_strings=("never", string)))
    assert cut.stop is Stop.STOP
    assert cut.ids_T.tolist() == ids[:7]
    assert len(cut.logprob_T) == 7
    # The slot's KV of what was cut off must not be taken for the next turn's context.
    follow = np.concatenate([context, cut.ids_T, prompt(3, seed=1)])
    (again,) = run(engine, request("s", follow, step=1))
    (cold,) = run(make_engine(), request("s", follow, step=1))
    np.testing.assert_allclose(again.logprob_T, cold.logprob_T, atol=TOLERANCE)

    (full,) = run(make_engine(), request("s", prompt(90), max_tokens=50))
    assert full.stop is Stop.CONTEXT
    assert len(full.ids_T) == 6
    (none,) = run(make_engine(), request("s", prompt(96), max_tokens=50))
    assert none.stop is Stop.CONTEXT
    assert len(none.ids_T) == 0


def test_what_cannot_be_served_is_refused(make_engine):
    engine = make_engine()
    context = prompt(12)
    (one,) = run(engine, request("s", context))
    rewritten = np.concatenate([context, one.ids_T])
    rewritten[4] = (rewritten[4] + 1) % SPEC.vocab
    for bad, message in (
        (request("s", rewritten), "rewritten: position 4 holds"),
        (request("s", context), f"position {len(context)} holds .* the request has the end there"),
        (request("n", []), "context is empty"),
        (request("n", [3, 300]), "token 300 at position 1 is outside"),
        (request("n", [3], max_tokens=0), "max_tokens=0"),
        (request("n", [3], temperature=-1.0), "temperature=-1.0"),
        (request("n", [3], top_p=0.0), "top_p=0.0"),
        (request("n", [3], stop_ids=tuple(range(9))), "9 stop ids"),
        (request("n", [3], stop_strings=("x",)), "needs a decoder made with decode="),
    ):
        with pytest.raises(RolloutError, match=message):
            run(engine, bad)


def test_the_sessions_of_cancelled_and_of_other_callers_go_on(make_engine):
    engine = make_engine()
    context = prompt(14)

    async def scenario():
        lost = asyncio.create_task(engine(request("lost", context, max_tokens=60)))
        kept = asyncio.create_task(engine(request("kept", prompt(14, seed=2), max_tokens=60)))
        await asyncio.sleep(0)
        with pytest.raises(RolloutError, match="already has a request in flight"):
            await engine(request("kept", prompt(14, seed=2)))
        lost.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lost
        completion = await kept
        again = await engine(request("lost", context, max_tokens=5))
        await engine.release("lost")
        await engine.release("unknown")
        reused = await engine(request("lost", prompt(14, seed=8), max_tokens=5))
        return completion, again, reused

    completion, again, reused = asyncio.run(scenario())
    assert len(completion.ids_T) == 60
    (expected,) = run(make_engine(), request("x", context, max_tokens=5))
    assert again.ids_T.tolist() == expected.ids_T.tolist()
    assert len(reused.ids_T) == 5


def test_a_failure_reaches_every_caller_and_the_next_request_is_served(model, make_engine):
    engine = make_engine(params=jax.tree.map(lambda leaf: leaf * jnp.nan, model[1]))

    async def both():
        return await asyncio.gather(
            engine(request("a", prompt(5))), engine(request("b", prompt(6))), return_exceptions=True
        )

    assert [type(error) for error in asyncio.run(both())] == [DivergenceError, DivergenceError]
    engine.load(model[1], 1)
    (after,) = run(engine, request("a", prompt(5)))
    (expected,) = run(make_engine(), request("a", prompt(5)))
    assert after.ids_T.tolist() == expected.ids_T.tolist()


def test_thirty_turns_compile_nothing_after_warm_up(make_engine, meter):
    buckets = Buckets(prefill=((2, 8), (4, 4)), decode=(2, 4), lengths=(64, 192))
    engine = make_engine(buckets=buckets)
    run(engine, request("first", prompt(3)))  # converts and places arrays once
    assert engine.warm_up() == 2 * (2 + 2 + 1)
    before = meter.count

    async def episode(rollout):
        context = prompt(11)
        for step in range(30):
            completion = await engine(
                request(
                    f"e{rollout}", context, rollout=rollout, step=step, max_tokens=1 + (step + rollout) % 4
                )
            )
            observation = prompt(1 + step // 8, seed=100 * rollout + step)
            context = np.concatenate([context, completion.ids_T, observation])
            await asyncio.sleep(0.001 * (rollout % 2))
        await engine.release(f"e{rollout}")
        return len(context)

    async def all_episodes():
        return await asyncio.gather(*(episode(rollout) for rollout in range(6)))

    lengths = asyncio.run(all_episodes())
    assert min(lengths) > 128
    assert meter.count == before
    assert engine.compilations == 2 * (2 + 2 + 1)


def test_requests_run_on_while_another_sessions_environment_is_busy(make_engine):
    engine = make_engine(slots=4)

    async def scenario():
        one = await engine(request("slow", prompt(8), max_tokens=4))
        fast = np.asarray(prompt(8, seed=3))
        for step in range(3):  # "slow" is in its environment; the others' turns do not wait for it
            completion = await asyncio.wait_for(engine(request("fast", fast, step=step, max_tokens=4)), 60)
            fast = np.concatenate([fast, completion.ids_T, prompt(2, seed=step)])
        back = np.concatenate([prompt(8), one.ids_T, prompt(2)])
        before = engine.counts.prefilled
        await engine(request("slow", back, step=1, max_tokens=4))
        return engine.counts.prefilled - before

    assert asyncio.run(scenario()) == 2  # its KV had stayed


def test_weights_may_change_while_a_request_is_in_flight(model, make_engine):
    engine = make_engine()
    changed = jax.tree.map(lambda leaf: leaf * 1.3, model[1])

    async def scenario():
        task = asyncio.create_task(engine(request("s", prompt(8), max_tokens=40)))
        while engine.counts.sampled == 0:
            await asyncio.sleep(0.001)
        engine.load(changed, 1)
        return await task

    completion = asyncio.run(scenario())
    assert len(completion.ids_T) == 40
    assert completion.version == 0


def test_nothing_is_decoded_during_anothers_turn(make_engine):
    engine = make_engine()

    async def scenario():
        with engine.turn:
            task = asyncio.create_task(engine(request("s", prompt(8), max_tokens=4)))
            await asyncio.sleep(0.05)
            assert engine.counts.sampled == 0
        return await task

    assert len(asyncio.run(scenario()).ids_T) == 4
