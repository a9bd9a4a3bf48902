"""Function docs as JSON-schema tools. In: the benchmark's docs (types dict, float, any). Out: OpenAI-style tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxagent.envs.bfcl.data import Entry, documented

Describe = Literal["full", "calls", "signatures"]
"""What is told of a function: everything, all but what it returns, or only names and types (for tiny models)."""

TYPES: Mapping[str, str] = {"dict": "object", "float": "number", "tuple": "array"}
ANY = ("any", "Any")  # no constraint: JSON schema says that by leaving the type out


def schema(doc: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter's or object's description as JSON schema."""
    converted: dict[str, Any] = {}
    for key, value in doc.items():
        if key == "type":
            if value not in ANY:
                converted[key] = TYPES.get(value, value)
        elif key == "properties":
            converted[key] = {name: schema(part) for name, part in value.items()}
        elif key == "items":
            converted[key] = schema(value)
        else:
            converted[key] = value
    return converted


def tool(doc: Mapping[str, Any], describe: Describe = "full") -> dict[str, Any]:
    """One function. What it returns has no place in such a tool, so its description tells it."""
    name, parameters = doc["name"], schema(doc["parameters"])
    if describe == "signatures":
        bare = {key: {"type": part["type"]} for key, part in parameters["properties"].items()}
        parameters = {"type": "object", "properties": bare, "required": parameters["required"]}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}
    description = doc["description"]
    if describe == "full" and doc.get("response"):
        returned = json.dumps(schema(doc["response"]), ensure_ascii=False)
        description = f"{description} The response has the following schema: {returned}"
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def offered(entry: Entry, *, drop_excluded: bool) -> list[Mapping[str, Any]]:
    """Docs of the functions that are on offer from the first turn on."""
    withheld = {name for names in entry.withheld.values() for name in names}
    hidden = withheld | (set(entry.excluded) if drop_excluded else set())
    return [doc for name, doc in documented(entry).items() if name not in hidden]


def handed_out(entry: Entry, turn: int) -> list[Mapping[str, Any]]:
    """Docs of the functions that are on offer from this later turn on."""
    docs = documented(entry)
    return [docs[name] for name in entry.withheld.get(turn, ())]


def listing(docs: Sequence[Mapping[str, Any]], describe: Describe = "full") -> str:
    """Functions as text, a line each: a tool's JSON, or with "signatures" `cd(folder: string)`."""
    if describe == "signatures":
        return "\n".join(_signature(tool(doc, describe)["function"]) for doc in docs)
    return "\n".join(json.dumps(tool(doc, describe), ensure_ascii=False) for doc in docs)


def _signature(function: Mapping[str, Any]) -> str:
    properties = function["parameters"]["properties"]
    arguments = ", ".join(f"{name}: {part['type']}" for name, part in properties.items())
    return f"{function['name']}({arguments})"
