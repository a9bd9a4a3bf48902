"""Recipes by the name that a run file uses. Adding one: its file, one line here, one run file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from jaxagent.errors import ConfigError
from jaxagent.recipes import (
    agentevolver,
    cispo,
    dapo,
    gigpo,
    grpo,
    gspo,
    gvpo,
    loop,
    opd,
    reinforce,
    rft,
    rpp,
    sage,
    sft,
    siri,
    skill_grpo,
    skill_sd,
    skillrl,
    step_returns,
)
from jaxagent.recipes.base import Recipe

RECIPES: Mapping[str, Recipe] = {
    "sft": sft.RECIPE,
    "reinforce": reinforce.RECIPE,
    "rpp": rpp.RECIPE,
    "grpo": grpo.RECIPE,
    "dapo": dapo.RECIPE,
    "gspo": gspo.RECIPE,
    "cispo": cispo.RECIPE,
    "loop": loop.RECIPE,
    "gvpo": gvpo.RECIPE,
    "gigpo": gigpo.RECIPE,
    "step_returns": step_returns.RECIPE,
    "agentevolver": agentevolver.RECIPE,
    "skill_sd": skill_sd.RECIPE,
    "skill_grpo": skill_grpo.RECIPE,
    "opd": opd.RECIPE,
    "siri": siri.RECIPE,
    "skillrl": skillrl.RECIPE,
    "rft": rft.RECIPE,
    "sage": sage.RECIPE,
}


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(RECIPES))}"
        raise ConfigError(f"recipe {name!r} is unknown; {hint}")
    return RECIPES[name]
