"""What shoppers want. In: products. Out: `Goal`s, shuffled as the benchmark does, and cut into its splits.

    instruction  i need a gluten free snack bar with flavor: cocoa, and price lower than 40.00 dollars
    goal         product B000000129, attributes (gluten free), options (cocoa), at most 40 dollars

"synthetic" goals say the annotator's instruction once for every combination of a product's options; "human" goals
are the instructions that people wrote. The price clause is drawn anew at each start of the benchmark's server; here it
is drawn by goal, so that a goal is the same in every process and run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from jaxagent.envs.webshop.catalogue import Product
from jaxagent.errors import ConfigError

SHUFFLE_SEED = 233
PRICE_STEPS = tuple(10.0 * step for step in range(1, 100))
PRICE_CHOICES = 4  # steps above the price that a limit is drawn from
NO_LIMIT = 1_000_000.0
TEST, DEV = 500, 1000  # the first 500 goals, and the 1,000 after them
ENOUGH = 2000  # goals that leave 500 or more to train on
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class Goal:
    """What a shopper wants: `asin` is a product that fulfils it; others may."""

    asin: str
    instruction: str
    title: str
    query: str
    product_category: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float

    @property
    def requirements(self) -> int:
        """What is counted: attributes, options and the price."""
        return len(self.attributes) + len(self.options) + 1


def make_goals(products: Sequence[Product], *, human: bool) -> list[Goal]:
    """All goals in the benchmark's order: that of the products, then shuffled with seed 233."""
    goals = list((_human if human else _synthetic)(products))
    if not goals:
        kind, file = ("human", "items_human_ins.json") if human else ("synthetic", "items_ins_v2.json")
        raise ConfigError(f"the catalogue has no {kind} goals: {file} names none of its products")
    Random(SHUFFLE_SEED).shuffle(goals)
    return goals


def split_numbers(split: str, goals: int) -> range:
    """Which goals a split holds: test 0-499, dev 500-1499, train the rest.

    A catalogue of fewer than 2,000 goals is cut in proportion: a tenth test, two tenths dev, the rest train.
    """
    if split not in SPLITS:
        raise ConfigError(f"webshop has no split {split!r}; its splits are {', '.join(SPLITS)}")
    official = goals >= ENOUGH
    test = TEST if official else max(goals // 10, 1)
    dev = test + (DEV if official else goals // 5)
    return {"test": range(test), "dev": range(test, dev), "train": range(dev, goals)}[split]


def _human(products: Sequence[Product]) -> Iterator[Goal]:
    for product in products:
        for number, written in enumerate(product.written):
            if written.attributes:
                limit, clause = _price_limit(product, number)
                text = written.text.strip(".") + clause
                yield _goal(product, text, written.attributes, written.options, limit)


def _synthetic(products: Sequence[Product]) -> Iterator[Goal]:
    for product in products:
        if not product.instruction or not product.instruction_attributes:
            continue
        limit, clause = _price_limit(product, 0)
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            listed = ", and ".join(f"{name}: {value}" for name, value in zip(names, values))
            chosen = f" with {listed}" if listed else ""
            text = f"{product.instruction}{chosen}{clause}"
            yield _goal(product, text, product.instruction_attributes, values, limit)


def _price_limit(product: Product, number: int) -> tuple[float, str]:
    """A round limit above the price, and how the instruction says it; none for the dearest products."""
    above = [step for step in PRICE_STEPS if step > product.price][:PRICE_CHOICES]
    if len(above) < 2:
        return NO_LIMIT, ""
    limit = max(Random(f"limit/{product.asin}/{number}").sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def _goal(
    product: Product, text: str, attributes: tuple[str, ...], options: tuple[str, ...], limit: float
) -> Goal:
    return Goal(
        asin=product.asin,
        instruction=text,
        title=product.title,
        query=product.query,
        product_category=product.product_category,
        attributes=attributes,
        options=options,
        price_upper=limit,
    )
