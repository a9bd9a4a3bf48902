"""Tasks about the shop, which only test_challenge needs."""

from __future__ import annotations

from jaxagent.envs.world.goal import Change, Goal, added, removed, updated
from jaxagent.envs.world.kinds.scene import (
    DONE,
    READ_NOTE,
    Kind,
    Scene,
    fill,
    find_contact,
    full_name,
    sent_email,
)
from jaxagent.envs.world.people import CATEGORIES

ORDER = """
card = [row for row in apis.supervisor.show_payment_cards() if row["name"] == <card>][0]
home = [row for row in apis.supervisor.show_addresses() if row["name"] == <address>][0]
print(apis.shop.place_order(payment_card_id=card["payment_card_id"], address_id=home["address_id"],
                            access_token=shop_token))
"""
PLACED = ("supervisor.show_payment_cards", "supervisor.show_addresses", "shop.place_order")


def order(scene: Scene, card: str, address: str, *items: tuple[int, int]) -> Change:
    """The order of items (product id, quantity)."""
    products = scene.tables["shop.products"]
    return added(
        "shop.orders",
        product_ids=tuple(key for key, _ in items),
        quantities=tuple(quantity for _, quantity in items),
        total=sum(products[key]["price"] * quantity for key, quantity in items),
        payment_card_id=scene.rows("cards", name=card)[0]["id"],
        address_id=scene.rows("addresses", name=address)[0]["id"],
    )


def cheapest(scene: Scene) -> Goal:
    category, low = scene.rng.choice(sorted(CATEGORIES)), scene.style.random() < 0.5
    rows = sorted(scene.rows("shop.products", category=category), key=lambda row: row["price"])
    code = """
    products = pages(apis.shop.search_products, category=<category>, access_token=shop_token)
    product = sorted(products, key=lambda product: product["price"])[<index>]
    print(product)
    """
    return Goal(
        f"What is the name of the {'cheapest' if low else 'most expensive'} product of the category "
        f'"{category}" in '
        "the shop?",
        (
            fill(code, category=category, index=0 if low else -1),
            'apis.supervisor.complete_task(answer=product["name"])',
        ),
        answer=rows[0 if low else -1]["name"],
        lookups=("shop.search_products",),
    )


def fillcart(scene: Scene) -> Goal:
    cart = scene.tables["shop.cart"]
    product = scene.rng.choice([row for row in scene.rows("shop.products") if row["id"] not in cart])
    quantity = scene.style.randrange(2, 6)
    code = """
    product = apis.shop.search_products(query=<name>, access_token=shop_token)[0]
    print(apis.shop.set_cart_quantity(product_id=product["product_id"], quantity=<quantity>,
                                      access_token=shop_token))
    """
    return Goal(
        f"Put {quantity} pieces of the {product['name']} into my shopping cart.",
        (fill(code, name=product["name"], quantity=quantity), DONE),
        (added("shop.cart", id=product["id"], quantity=quantity),),
        lookups=("shop.search_products", "shop.set_cart_quantity"),
    )


def checkout(scene: Scene) -> Goal:
    card, address = scene.style.choice(["Visa", "Debit"]), scene.style.choice(["Home", "Work"])
    cart = scene.rows("shop.cart")
    items = [(row["id"], row["quantity"]) for row in cart]
    return Goal(
        f"Order everything that is in my shopping cart with my {card} card, to my {address.lower()} address.",
        (
            "print(apis.shop.show_cart(access_token=shop_token))",
            fill(ORDER, card=card, address=address),
            DONE,
        ),
        (order(scene, card, address, *items), *(removed("shop.cart", row["id"]) for row in cart)),
        lookups=("shop.show_cart", *PLACED),
    )


def trimcart(scene: Scene) -> Goal:
    products = scene.tables["shop.products"]
    prices = sorted(products[row["id"]]["price"] for row in scene.rows("shop.cart"))
    limit = float(int(prices[2]) + 1)
    gone = [row for row in scene.rows("shop.cart") if products[row["id"]]["price"] > limit]
    if not gone:
        key = max((row["id"] for row in scene.rows("shop.cart")), key=lambda key: products[key]["price"])
        products[key]["price"] = limit + 2
        gone = [scene.tables["shop.cart"][key]]
    code = """
    for row in apis.shop.show_cart(access_token=shop_token):
        product = apis.shop.show_product(product_id=row["product_id"], access_token=shop_token)
        if product["price"] > <limit>:
            apis.shop.set_cart_quantity(product_id=row["product_id"], quantity=0, access_token=shop_token)
    """
    return Goal(
        f"Take everything out of my shopping cart that costs more than ${limit:.2f} a piece.",
        (fill(code, limit=limit), DONE),
        tuple(removed("shop.cart", row["id"]) for row in gone),
        lookups=("shop.show_cart", "shop.show_product", "shop.set_cart_quantity"),
    )


