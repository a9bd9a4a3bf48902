"""An MCP server over stdio with the standard library alone: a shelf of notes, new for every episode.

With the official SDK (`pip install mcp`) the same is a few decorated functions.
"""

import json
import sys

NOTES = {"shopping": "milk, bread"}
TEXT = {"type": "string"}


def read_note(title: str) -> str:
    return NOTES[title]


def write_note(title: str, text: str) -> str:
    NOTES[title] = text
    return "saved"


TOOLS = {
    "read_note": (read_note, "Read a note.", {"title": TEXT}),
    "write_note": (write_note, "Write a note, or replace it.", {"title": TEXT, "text": TEXT}),
}


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        server = {"name": "notes", "version": "1"}
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": server,
        }
    if method == "tools/list":
        schema = {
            name: {"type": "object", "properties": p, "required": list(p)}
            for name, (_, _, p) in TOOLS.items()
        }
        return {
            "tools": [
                {"name": n, "description": t, "inputSchema": schema[n]} for n, (_, t, _) in TOOLS.items()
            ]
        }
    try:
        text, failed = TOOLS[params["name"]][0](**params["arguments"]), False
    except Exception as exc:
        text, failed = f"{type(exc).__name__}: {exc}", True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
