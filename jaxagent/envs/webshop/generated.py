"""A made-up catalogue in the benchmark's file format, for tests and tiny models. In: a size. Out: items and attributes.

Product n is the same in every catalogue that holds it. The words are few and the instructions say what the benchmark's
synthetic goals say: a type, attributes, options and a price.
"""

from __future__ import annotations

from random import Random
from typing import Any

KINDS = {  # type: category parts, attributes, option name -> values
    "snack bar": (
        "Grocery › Food › Snacks",
        "gluten free,plant based,low sugar,high protein",
        "flavor:cocoa,berry,nut",
    ),
    "green tea": (
        "Grocery › Food › Beverages",
        "caffeine free,usda organic,low sugar",
        "flavor:mint,lemon,ginger",
    ),
    "shampoo": (
        "Beauty › Hair Care › Cleansers",
        "sulfate free,cruelty free,tea tree",
        "size:4 oz,8 oz,16 oz",
    ),
    "face cream": (
        "Beauty › Skin Care › Moisturizers",
        "fragrance free,cruelty free,long lasting",
        "size:2 oz,4 oz",
    ),
    "t shirt": (
        "Clothing › Men › Tops",
        "machine wash,slim fit,short sleeve",
        "color:red,blue,black;size:small,large",
    ),
    "running shoe": (
        "Clothing › Shoes › Athletic",
        "rubber sole,non slip,memory foam",
        "color:white,navy;size:8,9,10",
    ),
    "desk lamp": (
        "Home › Furniture › Lighting",
        "energy efficient,easy assemble,wall mounted",
        "color:silver,black,gold",
    ),
    "sofa table": (
        "Home › Furniture › Tables",
        "solid wood,easy clean,space saving",
        "color:walnut,white,gray",
    ),
    "phone case": (
        "Electronics › Phones › Accessories",
        "heavy duty,wireless charging,tempered glass",
        "color:pink,teal",
    ),
    "speaker": (
        "Electronics › Audio › Portable",
        "water resistant,hands free,stereo sound",
        "color:black,orange,lime",
    ),
}
BRANDS = (
    "Alva",
    "Borel",
    "Corin",
    "Dovet",
    "Elmar",
    "Fenda",
    "Gilto",
    "Hazor",
    "Ivern",
    "Juno",
    "Kelso",
    "Lumar",
)


def generated(products: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Items, and what is known about them by product id, as the item files hold them."""
    items: list[dict[str, Any]] = []
    known: dict[str, Any] = {}
    for number in range(products):
        item, facts = _one(number)
        items.append(item)
        known[item["asin"]] = facts
    return items, known


def _one(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = Random(f"webshop/{number}")
    kind = rng.choice(tuple(KINDS))
    category, listed, optional = KINDS[kind]
    has = rng.sample(listed.split(","), 2)
    brand = f"{rng.choice(BRANDS)} {number}"
    options = {
        name: [{"value": value} for value in values.split(",")]
        for name, values in (option.split(":") for option in optional.split(";"))
    }
    item = {
        "asin": f"B{number:09d}",
        "name": f"{brand} {kind.title()}, {has[0].title()}",
        "query": kind,
        "category": category.split(" › ")[0].lower(),
        "product_category": category,
        "full_description": f"The {kind} by {brand}: {has[0]} and {has[1]}.",
        "small_description": [f"{has[1]}", f"made by {brand}"],
        "pricing": f"${rng.randrange(500, 9000) / 100:.2f}",
        "customization_options": options,
        "images": [""],
    }
    wanted = rng.sample(has, rng.choice((1, 1, 2)))
    facts = {
        "attributes": has,
        "instruction": f"i want a {' '.join(wanted)} {kind} by {brand}",
        "instruction_attributes": wanted,
    }
    return item, facts
