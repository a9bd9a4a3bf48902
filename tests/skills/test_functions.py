"""Functions as skills: what is one, what it needs, how it is handed on, and when it counts as used."""

import json

import pytest

from jaxagent.errors import DataError
from jaxagent.skills.functions import (
    carried,
    defined,
    definitions,
    library_state,
    merged,
    read_library,
    used,
)
from jaxagent.skills.hand_on import library_text, show_library
from jaxagent.types import ExecStatus, Message, Prompt
from tests.made_episodes import make_step, make_task, make_trajectory

FAILED, SYNTAX, TIMEOUT = ExecStatus.RUNTIME_ERROR, ExecStatus.SYNTAX_ERROR, ExecStatus.TIMEOUT


def episode(*cells, task="q1"):
    """Cells as code, or as (code, status)."""
    pairs = [cell if isinstance(cell, tuple) else (cell, ExecStatus.OK) for cell in cells]
    steps = [make_step(k, status=status, code=code) for k, (code, status) in enumerate(pairs)]
    return make_trajectory(steps=steps, task=make_task(task, scenario="s"))


def skills(*cells, known=()):
    return {function.name: function for function in defined(episode(*cells), known)}


def test_a_record_says_what_and_where():
    (pay,) = defined(
        episode(
            'import json, os.path\ndef pay(to, amount=1) -> int:\n    """Pay.\n\n    All."""\n    return json.loads(to)'
        )
    )
    assert (pay.name, pay.task_id, pay.scenario_id) == ("pay", "q1", "s")
    assert pay.imports == ("import json",)
    assert pay.signature == "def pay(to, amount=1) -> int"
    assert pay.docstring == "Pay.\n\nAll."
    assert pay.definition.startswith("import json\ndef pay(to, amount=1) -> int:")
    namespace = {}
    exec(pay.definition, namespace)
    assert namespace["pay"]("3") == 3


def test_only_definitions_at_the_top_of_cells_that_ran_are_skills():
    cell = """
def outer():
    def inner(): pass
class Bank:
    def pay(self): pass
if True:
    def conditional(): pass
square = lambda x: x * x
async def fetch(): return 1
"""
    assert set(skills(cell)) == {"outer", "fetch"}
    assert skills(cell)["fetch"].signature == "async def fetch()"
    assert skills(("def f(): pass\n1/0", FAILED), ("def g(:", SYNTAX), ("def h(): pass", TIMEOUT)) == {}
    assert skills("this is no python (", "x = '\\d'\ndef f(): pass", "", "\0")["f"].source == "def f(): pass"


def test_a_later_definition_takes_the_place_of_an_earlier_one_and_a_failed_one_does_not():
    assert (
        skills("def f(): return 1", "def f(): return 2\ndef f(): return 3")["f"].source == "def f(): return 3"
    )
    assert skills("def f(): return 1", ("def f(): return 2\n1/0", FAILED))["f"].source == "def f(): return 1"


@pytest.mark.parametrize(
    "rebinding",
    [
        "f = 3",
        "f: int = 3",
        "f += 1",
        "del f",
        "import f",
        "from a import b as f",
        "class f: pass",
        "for f in (): pass",
        "with open('x') as f: pass",
        "try:\n  pass\nexcept ValueError as f:\n  pass",
        "(f := 3)",
        "[0 for x in () if (f := x)]",
        "if True:\n  def f(): pass",
        "match 1:\n  case f: pass",
        "a, (f, *b) = 1, (2,)",
    ],
)
def test_a_name_that_is_bound_to_something_else_is_no_skill_any_more(rebinding):
    assert "f" not in skills("def f(): pass", rebinding)
    assert "f" not in skills("def f(): pass\n" + rebinding)
    assert "f" in skills(rebinding, "def f(): pass")


@pytest.mark.parametrize(
    "harmless",
    [
        "f.x = 3",
        "f: int",
        "[f for f in ()]",
        "def g(f): f = 1",
        "lambda f: f",
        "class A:\n  f = 1",
        "f()",
        "x = {'f': 1}",
    ],
)
def test_a_name_of_another_scope_leaves_it_alone(harmless):
    assert "f" in skills("def f(): pass", harmless)


