"""The nouns of a run, in the order in which data flows. numpy only: both planes import this file.

Axis legend, used in names everywhere (`logits_BTV`, `reward_G`):
    B rows   T tokens   S scored tokens of a row   G group   K steps (turns)   V vocabulary
    D model  N/K query/KV heads   H head dim   L layers   E experts   Q query tokens of a decoder call

One episode, followed through the file. The task's prompt is 3 tokens; the policy samples 3 tokens (the
last one is end-of-turn), the environment answers 3 tokens, the policy's second message of 2 tokens is cut:

    token      p p p  a a e  o o o  a a
    mask       0 0 0  1 1 1  0 0 0  1 1        1 iff the trained policy sampled it
    step      -1-1-1  0 0 0 -1-1-1  1 1        index into Trajectory.steps

Conventions that hold everywhere: a per-token quantity is stored at the index of the token it scores (the
log-prob of token t comes from the logits of row t-1, so index 0 is never scored); advantages and rewards
are "larger is better"; losses are minimised; log-probs, advantages and weights are float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

# --- what is asked -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do in one environment. `scenario` groups the variations that SGC scores together."""

    task_id: str
    env: str
    split: str
    scenario: str = ""
    difficulty: int = 1
    type: str = ""
    seed: int = 0
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. `thinking` is the reasoning before an assistant's content, without its tags."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    thinking: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """How an episode opens: messages, and JSON-schema tool descriptions for templates that take them."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


# --- what the policy is asked for, and what it answers (the narrow type between host and device) --------


