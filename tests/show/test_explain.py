"""The page of `minibert explain`: numbers as torch prints them, the table of tokens, the steps computed by hand; with
`--block N` one block's steps, their formulas and functions, and one head's table.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import encoders
import numpy as np
import pytest
from command_line import Printed
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from reference_files import BY_NAME

import minibert
from minibert.cli import main
from minibert.equations.input_layer import Array
from minibert.families.parts.plan import GIVEN, layer_plan, value
from minibert.families.parts.plan import given as passed
from minibert.models.encoder import Encoder
from minibert.models.open.load_encoder import load_encoder
from minibert.show.explain import block_steps, explain, explain_block, expression, pair_table
from minibert.show.text import beginning, columns_of, torch_text

SENTENCE = "We lived above the clouds"


def as_tensor(x: Array) -> str:
    return f"tensor({torch_text(x, indent=len('tensor('))})"


# -- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "printed"),
    [
        ([0.0, 0.0], "[0., 0.]"),
        ([1.0, -20.0, 0.0], "[  1., -20.,   0.]"),
        ([1.5, 1500.0], "[   1.5000, 1500.0000]"),
        ([1.5, 1501.0], "[1.5000e+00, 1.5010e+03]"),
        ([1e-4, 2e-4], "[1.0000e-04, 2.0000e-04]"),
        ([1.0] * 7, "[1., 1., 1.,  ..., 1., 1., 1.]"),
        ([0.5, float("nan")], "[0.5000,    nan]"),
        ([1.0, float("-inf")], "[1., -inf]"),
        ([], "[]"),
    ],
)
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
        assert as_tensor(x) == repr(torch.from_numpy(x.copy()))


# -- the page ----------------------------------------------------------------------------------------------------


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
    names = ["word_embeddings", "token_type_embeddings", "position_embeddings", "sum", "LayerNorm"]
    lookup, norm = "  equations.lookup", "  equations.layer_norm"
    functions = [lookup, lookup, lookup, "", norm]
    assert headings == [f"{name}  (1, 7, 384){function}" for name, function in zip(names, functions, strict=True)]
    page = "\n".join(lines)
    assert "\n  Embedding(2, 384): the row of each type\n" in page
    assert "\n  (x - mean) / sqrt(variance + 1e-12) * weight + bias, x = sum, row by row\n" in page
    assert max(map(len, lines)) <= 80


def test_the_short_page_has_one_token_s_first_six_numbers_of_each_step(minilm: Path) -> None:
    layer = minibert.load(minilm)
    short = list(explain(layer, SENTENCE))
    assert len(short) == 32 and short[-1].endswith(": scripts/study/five_minutes.py")
    trace = {name: rows for name, rows in layer.trace(**layer.tokenize(SENTENCE)).items() if rows.dtype.kind == "f"}
    told = [line for line in short if line.startswith("  we  [")]
    for line, rows in zip(told, trace.values(), strict=True):
        numbers = [float(number) for number in re.findall(r"-?\d\.\d{4}", line)]
        assert np.abs(np.array(numbers) - rows[0, 1, :6]).max() <= 0.5e-4 and len(numbers) == 6 and "..." in line


def test_a_text_that_is_too_long_is_cut_or_refused_before_the_first_line(minilm: Path, tmp_path: Path) -> None:
    layer = minibert.load(minilm)
    with pytest.raises(ValueError, match="512"):
        next(explain(layer, "cloud " * 600))
    assert next(explain(layer, "cloud " * 600, truncation=True)).startswith("512 tokens of bert")
    assert next(
        explain(BY_NAME["t5-encoder"].with_words(tmp_path, "w0", "w1"), "w1 " * 600, truncation=True)
    ).startswith("600 tokens of t5"), "no limit"


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
    page = "\n".join(explain(layer, ""))
    assert page.splitlines()[-3].endswith("the row of each position")
    assert page.startswith(
        "0 tokens of gpt2 -> (1, 0, 16), float32\n\ntoken  id  position\n\nwte  (1, 0, 16)  equations.lookup\n"
    )


def test_tokens_cannot_command_the_terminal(tmp_path: Path) -> None:
    lines = list(
        explain(
            BY_NAME["gpt2"].with_words(tmp_path, "w0", "\x1b[31m", "雲", "x" * 100, "end"),
            "\x1b[31m 雲 " + "x" * 100 + " end",
        )
    )
    table = lines[3:7]
    assert table[0].startswith(r"\x1b[31m  ")
    assert table[2].startswith("x" * 39 + "…  ")
    assert "\x1b" not in "".join(lines)
    assert len({columns_of(line) for line in table}) == 1


TEXT = "we lived above the clouds"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load_encoder(encoders.write(tmp_path_factory.mktemp("bert"), "bert"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load_encoder(encoders.write_gpt2(tmp_path_factory.mktemp("gpt2")))


def test_the_last_step_is_named_with_what_it_gives(bert: Encoder, gpt2: Encoder) -> None:
    """Names and order of all steps: see test_every_family."""
    for encoder, block, last in (
        (bert, 1, "output.LayerNorm = hidden_states.2"), (gpt2, 0, "mlp.sum = hidden_states.1"),
        (gpt2, 1, "ln_f = hidden_states.2"),
    ):  # fmt: skip
        lines = list(explain_block(encoder, TEXT, block))
        after = [line.partition("  (")[0] for before, line in pairwise(lines) if before == ""]
        assert after[0] == f"hidden_states.{block}" and after[-1] == last


def test_formulas_name_what_they_take(bert: Encoder, gpt2: Encoder) -> None:
    def told(encoder: Encoder) -> dict[str, str]:
        trace = encoder.trace([[5, 6, 7]])
        return {name.partition(" = ")[0]: step.formula for name, _, step in block_steps(encoder, trace, 1, head=2)}

    of = told(bert)
    assert of["hidden_states.1"] == "what enters: the output of block 0"
    assert of["attention.self.key"].endswith("hidden_states.1 @ weight^T + bias")
    assert of["attention.self.scores"].startswith("0.5 * query @ key^T, 1 / sqrt(4) = 0.5; columns 8 to 11 of each are")
    assert of["intermediate.intermediate_act_fn"].startswith(
        "y = x * (1 + erf(x / sqrt(2))) / 2, x = intermediate.dense"
    )
    assert of["output.sum"] == "attention.output.LayerNorm + output.dense"
    of = told(gpt2)
    assert of["attn.c_attn"].endswith("ln_1 @ weight + bias") and "x = hidden_states.1" in of["ln_1"]
    assert "side by side" in of["attn.scores"] and "x = mlp.sum" in of["ln_f"]
    assert "later tokens masked" in of["probabilities, attentions.1"] and "tanh" in of["mlp.act"]


def test_probabilities_stand_beside_their_tokens(bert: Encoder) -> None:
    head = 2
    lines = list(explain_block(bert, TEXT, 1, head))
    weights = bert.trace(**bert.tokenize(TEXT))["attentions.1"][0, head]
    tokens = bert.tokens(bert.tokenize(TEXT)["input_ids"])[0]
    assert tokens == ["[CLS]", "we", "lived", "above", "the", "clouds", "[SEP]"]
    start = next(i for i, line in enumerate(lines) if line.split() == tokens)
    for token, row, line in zip(tokens, weights, lines[start + 1 :], strict=False):
        found, *numbers = line.split()
        assert found == token and numbers == [f"{number:.4f}" for number in row]
    assert lines[1] == f"  head {head} of 4 in scores and weights, 4 numbers wide"
    row = torch_text(bert.trace(**bert.tokenize(TEXT))["encoder.layer.1.attention.self.scores"][0, head, 1, :6], 2)
    assert f"  we  {row[:-1]}, ...]" in lines


def test_the_numbers_are_those_of_the_text_s_first_token(bert: Encoder) -> None:
    trace = bert.trace(**bert.tokenize(TEXT))
    lines = list(explain_block(bert, TEXT, 1, 2))
    for key in ("hidden_states.1", "attention.self.query", "attention.self.scores", "output.sum"):
        x = trace[key if key.startswith("hidden") else f"encoder.layer.1.{key}"]
        assert f"  we  {beginning(x[0, 2, 1] if key.endswith('scores') else x[0, 1])}" in lines, key


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
    assert main(["explain", TEXT, "--pair", "the dog", "--model", str(folder), "--block", "1", "--head", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("block 1 of 2 of bert -> (1, 12, 16)\n  head 2 of 4")
