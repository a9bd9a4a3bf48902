"""Products, from the benchmark's item files. In: paths. Out: `Product`s in the files' order.

Three files, in the benchmark's own format: the items (`items_shuffle*.json`, a list), what an annotator found out
about them (`items_ins_v2*.json`, by product id) and the instructions that people wrote (`items_human_ins.json`, by
product id). `reviews.json` is read where it lies beside them. The items are read one at a time and only as many as
asked for, and a product keeps only what the shop shows or scores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from jaxagent.errors import DataError

NO_PRICE = 100.0  # the benchmark's price of a product that has none
NO_ATTRIBUTE = "DUMMY_ATTR"
CHUNK = 1 << 20
BETWEEN = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True)
class Written:
    """One instruction that a person wrote for a product, and what they meant by it."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """A product. `price` is one number (drawn within the range of `price_tag`), in dollars.

    options:     option name -> its values, in the shop's spelling.
    instruction: what the annotator would say to get it, and which attributes that names; "" if nothing.
    """

    asin: str
    title: str
    query: str
    category: str
    product_category: str
    description: str
    bullets: tuple[str, ...]
    price: float
    price_tag: str
    rating: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    reviews: tuple[str, ...] = ()
    instruction: str = ""
    instruction_attributes: tuple[str, ...] = ()
    written: tuple[Written, ...] = ()


def read_products(items: Path, attributes: Path, human: Path | None, *, limit: int = 0) -> list[Product]:
    """Products of the item files; limit 0 is all of them. Raises DataError for files of another format."""
    found = read_object(attributes)
    said = read_object(human) if human is not None else {}
    reviews = items.with_name("reviews.json")
    rated = {str(entry["asin"]): entry for entry in read_array(reviews)} if reviews.is_file() else {}
    products = make_products(read_array(items, limit=limit), found, said, rated)
    if not products:
        raise DataError(f"{items}: no products in it; expected the benchmark's list of items")
    return products


def make_products(
    items: Iterable[Mapping[str, Any]],
    attributes: Mapping[str, Any],
    human: Mapping[str, Any],
    reviews: Mapping[str, Any],
) -> list[Product]:
    """Items without an id of at most 10 characters, and repeated ones, are left out, as in the benchmark."""
    products: dict[str, Product] = {}
    for number, item in enumerate(items):
        try:
            asin = str(item["asin"])
            if asin == "nan" or len(asin) > 10 or asin in products:
                continue
            products[asin] = _product(
                item, attributes.get(asin, {}), human.get(asin, ()), reviews.get(asin, {})
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(
                f"item {number} is not in the benchmark's format ({type(error).__name__}: {error})"
            ) from None
    return list(products.values())


def _product(
    item: Mapping[str, Any],
    found: Mapping[str, Any],
    said: Sequence[Mapping[str, Any]],
    rated: Mapping[str, Any],
) -> Product:
    price, tag = _price(item["asin"], item.get("pricing"))
    bullets = item["small_description"]
    return Product(
        asin=item["asin"],
        title=str(item["name"]),
        query=str(item["query"]).lower().strip(),
        category=str(item["category"]),
        product_category=str(item["product_category"]),
        description=str(item["full_description"] or ""),
        bullets=tuple(str(line) for line in (bullets if isinstance(bullets, list) else [bullets]) if line),
        price=price,
        price_tag=tag,
        rating=str(rated.get("average_rating", "N.A.")),
        attributes=tuple(found.get("attributes") or (NO_ATTRIBUTE,)),
        options=_options(item.get("customization_options") or {}),
        reviews=tuple(_review(review) for review in rated.get("reviews", ())),
        instruction=found.get("instruction") or "",
        instruction_attributes=tuple(found.get("instruction_attributes") or ()),
        written=tuple(_written(entry) for entry in said),
    )


def _price(asin: str, pricing: str | None) -> tuple[float, str]:
    """ "$8.50$12.00" is a range: the price is drawn within it, by product, and is the same in every run."""
    prices = [float(re.sub(r"[^\d.]", "", part)) for part in (pricing or "").split("$")[1:]]
    if not prices:
        return NO_PRICE, f"${NO_PRICE}"
    if len(prices) == 1:
        return prices[0], f"${prices[0]}"
    return Random(f"price/{asin}").uniform(*prices[:2]), f"${prices[0]} to ${prices[1]}"


def _options(customization: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Values in the spelling that the shop shows and clicks take: lower case, " | " for "/"."""
    return {
        name.lower(): tuple(str(value["value"]).strip().replace("/", " | ").lower() for value in values)
        for name, values in customization.items()
        if values is not None
    }


def _review(review: Mapping[str, Any]) -> str:
    score = review.get("score", review.get("stars", ""))
    return f"{review.get('title', '')} ({score}) {review.get('body', review.get('review', ''))}".strip()


def _written(entry: Mapping[str, Any]) -> Written:
    options = entry["instruction_options"]
    values = options.values() if isinstance(options, dict) else options
    return Written(
        str(entry["instruction"]),
        tuple(entry["instruction_attributes"]),
        tuple(str(value) for value in values),
    )


def read_object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise DataError(f"{path}: expected an object by product id, got {type(values).__name__}")
    return values


def read_array(path: Path, *, limit: int = 0) -> Iterator[Any]:
    """The elements of a JSON array, one at a time: the file of 1.18 million items is larger than memory allows."""
    decoder, number = json.JSONDecoder(), 0
    with path.open(encoding="utf-8") as file:
        text = file.read(CHUNK)
        at = _after(text, 0)
        if not text.startswith("[", at):
            raise DataError(f"{path}: expected a JSON array")
        at += 1
        while not limit or number < limit:
            at = _after(text, at)
            if text.startswith("]", at):
                return
            try:
                value, at = decoder.raw_decode(text, at)
            except ValueError as error:
                more = file.read(max(CHUNK, len(text) - at))
                if not more:
                    raise DataError(f"{path}: broken after element {number}: {error}") from None
                text, at = text[at:] + more, 0
                continue
            yield value
            number += 1


def _after(text: str, at: int) -> int:
    """The next place that is neither space nor comma."""
    found = BETWEEN.match(text, at)
    return found.end() if found else at
