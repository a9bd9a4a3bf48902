"""A shop: products, a cart, orders, reviews. Only tasks of test_challenge need it."""

from __future__ import annotations

from jaxagent.envs.world.apps.account import MESSAGE, login_of, logout_of
from jaxagent.envs.world.engine import Api, App, World, page, view

PRODUCT = {"product_id": 1, "name": "string", "category": "string", "price": 1.0, "rating": 1.0}
CART = {"product_id": 1, "quantity": 1}
ORDER = {
    "order_id": 1,
    "product_ids": [1],
    "quantities": [1],
    "total": 1.0,
    "payment_card_id": 1,
    "address_id": 1,
    "created_at": "string",
}
REVIEW = {"review_id": 1, "product_id": 1, "stars": 1, "text": "string"}


def search_products(
    world: World,
    access_token: str,
    query: str = "",
    category: str | None = None,
    page_index: int = 0,
    page_limit: int = 5,
):
    """Search products by name and category.

    access_token: access token from shop login
    query: part of the name
    category: only products of this category
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    rows = [
        view(row, *PRODUCT)
        for row in world.rows("shop.products")
        if query.casefold() in row["name"].casefold() and category in (None, row["category"])
    ]
    return page(rows, page_index, page_limit)


def show_product(world: World, product_id: int, access_token: str):
    """Show one product.

    product_id: id of the product
    access_token: access token from shop login
    """
    return view(world.get("shop.products", product_id, "product"), *PRODUCT)


def show_cart(world: World, access_token: str):
    """Show the products in the cart.

    access_token: access token from shop login
    """
    return [view(row, *CART) for row in world.rows("shop.cart")]


def set_cart_quantity(world: World, product_id: int, quantity: int, access_token: str):
    """Put a product into the cart, change its quantity, or (quantity 0) take it out.

    product_id: id of the product
    quantity: how many
    access_token: access token from shop login
    """
    world.get("shop.products", product_id, "product")
    if not 0 <= quantity <= 100:
        raise world.refuse(422, "Validation error. Reason: \nquantity: must be between 0 and 100")
    cart = world.tables["shop.cart"]
    if quantity == 0:
        if product_id not in cart:
            raise world.refuse(404, "The product is not in the cart.")
        world.remove("shop.cart", product_id)
    elif product_id in cart:
        world.change("shop.cart", product_id, quantity=quantity)
    else:
        world.add("shop.cart", product_id, quantity=quantity)
    return {"message": "Cart updated."}


def place_order(world: World, payment_card_id: int, address_id: int, access_token: str):
    """Order everything in the cart; the cart is empty afterwards.

    payment_card_id: id of the person's card, see supervisor
    address_id: id of the person's address, see supervisor
    access_token: access token from shop login
    """
    world.get("cards", payment_card_id, "payment card")
    world.get("addresses", address_id, "address")
    cart = list(world.rows("shop.cart"))
    if not cart:
        raise world.refuse(409, "The cart is empty.")
    products = world.tables["shop.products"]
    key = world.add(
        "shop.orders",
        product_ids=tuple(row["id"] for row in cart),
        quantities=tuple(row["quantity"] for row in cart),
        total=round(sum(products[row["id"]]["price"] * row["quantity"] for row in cart), 2),
        payment_card_id=payment_card_id,
        address_id=address_id,
        created_at=world.now,
    )
    for row in cart:
        world.remove("shop.cart", row["id"])
    return {"message": "Order placed.", "order_id": key}


def show_orders(world: World, access_token: str, page_index: int = 0, page_limit: int = 5):
    """Show past orders, latest first.

    access_token: access token from shop login
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    rows = sorted(world.rows("shop.orders"), key=lambda row: row["created_at"], reverse=True)
    return page([view(row, *ORDER) for row in rows], page_index, page_limit)


def show_my_reviews(world: World, access_token: str, page_index: int = 0, page_limit: int = 5):
    """Show the reviews that the person has written.

    access_token: access token from shop login
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    return page([view(row, *REVIEW) for row in world.rows("shop.reviews")], page_index, page_limit)


def write_review(world: World, product_id: int, stars: int, text: str, access_token: str):
    """Review a product.

    product_id: id of the product
    stars: 1 to 5
    text: the review
    access_token: access token from shop login
    """
    world.get("shop.products", product_id, "product")
    if not 1 <= stars <= 5:
        raise world.refuse(422, "Validation error. Reason: \nstars: must be between 1 and 5")
    key = world.add("shop.reviews", product_id=product_id, stars=stars, text=text)
    return {"message": "Review written.", "review_id": key}


APP = App(
    "shop",
    "Products, a cart, orders and reviews.",
    (
        login_of("shop"),
        logout_of("shop"),
        Api(search_products, [PRODUCT]),
        Api(show_product, PRODUCT),
        Api(show_cart, [CART]),
        Api(set_cart_quantity, MESSAGE),
        Api(place_order, MESSAGE | {"order_id": 1}),
        Api(show_orders, [ORDER]),
        Api(show_my_reviews, [REVIEW]),
        Api(write_review, MESSAGE | {"review_id": 1}),
    ),
)
