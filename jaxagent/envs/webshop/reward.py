"""The benchmark's reward of a purchase. In: product, chosen options, goal. Out: `Score`, its value in [0, 1].

    value = r_type * (attributes hit + options hit + [price <= limit]) / (attributes + options + 1)

r_type asks whether it is that kind of product at all: 1 if the catalogue query is the same, two category parts are
shared or more than 0.2 of the wanted title's nouns occur; 0.5 if none of these; 0.1 if fewer than 0.1 of the nouns
occur, and 0 if none does, whatever the query says.

Text is compared as thefuzz's token_set_ratio does it: rapidfuzz's function of that name (which thefuzz calls) on lower
case words of ASCII characters, rounded to a whole number. docs/environments/webshop.md lists the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from jaxagent.envs.entry import need
from jaxagent.envs.webshop.catalogue import Product
from jaxagent.envs.webshop.goals import Goal
from jaxagent.envs.webshop.titles import Nouns

SAME = 85  # two texts whose ratio exceeds this say the same
INSTALL = "pip install 'jaxagent[webshop]' (bm25s and rapidfuzz)"
COLOUR_WORDS = """
    amber aqua apricot ash azure beige black blue blush bronze brown burgundy camel camo caramel champagne charcoal
    chestnut chocolate coffee copper coral cream crystal dark denim espresso fuchsia gold granite graphite gray green
    grey heather indigo ivory khaki lavender lemon leopard light lilac lime magenta maroon mauve midnight mint mocha
    multicolor mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
    sapphire silver slate steel stone tan taupe teal turquoise violet walnut wheat white wine yellow"""
COLOURS = tuple(COLOUR_WORDS.split())


@dataclass(frozen=True, slots=True)
class Score:
    """What a purchase earns, and why. `hits` of `of` requirements are fulfilled (attributes, options, price)."""

    value: float
    r_type: float
    attributes: int
    options: int
    price: bool
    of: int

    @property
    def hits(self) -> int:
        return self.attributes + self.options + self.price


def score(product: Product, chosen: Mapping[str, str], goal: Goal, nouns: Nouns) -> Score:
    """The reward of buying `product` with the options that were clicked."""
    r_type = type_reward(product, goal, nouns)
    attributes = attribute_hits(product, goal.attributes)
    options = option_hits(chosen.values(), goal.options)
    price = product.price <= goal.price_upper
    hits = attributes + options + price
    return Score(r_type * hits / goal.requirements, r_type, attributes, options, price, goal.requirements)


def type_reward(product: Product, goal: Goal, nouns: Nouns) -> float:
    wanted, bought = nouns(goal.title), set(nouns(product.title))
    overlap = len(set(wanted) & bought) / len(wanted) if wanted else 0.2
    if overlap == 0:
        return 0.0
    if overlap < 0.1:
        return 0.1
    shared = _parts(product.product_category) & _parts(goal.product_category)
    alike = product.query == goal.query or len(shared) >= 2 or overlap > 0.2
    return 1.0 if alike else 0.5


def _parts(category: str) -> set[str]:
    """Food › Snacks › Bars: its three parts."""
    return {part.strip() for part in category.split("›")}


def attribute_hits(product: Product, wanted: Sequence[str]) -> int:
    """Attributes that the product is known for, or else that its title, features or description names."""
    texts = [product.title.lower(), " ".join(product.bullets).lower(), product.description.lower()]
    return sum(
        any(same(has, want) for has in product.attributes) or any(want in text for text in texts)
        for want in wanted
    )


def option_hits(chosen: Iterable[str], wanted: Sequence[str]) -> int:
    """Wanted options that one of the chosen ones equals, colours by their basic name."""
    have = [basic_colour(value) for value in chosen]
    return sum(any(same(value, basic_colour(want)) for value in have) for want in wanted)


def basic_colour(value: str) -> str:
    """The first colour word, in the list's order, that the text contains; without any, the text.

    "a light heathered navy" is "heather": the benchmark goes through its list and not through the text.
    """
    return next((colour for colour in COLOURS if colour in value), value)


def same(a: str, b: str) -> bool:
    return token_set_ratio(a, b) > SAME


def token_set_ratio(a: str, b: str) -> int:
    """thefuzz.fuzz.token_set_ratio: 0 to 100."""
    ratio, plain = rapidfuzz()
    return round(ratio(plain(_ascii(a)), plain(_ascii(b))))


def _ascii(text: str) -> str:
    return text.encode("ascii", "ignore").decode()


@cache
def rapidfuzz() -> tuple[Callable[[str, str], float], Callable[[str], str]]:
    """rapidfuzz's ratio and its clean-up of a text. Raises ConfigError where the package is missing."""
    fuzz, clean = need("rapidfuzz.fuzz", install=INSTALL), need("rapidfuzz.utils", install=INSTALL)
    return fuzz.token_set_ratio, clean.default_process
