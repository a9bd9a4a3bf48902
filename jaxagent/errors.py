"""The errors that jaxagent raises on purpose. Each message says what came, what was expected, what to do."""

EXIT_INCOMPLETE = 4  # exit code: episodes, or what they need, failed; the same command plays what is missing


class JaxagentError(Exception):
    """Root of every error that jaxagent raises on purpose."""


class ConfigError(JaxagentError):
    """A run, recipe or model description that cannot work; raised before any device starts (exit code 2)."""


class DataError(JaxagentError):
    """A file, checkpoint, tokenizer or data set that is missing, damaged or does not fit (exit code 2)."""


class RolloutError(JaxagentError):
    """The rollout side broke one of its invariants, such as a history that is no longer a prefix."""


class EnvFailure(JaxagentError):
    """An environment raised, hung, died or answered garbage; the episode is retried, then dropped.

    kind: "raised" | "hang" | "died" | "garbage" | "reset" | "diverged" (a replay) | "user" | "judge" (an endpoint
          that the environment asks) | "endpoint" (one that plays); the reason in the conservation counts. Or
          "evicted": its worker was killed because of another episode, and it is run again, however often that happens.
    """

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class DivergenceError(JaxagentError):
    """Training cannot go on: repeated non-finite losses, or logits that are not finite."""


class ParityError(DivergenceError):
    """Sampler and trainer disagree before any update: a fault of the set-up, which no earlier checkpoint cures."""
