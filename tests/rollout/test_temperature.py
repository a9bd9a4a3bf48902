import pytest

from jaxagent.errors import ConfigError
from jaxagent.rollout.settings import RolloutConfig
from jaxagent.rollout.temperature import linear
from jaxagent.stage import Stage, Update
from jaxagent.types import Sampling


def test_a_linear_schedule():
    at = linear(1.2, 0.7, 100)
    assert [at(iteration) for iteration in (0, 50, 100, 200)] == pytest.approx([1.2, 0.95, 0.7, 0.7])


def test_a_stage_samples_at_its_schedule():
    stage = Stage("s", None, 1, None, {}, Update(1e-3), sampling=Sampling(4, temperature=1.2))
    assert stage.sampling_at(7).temperature == 1.2
    heated = Stage(
        "s", None, 1, None, {}, Update(1e-3), sampling=Sampling(4, top_k=3), temperature=linear(1.0, 0.8, 2)
    )
    assert [heated.sampling_at(i) for i in (0, 1)] == [Sampling(4, 1.0, 3), Sampling(4, 0.9, 3)]
    assert Stage("s", None, 1, None, {}, Update(1e-3)).sampling_at(0) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 1.5}, "stays within 0.7 and 1.2"),
        ({"temperature_schedule": {"end": 0.5, "iterations": 3}}, "end=0.5"),
        ({"temperature_schedule": {"end": 0.8, "iterations": 0}}, "iterations=0"),
    ],
)
def test_schedules_out_of_range(changes, message):
    values = {"max_steps": 2, "max_tokens": 8, "context": 64}
    values |= {"temperature": 1.0, "temperature_schedule": {"end": 0.8, "iterations": 3}}
    RolloutConfig.parse(values)
    with pytest.raises(ConfigError, match=message):
        RolloutConfig.parse({**values, **changes})