def test_imports_come_from_anywhere_in_the_episode_and_only_what_is_read_is_needed():
    found = skills(
        "import json\nfrom collections import Counter as C, defaultdict",
        "def f(x): return C(x)",
        "import re\ndef g(x):\n  import math\n  return re.sub('a', '', math.pi)",
        "def h(): return late.x()",
        "import late",
    )
    assert found["f"].imports == ("from collections import Counter as C",)
    assert found["g"].imports == ("import re",)
    assert found["h"].imports == ("import late",)
    assert skills("import json", "json = 3", "def f(): return json")["f"].imports == ()
    assert skills(("import json\n1/0", FAILED), "def f(): return json")["f"].imports == ()


def test_imports_of_the_library_may_be_counted_on():
    known = defined(episode("import json\ndef f(): return json"))
    assert skills("def g(): return json", known=known)["g"].imports == ("import json",)


def test_decorators_belong_to_the_definition():
    f = skills(
        "from functools import lru_cache\n\n@lru_cache(maxsize=2)\n@staticmethod\ndef f(x):\n    return x  # why"
    )["f"]
    assert f.source == "@lru_cache(maxsize=2)\n@staticmethod\ndef f(x):\n    return x  # why"
    assert f.imports == ("from functools import lru_cache",)
    assert f.signature == "def f(x)"


def test_a_definition_that_reads_its_episode_cannot_be_made_in_another():
    cell = """
from __future__ import annotations
token = 3
def default(x=token): pass
def keyword(*, x=apis.bank.pay()): pass
@apis.cached
def decorated(): pass
def annotated(x: Unknown) -> Nothing: return token
def own(x=len("a"), *, y=annotated): pass
"""
    assert set(skills(cell)) == {"annotated", "own"}
    assert skills(cell)["annotated"].imports == ("from __future__ import annotations",)
    assert set(skills("def annotated(x: Unknown): pass\ndef plain(x: int): pass")) == {"plain"}


def test_strange_lines_do_not_shift_what_is_cut_out():
    code = "x = 'a\x0cb\u2028c'\r\ndef f():\r\n    return '''\n\x0c'''\ny = 1"
    assert skills(code)["f"].source == "def f():\n    return '''\n\x0c'''"


def test_code_that_is_nested_too_deep_is_read_by_nobody():
    deep = "x = " + "-" * 500 + "1\ndef f(): pass"
    assert skills(deep) == {}
    assert used(episode("f(" + "-" * 500 + "1)"), defined(episode("def f(x): pass"))) == ()


def test_functions_within_functions_are_read_in_no_time():
    depth = 60
    nested = "".join(f"{' ' * k}def f{k}():\n" for k in range(depth)) + " " * depth + "g()"
    assert set(skills(nested)) == {"f0"}
    assert used(episode(nested, task="q2"), defined(episode("def g(): pass"))) == ("g",)


# --- use ---------------------------------------------------------------------------------------------------

PAY = defined(episode("def pay(to): pass\ndef show(x): pass"))


@pytest.mark.parametrize(
    "cells",
    [
        ["pay(1)"],
        ["x = 1", "print(len(str(pay(to=1))))"],
        ["for x in range(3):\n  if x:\n    pay(x)"],
        ["pay = pay(1)"],
        ["pay(1)", "def pay(to): pass"],
        ["pay(1)\ndef pay(to): pass"],
        ["def mine(x):\n  return pay(x)\nmine(1)"],
        ["[pay(x) for x in 'ab']", "lambda: pay(1)"],
        ["[x for pay in pay(1) for x in pay]"],
        ["class A:\n  x = pay(1)"],
        [("def pay(:", SYNTAX), "pay(1)"],
        ["def mine():\n  pay = 1", "pay(1)"],
        ["pay: int", "pay(1)"],
        ["for pay in pay(1): pass"],
        ["def mine(x=pay(1)): pass"],
        ["async def mine():\n  await pay(1)"],
        ["async def mine():\n  async for x in pay(1): pass"],
        ["f'{pay(1)}'"],
    ],
)
def test_a_call_by_name_in_a_cell_that_ran_is_a_use(cells):
    assert used(episode(*cells, task="q2"), PAY) == ("pay",)


