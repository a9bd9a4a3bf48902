"""The shop that all episodes of a process share: catalogue, goals, index. Built once for each options record.

The trainer's process needs the goals alone; the index is built when the first query comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from jaxagent.envs.bm25 import Ranking, build_ranking
from jaxagent.envs.entry import data_path
from jaxagent.envs.webshop.catalogue import Product, make_products, read_products
from jaxagent.envs.webshop.generated import generated
from jaxagent.envs.webshop.goals import Goal, make_goals
from jaxagent.envs.webshop.options import WebshopOptions
from jaxagent.envs.webshop.titles import Nouns, spacy_nouns, word_nouns

RESULTS = 50  # of a search
FETCH = (
    "Download items_shuffle_1000.json, items_ins_v2_1000.json and items_human_ins.json as "
    "https://github.com/princeton-nlp/WebShop says (setup.sh), put them into one folder and name it; "
    "or take catalogue: generated"
)


@dataclass(frozen=True)
class Shop:
    products: Sequence[Product]
    goals: Sequence[Goal]
    nouns: Nouns

    @cached_property
    def by_asin(self) -> dict[str, Product]:
        return {product.asin: product for product in self.products}

    @cached_property
    def _ranking(self) -> Ranking:
        return build_ranking([index_text(product) for product in self.products])

    def search(self, query: str) -> list[str]:
        """Product ids, best first, at most 50."""
        return [self.products[number].asin for number in self._ranking.search(query, RESULTS)]


def index_text(product: Product) -> str:
    """What the benchmark's index holds of a product."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    first = product.bullets[0] if product.bullets else ""
    return " ".join((product.title, product.description, first, options)).lower()


def open_shop(options: WebshopOptions) -> Shop:
    """The shop of these options, kept for the life of the process."""
    return _open(options.model_dump_json())


@lru_cache(maxsize=2)
def _open(options_json: str) -> Shop:
    options = WebshopOptions.model_validate_json(options_json)
    products = _products(options)
    nouns = spacy_nouns(options.tagger) if options.tagger else word_nouns
    return Shop(products, make_goals(products, human=options.goals == "human"), nouns)


def _products(options: WebshopOptions) -> list[Product]:
    if options.catalogue == "generated":
        items, known = generated(options.products or 200)
        return make_products(items, known, {}, {})
    folder = data_path(
        options.data, variable="JAXAGENT_WEBSHOP_DATA", what="WebShop's item files", fetch=FETCH
    )
    human = _file(folder, options.human_file) if options.goals == "human" else None
    return read_products(
        _file(folder, options.items_file),
        _file(folder, options.attributes_file),
        human,
        limit=options.products,
    )


def _file(folder: Path, name: str) -> Path:
    return data_path(
        str(folder / name), variable="JAXAGENT_WEBSHOP_DATA", what=f"WebShop's file {name}", fetch=FETCH
    )