def shoppinglist(scene: Scene) -> Goal:
    scene.tables["shop.cart"].clear()
    title = scene.style.choice(["Shopping list", "Party list", "Wish list"])
    card, address = scene.style.choice(["Visa", "Debit"]), scene.style.choice(["Home", "Work"])
    rows = scene.rng.sample(scene.rows("shop.products"), scene.rng.randrange(2, 5))
    items = [(row["id"], scene.rng.randrange(1, 5)) for row in rows]
    names = scene.tables["shop.products"]
    content = "\n".join(f"{quantity} x {names[key]['name']}" for key, quantity in items)
    created = f"{scene.day(-1)}T19:00"
    scene.plant("notes.notes", title=title, content=content, tags=(), pinned=False, created_at=created)
    act = """
    for line in note["content"].splitlines():
        quantity, name = line.split(" x ")
        product = apis.shop.search_products(query=name, access_token=shop_token)[0]
        apis.shop.set_cart_quantity(product_id=product["product_id"], quantity=int(quantity),
                                    access_token=shop_token)
    """
    return Goal(
        f'Order what my note "{title}" lists, in this order, with my {card} card to my {address.lower()} '
        f"address. My cart is empty.",
        (fill(READ_NOTE, title=title), fill(act), fill(ORDER, card=card, address=address), DONE),
        (order(scene, card, address, *items),),
        lookups=(
            "notes.search_notes",
            "notes.show_note",
            "shop.search_products",
            "shop.set_cart_quantity",
            *PLACED,
        ),
    )


def spent(scene: Scene) -> Goal:
    code = """
    orders = pages(apis.shop.show_orders, access_token=shop_token)
    total = sum(order["total"] for order in orders)
    print(total)
    """
    return Goal(
        "How much have I spent on all my orders in the shop together, in dollars?",
        (fill(code), "apis.supervisor.complete_task(answer=total)"),
        answer=sum(row["total"] for row in scene.rows("shop.orders")),
        lookups=("shop.show_orders",),
    )


def review(scene: Scene) -> Goal:
    latest = max(scene.rows("shop.orders"), key=lambda row: row["created_at"])
    stars = scene.style.randrange(1, 6)
    text = scene.style.choice(["Just what I needed.", "It is fine.", "Could be better."])
    code = """
    latest = apis.shop.show_orders(page_limit=1, access_token=shop_token)[0]
    print(latest)
    for product_id in latest["product_ids"]:
        apis.shop.write_review(product_id=product_id, stars=<stars>, text=<text>, access_token=shop_token)
    """
    return Goal(
        f'Review each product of my latest order in the shop: {stars} stars and the text "{text}"',
        (fill(code, stars=stars, text=text), DONE),
        tuple(added("shop.reviews", product_id=key, stars=stars, text=text) for key in latest["product_ids"]),
        lookups=("shop.show_orders", "shop.write_review"),
    )


def tellbest(scene: Scene) -> Goal:
    person, category = scene.pick("phone.contacts"), scene.style.choice(sorted(CATEGORIES))
    best = max(scene.rows("shop.products", category=category), key=lambda row: row["rating"])
    body = f"{best['name']}: ${best['price']:.2f}"
    read = """
    products = pages(apis.shop.search_products, category=<category>, access_token=shop_token)
    best = max(products, key=lambda product: product["rating"])
    print(best)
    """
    act = """
    body = f"{best['name']}: ${best['price']:.2f}"
    apis.mail.send_email(recipient=person["email"], subject="Gift idea", body=body, access_token=mail_token)
    """
    return Goal(
        f'Email {full_name(person)} the best rated product of the category "{category}" in the shop. The '
        f'subject is "Gift '
        'idea", the text is the name and the price like this: "Orla pan: $12.50".',
        (fill(read, category=category), find_contact(full_name(person)), fill(act), DONE),
        (sent_email(scene, person["email"], "Gift idea", body),),
        lookups=("shop.search_products", "phone.search_contacts", "mail.send_email"),
    )


def halforder(scene: Scene) -> Goal:
    person = scene.pick("phone.contacts")
    latest = max(scene.rows("shop.orders"), key=lambda row: row["created_at"])
    latest["total"] = 2 * float(int(latest["total"]))
    half, why = latest["total"] / 2, scene.style.choice(["half of the order", "shared order"])
    code = """
    latest = apis.shop.show_orders(page_limit=1, access_token=shop_token)[0]
    print(latest)
    """
    act = """
    apis.bank.request_money(email=person["email"], amount=latest["total"] / 2, description=<why>,
                            access_token=bank_token)
    """
    return Goal(
        f"Request half of the total of my latest shop order from {full_name(person)} in the bank app, "
        f'with the description "{why}".',
        (fill(code), find_contact(full_name(person)), fill(act, why=why), DONE),
        (added("bank.requests", direction="sent", email=person["email"], amount=half, description=why),),
        lookups=("shop.show_orders", "phone.search_contacts", "bank.request_money"),
    )


def doublecart(scene: Scene) -> Goal:
    code = """
    for row in apis.shop.show_cart(access_token=shop_token):
        apis.shop.set_cart_quantity(product_id=row["product_id"], quantity=2 * row["quantity"],
                                    access_token=shop_token)
    """
    return Goal(
        "Double the quantity of everything in my shopping cart.",
        (fill(code), DONE),
        tuple(
            updated("shop.cart", row["id"], quantity=2 * row["quantity"]) for row in scene.rows("shop.cart")
        ),
        lookups=("shop.show_cart", "shop.set_cart_quantity"),
    )


KINDS = (
    Kind("cheapest", 1, cheapest),
    Kind("fillcart", 1, fillcart),
    Kind("checkout", 2, checkout),
    Kind("trimcart", 2, trimcart),
    Kind("shoppinglist", 3, shoppinglist),
    Kind("spent", 2, spent),
    Kind("review", 2, review),
    Kind("tellbest", 3, tellbest),
    Kind("halforder", 3, halforder),
    Kind("doublecart", 2, doublecart),
)
