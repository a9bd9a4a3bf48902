"""WebShop: pages, reward and splits by hand-made shops; the scripted shopper; what a policy may do wrong."""

import json
import pickle
import subprocess
import sys
import time
from random import Random
from types import SimpleNamespace

import pytest

from jaxagent.envs.entry import Entry
from jaxagent.envs.table import find_env
from jaxagent.envs.webshop.catalogue import Product, make_products, read_array
from jaxagent.envs.webshop.goals import NO_LIMIT, Goal, make_goals, split_numbers
from jaxagent.envs.webshop.spec import ENTRY, metrics
from jaxagent.envs.webshop.titles import spacy_nouns, word_nouns
from jaxagent.errors import ConfigError, DataError
from jaxagent.types import Action, Evaluation, ExecStatus, Message
from tests.envs.contract import check_contract
from tests.envs.needs import package

pytestmark = [
    package("bm25s", "pip install 'jaxagent[webshop]'"),
    package("rapidfuzz", "pip install 'jaxagent[webshop]'"),
]
BARE = {"catalogue": "generated", "tags": False, "admissible": False, "layout": "official"}


def shop_spec(**options):
    return find_env("webshop", {"catalogue": "generated", **options})


def product(**changes) -> Product:
    values = {
        "asin": "B1",
        "title": "Alva Green Tea Bags",
        "query": "green tea",
        "category": "grocery",
        "product_category": "Grocery › Food › Tea",
        "description": "Picked by hand.",
        "bullets": ("usda organic", "Caffeine Free"),
        "price": 12.0,
        "price_tag": "$12.0",
        "rating": "N.A.",
        "attributes": ("low sugar",),
        "options": {"color": ("red", "navy")},
    }
    return Product(**(values | changes))


def goal(**changes) -> Goal:
    values = {
        "asin": "B1",
        "instruction": "i want tea",
        "title": "Alva Green Tea Bags",
        "query": "green tea",
        "product_category": "Grocery › Food › Tea",
        "attributes": ("low sugar", "caffeine free"),
        "options": ("red",),
        "price_upper": 20.0,
    }
    return Goal(**(values | changes))


def value(bought: Product, chosen: dict[str, str], wanted: Goal) -> float:
    from jaxagent.envs.webshop.reward import score

    return score(bought, chosen, wanted, word_nouns).value


# --- reward, by hand ---------------------------------------------------------------------------------------


def test_reward_counts_attributes_options_and_price():
    assert value(product(), {"color": "red"}, goal()) == 1.0  # 2 attributes + 1 option + price, of 4
    assert value(product(), {"color": "navy"}, goal()) == 0.75
    assert value(product(), {}, goal()) == 0.75
    assert value(product(price=20.01), {}, goal()) == 0.5
    assert value(product(attributes=("DUMMY_ATTR",), bullets=()), {}, goal()) == 0.25
    assert value(product(), {"color": "red"}, goal(price_upper=NO_LIMIT, attributes=("low sugar",))) == 1.0


def test_the_type_scales_the_reward():
    """Wanted nouns: alva, green, tea, bags."""
    all_right = {"color": "red"}
    other = {"query": "x", "product_category": "a › b"}
    assert value(product(title="Borel Tea", **other), all_right, goal()) == 1.0  # 1 of 4 nouns
    six = goal(title="Alva Green Tea Bags Mint Box")
    assert value(product(title="Borel Tea", **other), all_right, six) == 0.5  # 1 of 6
    assert value(product(title="Borel Tea", query="green tea", product_category=""), all_right, six) == 1.0
    shared = {"query": "x", "product_category": "Food › Grocery › Nuts"}  # two parts, in any order
    assert value(product(title="Borel Tea", **shared), all_right, six) == 1.0
    eleven = goal(title="Tea one two three four five six seven eight nine ten")
    # 1 of 11, although the query is the same.
    assert value(product(title="Borel Tea"), all_right, eleven) == 0.1
    assert value(product(title="Lamp"), all_right, goal()) == 0.0
    # No nouns at all: 0.2, and the query.
    assert value(product(title="Lamp"), all_right, goal(title="12 of 3")) == 1.0


