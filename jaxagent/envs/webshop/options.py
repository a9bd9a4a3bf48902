"""What a run file may say about the shop."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from jaxagent.records import Record


class WebshopOptions(Record):
    """catalogue: the benchmark's item files, in the folder `data` (or $JAXAGENT_WEBSHOP_DATA); or made-up products.

    products:    the first so many of them; 0 is all (200 made-up ones).
    goals:       instructions put together from annotations, or those that people wrote.
    layout:      pages as verl-agent shows them (quoted pieces, the instruction once, in the prompt), or the
                 benchmark's own text with the instruction on every page.
    admissible:  every page ends with the list of the actions that it allows.
    tags:        actions stand between <action> and </action>; without, a message is an action and nothing else.
    search_anywhere: accept a search on every page, as the benchmark's code does; else only where a search bar is.
    tagger:      an installed spaCy pipeline for the nouns of titles; without, built-in word lists.
    """

    catalogue: Literal["official", "generated"] = "official"
    data: str = ""
    items_file: str = "items_shuffle_1000.json"
    attributes_file: str = "items_ins_v2_1000.json"
    human_file: str = "items_human_ins.json"
    products: int = Field(0, ge=0)
    goals: Literal["synthetic", "human"] = "synthetic"
    layout: Literal["verl-agent", "official"] = "verl-agent"
    admissible: bool = True
    tags: bool = True
    search_anywhere: bool = False
    tagger: str = ""
