"""One shopping trip. In: an `Action` whose text is search[…] or click[…]. Out: the next page.

An action that is malformed, or that the page does not allow, changes nothing: the same page comes back with reward 0,
as in the benchmark; its status is INVALID or RUNTIME_ERROR. The reward comes when something is bought, and that is the
end. The whole state is a `Place`, so a snapshot is a few hundred bytes.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict

from jaxagent.envs.webshop.options import WebshopOptions
from jaxagent.envs.webshop.pages import Place, allowed, clickables, observation, searched
from jaxagent.envs.webshop.reward import Score, score
from jaxagent.envs.webshop.shop import open_shop
from jaxagent.types import Action, Evaluation, ExecStatus, StepResult, Task

COMMAND = re.compile(r"(search|click)\[(.*)\]", re.IGNORECASE | re.DOTALL)


class Webshop:
    """See envs/protocol.py. `Snapshots` is implemented."""

    def __init__(self, options: WebshopOptions):
        self._options = options

    def reset(self, task: Task) -> StepResult:
        self._shop = open_shop(self._options)
        self._goal = self._shop.goals[task.meta["goal"]]
        self._place, self._score = Place(), None
        return self._page()

    def step(self, action: Action) -> StepResult:
        command = COMMAND.fullmatch(action.text.strip())
        value = command[2].strip().lower() if command else ""
        if action.error or not command or not value:
            return self._page(ExecStatus.INVALID)
        if command[1].lower() == "search":
            bar = self._place.kind == "search" or self._options.search_anywhere
            place = searched(value, self._shop) if bar and not self._score else None
        else:
            place = clickables(self._place, self._shop).get(value)
        if place is None:
            return self._page(ExecStatus.RUNTIME_ERROR)
        self._place = place
        if place.kind == "done":
            self._buy()
        return self._page()

    def _buy(self) -> None:
        product = self._shop.by_asin[self._place.asin]
        self._score = score(product, self._place.options, self._goal, self._shop.nouns)

    def _page(self, status: ExecStatus = ExecStatus.OK) -> StepResult:
        official = self._options.layout == "official"
        page = observation(self._place, self._shop, self._goal.instruction, official=official)
        bought = self._score
        offered = [] if bought or not self._options.admissible else allowed(self._place, self._shop)
        return StepResult(
            page + listing(offered),
            status,
            done=bought is not None,
            reward=bought.value if bought and status is ExecStatus.OK else 0.0,
            anchor=self._anchor(),
            info={"instruction": self._goal.instruction},
        )

    def _anchor(self) -> str:
        """The page without the instruction, and the options chosen so far, which no page shows."""
        page = observation(self._place, self._shop, "", official=False)
        chosen = json.dumps(self._place.options, sort_keys=True) if self._place.options else ""
        return f"{page} {chosen}".strip()

    def evaluate(self) -> Evaluation:
        """Counted are the goal's attributes, options and price, and being that kind of product at all."""
        total = self._goal.requirements + 1
        bought = self._score
        if bought is None:
            return Evaluation(False, 0, total, ("nothing was bought",), {"score": 0.0, "bought": False})
        return Evaluation(
            success=bought.value == 1.0,
            passed=bought.hits + (bought.r_type == 1.0),
            total=total,
            failures=_failures(bought, len(self._goal.attributes), len(self._goal.options)),
            info={"score": bought.value, "bought": True, "r_type": bought.r_type},
        )

    def close(self) -> None:
        """The shop stays with the process."""

    def snapshot(self) -> bytes:
        return json.dumps(asdict(self._place)).encode()

    def restore(self, state: bytes) -> None:
        values = json.loads(state)
        self._place, self._score = Place(**{**values, "found": tuple(values["found"])}), None
        if self._place.kind == "done":
            self._buy()


def listing(actions: list[str]) -> str:
    """The admissible actions under a page, one a line; "" for none."""
    return "\nAdmissible actions:\n" + "\n".join(actions) if actions else ""


def _failures(bought: Score, attributes: int, options: int) -> tuple[str, ...]:
    """What is wrong with a purchase."""
    found = []
    if bought.r_type < 1:
        found.append(f"another kind of product (r_type {bought.r_type})")
    if bought.attributes < attributes:
        found.append(f"{bought.attributes} of {attributes} attributes")
    if bought.options < options:
        found.append(f"{bought.options} of {options} options")
    if not bought.price:
        found.append("too expensive")
    return tuple(found)