def test_score_of_four_purchases():
    """The example of the benchmark's two numbers: 1, .75, .5, .025 give score 56.875 and success 25."""
    rewards = (1.0, 0.75, 0.5, 0.025)
    episodes = [
        SimpleNamespace(
            steps=(), evaluation=Evaluation(reward == 1.0, 0, 1, info={"score": reward, "bought": True})
        )
        for reward in rewards
    ]
    found = metrics(episodes)  # type: ignore[arg-type]
    assert found["score"] == pytest.approx(56.875)
    assert found["success_rate"] == 25.0
    assert metrics([]) == {}


def test_options_are_compared_by_basic_colour_and_words():
    from jaxagent.envs.webshop.reward import basic_colour, option_hits, token_set_ratio

    assert basic_colour("heathered navy") == "heather"
    assert basic_colour("size 8") == "size 8"
    # "dark" comes first in the list: the benchmark's way.
    assert option_hits(["dark navy"], ["dark red"]) == 1
    assert option_hits(["navy"], ["red"]) == 0
    assert option_hits(["8 oz (pack of 2)"], ["8 oz"]) == 1
    assert option_hits(["8 oz", "cocoa"], ["cocoa", "16 ounces"]) == 1
    assert token_set_ratio("tea tree oil", "Tea-Tree") == 100
    assert token_set_ratio("essential oils", "essential oil") == 96
    assert token_set_ratio("", "") == 0


def test_nouns_of_titles():
    """Overlaps that the benchmark's own tests expect of spaCy: .85, .31, .17, 0, each within .01."""
    titles = (
        "adidas Unisex-Adult D.o.n. Issue 2 Basketball Shoe",
        "adidas Unisex-Adult D.o.n. Issue 2 Indoor Court Shoe",
        "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar Home Theater System "
        "Subwoofer",
        "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR Combo Home Theater System",
        "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar",
        "Rusticware 921ORB Kitchen and Bath Cabinet Knob",
        "Minkissy 2pcs Stainless Steel Eyebrow Tweezers Blackhead Acne Remover Portable Makeup Tweezers (Silver)",
    )
    nouns = [word_nouns(title) for title in titles]
    for wanted, bought, overlap in ((0, 1, 0.857), (2, 3, 0.3125), (4, 3, 1 / 6), (5, 6, 0.0)):
        shared = set(nouns[wanted]) & set(nouns[bought])
        assert len(shared) / len(nouns[wanted]) == pytest.approx(overlap, abs=0.01)


def test_a_spacy_pipeline_can_name_the_nouns(monkeypatch):
    """A fake of spaCy's interface: capitalised words are proper nouns."""

    def load(name: str, disable: list[str]):
        if name != "en_core_web_sm":
            raise OSError("E050")
        return lambda title: [
            SimpleNamespace(text=word, pos_="PROPN" if word[0].isupper() else "ADP") for word in title.split()
        ]

    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=load))
    assert spacy_nouns("en_core_web_sm")("Tea Bags for Cups") == ("tea", "bags", "cups")
    with pytest.raises(ConfigError, match=r"env\.options\.tagger='en_x' is no installed spaCy pipeline"):
        shop_spec(tagger="en_x")
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ConfigError, match="pip install spacy"):
        shop_spec(tagger="en_core_web_md")


# --- the item files ----------------------------------------------------------------------------------------


def item(asin: str, **changes) -> dict:
    values = {
        "asin": asin,
        "name": "Alva Green Tea",
        "query": " Green Tea ",
        "category": "grocery",
        "product_category": "Grocery › Food › Tea",
        "full_description": None,
        "small_description": "one line",
        "pricing": "$1,299.99",
        "customization_options": {
            "Color": [{"value": " Red/Blue "}, {"value": "navy", "image": "x"}],
            "size": None,
        },
        "images": ["x"],
    }
    return values | changes


