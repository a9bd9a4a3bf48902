"""What is watched in the metrics of an iteration, and in which words. The order is that in which faults are usually
found: rewards, lengths, masks, KL and entropy, groups, tools. Thresholds are those of `AlarmThresholds` (settings.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rule:
    """Off where the first of `metrics` that is there (found by `lookup`) is above its threshold, or below it.

    seen, causes, remedy: the words; `seen` may use {value}, {ratio} and what `beside` names (metric of each name, 0
                          where there is none).
    start:    compare the value's ratio to the metric's first value in the stage.
    reach:    the threshold itself is off, too.
    anywhere: watched in stages that do not roll out as well. Supervised stages are watched for what is wrong anywhere
              only: their entropy is meant to fall, their gradients vary with the data.
    """

    metrics: tuple[str, ...]
    seen: str
    causes: str
    remedy: str
    below: bool = False
    start: bool = False
    reach: bool = False
    anywhere: bool = False
    beside: Mapping[str, str] = field(default_factory=dict)


RULES: Mapping[str, Rule] = {
    "no_reward": Rule(
        ("reward/max",),
        "no episode earned anything (largest return {value:.3g})",
        "tasks far beyond the policy, a parser that finds no action, or a reward that is never paid",
        "read a few trajectories in the report, start with easier tasks or a supervised warm start",
        below=True,
        reach=True,
    ),
    "length_limit": Rule(
        ("length/at_limit",),
        "{value:.0%} of the episodes end at the limit of steps or of the context",
        "limits too tight for the tasks, or a policy that does not know how to end an episode",
        "raise rollout.max_steps or rollout.context, or show the policy finished episodes first",
    ),
    "truncation": Rule(
        ("rollout/truncated",),
        "{value:.0%} of the messages are cut by their token limit",
        "rollout.max_tokens is too low; a task that needs longer messages silently fails always",
        "raise rollout.max_tokens, or add an overlong penalty",
    ),
    "length_explosion": Rule(
        ("length/action_tokens", "rollout/sampled_tokens"),
        "an episode samples {ratio:.1f} times as many tokens as at the stage's start (correlation of length and "
        "return {corr:.2f})",
        "repetition, or a reward that pays for length",
        "look for loops in the report; penalise length (reward.length), average the loss over tokens",
        start=True,
        beside={"corr": "length/reward_corr"},
    ),
    "turns_explosion": Rule(
        ("rollout/turns",),
        "an episode takes {ratio:.1f} times as many turns as at the stage's start",
        "the policy repeats itself, or does not end episodes",
        "look for loops in the report; penalise steps (reward.length), lower rollout.max_steps",
        start=True,
    ),
    "mask_leak": Rule(
        ("mask/obs_leak",),
        "{value:.0f} trained tokens were not sampled by the policy",
        "a bug: observations, templates or prompts are marked as actions",
        "stop, and look at the masks of the report's trajectories",
        anywhere=True,
    ),
    "mask_mismatch": Rule(
        ("mask/trained_equals_sampled",),
        "an episode marks more or fewer tokens as sampled than its steps hold",
        "a bug in the renderer or the history; or forced tokens, which are rightly left out",
        "compare the segments' masks with the steps' tokens",
        below=True,
    ),
    "entropy_collapse": Rule(
        ("policy/entropy", "entropy"),
        "entropy fell to {ratio:.0%} of its value at the stage's start: the policy samples one answer",
        "a learning rate too high, too many steps on one batch, rewards of one behaviour only",
        "lower the learning rate, add an entropy bonus or a KL term, raise clip_high",
        below=True,
        start=True,
    ),
    "kl": Rule(
        ("ratio/approx_kl_max", "ratio/approx_kl"),
        "the policy moved KL {value:.3f} from the one that sampled, within one iteration",
        "a learning rate too high, or too many optimiser steps on one batch",
        "lower the learning rate, the epochs, or the number of minibatches; set kl_stop",
    ),
    "reference_kl": Rule(
        ("kl/reference_k3", "kl/reference_k3+", "kl/reference_k2", "kl/reference_k1"),
        "the policy is KL {value:.3f} a token away from the reference",
        "a KL coefficient that is too small for this learning rate, or a long run",
        "raise kl_coef if the distance is not wanted; else raise this threshold",
    ),
    "mismatch": Rule(
        ("mismatch/kl", "is/k3_mismatch"),
        "sampler and trainer disagree on the same tokens (KL {value:.3f})",
        "different dtypes, a temperature or top-p that only one of them knows, or old weights in the decoder",
        "make the two agree first; a truncated importance weight only hides it",
    ),
    "clip": Rule(
        ("ratio/clip_frac_hi",),
        "{value:.0%} of the tokens are clipped from above (largest ratio {largest:.2g})",
        "a learning rate too high, or too many optimiser steps on one batch",
        "lower the learning rate or the epochs",
        beside={"largest": "ratio/max"},
    ),
    "skipped": Rule(
        ("skip/nonfinite",),
        "{value:.0f} micro-batches had a loss or gradient that is not finite and were skipped",
        "a policy that has diverged, or overflow in a low precision",
        "lower the learning rate and the gradient clip; look at the ratios of the iterations before",
        anywhere=True,
    ),
    "nonfinite": Rule(
        ("metrics/nonfinite",),
        "{value:.0f} metrics are NaN or infinite",
        "a division by nothing, or a policy that has diverged",
        "find the nulls of this step in metrics.jsonl",
        anywhere=True,
    ),
    "empty_batch": Rule(
        ("skip/empty_batch",),
        "no trajectory was left to train on, so there was no step",
        "every advantage is 0, or a filter dropped all",
        "look at group/zero_std_frac and at the filter",
        anywhere=True,
    ),
    "equal_rewards": Rule(
        ("group/zero_std_frac",),
        "every group has equal returns ({passed:.0%} solved by all, {failed:.0%} by none), so nothing can be learnt",
        "tasks too easy or too hard for the policy, a constant reward, or groups of one rollout",
        "choose tasks nearer to the policy's ability, or a reward with more levels",
        beside={"passed": "group/all_pass_frac", "failed": "group/all_fail_frac"},
    ),
    "zero_variance": Rule(
        ("group/zero_std_frac",),
        "{value:.0%} of the groups have equal returns and teach nothing ({passed:.0%} solved by all, {failed:.0%} by "
        "none)",
        "tasks too easy (solved by all) or too hard (by none)",
        "choose tasks nearer to the policy's ability, or more rollouts a group; filter such groups out",
        beside={"passed": "group/all_pass_frac", "failed": "group/all_fail_frac"},
    ),
    "singletons": Rule(
        ("group/singleton_frac",),
        "{value:.0%} of the groups have one surviving rollout and so no baseline",
        "environments that fail, or a quorum that cuts too early",
        "look at the reasons of dropped episodes (rollout/dropped), and at the group size",
    ),
    "failed_steps": Rule(
        ("rollout/exec_fail",),
        "{value:.0%} of the steps fail to execute",
        "a prompt whose format the policy does not follow, or a parser that does not fit it",
        "read a few trajectories; show the policy the format first (a supervised stage)",
    ),
    "tool_collapse": Rule(
        ("tools/entropy_share",),
        "calls go to few tools (entropy {value:.2f} of the largest possible)",
        "a reward that one tool satisfies, or too little exploration",
        "look at which tool it is; raise the temperature or the clip's upper end, reward diversity",
        below=True,
    ),
    "unknown_tools": Rule(
        ("tools/unknown",),
        "{value:.0%} of the calls name a tool that does not exist",
        "tool descriptions that the policy cannot see or read",
        "check the prompt's tools; train on failed calls with a negative weight, or penalise them (reward.tool)",
    ),
    "loops": Rule(
        ("loop/run_mean",),
        "an episode repeats one action {value:.1f} times in a row on average ({looping:.0%} of the episodes loop)",
        "observations that do not change, and a policy without another idea",
        "penalise duplicates (reward.tool), raise the temperature, end an episode that stands still",
        reach=True,
        beside={"looping": "loop/looping_frac"},
    ),
    "shaping_share": Rule(
        ("reward/shaping_share",),
        "{value:.0%} of the returns is shaping, by size",
        "weights of the terms too large against the outcome, or an outcome that is never earned",
        "set reward.cap well below the outcome",
    ),
    "judge_gap": Rule(
        ("reward/judge_gap",),
        "the judge scores {value:.2f} above the environment's verdict",
        "a judge that rewards looks, or is talked into it by the episode's text",
        "let a rule answer what can be checked, ask several judges and take their lower scores",
    ),
}
