import pytest

from jaxagent.config import CheckpointConfig
from jaxagent.monitors.settings import AlarmConfig
from jaxagent.rollbacks import Rollback, as_json, changed, checkpoints_kept, last_good, read_rollbacks
from jaxagent.stage import Update

# Checkpoint step -> (stage, iterations done): a stage of 3 iterations, then one that is at its 8th.
PLACES = {3: (1, 0), 5: (1, 2), 7: (1, 4), 9: (1, 6), 11: (1, 8), 2: (0, 2)}


@pytest.mark.parametrize(
    ("since", "margin", "expected"),
    [
        (9, 0, 9),  # iteration 9 ran with the policy of 8 iterations, which is suspect
        (8, 0, 9),
        (7, 0, 7),
        (9, 3, 7),
        (9, 6, 3),
        (3, 5, 3),  # the stage's start is before everything
        (1, 0, 3),
    ],
)
def test_the_last_good_checkpoint(since, margin, expected):
    assert last_good(PLACES, [], stage=1, since=since, margin=margin) == expected


def test_a_margin_that_nothing_satisfies_gives_way_to_the_oldest_good_one():
    assert last_good({9: (1, 6), 11: (1, 8)}, [], stage=1, since=9, margin=50) == 9
    assert last_good({11: (1, 8)}, [], stage=1, since=9, margin=0) is None


def test_what_a_rollback_left_behind_is_never_gone_back_to():
    went = Rollback("entropy_collapse", 1, left=8, to=2, step=5, saved=11)
    places = {**PLACES, 11: (1, 2), 13: (1, 4)}  # 11 is the copy of 5; 7 and 9 are abandoned
    assert last_good(places, [went], stage=1, since=6, margin=0) == 13
    assert last_good(places, [went], stage=1, since=5, margin=0) == 11
    assert last_good(places, [went], stage=1, since=3, margin=0) == 3


def test_each_rollback_lowers_the_learning_rates():
    alarms = AlarmConfig.parse({"rollback": {"learning_rate": 0.5}})
    update = Update(learning_rate=1.0, adam_learning_rate=0.2, critic_learning_rate=0.4)
    assert changed(update, alarms, 0) == update
    twice = changed(update, alarms, 2)
    assert (twice.learning_rate, twice.adam_learning_rate, twice.critic_learning_rate) == (0.25, 0.05, 0.1)
    assert changed(Update(learning_rate=1.0), alarms, 1).adam_learning_rate is None
    assert changed(Update(learning_rate=1.0), alarms, 1).critic_learning_rate is None


def test_enough_checkpoints_are_kept():
    usual = CheckpointConfig(every=2, keep=2)
    assert checkpoints_kept(AlarmConfig(), usual) == 2
    rollback = AlarmConfig.parse({"on_collapse": "rollback", "patience": 3, "rollback": {"margin": 6}})
    # Margin 6 and a window of 5 reach over 6 checkpoints, and 2 more.
    assert checkpoints_kept(rollback, usual) == 8


def test_rollbacks_survive_json_and_say_what_they_change():
    went = Rollback("entropy_collapse", 1, left=8, to=2, step=5, saved=11)
    assert read_rollbacks(as_json([went])) == [went]
    words = went.words(AlarmConfig(), 1)
    assert "back from iteration 8 to 2" in words
    assert "learning rate x 0.5 and other random streams; rollback 1 of at most 2" in words
