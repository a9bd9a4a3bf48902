import pytest

from jaxagent.eval.behaviour import behaviour_metrics, cost_metrics, failed_and_recovered, inference_flops
from jaxagent.types import Status
from tests.made_episodes import make_step, make_trajectory

FAIL = "runtime_error"


def call(k, *names, status="ok"):
    return make_step(k, status=status, code="; ".join(f"apis.app.{name}()" for name in names))


def test_give_up_five_failed_three_recovered():
    steps = [
        call(0, "a", "b", status=FAIL),
        call(1, "a", status=FAIL),  # still open: not counted again
        call(2, "a", "c"),  # a recovers
        call(3, "a", "d", "e", status=FAIL),  # a fails anew
        call(4, "a", "d"),
    ]
    assert failed_and_recovered(steps) == (5, 3)
    assert behaviour_metrics([make_trajectory(steps=steps)])["give_up"] == pytest.approx(0.4)


def test_recovery_does_not_cross_rollouts():
    broken = make_trajectory(steps=[call(0, "a", status=FAIL)])
    fine = make_trajectory(steps=[call(0, "a")])
    assert behaviour_metrics([broken, fine])["give_up"] == 1.0
    assert "give_up" not in behaviour_metrics([fine])


def test_rates_and_counts():
    steps = [
        make_step(0, text="I assume a dummy.\n```python\nx\n```\nthen\n```python\ny\n```"),
        make_step(
            1, text="Assuming nothing, assumption.\n```python\nx\n```", code="apis.api_docs.show_api_doc()"
        ),
        make_step(2, status="timeout"),
        make_step(3, status="invalid"),
    ]
    out = behaviour_metrics([make_trajectory(steps=steps), make_trajectory(steps=[])])
    assert out["exec_fail"] == 0.5
    assert out["multi_cell"] == 0.25
    assert out["doc_lookups"] == 0.5
    assert out["assume"] == 1.0
    assert out["dummy"] == 0.5


def test_cost():
    out = cost_metrics([make_trajectory(steps=["ok", "ok"]), make_trajectory(status=Status.STEP_LIMIT)])
    assert out == {"turns": 1.5, "action_tokens": 3.0, "total_tokens": 4.0, "at_limit": 0.5}
    assert (
        cost_metrics([make_trajectory(steps=["ok"] * n) for n in (4, 8, 6)])["turns"] == 6.0
    )  # interactions
    assert cost_metrics([]) == behaviour_metrics([]) == {}


def test_flops():
    total = inference_flops(7_000_000_000, layers=28, width=3584, lengths=[1200])
    assert total == 1.68e13 + 289254604800
    assert inference_flops(1, layers=0, width=1, lengths=[300, 900]) == 2400
    two = ((14_000_000_000, 300), (7_000_000_000, 900))  # a team of two models
    assert sum(inference_flops(n, layers=0, width=1, lengths=[tokens]) for n, tokens in two) == 2.1e13
    assert inference_flops(32_000_000_000, layers=0, width=1, lengths=[1000]) == 6.4e13
