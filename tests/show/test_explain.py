"""The page of `minibert explain`: numbers as torch prints them, the table of tokens, the steps computed by hand; with
`--block N` one block's steps, their formulas and functions, and one head's table. And the lines of `minibert info`:
about the blocks from config.json and headers alone; the identity reads the weights. Of every family with blocks, opened
once: the numbers of its page in HTML, a cell's numbers, each step of a block.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import checkpoints
import encoders
import numpy as np
import pytest
from checkpoints import same_bits
from command_line import Patch, Printed, ran
from drawn import cosine
from fake_hub import hub_of
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from reference_files import BY_NAME, REFERENCE
from strict_html import data_of_script, unpacked

import minibert
from minibert import equations
from minibert.equations.input_layer import Array
from minibert.families.parts.plan import GIVEN, PIECES, REAL, layer_plan, value
from minibert.families.parts.plan import given as passed
from minibert.models.encoder import Encoder
from minibert.models.open.load_encoder import load_encoder
from minibert.show.attention import opened_cell, terms_of
from minibert.show.explain import block_steps, explain, explain_block, expression, pair_table
from minibert.show.info import facts
from minibert.show.page import page
from minibert.show.text import beginning, columns_of, torch_text

SENTENCE = "We lived above the clouds"


@pytest.mark.parametrize(("numbers", "printed"), [
    ([0.0, 0.0], "[0., 0.]"), ([1.0, -20.0, 0.0], "[  1., -20.,   0.]"), ([1.5, 1500.0], "[   1.5000, 1500.0000]"),
    ([1.5, 1501.0], "[1.5000e+00, 1.5010e+03]"), ([1e-4, 2e-4], "[1.0000e-04, 2.0000e-04]"),
    ([1.0] * 7, "[1., 1., 1.,  ..., 1., 1., 1.]"), ([0.5, np.nan], "[0.5000,    nan]"),
    ([1.0, -np.inf], "[1., -inf]"), ([], "[]"),
])  # fmt: skip
def test_small_cases(numbers: list[float], printed: str) -> None:
    assert torch_text(np.array(numbers, np.float32)) == printed


FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)
NEAR_ONE = st.floats(-8, 8, width=32)
SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9)
ARRAYS = st.one_of(*(arrays.arrays(np.float32, SHAPES, elements=elements) for elements in (FLOATS, NEAR_ONE)))


@pytest.mark.reference
@given(ARRAYS)
@example(np.arange(18, dtype=np.float32).reshape(2, 9))
@example(np.full((1, 9), 123.456, np.float32))
@example(np.full((2, 2, 8), -123456.78, np.float32))
def test_prints_as_torch_does(x: Array) -> None:
    import torch

    # threshold 0: shorten every long axis, as is done here; profile: other libraries change how torch prints
    with torch._tensor_str.printoptions(profile="default", threshold=0):
        assert f"tensor({torch_text(x, indent=len('tensor('))})" == repr(torch.from_numpy(x.copy()))


def test_the_page_of_a_real_model(minilm: Path) -> None:
    layer = minibert.load(minilm)
    lines = list(explain(layer, SENTENCE))
    assert lines[0] == "7 tokens of bert -> (1, 7, 384), float32"
    assert lines[2:5] == [
        "token     id  type  position",
        "[CLS]    101     0         0",
        "we      2057     0         1",
    ]
    pair = list(explain(layer, "the clouds", "above"))
    tokens = ["[CLS]", "the", "clouds", "[SEP]", "above", "[SEP]"]
    assert [tuple(line.split()[::2]) for line in pair[3:9]] == list(zip(tokens, "000011", strict=True))
    headings = [line for line in lines if re.match(r"\w+  \(1, 7, 384\)", line)]
    functions = dict.fromkeys(["word_embeddings", "token_type_embeddings", "position_embeddings"], "  equations.lookup")
    functions |= {"sum": "", "LayerNorm": "  equations.layer_norm"}
    assert headings == [f"{name}  (1, 7, 384){function}" for name, function in functions.items()]
    page = "\n".join(lines)
    trace = {name: rows for name, rows in layer.trace(**layer.tokenize(SENTENCE)).items() if rows.dtype.kind == "f"}
    told = [line for line in lines if line.startswith("  we  [")]
    for line, rows in zip(told, trace.values(), strict=True):  # one token's first six numbers of each step
        numbers = [float(number) for number in re.findall(r"-?\d\.\d{4}", line)]
        assert np.abs(np.array(numbers) - rows[0, 1, :6]).max() <= 0.5e-4 and len(numbers) == 6 and "..." in line
    assert len(lines) == 32 and lines[-1].endswith(": scripts/study/five_minutes.py")
    assert "\n  Embedding(2, 384): the row of each type\n" in page
    assert "\n  (x - mean) / sqrt(variance + 1e-12) * weight + bias, x = sum, row by row\n" in page
    assert max(map(len, lines)) <= 80


def test_a_text_that_is_too_long_is_cut_or_refused_before_the_first_line(minilm: Path, tmp_path: Path) -> None:
    layer = minibert.load(minilm)
    with pytest.raises(ValueError, match="512"):
        next(explain(layer, "cloud " * 600))
    assert next(explain(layer, "cloud " * 600, truncation=True)).startswith("512 tokens of bert")
    t5 = BY_NAME["t5-encoder"].with_words(tmp_path, "w0", "w1")
    assert next(explain(t5, "w1 " * 600, truncation=True)).startswith("600 tokens of t5"), "no limit"


FORMULAS = {
    "gpt2": "wte + wpe",
    "t5-encoder": "embed_tokens",
    "albert": "embedding_hidden_mapping_in(LayerNorm((word_embeddings + token_type_embeddings) + position_embeddings))",
    "convbert-equal": "LayerNorm((word_embeddings + position_embeddings) + token_type_embeddings)",
    "opt-project": "project_in(embed_tokens) + embed_positions",
    "marian-encoder": "(4.47214 * embed_tokens) + embed_positions",
    "xlm": "layer_norm_emb(embeddings + position_embeddings) * mask",
}


@pytest.mark.parametrize("name", BY_NAME)
def test_every_family_has_a_page(name: str, tmp_path: Path) -> None:
    layer = BY_NAME[name].with_words(tmp_path)
    batch, plan = layer.tokenize("w5 w9 w7 w3 w11"), layer_plan(layer.steps, layer.config)
    *_, last = plan
    values = {GIVEN: passed(batch)}
    assert np.array_equal(value(last, plan, values), layer(**batch))
    formula = expression(last, plan, values)
    assert formula == FORMULAS.get(name, formula)
    page = "\n".join(explain(layer, "w5 w9 w7 w3 w11"))
    assert page.startswith(f"5 tokens of {layer.family.model_type} -> (1, 5, {layer.dim}), float32\n\ntoken")
    assert ("each position + 2\n" in page) == name.startswith(("opt", "bart", "mbart"))
    assert max(len(line) for line in page.splitlines() if not line.endswith("...]")) <= 80, "but for a row of numbers"
    for key, rows in layer.trace(**batch).items():
        if rows.dtype.kind == "f":
            assert beginning(rows[0, 0]) in page, key


def test_a_text_without_tokens_has_a_page(tmp_path: Path) -> None:
    layer = BY_NAME["gpt2"].with_words(tmp_path, "w0", "w1")
    lines = list(explain(layer, ""))
    assert lines[-3].endswith("the row of each position") and lines[0] == "0 tokens of gpt2 -> (1, 0, 16), float32"
    assert lines[1:5] == ["", "token  id  position", "", "wte  (1, 0, 16)  equations.lookup"]


def test_tokens_cannot_command_the_terminal(tmp_path: Path) -> None:
    words = "\x1b[31m", "雲", "x" * 100, "end"
    lines = list(explain(BY_NAME["gpt2"].with_words(tmp_path, "w0", *words), " ".join(words)))
    table = lines[3:7]
    assert table[0].startswith(r"\x1b[31m  ")
    assert table[2].startswith("x" * 39 + "…  ")
    assert "\x1b" not in "".join(lines)
    assert len({columns_of(line) for line in table}) == 1


def test_formulas_name_what_they_take_and_the_last_step_what_it_gives(tmp_path: Path) -> None:
    """Names and order of all steps: see test_every_step_of_a_block_is_told."""
    bert, gpt2 = (load_encoder(encoders.write(tmp_path / name, name)) for name in ("bert", "gpt2"))

    def told(encoder: Encoder, block: int, last: str) -> dict[str, str]:
        steps = list(block_steps(encoder, encoder.trace([[5, 6, 7]]), block, head=2))
        assert steps[-1][0] == last
        return {name.partition(" = ")[0]: step.formula for name, _, step in steps}

    of = told(bert, 1, "output.LayerNorm = hidden_states.2")
    assert of["hidden_states.1"] == "what enters: the output of block 0"
    assert of["attention.self.key"].endswith("hidden_states.1 @ weight^T + bias")
    assert of["attention.self.scores"].startswith("0.5 * query @ key^T, 1 / sqrt(4) = 0.5; columns 8 to 11 of each are")
    activation = of["intermediate.intermediate_act_fn"]
    assert activation.startswith("y = x * (1 + erf(x / sqrt(2))) / 2, x = intermediate.dense")
    assert of["output.sum"] == "attention.output.LayerNorm + output.dense"
    assert told(gpt2, 0, "mlp.sum = hidden_states.1")
    of = told(gpt2, 1, "ln_f = hidden_states.2")
    assert of["attn.c_attn"].endswith("ln_1 @ weight + bias") and "x = hidden_states.1" in of["ln_1"]
    assert "side by side" in of["attn.scores"] and "x = mlp.sum" in of["ln_f"]
    assert "later tokens masked" in of["probabilities, attentions.1"] and "tanh" in of["mlp.act"]


def test_probabilities_stand_beside_their_tokens_and_numbers_are_those_of_the_first(tmp_path: Path) -> None:
    bert = load_encoder(encoders.write(tmp_path, "bert"))
    head, trace = 2, bert.trace(**bert.tokenize(SENTENCE))
    lines, weights = list(explain_block(bert, SENTENCE, 1, head)), trace["attentions.1"][0, head]
    tokens = bert.tokens(bert.tokenize(SENTENCE)["input_ids"])[0]
    assert tokens == ["[CLS]", "we", "lived", "above", "the", "clouds", "[SEP]"]
    start = next(i for i, line in enumerate(lines) if line.split() == tokens)
    for token, row, line in zip(tokens, weights, lines[start + 1 :], strict=False):
        found, *numbers = line.split()
        assert found == token and numbers == [f"{number:.4f}" for number in row]
    assert lines[1] == f"  head {head} of 4 in scores and weights, 4 numbers wide"
    assert "output.LayerNorm = hidden_states.2  (1, 7, 16)  equations.layer_norm" in lines
    for key in ("hidden_states.1", "attention.self.query", "attention.self.scores", "output.sum"):
        x = trace[key if key.startswith("hidden") else f"encoder.layer.1.{key}"]
        assert f"  we  {beginning(x[0, head, 1] if key.endswith('scores') else x[0, 1])}" in lines, key


def test_a_wide_table_shows_the_largest_weights_and_the_rest_of_their_sum() -> None:
    tokens = [f"token{i:02}" for i in range(12)]
    weights = np.full((12, 12), 0.01)
    weights[0, [7, 2, 11]] = 0.5, 0.3, 0.11
    lines = list(pair_table(tokens, weights, lambda line: line))
    assert lines[0].strip() == "the 3 largest weights, and the sum of the other 9"
    assert " ".join(lines[1].split()) == "token00 0.5000 token07 7 0.3000 token02 2 0.1100 token11 11 0.0900"
    assert len(lines) == 13 and max(map(len, lines)) <= 80


def test_the_command_prints_a_block(tmp_path: Path, capsys: Printed) -> None:
    folder = encoders.write(tmp_path / "tiny", "bert")
    out, _ = ran(capsys, "explain", SENTENCE, "--pair", "the dog", "-m", folder, "--block", "1", "--head", "2")
    assert out.startswith("block 1 of 2 of bert -> (1, 12, 16)\n  head 2 of 4")


BERT, GPT2 = encoders.config("bert"), encoders.config("gpt2", n_inner=None)
QWEN3 = encoders.config("qwen3")
NAMED = encoders.tensors(BERT)
PREFIXED = {f"transformer.{key}": array for key, array in encoders.tensors(GPT2).items()}
MASKS = {f"transformer.h.{i}.attn.bias": np.ones((1, 1, 24, 24), np.float32) for i in range(2)}  # GPT-2 stores them
COUNT = sum(key.startswith(("transformer.h.", "transformer.ln_f.")) for key in PREFIXED)


@pytest.mark.parametrize(("config", "tensors", "blocks", "on_disk"), [
    (GPT2, PREFIXED | MASKS, "2, 4 heads of 4, feed-forward 64 wide, gelu_new$", f" in {COUNT} tensors"),
    (BERT, {key: NAMED[key] for key in NAMED if key.startswith("embeddings.")},
     "2, 4 heads of 4, .* only the input layer$", None),
    (QWEN3, encoders.tensors(QWEN3), "2, 4 heads of 8 that share 2 key heads, feed-forward 24 wide, silu$",
     " in 23 tensors"),
    # blocks cannot be made of these, and the input layer needs none of it
    (BERT | {"num_attention_heads": 5}, NAMED, "not available: config.json: .* a multiple of 'num_attention_heads'",
     None),
    (BERT | {"add_cross_attention": True}, NAMED, "not available: config.json: .*add_cross_attention", None),
])  # fmt: skip
def test_what_is_told(config: Any, tensors: Any, blocks: str, on_disk: str | None, tmp_path: Path) -> None:
    told = facts(minibert.load(checkpoints.write(tmp_path, config, tensors)))
    assert re.match(blocks, told["blocks"])
    assert on_disk is None if "blocks on disk" not in told else told["blocks on disk"].endswith(str(on_disk))


def test_shards_that_are_not_opened_stay_so_and_a_type_without_blocks_has_none(tmp_path: Path) -> None:
    first = {key: array for key, array in NAMED.items() if not key.startswith("encoder.layer.1")}
    second = {key: array for key, array in NAMED.items() if key not in first}
    folder = checkpoints.write_shards(tmp_path, BERT, [first, second])
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert facts(minibert.load(folder))["blocks on disk"].endswith(
        " in 16 tensors; 32 tensors in all, some in files not opened for this"
    )
    told = facts(minibert.load(REFERENCE / "xlnet"))
    assert told["blocks"] == "not computed: minibert knows only the input layer of xlnet"
    assert "blocks on disk" not in told


def test_from_the_hub_nothing_is_fetched_for_it(tmp_path: Path, monkeypatch: Patch) -> None:
    folder = encoders.write(tmp_path / "tiny", "bert")
    with (
        hub_of(monkeypatch, tmp_path / "home", "someone/tiny", folder) as hub,
        minibert.load("someone/tiny", lazy=True) as layer,
    ):
        layer.tokenizer.size  # noqa: B018  opened here, so that the rest of the page is all that could be fetched
        layer.attention_position  # noqa: B018
        before, sent = len(hub.requests), hub.sent
        told = facts(layer)
        assert (len(hub.requests), hub.sent) == (before, sent)
    assert told["blocks on disk"].endswith(" in 32 tensors")


def test_the_identity_and_the_same_lines_as_json(tmp_path: Path, capsys: Printed) -> None:
    folder = REFERENCE / "sentences-dense"
    out, error = ran(capsys, "info", folder)
    lines, found = out.splitlines(), json.loads(ran(capsys, "info", folder, "--json")[0])
    start = lines.index("") + 1
    assert found["identity"] == minibert.load_encoder(folder).identity and not error
    modules = [[path, sizes] for path, sizes in found.pop("modules").items()]
    assert [re.split(" {2,}", line) for line in lines[: start - 1]] == modules
    assert [re.split(" {2,}", line, maxsplit=1) for line in lines[start:]] == [
        [name.replace("_", " "), fact] for name, fact in found.items()
    ]
    about, _ = ran(capsys, "help", "info")
    assert all(re.search(rf"\b{name}\b", about) for name in found)


def test_an_identity_that_cannot_be_computed(tmp_path: Path, capsys: Printed, monkeypatch: Patch) -> None:
    folder = checkpoints.write(tmp_path / "model", BERT | {"num_attention_heads": 5}, NAMED)
    assert re.search("\nidentity +not available: .*must be a multiple", ran(capsys, "info", folder)[0])
    with hub_of(monkeypatch, tmp_path / "home", "org/model", encoders.write(tmp_path / "hub", "bert")):
        for _ in range(2):
            text = ran(capsys, "info", "org/model")[0]
            assert "identity" in text and "computed from all weights, and they are not on this machine" in text
        minibert.load_encoder("org/model").close()
        assert re.search("\nidentity +[0-9a-f]{64}\n", ran(capsys, "info", "org/model")[0])


# -- every family with blocks --------------------------------------------------------------------------------------

TEXT, TWICE = "we lived above", "we lived above we"
# error of a score written as log(weight) + log(sum of the row): weights are float32; measured 5e-7 at most
SCORES = 3e-6
# error of a cell's scores and sums in float32 beside float64; measured 6e-6 at scores of 9
CLOSE = 3e-5
BY_HAND = 1e-5  # packed against padded, of numbers up to 20 in size; measured 1.7e-6, with some kernels of BLAS 0


@pytest.fixture(scope="module", params=encoders.CONFIGS)
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = encoders.write_with_words(tmp_path_factory.mktemp(request.param), request.param)
    return encoders.computed_once(minibert.load_encoder(folder))


def test_the_page_has_the_numbers_of_the_trace(encoder: Encoder) -> None:
    name, html = encoder.embeddings.family.model_type, page(encoder, TEXT)
    trace, behind = encoder.trace(**encoder.tokenize(TEXT)), data_of_script(html, "blockdata")
    seq = trace["hidden_states.0"].shape[1]
    assert (behind["blocks"], behind["heads"]) == (encoders.DEPTH, encoders.HEADS)
    attention = unpacked(behind["attention"], encoders.DEPTH, encoders.HEADS, seq, seq)
    for i, of_block in enumerate(attention):
        assert same_bits(of_block, np.ascontiguousarray(trace[f"attentions.{i}"][0]))
    kept = behind["scores"]
    sums = unpacked(kept["logs"], *attention.shape[:3], kind="f8")
    for i, block in enumerate(encoder.stack.blocks):
        scores, seen = trace[block.attention.scores][0].astype(np.float64), attention[i] > 0
        again = np.log(attention[i], out=np.zeros(scores.shape), where=seen) + sums[i][..., None]
        assert np.abs(again - scores)[seen].max() < SCORES * max(1.0, np.abs(scores).max())
        assert (kept["scales"][i], kept["windows"][i]) == (block.attention.scale, block.attention.window)
    if kept["bias"] is not None:
        found = unpacked(kept["bias"], -1, encoders.HEADS, 2 * seq - 1)
        assert len(found) == (encoders.DEPTH if name == "umt5" else 1)
        for bias, block in zip(found, encoder.stack.blocks, strict=False):
            (term,) = block.attention.terms
            for i, j in np.ndindex(seq, seq):
                assert np.array_equal(bias[:, j - i + seq - 1], term.shared(seq)[:, i, j])
    assert (kept["bias"] is None) == (name not in ("mpnet", *encoders.T5_LIKE))
    assert kept["terms"] == ["content to position", "position to content"] * (name == "deberta-v2")
    assert np.any(np.triu(attention, 1)) == (not encoder.stack.causal), "GPT-2 does not look ahead"
    assert ("no token sees those after it" in html) == encoder.stack.causal
    for i, block in enumerate(encoder.stack.blocks):
        before, after = trace[f"hidden_states.{i}"][0], trace[f"hidden_states.{i + 1}"][0]
        if after.shape != before.shape:  # the last map changes the width
            after = trace[encoder.stack.last_norm][0]
        for place, at in enumerate(behind["moves"][i + 1]):
            assert at["turn"] == pytest.approx(cosine(before[place], after[place]), abs=1e-12)
            assert at["size"] == pytest.approx(np.linalg.norm(after[place].astype(float)), rel=1e-12)
            for name_of, part in zip(("attention", "feed_forward"), block.parts, strict=False):
                added = trace[part.output_norm or part.work.output][0, place]
                assert at[name_of] == pytest.approx(np.linalg.norm(added.astype(float)))
            others = sorted((-cosine(after[place], after[other]), other) for other in range(seq) if other != place)
            assert at["nearest"] == [other for _, other in others][:5]
            assert at["cosines"] == pytest.approx([-c for c, _ in others][:5], abs=1e-12)


# families with nine terms in block 0; the rest have no positions in the input layer, or more than one LayerNorm between
# the sum and the queries, or more in the scores
NINE = (
    *("bert", "roberta", "xlm-roberta", "camembert", "ernie", "distilbert"),
    *("gpt2", "bart", "pegasus", "clip_text_model"),
)


def test_nine_terms_are_the_scores_of_block_0(encoder: Encoder) -> None:
    name, batch = encoder.embeddings.family.model_type, encoder.tokenize(TWICE)
    if name not in NINE:
        with pytest.raises(ValueError):
            terms_of(encoder, batch)
        return
    trace, terms = encoder.trace(**batch), terms_of(encoder, batch)
    scores, seen = trace[encoder.stack.blocks[0].attention.scores][0], trace["attentions.0"][0] > 0
    assert np.abs(terms.sum(axis=(0, 1)) - scores)[seen].max() < CLOSE
    # a word asks the same at each place, but for the size; a place asks the same whatever word is there
    (ids,) = batch["input_ids"]
    first, second = np.flatnonzero(ids == ids[1])[:2]
    of_word, of_place = ([terms[a, :, :, i].ravel() for i in (first, second)] for a in (0, 1))
    assert cosine(*of_word) > 1 - CLOSE and abs(cosine(*of_place)) < 0.99
    others = terms_of(encoder, encoder.tokenize("above we"))
    of_word, of_place = ([each[a, a, :, 1, 1] for each in (terms, others)] for a in (0, 1))
    assert abs(cosine(*of_word)) < 0.999 and cosine(*of_place) > 1 - CLOSE


def test_a_cell_adds_up(encoder: Encoder) -> None:
    """If a term, a rotation, a norm or the key's head is forgotten, the sum is not the run's score."""
    trace = encoder.trace(**encoder.tokenize(TEXT))
    seq, heads = trace["hidden_states.0"].shape[1], encoder.stack.heads
    for block, bound in enumerate(encoder.stack.blocks):
        own = bound.attention
        for head, query in ((0, seq - 1), (heads - 1, 1)):
            cells = [opened_cell(encoder, trace, block, head, query, key) for key in range(seq)]
            scores = trace[own.scores][0, head, query]
            for key, found in enumerate(cells):
                products = np.array(found["q"]) * found["k"]
                assert np.abs(products - found["products"]).max() < CLOSE
                total = own.scale * products.sum() + sum(term["number"] for term in found["terms"])
                assert abs(total - scores[key]) < CLOSE and abs(found["sum"] - total) < CLOSE
                assert found["score"] == scores[key] and found["seen"] == (found["weights"][key] > 0)
                assert len(found["terms"]) == len(own.terms) and ("turned_q" in found) == own.rotated
            weights = trace[f"attentions.{block}"][0, head, query]
            assert np.abs(np.array(cells[0]["softmax"]) - weights).max() < CLOSE
            gathered = sum(np.array(found["weighted"]) for found in cells)
            context = trace[own.context][0, query].reshape(heads, -1)[head]
            assert np.abs(gathered - context).max() < CLOSE and np.array_equal(cells[1]["context"], context)


def test_every_step_of_a_block_is_told(encoder: Encoder) -> None:
    trace = encoder.trace(**encoder.tokenize(TEXT))
    for i in range(encoders.DEPTH):
        made = list(block_steps(encoder, trace, i, head=3))
        own = list(trace)[list(trace).index(f"hidden_states.{i}") : list(trace).index(f"hidden_states.{i + 1}")]
        assert [key for _, key, _ in made] == own  # none left out, none twice
        for _, key, step in made:
            assert step.formula, key
            if step.function:  # a reader can import it
                assert getattr(equations, step.function.__name__) is step.function
            alone = key.endswith(("sum", "ple_block")) or key.startswith("hidden_states")  # only added up
            assert bool(step.function) != alone, key
        entering, last = (trace[f"hidden_states.{n}"] for n in (i, i + 1))
        values = {f"hidden_states.{i}": entering, REAL: np.ones(entering.shape[:2], bool)}
        if encoder.stack.pieces:
            values[PIECES] = trace[encoder.stack.pieces.norm]
        made = value(f"hidden_states.{i + 1}", encoder.stack.blocks[i].plan(i, encoder.stack), values)
        assert np.abs(made - last).max() <= BY_HAND
