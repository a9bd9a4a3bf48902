"""What a store says when its file is damaged, and that nothing whole is thrown away in silence."""

import random

import pytest

from jaxagent.data.rollout_store import FILE, Origin, RolloutStore, RolloutWriter
from jaxagent.data.stored import StoredSource
from jaxagent.errors import DataError
from tests.made_episodes import make_group, make_task

ORIGIN = Origin(tokenizer="abc", template="plain", model="tiny", temperature=1.0)


def written(folder, iterations, *, after=-1):
    writer = RolloutWriter(folder / FILE, ORIGIN, after=after)
    for iteration in iterations:
        groups = [make_group([1, iteration], task=make_task(f"{iteration}{name}")) for name in "ab"]
        writer.write(groups, iteration=iteration, stage="rl")
    writer.close()


def tasks(folder):
    return [entry.task for entry in RolloutStore(folder / FILE).entries]


@pytest.fixture
def store(tmp_path):
    """Iterations 0, 1, 2 of two groups each; its bytes and its entries."""
    written(tmp_path, [0, 1, 2])
    return tmp_path / FILE, (tmp_path / FILE).read_bytes(), RolloutStore(tmp_path).entries


def damaged(data, at, width=1):
    return data[:at] + bytes(byte ^ 255 for byte in data[at : at + width]) + data[at + width :]


@pytest.mark.parametrize("place", [0, 4, 8, 20, 30])
def test_whole_groups_behind_damage_are_not_taken_for_a_cut(store, place):
    """In a group's magic, in its two sizes, and in its head: the groups behind it are still there."""
    path, data, entries = store
    path.write_bytes(damaged(data, entries[1].start + place))
    with pytest.raises(DataError, match=f"damaged at byte {entries[1].start}.* 4 whole groups behind"):
        RolloutStore(path)


def test_a_writer_never_removes_whole_groups_that_stay(store):
    path, data, entries = store
    path.write_bytes(damaged(data, entries[1].start))
    with pytest.raises(DataError, match="damaged at byte"):
        RolloutWriter(path, ORIGIN, after=1)
    assert path.read_bytes() == damaged(data, entries[1].start)


def test_a_hole_in_what_will_be_written_again_is_no_obstacle(store):
    """A power cut can lose a page in the middle of the last write; its iteration is made again."""
    path, data, entries = store
    path.write_bytes(damaged(data, entries[4].start))
    written(path.parent, [2], after=1)
    assert tasks(path.parent) == ["0a", "0b", "1a", "1b", "2a", "2b"]


def test_a_file_whose_first_line_was_cut_is_begun_again(store):
    path, data, _ = store
    path.write_bytes(data[:20])
    with pytest.raises(DataError, match="was not written to its end"):
        RolloutStore(path)
    written(path.parent, [0])
    assert tasks(path.parent) == ["0a", "0b"]


def test_an_iteration_that_is_written_again_by_the_same_writer_stands_once(tmp_path):
    """After a divergence the run goes back and makes the iteration again that it could not finish."""
    writer = RolloutWriter(tmp_path / FILE, ORIGIN)
    for returns in ([0, 0], [1, 1], [1, 0]):
        number = 0 if returns == [0, 0] else 1
        writer.write([make_group(returns)], iteration=number, stage="rl")
    writer.close()
    store = RolloutStore(tmp_path)
    assert [entry.iteration for entry in store.entries] == [0, 1]
    assert [t.reward for t in store.groups(1)[0].trajectories] == [1, 0]


def test_a_store_that_vanishes_while_it_is_read_is_an_error_that_says_so(store):
    path = store[0]
    source = StoredSource(RolloutStore(path), groups=2, seed=0, row=100)
    path.unlink()
    with pytest.raises(DataError, match=r"rollouts\.bin cannot be read .*needs it to its end"):
        source.next(0)


def test_any_byte_may_be_wrong(store):
    """Whatever is damaged: the same groups, fewer with a notice, or a DataError; never another error."""
    path, data, _ = store
    rng = random.Random(0)
    for _ in range(150):
        path.write_bytes(damaged(data, rng.randrange(len(data)), rng.choice([1, 1, 64])))
        try:
            found = RolloutStore(path)
            for entry in found.entries:
                found.read(entry)
        except DataError:
            continue
        assert len(found.entries) >= 4  # 64 bytes may touch the last two
