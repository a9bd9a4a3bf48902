"""A small tokenizer trained on the spot, for models trained from scratch. In: texts. Out: a `Tokenizer`.

Byte-level BPE, so every string has ids, behind a "copy-friendly" pre-tokenizer: a word has one spelling
wherever it stands (no leading-space variants, no English contractions) and every digit is a token of its
own. A tiny model can then copy a name from an observation into a call:

    in a call           login(password='mezo')   ->   login ( password =' mezo ')
    in an observation   is 'mezo'                ->   is ␣ ' mezo '

GPT-2's rule would split the first as `='` + `mezo` and the second as `'m` + `ezo`: different tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from jaxagent.chat.plain import PLAIN_JINJA, PLAIN_SPECIALS
from jaxagent.chat.tokenizer import Tokenizer, wrap
from jaxagent.errors import ConfigError

COPY_FRIENDLY = r"[A-Za-z]+|[0-9]|\n *| +|[^\sA-Za-z0-9]+"
BYTES = 256


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 512,
    specials: Sequence[str] = PLAIN_SPECIALS,
    *,
    pattern: str = COPY_FRIENDLY,
    chat_template: str = PLAIN_JINJA,
) -> Tokenizer:
    """Train on `texts`; the same texts give the same tokenizer. Ids 0.. are `specials`, then the 256 bytes.

    The first special pads, the second ends a turn. Fewer than `vocab_size` tokens result when the texts hold
    fewer repeated pairs.
    """
    if len(specials) < 2 or len(set(specials)) != len(specials):
        raise ConfigError(
            f"specials={list(specials)}: give a padding and an end-of-turn token, all different"
        )
    if vocab_size < len(specials) + BYTES:
        raise ConfigError(
            f"vocab_size={vocab_size} is too small: {len(specials)} specials and {BYTES} bytes come first; "
            f"set it to {len(specials) + BYTES} or more"
        )
    backend = Backend(BPE())
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer=trainer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": specials[0],
        "eos_token": specials[1],
        "clean_up_tokenization_spaces": False,
        "chat_template": chat_template,
    }
    return wrap(backend, config)
