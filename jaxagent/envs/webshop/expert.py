"""A scripted shopper who knows the goal and uses the site as everybody does. In: pages. Out: messages.

It searches for what the instruction says, then for the title of the product it knows to be right, looks through the
results, opens it, clicks the options, buys. With `sloppiness` it now and then does something else instead.
"""

from __future__ import annotations

from random import Random

from jaxagent.envs.webshop.goals import Goal
from jaxagent.envs.webshop.options import WebshopOptions
from jaxagent.envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SEPARATOR
from jaxagent.envs.webshop.prompt import spoken
from jaxagent.envs.webshop.reward import basic_colour, same
from jaxagent.envs.webshop.shop import Shop, open_shop
from jaxagent.types import Task


class Shopper:
    """See ScriptedPolicy in envs/protocol.py."""

    def __init__(self, options: WebshopOptions, task: Task, rng: Random, sloppiness: float):
        self._options, self._rng, self._sloppiness = options, rng, sloppiness
        self._shop = open_shop(options)
        self._goal = self._shop.goals[task.meta["goal"]]
        said = self._goal.instruction.partition(", and price lower than")[0]
        self._queries = [said, self._goal.title]
        self._wanted = wanted_values(self._shop, self._goal)

    def act(self, observation: str) -> str:
        shown = [text.strip("'") for text in observation.partition("\n")[0].split(SEPARATOR)]
        if self._rng.random() < self._sloppiness:
            return self._slip(shown)
        return spoken(self._options, *self._next(shown))

    def _next(self, shown: list[str]) -> tuple[str, str]:
        """A thought and the right command."""
        if "Back to Search" not in shown:
            query = self._queries.pop(0) if len(self._queries) > 1 else self._queries[0]
            return "I look for what is asked for.", f"search[{query}]"
        if "Buy Now" in shown and self._goal.title not in shown:
            return "This is not what is asked for.", f"click[{PREVIOUS}]"
        if "Buy Now" in shown:
            if self._wanted:
                return "This option is asked for.", f"click[{self._wanted.pop(0)}]"
            return "Everything fits, I buy it.", f"click[{BUY}]"
        if self._goal.asin in shown:
            return "This product fits.", f"click[{self._goal.asin.lower()}]"
        if "Next >" in shown and len(self._queries) == 1:
            return "It may be on the next page.", f"click[{NEXT}]"
        return "It is not here, I go back.", f"click[{BACK}]"

    def _slip(self, shown: list[str]) -> str:
        """Something that a careless shopper might do on this page."""
        if "Buy Now" in shown:
            values = [value for name in self._product_options(shown) for value in name]
            command = self._rng.choice((BUY, PREVIOUS, *values))
        elif "Back to Search" in shown:
            listed = [text for text in shown if text in self._shop.by_asin]
            command = self._rng.choice((*listed, BACK)).lower()
        else:
            return self._rng.choice(
                (spoken(self._options, "A short query.", f"search[{self._goal.query}]"), self._goal.query)
            )
        return spoken(self._options, "This will do.", f"click[{command}]")

    def _product_options(self, shown: list[str]) -> list[tuple[str, ...]]:
        titles = {product.title: product for product in self._shop.products}
        return [values for text in shown if text in titles for values in titles[text].options.values()]


def wanted_values(shop: Shop, goal: Goal) -> list[str]:
    """For every option of the goal, the product's value that fulfils it; options it does not have are left out."""
    values = [value for listed in shop.by_asin[goal.asin].options.values() for value in listed]
    found = []
    for option in goal.options:
        alike = [value for value in values if same(basic_colour(value), basic_colour(option))]
        found += [option.lower()] if option.lower() in values else alike[:1]
    return found


def expert(options: WebshopOptions, task: Task, rng: Random, sloppiness: float) -> Shopper:
    return Shopper(options, task, rng, sloppiness)
