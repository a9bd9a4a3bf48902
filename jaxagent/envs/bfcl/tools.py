"""Function docs as JSON-schema tools. In: the benchmark's docs (types dict, float, any). Out: OpenAI-style tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxagent.envs.bfcl.data import Entry, documented

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


def tool(doc: Mapping[str, Any], *, responses: bool) -> dict[str, Any]:
    """One function. What it returns has no place in such a tool, so with `responses` its description tells it."""
    description = doc["description"]
    if responses and doc.get("response"):
        returned = json.dumps(schema(doc["response"]), ensure_ascii=False)
        description = f"{description} The response has the following schema: {returned}"
    function = {"name": doc["name"], "description": description, "parameters": schema(doc["parameters"])}
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


def listing(docs: Sequence[Mapping[str, Any]], *, responses: bool) -> str:
    """Tools as text, one JSON object a line."""
    return "\n".join(json.dumps(tool(doc, responses=responses), ensure_ascii=False) for doc in docs)
