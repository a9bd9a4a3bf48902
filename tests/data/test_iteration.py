"""A source that says which iteration it is."""

from jaxagent.data.iteration import IterationOf
from jaxagent.data.tasks import TaskSource
from jaxagent.stage import Source
from tests.made_episodes import make_task


def made():
    return TaskSource([make_task("a"), make_task("b")], tasks=1, rollouts=2, seed=3)


def test_it_is_the_source_and_knows_the_iteration_after_a_resume():
    clock, plain = IterationOf(made()), made()
    assert isinstance(clock, Source)
    assert [clock.next(i)[0].task for i in range(3)] == [plain.next(i)[0].task for i in range(3)]
    assert clock.iteration == 0  # two run ahead
    assert clock.observe([]) == plain.observe([])
    assert clock.iteration == 1
    resumed = IterationOf(made())
    resumed.restore(clock.state())
    assert resumed.next(3)[0].task == plain.next(3)[0].task
    assert resumed.iteration == 3
    resumed.close()
