"""SkillRL's bank (arXiv 2602.08234): general skills, skills of a kind of task, common mistakes. As its JSON has it.

    {"general_skills": [{skill_id, title, principle, when_to_apply}],
     "task_specific_skills": {"pick_and_place": [{…}]},
     "common_mistakes": [{mistake_id, description, why_it_happens, how_to_avoid}]}

A request retrieves the `top_k` skills that are most like it, of whatever kind, and as many mistakes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jaxagent.errors import DataError
from jaxagent.skills.retrieve import Likeness, top_k


@dataclass(frozen=True)
class Principle:
    """A skill: what to do, and when."""

    skill_id: str
    title: str
    principle: str
    when_to_apply: str = ""

    @property
    def key(self) -> str:
        """What a request is compared with."""
        return self.when_to_apply or f"{self.title} {self.principle}".strip()


@dataclass(frozen=True)
class Mistake:
    mistake_id: str
    description: str
    why_it_happens: str = ""
    how_to_avoid: str = ""

    @property
    def key(self) -> str:
        return f"{self.description} {self.why_it_happens}".strip()


@dataclass
class Library:
    """The bank, in the order in which it grew."""

    general: list[Principle] = field(default_factory=list)
    by_kind: dict[str, list[Principle]] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.principles) + len(self.mistakes)

    @property
    def principles(self) -> list[Principle]:
        return [*self.general, *(skill for skills in self.by_kind.values() for skill in skills)]

    def add_skill(self, kind: str, title: str, principle: str, when_to_apply: str) -> bool:
        """False if the bank holds its words already. Without a kind it is a general skill."""
        words = (principle.strip(), when_to_apply.strip())
        if any((skill.principle, skill.when_to_apply) == words for skill in self.principles):
            return False
        skill = Principle(f"dyn_{len(self):03d}", title.strip(), *words)
        (self.by_kind.setdefault(kind, []) if kind else self.general).append(skill)
        return True

    def add_mistake(self, description: str, why_it_happens: str, how_to_avoid: str) -> bool:
        if any(mistake.description == description.strip() for mistake in self.mistakes):
            return False
        words = (description.strip(), why_it_happens.strip(), how_to_avoid.strip())
        self.mistakes.append(Mistake(f"err_{len(self):03d}", *words))
        return True

    def retrieve(
        self, request: str, likeness: Likeness, *, k: int, floor: float
    ) -> tuple[list[Principle], list[Mistake]]:
        """The k skills and the k mistakes that are most like a request and reach the floor, best first."""
        skills, mistakes = self.principles, self.mistakes
        if not request.strip() or not len(self):
            return [], []
        likeness_N = likeness(request, [item.key for item in (*skills, *mistakes)])
        n = len(skills)
        return (
            [skills[i] for i in top_k(likeness_N[:n], k, floor=floor)],
            [mistakes[i] for i in top_k(likeness_N[n:], k, floor=floor)],
        )

    def state(self) -> dict[str, Any]:
        """The published layout; `restore(state())` gives an equal bank."""
        return {
            "general_skills": [asdict(skill) for skill in self.general],
            "task_specific_skills": {
                kind: [asdict(skill) for skill in skills] for kind, skills in self.by_kind.items()
            },
            "common_mistakes": [asdict(mistake) for mistake in self.mistakes],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Fields that we do not know (an `example`) are left out. Raises DataError."""
        try:
            general = [_known(Principle, entry) for entry in state["general_skills"]]
            by_kind = {
                kind: [_known(Principle, entry) for entry in entries]
                for kind, entries in state["task_specific_skills"].items()
            }
            mistakes = [_known(Mistake, entry) for entry in state["common_mistakes"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"no skill bank ({error!r}); expected general_skills, task_specific_skills and common_mistakes, with "
                "skill_id, title, principle and when_to_apply, or mistake_id and description, in each"
            ) from error
        self.general, self.by_kind, self.mistakes = general, by_kind, mistakes


def read_library(path: str) -> Library:
    """A bank from a JSON file; an empty one without a path."""
    library = Library()
    if path:
        try:
            library.restore(json.loads(Path(path).expanduser().read_text("utf-8")))
        except (OSError, ValueError) as error:
            raise DataError(f"the skill bank {path} cannot be read: {error}") from error
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
    return library


def _known(kind: type[Any], entry: Mapping[str, Any]) -> Any:
    """Fields that are null count as absent; numbers are taken as words, nothing else is."""
    given = {name: entry[name] for name in kind.__dataclass_fields__ if entry.get(name) is not None}
    for name, value in given.items():
        if not isinstance(value, (str, int, float)):
            raise TypeError(f"{name} is a {type(value).__name__}, expected words")
    return kind(**{name: str(value) for name, value in given.items()})


def full_library_text(skills: Sequence[Principle], mistakes: Sequence[Mistake]) -> str:
    """For models that read."""
    lines = ["Skills from earlier experience:"] if skills else []
    for skill in skills:
        when = f" (when: {skill.when_to_apply})" if skill.when_to_apply else ""
        lines.append(f"- {skill.title}: {skill.principle}{when}")
    lines += ["Mistakes to avoid:"] if mistakes else []
    for mistake in mistakes:
        avoid = f" Instead: {mistake.how_to_avoid}" if mistake.how_to_avoid else ""
        lines.append(f"- {mistake.description}{avoid}")
    return "\n".join(lines)


def principles_alone(skills: Sequence[Principle], mistakes: Sequence[Mistake]) -> str:
    """The best skill's principle alone, for small models that know actions and observations only."""
    return skills[0].principle if skills else ""
