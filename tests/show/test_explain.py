"""The page of `minibert explain`: numbers as torch prints them, the table of tokens, the steps computed by hand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from reference_files import BY_NAME

import minibert
from minibert.equations.input_layer import Array
from minibert.families.parts.plan import GIVEN, layer_plan, value
from minibert.families.parts.plan import given as passed
from minibert.show.explain import explain, expression
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
