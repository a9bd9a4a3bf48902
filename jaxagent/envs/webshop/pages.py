"""The shop's pages as text. In: a `Place` and the shop. Out: the pieces that a page shows, and what it lets one click.

    Instruction: [SEP] i need … [SEP] Back to Search [SEP] < Prev [SEP] size [SEP] small [SEP] large [SEP] Alva Tea
    [SEP] Price: $9.5 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now

A chosen option is not marked: the benchmark's text does not show it either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from jaxagent.envs.webshop.catalogue import Product
from jaxagent.envs.webshop.shop import Shop

SEPARATOR = " [SEP] "
PER_PAGE = 10
BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
TABS = ("description", "features", "reviews")
Kind = Literal["search", "results", "item", "description", "features", "reviews", "done"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a shopper is. `options` are those clicked on the product `asin`; `found` are the results of `query`."""

    kind: Kind = "search"
    query: str = ""
    found: tuple[str, ...] = ()
    page: int = 1
    asin: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> tuple[str, ...]:
        """Products on this page of the results."""
        return self.found[(self.page - 1) * PER_PAGE : self.page * PER_PAGE]


def pieces(place: Place, shop: Shop) -> list[str]:
    """The texts of a page, after the instruction, in the benchmark's order."""
    if place.kind == "search":
        return ["Search"]
    if place.kind == "done":
        return ["Thank you for shopping with us!"]
    if place.kind == "results":
        return [
            "Back to Search",
            f"Page {place.page} (Total results: {len(place.found)})",
            *_listing(place, shop),
        ]
    product = shop.by_asin[place.asin]
    return [
        "Back to Search",
        "< Prev",
        *(_item(product) if place.kind == "item" else _tab(place.kind, product)),
    ]


def _listing(place: Place, shop: Shop) -> list[str]:
    texts = ["< Prev"] * (place.page > 1) + ["Next >"] * _more(place)
    for asin in place.shown:
        product = shop.by_asin[asin]
        texts += [asin, product.title, product.price_tag]
    return texts


def _more(place: Place) -> bool:
    return place.page * PER_PAGE < len(place.found)


def _item(product: Product) -> list[str]:
    texts = [text for name, values in product.options.items() for text in (name, *values)]
    texts += [product.title, f"Price: {product.price_tag}", f"Rating: {product.rating}"]
    return [*texts, "Description", "Features", "Reviews", "Buy Now"]


def _tab(kind: Kind, product: Product) -> list[str]:
    if kind == "description":
        return [product.description]
    return list(product.bullets) if kind == "features" else list(product.reviews or ("No reviews found",))


def clickables(place: Place, shop: Shop) -> dict[str, Place]:
    """What a click may name on a page, in the page's order, and where it leads; buying leads to "done"."""
    start = Place()
    if place.kind in ("search", "done"):
        return {}
    if place.kind == "results":
        links = {BACK: start}
        if place.page > 1:
            links[PREVIOUS] = replace(place, page=place.page - 1)
        if _more(place):
            links[NEXT] = replace(place, page=place.page + 1)
        return links | {asin.lower(): replace(place, kind="item", asin=asin) for asin in place.shown}
    item = replace(place, kind="item")
    if place.kind != "item":
        return {BACK: start, PREVIOUS: item}
    results = replace(place, kind="results", asin="", options={})
    links = {BACK: start, PREVIOUS: results, **{tab: replace(place, kind=tab) for tab in TABS}}
    links[BUY] = replace(place, kind="done")
    for name, values in shop.by_asin[place.asin].options.items():
        links |= {value: replace(item, options={**place.options, name: value}) for value in values}
    return links


def searched(query: str, shop: Shop) -> Place:
    """The results of a search."""
    return Place("results", query, tuple(shop.search(query)))


def observation(place: Place, shop: Shop, instruction: str, *, official: bool) -> str:
    """A page as the policy reads it: the benchmark's text, or the quoted pieces without the instruction."""
    texts = pieces(place, shop)
    if not official:
        return SEPARATOR.join(f"'{text}'" for text in texts)
    head = ["WebShop"] * (place.kind == "search") + ["Instruction:", instruction]
    return SEPARATOR.join(head * (place.kind != "done") + texts)


def allowed(place: Place, shop: Shop) -> list[str]:
    """The actions that a page allows, as a prompt lists them."""
    search = ["search[<your query>]"] if place.kind == "search" else []
    return search + [f"click[{name}]" for name in clickables(place, shop)]
