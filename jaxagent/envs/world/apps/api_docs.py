"""The app that documents the others, machine-readable. Everything is read off the functions themselves."""

from __future__ import annotations

from typing import Any

from jaxagent.envs.world.engine import TYPE_NAMES, Api, App, World, parameters


def summary(api: Api) -> str:
    return (api.run.__doc__ or "").splitlines()[0].strip()


def document(app: App, api: Api) -> dict[str, Any]:
    """The documentation of one API in AppWorld's layout."""
    described = [
        {
            "name": parameter.name,
            "type": TYPE_NAMES[parameter.type],
            "required": parameter.required,
            "description": parameter.description,
            "default": parameter.default,
            "constraints": [],
        }
        for parameter in parameters(api.run)
    ]
    return {
        "app_name": app.name,
        "api_name": api.name,
        "path": f"/{app.name}/{api.name}",
        "method": "GET" if api.name.startswith(("show_", "search_")) else "POST",
        "description": summary(api),
        "parameters": described,
        "response_schemas": {"success": api.returns, "failure": {"message": "string"}},
    }


def find_app(world: World, app_name: str) -> App:
    if app_name not in world.apps:
        names = ", ".join(world.apps)
        raise world.refuse(
            422, f"The app_name '{app_name}' is invalid. It must be one of: {names}.", "no such app"
        )
    return world.apps[app_name]


def show_app_descriptions(world: World):
    """Show the names and descriptions of all apps."""
    return [{"name": app.name, "description": app.description} for app in world.apps.values()]


def show_api_descriptions(world: World, app_name: str):
    """Show the names and descriptions of the APIs of an app.

    app_name: name of the app
    """
    return [{"name": api.name, "description": summary(api)} for api in find_app(world, app_name).apis]


def show_api_doc(world: World, app_name: str, api_name: str):
    """Show the full documentation of one API: parameters and response.

    app_name: name of the app
    api_name: name of the API within the app
    """
    app = find_app(world, app_name)
    api = app.find(api_name)
    if api is None:
        names = ", ".join(api.name for api in app.apis)
        message = f"The api_name '{api_name}' is invalid for the app {app_name}. It must be one of: {names}."
        raise world.refuse(422, message, f"{app_name} has {names}")
    return document(app, api)


def search_api_docs(world: World, query: str, app_name: str | None = None):
    """Search all APIs for words in their names and descriptions.

    query: words that must all occur
    app_name: name of the app to search; all apps if not given
    """
    apps = [find_app(world, app_name)] if app_name else list(world.apps.values())
    words = query.casefold().split()
    return [
        {"app_name": app.name, "api_name": api.name, "description": summary(api)}
        for app in apps
        for api in app.apis
        if all(word in f"{api.name} {summary(api)}".casefold() for word in words)
    ]


NAMED = {"name": "string", "description": "string"}
APP = App(
    "api_docs",
    "Documentation of all apps and their APIs.",
    (
        Api(show_app_descriptions, [NAMED]),
        Api(show_api_descriptions, [NAMED]),
        Api(
            show_api_doc,
            {
                "app_name": "string",
                "api_name": "string",
                "path": "string",
                "method": "string",
                "description": "string",
                "parameters": [{"name": "string"}],
                "response_schemas": {"success": {}, "failure": {}},
            },
        ),
        Api(search_api_docs, [{"app_name": "string", "api_name": "string", "description": "string"}]),
    ),
)
