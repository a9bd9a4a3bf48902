"""Packing: what goes in comes back, in place, and what cannot fit is named."""

import numpy as np
import pytest

from jaxagent.batch.pack import pack, unpack
from jaxagent.batch.targets import seq_mean_token_mean, token_mean
from jaxagent.errors import ConfigError, DataError
from jaxagent.stage import Term
from jaxagent.types import Sample


class Coarse:
    """Stands for a loss with one ratio per trajectory."""

    level = "trajectory"

    def __call__(self, scores, streams):
        raise AssertionError("packing calls no loss")


class Fine(Coarse):
    level = "token"


TERMS = {"pg": Term(Fine(), seq_mean_token_mean), "ce": Term(Fine(), token_mean)}


def sample(trajectory, length, *, scored=None, seed=0, **streams):
    rng = np.random.default_rng([trajectory, length, seed])
    include = np.zeros(length, np.float32)
    include[length - (length - 1 if scored is None else scored) :] = 1
    return Sample(
        trajectory=trajectory,
        ids_T=rng.integers(1, 50, length),
        step_T=np.where(include > 0, np.arange(length) // 3, -1).astype(np.int32),
        advantage_T=(rng.normal(size=length) * include).astype(np.float32),
        include={"pg": include, "ce": 0.5 * include},
        logprobs={"old": (rng.normal(size=length) * include).astype(np.float32), **streams},
    )


SAMPLES = [sample(i, n) for i, n in enumerate([5, 3, 4, 8, 2, 7, 6])]


def test_layout_by_hand():
    a, b = sample(0, 5, scored=2), sample(1, 3, scored=1)
    (part,) = pack([b, a], {"pg": TERMS["pg"]}, rows=2, length=8, scored=4)
    batch = part.batch
    np.testing.assert_array_equal(batch.token_BT[0], [*a.ids_T, *b.ids_T])
    np.testing.assert_array_equal(batch.segment_BT, [[1, 1, 1, 1, 1, 2, 2, 2], [0] * 8])
    np.testing.assert_array_equal(batch.position_BT[0], [0, 1, 2, 3, 4, 0, 1, 2])
    np.testing.assert_array_equal(batch.column_BS, [[3, 4, 7, 0], [0] * 4])
    np.testing.assert_array_equal(batch.target_BS[0, :3], [a.ids_T[3], a.ids_T[4], b.ids_T[2]])
    np.testing.assert_array_equal(
        batch.turn_BS[0], [0, 0 if a.step_T[3] == a.step_T[4] else 1, batch.turn_BS[0, 2], 3]
    )
    np.testing.assert_array_equal(batch.trajectory_BS[0], [0, 0, 1, 3])
    np.testing.assert_allclose(batch.weight["pg"], [[0.5, 0.5, 1, 0], [0] * 4])
    assert batch.count["pg"] == 2


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_unpack_undoes_pack(rows):
    packed = pack(SAMPLES, TERMS, rows=rows, length=10)
    for name in ("target_BS", "advantage_BS"):
        back = unpack(packed, [getattr(part.batch, name).astype(np.float32) for part in packed])
        for s, got in zip(SAMPLES, back):
            want = s.ids_T if name == "target_BS" else s.advantage_T
            np.testing.assert_array_equal(got, np.where(s.include["pg"] > 0, want, 0))
    old = unpack(packed, [part.batch.logprobs["old"] for part in packed])
    assert all(np.array_equal(got, s.logprobs["old"]) for s, got in zip(SAMPLES, old))


def test_weights_and_counts_do_not_depend_on_the_split():
    for rows in (1, 2, 8):
        packed = pack(SAMPLES, TERMS, rows=rows, length=10)
        assert {float(part.batch.count["pg"]) for part in packed} == {7.0}
        assert {float(part.batch.count["ce"]) for part in packed} == {14.0}
        assert sum(float(part.batch.weight["pg"].sum()) for part in packed) == pytest.approx(7.0, abs=1e-5)


def test_rows_are_full_and_within_bounds():
    packed = pack(SAMPLES, TERMS, rows=4, length=12, scored=9)
    assert len(packed) == 1  # 35 tokens in 4 rows of 12
    batch = packed[0].batch
    assert ((batch.column_BS > 0).sum(axis=1) <= 9).all()
    assert (batch.turn_BS < 9).all()
    assert (batch.trajectory_BS < 9).all()
    assert (batch.segment_BT > 0).sum() == 35


def test_the_first_token_is_never_scored():
    whole = Sample(
        0, np.arange(1, 4), np.zeros(3, np.int32), np.ones(3, np.float32), {"pg": np.ones(3, np.float32)}
    )
    (part,) = pack([whole], {"pg": TERMS["pg"]}, rows=1, length=4)
    np.testing.assert_array_equal(part.batch.column_BS[0], [1, 2, 0, 0])
    np.testing.assert_allclose(part.batch.weight["pg"][0], [0.5, 0.5, 0, 0])


def test_masked_samples_are_not_packed_but_come_back_as_zeros():
    masked = sample(9, 6, scored=0)
    packed = pack([masked, SAMPLES[0]], TERMS, rows=1, length=10)
    assert len(packed) == 1
    back = unpack(packed, [np.ones((1, 10), np.float32)])
    assert not back[0].any()
    assert back[1].sum() == 4
    assert pack([masked], TERMS, rows=1, length=10) == []


def test_too_long_samples_are_named():
    with pytest.raises(DataError, match=r"sample 3 \(trajectory 3\) has 8 tokens.*pack.length"):
        pack(SAMPLES, TERMS, rows=2, length=7)
    with pytest.raises(DataError, match=r"has 7 scored tokens.*pack.scored"):
        pack(SAMPLES, TERMS, rows=2, length=10, scored=6)
    with pytest.raises(ConfigError, match="scored=11"):
        pack(SAMPLES, TERMS, rows=2, length=10, scored=11)


def test_trajectory_ratios_keep_segments_in_one_row():
    pieces = [sample(0, 4), sample(1, 6), sample(0, 3, seed=1), sample(2, 2)]
    terms = {"pg": Term(Coarse(), seq_mean_token_mean)}
    packed = pack(pieces, terms, rows=4, length=8)
    rows = {place.row for place in packed[0].places if place.sample in (0, 2)}
    assert len(rows) == 1
    with pytest.raises(DataError, match="trajectory-level ratio"):
        pack(pieces, terms, rows=4, length=6)


class Taught(Fine):
    needs = ("teacher",)


def test_streams_that_all_samples_have_or_a_term_reads_are_packed():
    taught = sample(1, 4, teacher=np.full(4, -1.0, np.float32), reference=np.zeros(4, np.float32))
    taught.include["distill"] = taught.include["pg"]  # type: ignore[index]
    terms = {**TERMS, "distill": Term(Taught(), token_mean)}
    for samples in ([sample(0, 5), taught], [sample(0, 5)]):
        (part,) = pack(samples, terms, rows=2, length=8)
        assert set(part.batch.logprobs) == {"old", "teacher"}
    (part,) = pack([sample(0, 5), taught], TERMS, rows=2, length=8)
    assert set(part.batch.logprobs) == {"old"}


def test_a_sample_that_a_term_trains_must_have_the_streams_it_reads():
    untaught = sample(0, 5)
    untaught.include["distill"] = untaught.include["pg"]  # type: ignore[index]
    with pytest.raises(DataError, match="reads the log-prob stream 'teacher'; the sample has \\['old'\\]"):
        pack([untaught], {"distill": Term(Taught(), token_mean)}, rows=1, length=8)


def test_no_samples_no_batches():
    assert pack([], TERMS, rows=1, length=8) == []
    assert unpack([], []) == []