@pytest.mark.parametrize(
    "cells",
    [
        [],
        ["pay"],
        ["map(pay, 'ab')"],
        ["apis.bank.pay(1)", "x.pay(1)"],
        ["'pay(1)'", "# pay(1)"],
        ["def pay(to): return 2", "pay(1)"],
        ["def pay(to): return 2\npay(1)"],
        ["pay = print", "pay(1)"],
        ["import pay", "pay(1)"],
        ["from bank import pay\npay(1)"],
        ["class pay: pass", "pay(1)"],
        [("pay(1)\n1/0", FAILED)],
        [("pay(1)", TIMEOUT)],
        [("pay(1", SYNTAX)],
        [("def pay(to): pass\n1/0", FAILED), "pay(1)"],
        ["def mine(pay): return pay(1)"],
        ["def mine():\n  pay = print\n  pay(1)"],
        ["lambda pay: pay(1)"],
        ["[pay(1) for pay in ()]", "{pay(1): 0 for pay in ()}"],
        ["try:\n  pass\nexcept ValueError as pay:\n  pay(1)"],
        ["match 1:\n  case pay: pay(1)"],
        ["with open('x') as pay: pay(1)"],
    ],
)
def test_anything_else_is_none(cells):
    assert used(episode(*cells, task="q2"), PAY) == ()


def test_uses_come_in_the_librarys_order():
    assert used(episode("show(1)\npay(2)", task="q2"), PAY) == ("pay", "show")


# --- libraries -----------------------------------------------------------------------------------------------


def test_a_chains_library_grows_and_newer_definitions_win_in_their_place():
    q1 = episode("def f(): return 1\ndef g(): return 1")
    q2 = episode("def f(): return 2\ndef h(): return 2", task="q2")
    library = carried([q1, q2])
    assert [(x.name, x.task_id, x.source[-1]) for x in library] == [
        ("f", "q2", "2"),
        ("g", "q1", "1"),
        ("h", "q2", "2"),
    ]
    assert carried([]) == () == merged((), ())
    # Another meaning of the name in q2 is q2's own affair.
    assert [x.name for x in carried([q1, episode("f = 3", task="q2")])] == ["f", "g"]


def test_every_function_is_defined_by_an_action_of_its_own():
    library = carried([episode("import json\ndef f(): return json\ndef g(): return 1")])
    assert [action.text for action in definitions(library)] == [
        "import json\ndef f(): return json",
        "def g(): return 1",
    ]


def test_a_library_survives_json_and_another_version_is_refused():
    library = carried([episode("import json\ndef f(): return json")])
    state = json.loads(json.dumps(library_state(library)))
    assert read_library(state) == library
    with pytest.raises(DataError, match="fields"):
        read_library([{**state[0], "uses": 3}])


def test_the_prompt_shows_signatures_and_docstrings_the_newest_if_there_is_no_room():
    library = carried(
        [episode('def f(x): return 1\ndef g(y=2):\n    """Go.\n\n    y: how far"""\n    return secret')]
    )
    assert library_text(library, heading="") == 'def f(x)\ndef g(y=2):\n    """Go.\n\n    y: how far"""'
    assert library_text(library, heading="", max_chars=45) == 'def g(y=2):\n    """Go.\n\n    y: how far"""'
    prompt = Prompt((Message("user", "go"),))
    assert show_library(prompt, library[:1], heading="Yours:").messages[0].content == "Yours:\ndef f(x)\n\ngo"
    assert show_library(prompt, ()) is prompt
    assert library_text(library, max_chars=10) == ""
