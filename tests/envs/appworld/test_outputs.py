"""Numbers of kept rollouts: the smallest free one, whoever asks."""

import os
import socket
import subprocess
import sys

from jaxagent.envs.appworld.outputs import take


def judged(place):
    (place.folder / "evaluation").mkdir(parents=True)
    return place


def test_rollouts_of_a_task_count_from_zero_and_tasks_do_not_share_the_count(tmp_path):
    names = [take(tmp_path, "exp", task).experiment for task in ("a_1", "a_1", "b_1", "a_1")]
    assert names == ["exp/rollout_0", "exp/rollout_1", "exp/rollout_0", "exp/rollout_2"]


def test_a_discarded_number_is_taken_again(tmp_path):
    first, second = take(tmp_path, "exp", "a_1"), judged(take(tmp_path, "exp", "a_1"))
    first.folder.mkdir(parents=True)
    first.discard()
    assert not first.folder.exists()
    assert take(tmp_path, "exp", "a_1").experiment == "exp/rollout_0"
    assert second.folder.exists()


def test_a_claim_whose_process_died_before_a_verdict_is_free(tmp_path):
    place = take(tmp_path, "exp", "a_1")
    claim = tmp_path / "experiments" / "outputs" / place.experiment / "claims" / "a_1"
    assert claim.read_text() == f"{socket.gethostname()} {os.getpid()}"
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    claim.write_text(f"{socket.gethostname()} {dead.stdout.strip()}")
    assert take(tmp_path, "exp", "a_1").experiment == "exp/rollout_0"
    claim.write_text(f"{socket.gethostname()} {dead.stdout.strip()}")
    judged(place)
    assert take(tmp_path, "exp", "a_1").experiment == "exp/rollout_1"


def test_claims_of_other_hosts_and_outputs_of_other_programs_are_left_alone(tmp_path):
    place = take(tmp_path, "exp", "a_1")
    claim = tmp_path / "experiments" / "outputs" / place.experiment / "claims" / "a_1"
    claim.write_text("elsewhere 1")
    (tmp_path / "experiments/outputs/exp/rollout_1/tasks/a_1").mkdir(parents=True)
    assert take(tmp_path, "exp", "a_1").experiment == "exp/rollout_2"
