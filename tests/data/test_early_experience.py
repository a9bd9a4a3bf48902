"""Early experience: what is trained of an agent's own transitions, at the specification's numbers."""

import numpy as np
import pytest

from jaxagent.batch.targets import token_mean
from jaxagent.data.early_experience import (
    Transition,
    Tried,
    joined,
    optimiser_steps,
    reflections,
    world_model_transitions,
)
from jaxagent.errors import ConfigError
from jaxagent.types import Sample

STATE, ACTION, AFTER, RATIONALE = (11, 12, 13), (21, 22), (31, 32, 33), (41, 42, 43)


def tried(i, *others):
    """The expert's step in state i, and other actions with what they led to."""
    return Tried(
        Transition(f"s{i}", "go", f"s{i + 1}"),
        tuple(Transition(f"s{i}", action, after) for action, after in others),
    )


def test_three_states_with_two_alternatives_each():
    """9 transitions for the world model, a rationale a state, 3 expert steps."""
    data = [tried(i, ("look", f"s{i}"), ("jump", "fallen")) for i in range(3)]
    assert len(world_model_transitions(data)) == 9
    assert len(reflections(data)) == 3
    assert [t.action for t in world_model_transitions(data)[:3]] == ["go", "look", "jump"]


def test_the_experts_action_is_no_alternative_and_equal_outcomes_teach_the_world_model_alone():
    data = [tried(0, ("go", "s1"), ("walk", "s1"))]
    assert [t.action for t in world_model_transitions(data)] == ["go", "walk"]
    assert reflections(data) == []


def test_what_is_learnt_of_a_transition_and_of_a_reflection():
    """s a s': the next state alone. s c a: rationale and action."""
    ids_T, mask_T = joined((STATE, False), (ACTION, False), (AFTER, True))
    assert ids_T.tolist() == [*STATE, *ACTION, *AFTER]
    assert mask_T.astype(int).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    _, mask_T = joined((STATE, False), (RATIONALE, True), (ACTION, True))
    assert mask_T.astype(int).tolist() == [0, 0, 0, 1, 1, 1, 1, 1]


def test_the_world_models_loss_is_the_mean_over_the_next_state():
    """Negative log-likelihoods .2, .4, .6 of its three tokens: .4, whatever the other tokens have."""
    ids_T, mask_T = joined((STATE, False), (ACTION, False), (AFTER, True))
    nothing_T = np.full(8, -1, np.int32)
    sample = Sample(0, ids_T, nothing_T, np.zeros(8, np.float32), {"ce": mask_T.astype(np.float32)})
    (weight_T,), count = token_mean([sample], "ce")
    nll_T = np.array([9, 9, 9, 9, 9, 0.2, 0.4, 0.6])
    assert (weight_T * nll_T).sum() / count == pytest.approx(0.4)


def test_as_many_steps_as_imitation_takes():
    """1,000 expert steps in batches of 10 for 3 epochs are 300 steps, as is one epoch of 3,000 transitions."""
    assert optimiser_steps(1000, batch=10, epochs=3) == 300
    assert optimiser_steps(3000, batch=10, epochs=1) == 300
    assert optimiser_steps(11, batch=10, epochs=2) == 4  # the last batch of an epoch may be smaller
    with pytest.raises(ConfigError, match="batch=0"):
        optimiser_steps(1, batch=0, epochs=1)