class Stop(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # a stop id or a stop string was sampled; it is part of the ids
    MAX_TOKENS = "max_tokens"
    CONTEXT = "context"  # the decoder's context is full


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling rule of one request. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off.

    Filters apply in the order temperature, top-k, top-p, min-p; returned log-probs are those of the
    filtered, renormalised distribution that was really sampled from (greedy: of the plain softmax).
    tool_epsilon: how often an episode makes a message begin with a tool that is drawn (rollout/explore.py); the decoder
                  does not read it.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    tool_epsilon: float = 0.0


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Names the random stream of one message. The decoder folds in the token index.

    Nothing else may influence sampling: not batch composition, slot, worker or arrival order.
    """

    seed: int
    task: int  # stable 32-bit hash of the task id
    rollout: int
    step: int


@dataclass(frozen=True, slots=True, eq=False)
class GenerateRequest:
    """`ids_T` is the whole context; the decoder prefills only what `session` does not hold yet."""

    session: str
    ids_T: Int[np.ndarray, "T"]
    key: SampleKey
    sampling: Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    ids_T: Int[np.ndarray, "T"]
    logprob_T: Float[np.ndarray, "T"]
    stop: Stop
    version: int  # policy version that sampled it


@runtime_checkable
class Generate(Protocol):
    """The policy as the rollout sees it. Raises RolloutError if a session's context was rewritten."""

    async def __call__(self, request: GenerateRequest) -> Completion: ...

    async def release(self, session: str) -> None:
        """Forget the session's KV. Unknown sessions are ignored."""
        ...


# --- what happened ---------------------------------------------------------------------------------------


class ExecStatus(StrEnum):
    """How the environment took an action. INVALID: nothing that could be executed was found in the message."""

    OK = "ok"
    SYNTAX_ERROR = "syntax_error"
    RUNTIME_ERROR = "runtime_error"
    INVALID = "invalid"
    TIMEOUT = "timeout"
    NONE = "none"  # the action was never executed (the message was the last and was cut)

    @property
    def failed(self) -> bool:
        return self not in (ExecStatus.OK, ExecStatus.NONE)


class Status(StrEnum):
    """How an episode ended. CANCELLED and ENV_FAILED never reach a baseline; they are counted as dropped."""

    DONE = "done"
    STEP_LIMIT = "step_limit"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ENV_FAILED = "env_failed"

    @property
    def dropped(self) -> bool:
        return self in (Status.CANCELLED, Status.ENV_FAILED)


@dataclass(frozen=True, slots=True)
class Action:
    """What the environment is asked to do: code, a plain command (`text`), or tool calls.

    `error` is set, and the rest empty, when the message holds no legal action; the environment then
    answers with that error as its observation (`ExecStatus.INVALID`).
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The environment's answer. `anchor` is the raw state text or key that step-level credit groups by.

    messages: how the policy sees the answer where the one message of `EnvSpec.observe` will not do (the results of
              several tool calls, then a simulated user's next turn); `observation` is then their text.
    """

    observation: str
    exec_status: ExecStatus = ExecStatus.OK
    done: bool = False
    reward: float = 0.0
    anchor: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The environment's verdict: unit tests passed of all, and whether the task counts as solved."""

    success: bool
    passed: int
    total: int
    failures: tuple[str, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One policy message and the environment's reply. `observation_before` is the text BEFORE the message.

    thinking: the reasoning before `text`, where the chat template splits it off (`Message.thinking`).
    """

    k: int
    observation_before: str
    text: str
    ids_T: Int[np.ndarray, "T"]
    logprob_T: Float[np.ndarray, "T"]
    version: int
    stop: Stop
    action: Action
    exec_status: ExecStatus
    observation_after: str
    reward: float = 0.0
    anchor: str = ""  # anchor of the state before the message
    thinking: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One contiguous token sequence exactly as the policy saw it. Every sampled token is trained in one segment.

    logprobs: token streams by name: "behaviour" (from the sampler) always; the loop adds "old",
    "reference", "teacher" when a stage asks for them. 0 outside the mask. With a value function also
    "value" and "bootstrap" (scoring.py), and from credit "return", what "value" should have been.
    """

    ids_T: Int[np.ndarray, "T"]
    mask_T: Bool[np.ndarray, "T"]
    step_T: Int[np.ndarray, "T"]
    logprobs: Mapping[str, Float[np.ndarray, "T"]]


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One finished episode.

    reward: the return R used by credit (set by the stage's reward function; `success` stays the raw verdict).
    before: what was played between the reset and the first message, unseen by the policy, with the answers.
    masked: no token of it is trained on; its return stays in the baseline (set by the stage's reward function).
    """

    traj_id: str
    task: Task
    rollout: int
    status: Status
    prompt: Prompt
    steps: tuple[Step, ...]
    segments: tuple[Segment, ...]
    evaluation: Evaluation | None = None
    reward: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)
    before: tuple[tuple[Action, StepResult], ...] = ()
    masked: bool = False

    @property
    def success(self) -> bool:
        return self.evaluation is not None and self.evaluation.success


@dataclass(frozen=True, slots=True)
class Dropped:
    """An episode that was submitted but is neither trained nor evaluated. `reason` is counted in the metrics."""

    task_id: str
    rollout: int
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The surviving rollouts of one task (of one chain position), and those that were dropped."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    dropped: tuple[Dropped, ...] = ()
    position: int = 0


# --- what is learnt ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Credited:
    """A trajectory and its advantage per step. A scalar advantage is the broadcast case.

    advantage_T: one array a segment where credit is finer than a step (GAE over tokens); it then rules, and advantage_K
                 is its mean over each step's tokens.
    measured:    what the credit function has measured, by the metric's name; logged as the mean over trajectories.
    """

    trajectory: Trajectory
    advantage_K: Float[np.ndarray, "K"]
    advantage_T: tuple[Float[np.ndarray, "_"], ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One segment as training data.

    trajectory: index of the trajectory within the batch; aggregations count trajectories, not segments.
    include:    loss term -> token weight before aggregation; 0 keeps a token out of that term. A term may
                include observation tokens (a world model trains on them).
    logprobs:   "behaviour", "old", "reference", "teacher", "mismatch"; each [T], 0 where unknown.
    """

    trajectory: int
    ids_T: Int[np.ndarray, "T"]
    step_T: Int[np.ndarray, "T"]
    advantage_T: Float[np.ndarray, "T"]
    include: Mapping[str, Float[np.ndarray, "T"]]
    logprobs: Mapping[str, Float[np.ndarray, "T"]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Packed rows, ready for the device. Only the S scored tokens of a row reach the LM head.

    segment_BT:  0 is padding, 1.. numbers the segments of a row; attention never crosses a segment.
    position_BT: position within the segment (rotary position).
    column_BS:   row column of each scored token; 0 marks an unused slot (column 0 is never scored).
    turn_BS, trajectory_BS: row-local numbers below S, for turn and trajectory ratios. Unused slots hold S-1
                 with weight 0 and log-ratio 0.
    temperature: of the log-probs, where it changes from iteration to iteration; None is the stage's own.
    weight:      loss term -> [B, S] float32, aggregation included; 0 on unused slots.
    count:       loss term -> scalar float32, the global divisor of that term's weighted sum.
    """

    token_BT: Int[np.ndarray, "B T"]
    position_BT: Int[np.ndarray, "B T"]
    segment_BT: Int[np.ndarray, "B T"]
    column_BS: Int[np.ndarray, "B S"]
    target_BS: Int[np.ndarray, "B S"]
    turn_BS: Int[np.ndarray, "B S"]
    trajectory_BS: Int[np.ndarray, "B S"]
    advantage_BS: Float[np.ndarray, "B S"]
    logprobs: Mapping[str, Float[np.ndarray, "B S"]]
    weight: Mapping[str, Float[np.ndarray, "B S"]]
    count: Mapping[str, np.floating | np.ndarray]
    temperature: np.floating | None = None


Metrics = dict[str, float]
Groups = Sequence[Group]
