"""Text to token ids and back. In: a Hugging Face tokenizer folder. Out: a frozen `Tokenizer`.

`tokenizer.json` is read by `tokenizers` directly (no torch, no jax, quick); folders that hold only a
SentencePiece or a vocab/merges file are converted by transformers, imported on that path alone. Chat markup,
masks and control tokens typed by users are chat/render.py's job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from jaxagent.errors import DataError

HUB_PREFIX = "hf://"
HUB_FILES = ("*token*", "*.model", "vocab*", "merges.txt", "chat_template*", "config.json")
CONVERTIBLE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer as data: the compiled backend and the content of its `tokenizer_config.json`.

    specials: control tokens (`special: true`), which text from users and environments must never become.
    """

    backend: Backend
    config: Mapping[str, Any] = field(default_factory=dict)
    specials: tuple[str, ...] = ()
    source: str = ""

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; nothing is added, control tokens written in `text` become control tokens.

        Lone surrogates, which environments can produce and UTF-8 cannot hold, become question marks.
        """
        whole = text.encode("utf-8", "replace").decode("utf-8")
        return self.backend.encode(whole, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of `ids`, control tokens included. Broken UTF-8 becomes U+FFFD, unknown ids become nothing."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=False)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id: the number of rows that an embedding needs (it may have more)."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    def id(self, token: str) -> int:
        found = self.backend.token_to_id(token)
        if found is None:
            raise DataError(
                f"tokenizer {self.source or '(trained)'} has no token {token!r}, which the chat template "
                "needs. Choose the template that fits this tokenizer, or add the token to it."
            )
        return found

    def has(self, token: str) -> bool:
        return self.backend.token_to_id(token) is not None

    @property
    def chat_template(self) -> str | None:
        """The tokenizer's own Jinja template, if it ships one. Rendering does not use it; tests compare."""
        template = self.config.get("chat_template")
        return template if isinstance(template, str) else None

    def save(self, folder: str | Path) -> None:
        """Write a folder that transformers' AutoTokenizer and `load_tokenizer` load to the same ids."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self.config}
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer from a local folder or from `hf://owner/name`.

    Raises DataError when the folder is missing, holds no tokenizer, or holds a damaged one.
    """
    if str(path).startswith(HUB_PREFIX):
        return load_tokenizer(_download(str(path).removeprefix(HUB_PREFIX)))
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(
            f"tokenizer folder {folder} does not exist; give a Hugging Face folder or hf://owner/name"
        )
    config = _read_config(folder)
    if (folder / "tokenizer.json").exists():
        backend = _read_backend(folder / "tokenizer.json")
    elif any((folder / name).exists() for name in CONVERTIBLE):
        backend = _convert(folder)
    else:
        raise DataError(
            f"{folder} holds no tokenizer: expected tokenizer.json or one of {', '.join(CONVERTIBLE)}; "
            f"found {', '.join(sorted(p.name for p in folder.iterdir())[:10]) or 'an empty folder'}"
        )
    _add_missing(backend, config.get("added_tokens_decoder", {}), folder)
    return wrap(backend, config, source=str(folder))


def wrap(backend: Backend, config: Mapping[str, Any], *, source: str = "") -> Tokenizer:
    """A `Tokenizer` around a backend; stored truncation and padding settings are switched off."""
    backend.no_truncation()
    backend.no_padding()
    specials = tuple(token.content for token in backend.get_added_tokens_decoder().values() if token.special)
    return Tokenizer(backend, dict(config), specials, source)


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is not valid JSON ({error}); fetch the file again") from error
    if not isinstance(config, dict):
        raise DataError(f"{file} holds {type(config).__name__}, expected an object; fetch the file again")
    template = folder / "chat_template.jinja"
    if template.exists():
        config["chat_template"] = template.read_text(encoding="utf-8")
    return config


def _read_backend(file: Path) -> Backend:
    try:
        return Backend.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception for every damaged file
        head = file.read_bytes()[:40]
        hint = (
            "it is a Git LFS pointer"
            if head.startswith(b"version https://git-lfs")
            else "fetch the file again"
        )
        raise DataError(f"{file} cannot be read as a tokenizer ({error}); {hint}") from error


def _convert(folder: Path) -> Backend:
    """SentencePiece and vocab/merges folders, converted to the same backend by transformers."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    except Exception as error:  # transformers raises whatever the file's own reader raised
        raise DataError(
            f"transformers cannot read the tokenizer in {folder} ({type(error).__name__}: {error}); "
            "check that tokenizer_config.json names a tokenizer_class and that the model file is complete"
        ) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise DataError(
            f"{type(tokenizer).__name__} in {folder} has no fast form; save it once with a version of "
            "transformers that writes tokenizer.json (AutoTokenizer.from_pretrained(…).save_pretrained(…))"
        )
    return Backend.from_str(backend.to_str())


def _add_missing(backend: Backend, declared: Mapping[str, Any], folder: Path) -> None:
    """Added tokens that only tokenizer_config.json lists; their ids must continue the vocabulary."""
    try:
        added = sorted(
            ((int(number), entry["content"], entry) for number, entry in declared.items()),
            key=lambda item: item[0],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder}/tokenizer_config.json: added_tokens_decoder is damaged ({error!r}); fetch the file again"
        ) from error
    for number, content, entry in added:
        if backend.token_to_id(content) is None:
            keys = ("single_word", "lstrip", "rstrip", "normalized", "special")
            flags = {key: bool(entry[key]) for key in keys if key in entry}
            backend.add_tokens([AddedToken(content, **flags)])
        if backend.token_to_id(content) != number:
            raise DataError(
                f"{folder}: tokenizer_config.json gives {content!r} id {number}, tokenizer.json gives "
                f"{backend.token_to_id(content)}; the two files belong to different tokenizers"
            )


def _download(name: str) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return snapshot_download(name, allow_patterns=list(HUB_FILES))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise DataError(
            f"cannot fetch the tokenizer hf://{name} ({type(error).__name__}: {str(error).splitlines()[0]}); "
            "check the name and the network, or give a local folder"
        ) from error
