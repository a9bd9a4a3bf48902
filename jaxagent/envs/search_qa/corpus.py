"""A corpus that can be searched. In: a JSON Lines file of texts. Out: `Library`: a query gives the best texts.

The index is built once, in the trainer's process, and cached on disk; workers map it into memory and read the texts
that they show from the corpus file, so a process holds neither. A cache folder is named by the corpus file's path, size
and time, is complete once it has that name, and is never written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from jaxagent.envs.bm25 import Ranking, build_ranking, load_ranking
from jaxagent.envs.search_qa.made_up import made_up_texts
from jaxagent.envs.search_qa.questions import read_hotpotqa
from jaxagent.errors import ConfigError, DataError

OFFSETS = "offsets.npy"
TEXTS = "texts.jsonl"
VERSION = 1  # of what a cache folder holds


@dataclass(frozen=True)
class Text:
    title: str
    text: str


@dataclass(frozen=True)
class Library:
    """ranking numbers the texts as `text` does."""

    ranking: Ranking
    text: Callable[[int], Text]

    def search(self, query: str, results: int) -> list[Text]:
        return [self.text(number) for number in self.ranking.search(query, results)]


@lru_cache(maxsize=2)
def open_library(folder: str) -> Library:
    """The library of an index folder; "" is the made-up world's. Kept for the life of the process."""
    if not folder:
        texts = [Text(title, text) for title, text in made_up_texts()]
        return Library(build_ranking([_searched(text) for text in texts]), texts.__getitem__)
    place = Path(folder)
    source = Path(json.loads((place / "source.json").read_text())["texts"])
    offsets = np.load(place / OFFSETS, mmap_mode="r")
    return Library(load_ranking(place), lambda number: _read_text(source, int(offsets[number])))


def _read_text(source: Path, offset: int) -> Text:
    with source.open("rb") as file:
        file.seek(offset)
        row = json.loads(file.readline())
    return Text(str(row.get("title", "")), str(row["text"]))


def _searched(text: Text) -> str:
    """What the index holds of a text."""
    return f"{text.title} {text.text}"


def prepare_index(corpus: Path, *, hotpotqa: bool, cache: str) -> str:
    """The folder of this corpus's index, which is built if it is not there. Takes minutes for millions of texts."""
    corpus = corpus.resolve()
    stat = corpus.stat()
    key = f"{corpus}/{stat.st_size}/{stat.st_mtime_ns}/{hotpotqa}/{VERSION}"
    base = Path(cache).expanduser().resolve() if cache else corpus.parent
    place = base / f"{corpus.name}.bm25-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if place.is_dir():
        return str(place)
    try:
        base.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=base))
    except OSError as error:
        raise ConfigError(
            f"the index of {corpus} cannot be written to {base} ({error}); name a folder in env.options.cache"
        ) from None
    try:
        _build(corpus, building, place, hotpotqa=hotpotqa)
        building.chmod(0o755)  # mkdtemp keeps it to this user; the corpus may serve several
        try:
            os.rename(building, place)
        except OSError:  # another run was faster: its index is the same
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return str(place)


def _build(corpus: Path, building: Path, place: Path, *, hotpotqa: bool) -> None:
    texts = corpus
    if hotpotqa:
        texts = place / TEXTS
        _write_paragraphs(corpus, building / TEXTS)
    read = building / TEXTS if hotpotqa else corpus
    offsets, searched = zip(*_texts(read)) if read.stat().st_size else ((), ())
    if not offsets:
        raise DataError(f"{corpus}: the corpus is empty; expected one text a line")
    np.save(building / OFFSETS, np.asarray(offsets, np.int64))
    build_ranking(searched).save(building)
    (building / "source.json").write_text(json.dumps({"texts": str(texts)}))


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """(place in the file, searched text) of every line."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    row = json.loads(line)
                    yield offset, _searched(Text(str(row.get("title", "")), str(row["text"])))
                except (ValueError, KeyError, AttributeError) as error:
                    raise DataError(
                        f"{path}:{number}: {type(error).__name__}: {error}; expected an object with title and text"
                    ) from None
            offset += len(line)


def _write_paragraphs(path: Path, out: Path) -> None:
    """Every paragraph of a HotpotQA file, once; of two with one title the first."""
    seen: dict[str, str] = {}
    for row in read_hotpotqa(path):
        context = row["context"]
        pairs = zip(context["title"], context["sentences"]) if isinstance(context, dict) else context
        for title, sentences in pairs:
            seen.setdefault(title, "".join(sentences))
    with out.open("w", encoding="utf-8") as file:
        for title, text in seen.items():
            file.write(json.dumps({"id": title, "title": title, "text": text}) + "\n")