@pytest.fixture
def folder(tmp_path):
    """The benchmark's three files, by hand."""
    items = [item("B01", pricing="$8.50$12.00"), item("nan"), item("B01"), item("B0123456789"), item("B02")]
    facts = {
        "B01": {
            "attributes": ["caffeine free"],
            "instruction": "i want caffeine free tea",
            "instruction_attributes": ["caffeine free"],
        },
        "B02": {"attributes": [], "instruction": None, "instruction_attributes": None},
    }
    said = {
        "B02": [
            {
                "instruction": "find me tea.",
                "instruction_attributes": ["organic"],
                "instruction_options": ["navy"],
            },
            {"instruction": "nothing", "instruction_attributes": [], "instruction_options": []},
        ]
    }
    for name, values in (
        ("items_shuffle_1000", items),
        ("items_ins_v2_1000", facts),
        ("items_human_ins", said),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    return tmp_path


def test_item_files_are_read_as_the_benchmark_reads_them(folder):
    spec = find_env("webshop", {"data": str(folder), "goals": "human", "tags": False})
    task = next(task for split in ("test", "train") for task in spec.tasks(split))
    first = spec.make().reset(task)
    assert first.info["instruction"] == "find me tea"  # no limit: the price is above all steps
    assert task.type == "green tea"
    env = spec.make()
    env.reset(task)
    assert "'Page 1 (Total results: 2)'" in env.step(Action("search[green teas]")).observation
    page = env.step(Action("click[b01]")).observation
    assert (
        "'color' [SEP] 'red | blue' [SEP] 'navy' [SEP] 'Alva Green Tea' [SEP] 'Price: $8.5 to $12.0'" in page
    )


def test_synthetic_goals_say_every_combination_of_options(folder):
    spec = find_env("webshop", {"data": str(folder)})
    tasks = [task for split in ("test", "dev", "train") for task in spec.tasks(split) if task]
    texts = sorted(spec.make().reset(task).info["instruction"] for task in tasks)
    assert len(texts) == 2
    assert texts[0].startswith("i want caffeine free tea with color: navy, and price lower than ")


def test_prices_and_limits_do_not_change_between_runs():
    products = make_products([item("B01", pricing="$8.50$12.00"), item("B02", pricing="")], {}, {}, {})
    assert 8.5 <= products[0].price <= 12.0
    assert products[0].price == make_products([item("B01", pricing="$8.50$12.00")], {}, {}, {})[0].price
    assert (products[1].price, products[1].price_tag) == (100.0, "$100.0")


def test_files_of_another_format_say_what_is_wrong(folder, tmp_path):
    with pytest.raises(DataError, match="item 0 is not in the benchmark's format"):
        make_products([{"asin": "B1"}], {}, {}, {})
    broken = tmp_path / "broken.json"
    broken.write_text('[{"a": 1}, {"b"')
    with pytest.raises(DataError, match="broken after element 1"):
        list(read_array(broken))
    (folder / "items_ins_v2_1000.json").unlink()
    with pytest.raises(ConfigError, match=r"items_ins_v2_1000\.json.*princeton-nlp/WebShop"):
        find_env("webshop", {"data": str(folder)})
    with pytest.raises(ConfigError, match="JAXAGENT_WEBSHOP_DATA"):
        find_env("webshop", {})


def test_an_array_is_read_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxagent.envs.webshop.catalogue.CHUNK", 7)
    path = tmp_path / "a.json"
    path.write_text(' [ {"a": "é]"} ,\n[1, 2], 3.5 , "x"]\n')
    assert list(read_array(path)) == [{"a": "é]"}, [1, 2], 3.5, "x"]
    assert list(read_array(path, limit=2)) == [{"a": "é]"}, [1, 2]]


def test_splits_are_the_benchmarks_where_there_are_goals_enough():
    cut = {split: split_numbers(split, 6910) for split in ("test", "dev", "train")}
    assert cut == {"test": range(500), "dev": range(500, 1500), "train": range(1500, 6910)}
    assert [len(split_numbers(split, 100)) for split in ("test", "dev", "train")] == [10, 20, 70]
    with pytest.raises(ConfigError, match="train, dev, test"):
        shop_spec().tasks("valid")


def test_goals_are_shuffled_with_the_benchmarks_seed():
    import random

    products = [product(asin=f"B{n}", instruction="i", instruction_attributes=("a",)) for n in range(30)]
    order = [(f"B{n}", colour) for n in range(30) for colour in ("red", "navy")]
    random.seed(233)
    random.shuffle(order)
    assert [(goal.asin, goal.options[0]) for goal in make_goals(products, human=False)] == order


# --- an episode --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, BARE, {"layout": "official"}])
def test_contract(options):
    spec = shop_spec(**options)
    for task in spec.tasks("test")[:3]:
        played = check_contract(spec, task)
        assert [result.reward for result in played.results[:-1]] == [0.0] * (len(played.results) - 1)
        assert played.results[-1].reward == 1.0


def test_pages_and_clicks():
    """The benchmark's text of a whole trip: search, next page, product, tab, back, option, buy."""
    spec = shop_spec(**BARE)
    task = spec.tasks("test")[0]
    env = spec.make()
    asked = env.reset(task).info["instruction"]
    head = f"Instruction: [SEP] {asked} [SEP] "
    assert env.reset(task).observation == f"WebShop [SEP] {head}Search"
    results = env.step(Action("search[shirt]")).observation
    assert results.startswith(f"{head}Back to Search [SEP] Page 1 (Total results: ")
    assert results.count(" [SEP] B0") == 10
    assert "Next >" in results
    assert "< Prev" not in results
    second = env.step(Action("click[Next >]")).observation
    assert "Page 2 (" in second
    assert env.step(Action("click[< prev]")).observation == results
    asin = results.partition("Next > [SEP] ")[2].split(" [SEP] ")[0]
    shown = env.step(Action(f"click[{asin.lower()}]")).observation
    assert shown.startswith(
        f"{head}Back to Search [SEP] < Prev [SEP] color [SEP] red [SEP] blue [SEP] black [SEP] size"
    )
    assert shown.endswith("Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now")
    plain, chosen = env.step(Action("click[features]")), env.step(Action("click[< prev]"))
    assert "made by" in plain.observation
    before, chosen = chosen.anchor, env.step(Action("click[red]"))
    assert chosen.observation == shown  # the benchmark's page does not show what is chosen
    assert chosen.anchor != before  # but the state is another one
    bought = env.step(Action("click[buy now]"))
    assert bought.done
    assert bought.reward == env.evaluate().info["score"]
    after = env.step(Action("click[buy now]"))
    assert (after.exec_status, after.reward) == (ExecStatus.RUNTIME_ERROR, 0.0)


def test_what_a_page_does_not_allow_changes_nothing():
    spec = shop_spec(**BARE)
    env = spec.make()
    page = env.reset(spec.tasks("test")[0]).observation
    for text, status in (
        ("click[buy now]", ExecStatus.RUNTIME_ERROR),
        ("click[search]", ExecStatus.RUNTIME_ERROR),
        ("search[]", ExecStatus.INVALID),
        ("search[  ]", ExecStatus.INVALID),
        ("dance[x]", ExecStatus.INVALID),
        ("", ExecStatus.INVALID),
    ):
        result = env.step(Action(text))
        assert (result.observation, result.exec_status, result.reward) == (page, status, 0.0)
    env.step(Action("search[tea]"))
    assert env.step(Action("search[tea]")).exec_status is ExecStatus.RUNTIME_ERROR
    anywhere = shop_spec(**BARE, search_anywhere=True).make()
    anywhere.reset(spec.tasks("test")[0])
    anywhere.step(Action("search[tea]"))
    assert anywhere.step(Action("search[lamp]")).exec_status is ExecStatus.OK


def test_hostile_actions_are_quick_and_harmless():
    spec = shop_spec()
    env = spec.make()
    env.reset(spec.tasks("test")[0])
    start = time.process_time()
    for text in (
        "search[" + "a b " * 250_000 + "]",
        "<action>" * 120_000,
        "<action>search[" + "[" * 100_000 + "</action>",
        "<think>" * 100_000 + "</think>",
        "<action>click[" + "ß☃\u202e\x00(.*)+?\\" + "]</action>",
        "<action>search[(.*)+?[^x]\\]</action>",
        "\ud800<action>search[\ud800]</action>",
    ):
        result = env.step(spec.parse(Message("assistant", text)))
        assert result.exec_status in (ExecStatus.INVALID, ExecStatus.RUNTIME_ERROR, ExecStatus.OK)
        env.step(Action("click[back to search]"))
    env.step(Action("search[" + "tea " * 250_000 + "]"))
    assert time.process_time() - start < 5.0


def test_messages_become_actions():
    tagged, bare = shop_spec(), shop_spec(**BARE)

    def read(spec, text):
        return spec.parse(Message("assistant", text))

    assert read(
        tagged, "<think>a <action>click[x]</action></think><action> search[a [b] c] </action>"
    ).text == ("search[a [b] c]")
    assert read(tagged, "search[tea]").error
    assert read(tagged, "<action>search[tea]").error
    assert read(tagged, "<action>buy</action>").error
    assert read(bare, "search[tea]").text == "search[tea]"
    assert read(bare, "Thought: hm\nAction: click[buy now]\n").text == "click[buy now]"
    assert read(bare, "I search tea").error


def test_the_prompt_holds_task_page_and_admissible_actions():
    spec = shop_spec()
    task = spec.tasks("test")[0]
    first = spec.make().reset(task)
    text = spec.prompt(task, first).messages[0].content
    assert first.info["instruction"] in text
    assert text.endswith("'Search'\nAdmissible actions:\nsearch[<your query>]")
    assert "<action>" in text
    assert "Admissible" not in shop_spec(admissible=False).make().reset(task).observation


def test_all_admissible_actions_are_accepted():
    spec = shop_spec()
    task = spec.tasks("test")[1]
    rng = Random(0)
    env = spec.make()
    result = env.reset(task)
    for _ in range(60):
        offered = result.observation.partition("Admissible actions:\n")[2].splitlines()
        if not offered:
            break
        chosen = rng.choice(offered).replace("<your query>", "tea")
        result = env.step(Action(chosen))
        assert result.exec_status is ExecStatus.OK, chosen
    assert result.done


def test_the_shopper_scores_everything_and_a_sloppy_one_does_not():
    spec = shop_spec(**BARE)
    from jaxagent.rollout.demonstrate import play

    tasks = spec.tasks("test")[:40]
    assert all(play(spec, task, rng=Random(0)).evaluation.success for task in tasks)
    sloppy = [play(spec, task, rng=Random(n), sloppiness=0.5).evaluation for n, task in enumerate(tasks)]
    scores = [verdict.info["score"] for verdict in sloppy]
    assert 0.3 < sum(scores) / len(scores) < 0.95
    assert all((verdict.passed == verdict.total) == verdict.success for verdict in sloppy)


def test_doing_nothing_scores_nothing():
    spec = shop_spec()
    for task in spec.tasks("test")[:5]:
        env = spec.make()
        env.reset(task)
        for _ in range(3):
            env.step(spec.parse(Message("assistant", "")))
        verdict = env.evaluate()
        assert (verdict.success, verdict.passed, verdict.info["score"]) == (False, 0, 0.0)


def test_the_spec_travels_to_a_worker_without_the_shop():
    spec = shop_spec()
    assert isinstance(ENTRY, Entry)
    assert len(pickle.dumps((spec.make, spec.tasks("test")[0]))) < 2000


def test_bm25s_starts_no_device():
    """Where jax is installed, a plain `import bm25s` runs a jax program."""
    code = (
        "import sys; from jaxagent.envs.table import find_env; "
        "spec = find_env('webshop', {'catalogue': 'generated'}); env = spec.make(); env.reset(spec.tasks('test')[0]); "
        "from jaxagent.types import Action; env.step(Action('search[tea]')); assert 'bm25s' in sys.modules; "
        "assert 'jax' not in sys.modules, 'jax was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidfuzz.fuzz", None)
    from jaxagent.envs.webshop.reward import rapidfuzz

    rapidfuzz.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'jaxagent\[webshop\]'"):
        shop_spec()
    rapidfuzz.cache_clear()
