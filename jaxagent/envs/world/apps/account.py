"""What every app with accounts has: login and logout, made once for each app."""

from __future__ import annotations

from jaxagent.envs.world.engine import Api, World

MESSAGE = {"message": "string"}


def login_of(app: str) -> Api:
    """The login API of an app. Its function is named `login`, as in the documentation."""

    def login(world: World, username: str, password: str):
        """Log in to the account; the access token of the response is needed by the other APIs.

        username: email of the account
        password: password of the account
        """
        return {"access_token": world.login(app, username, password), "token_type": "Bearer"}

    return Api(login, {"access_token": "string", "token_type": "string"})


def logout_of(app: str) -> Api:
    """The logout API of an app."""

    def logout(world: World, access_token: str):
        """Log out of the account; the access token becomes invalid.

        access_token: access token from the app's login
        """
        world.tokens.discard(access_token)
        return {"message": "Logout successful."}

    return Api(logout, MESSAGE)
