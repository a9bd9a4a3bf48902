"""Command line of the converter: exit code 0, or 2 with one message."""

from __future__ import annotations

import argparse
import sys

from jaxagent.errors import JaxagentError
from jaxagent.model.gguf import convert, smollm2_path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m jaxagent.model.gguf", description="GGUF -> Hugging Face folder"
    )
    parser.add_argument("source", help="a .gguf file of the llama architecture, or `smollm2`")
    parser.add_argument("out", help="folder to write; must not exist or be empty")
    chosen = parser.parse_args(arguments)
    try:
        out = convert(smollm2_path() if chosen.source == "smollm2" else chosen.source, chosen.out)
    except JaxagentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
