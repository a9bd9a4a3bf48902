"""Tokenizer metadata of a GGUF file -> tokenizer.json and tokenizer_config.json of a Hugging Face folder.

Byte-level BPE only (`tokenizer.ggml.model` = "gpt2"). GGUF names the pre-tokenizer instead of storing its
pattern, so the names that are known are written out here; another one is refused rather than guessed.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from jaxagent.errors import DataError
from jaxagent.model.gguf.reading import GGUF

CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def gpt2_pieces() -> pre_tokenizers.PreTokenizer:
    """GPT-2's pattern: a leading space belongs to its word."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def smollm_pieces() -> pre_tokenizers.PreTokenizer:
    """GPT-2's pattern after every digit has been set apart."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2_pieces()])


PIECES = {"gpt-2": gpt2_pieces, "default": gpt2_pieces, "smollm": smollm_pieces}


def build_tokenizer(source: GGUF) -> Tokenizer:
    """The `tokenizers` object. Ids are the positions in the file's token list."""
    model, pre = source.get("tokenizer.ggml.model"), source.metadata.get("tokenizer.ggml.pre", "default")
    if model != "gpt2" or pre not in PIECES:
        raise DataError(
            f"{source.path}: tokenizer {model!r} with pre-tokenizer {pre!r}; converted are 'gpt2' with "
            f"one of {sorted(PIECES)}, take tokenizer.json of the model's Hugging Face folder"
        )
    tokens = source.get("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in source.get("tokenizer.ggml.merges")]
    bpe = models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = PIECES[pre]()  # type: ignore[assignment]  # the stubs declare no setter type
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    kinds = source.get("tokenizer.ggml.token_type")
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            added = AddedToken(token, special=kind == CONTROL, normalized=False)
            (tokenizer.add_special_tokens if kind == CONTROL else tokenizer.add_tokens)([added])
    if source.metadata.get("tokenizer.ggml.add_bos_token", False):
        bos = source.get("tokenizer.ggml.bos_token_id")
        tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
            single=f"{tokens[bos]} $A", pair=f"{tokens[bos]} $A $B", special_tokens=[(tokens[bos], bos)]
        )
    return tokenizer


def tokenizer_config(source: GGUF) -> dict[str, Any]:
    """tokenizer_config.json: the special tokens by role, and the chat template."""
    tokens = source.get("tokenizer.ggml.tokens")
    ids = {role: source.metadata.get(f"tokenizer.ggml.{name}_token_id") for role, name in ROLES.items()}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": source.get("llama.context_length"),
    }
    config |= {f"{role}_token": tokens[index] for role, index in ids.items() if index is not None}
    if "tokenizer.chat_template" in source.metadata:
        config["chat_template"] = source.metadata["tokenizer.chat_template"]
    return config
