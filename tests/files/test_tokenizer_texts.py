"""What counts as texts: lists, columns and arrays of str; and what is refused, with its number."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from checkpoints import ids_of, same_bits

import minibert
from minibert import EmbeddingLayer

DENSE = Path(__file__).parents[1] / "reference" / "sentences-dense"


class Table:
    """A table of named columns as pandas and Polars have it: iterating gives the names."""

    def __init__(self, *names: object) -> None:
        self.columns = names

    def __iter__(self) -> Iterator[object]:
        return iter(self.columns)


PANDAS = [type(name, (), {})() for name in ("NAType", "NaTType")]  # its missing values are known by name
ONE, STR = "must be a str or a list of str, found ", "must be a str, found "
SURROGATE = r"has a lone surrogate U\+D800 at index 1; read the text with the right encoding"
MISSING = "a missing value; leave the row out, or pass ''"
TABLE = ONE + "Table, a table; pass one of its columns, as in "
REFUSED: list[tuple[Any, Any, type[Exception], str]] = [
    *((one, None, TypeError, f"^texts {ONE}{type(one).__name__}") for one in (None, 3, {"text": "a"}, {"we", "the"})),
    (b"we", None, TypeError, rf"^texts {ONE}bytes; decode it first, text.decode\('utf-8'\)"),
    ("we", b"the", TypeError, f"text_pair {ONE}bytes"),
    (["we", b"we"], None, TypeError, rf"texts\[1\] {STR}bytes; decode it first"),
    *(([one], None, TypeError, rf"texts\[0\] {STR}{type(one).__name__}") for one in (["we", "the"], ("we", "the"))),
    ([1.5], None, TypeError, rf"^texts\[0\] {STR}float$"),
    *((["we", one], None, TypeError, rf"^texts\[1\] {STR}{type(one).__name__}, {MISSING}")
      for one in (None, float("nan"), np.float32("nan"), *PANDAS)),
    (["we", "the"], ["a", None], TypeError, rf"^text_pair\[1\] {STR}NoneType, {MISSING}"),
    ("a\ud800", None, ValueError, rf"texts\[0\] {SURROGATE}"),
    (["we", "a\ud800"], None, ValueError, rf"texts\[1\] {SURROGATE}"),
    ("we", "a\ud800", ValueError, r"text_pair\[0\]"),
    (["we", "the"], ["a"], ValueError, r"\b2 .*1\b"),
    (["we"], ["a", "b"], ValueError, r"\b1 .*2\b"),
    ("a " * 15, None, ValueError, "0 .*17 .*16"),
    (["a", "a " * 15], None, ValueError, "1 .*17"),
    (Table("we"), None, TypeError, rf"^texts {TABLE}table\['we'\]$"),
    (["we"], Table("we", "the"), TypeError, rf"^text_pair {TABLE}table\['we'\]; it has 'we', 'the'$"),
    (Table(*"abcdefghijk"), None, TypeError, r"; it has 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'$"),
    (Table(0, 1), None, TypeError, r"as in table\[\.\.\.\]$"),
    (Table(), None, TypeError, r"as in table\[\.\.\.\]$"),
    (pa.table({"text": ["we"]}), None, TypeError, "a table; pass one of its columns"),
    (pl.DataFrame({"text": ["we"]}), None, TypeError, rf"^texts {ONE}DataFrame, .* as in table\['text'\]$"),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "pair", "kind", "says"), REFUSED)
def test_refused(tiny: EmbeddingLayer, texts: Any, pair: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        tiny.tokenize(texts, pair)
    if pair is None:
        with pytest.raises(kind, match=says):
            tiny.embed(texts)


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"padding": "middle"}, "^padding .*'middle'"),
        ({"padding": True}, "^padding .*True"),
        *(({"truncation": True, "max_length": n}, f"^max_length {n} .*2") for n in (0, 1)),
        *(({"truncation": True, "max_length": n}, f"^max_length .*{n}") for n in (-1, 2.5)),
        ({"max_length": 2}, r"\b3 .*2\b"),
    ],
)
def test_refused_settings(tiny: EmbeddingLayer, keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tiny.tokenize("we", **keywords)


def test_one_of_many_texts_is_named_by_its_own_number(tiny: EmbeddingLayer) -> None:
    texts = ["a"] * 5000
    texts[3000] = "a " * 20
    with pytest.raises(ValueError, match=r"3000 .*22"):
        tiny.embed(texts)
    texts[3000] = None  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"texts\[3000\] must be a str"):
        tiny.embed(texts)
    with pytest.raises(ValueError, match=r"texts\[6\]"):
        tiny.tokenizer.encode(["we", "a\ud800"], start=5)
    with pytest.raises(ValueError, match=r"text_pair\[5\]"):
        tiny.tokenizer.encode(["we"], ["a\ud800"], start=5)


def test_arrays_and_columns_of_str_are_lists_of_texts(tiny: EmbeddingLayer) -> None:
    texts, others, encoder = ["we", "the clouds"], ["a", "b"], minibert.load_encoder(DENSE)
    want, vectors = ids_of(tiny, texts, others), encoder.encode(texts)
    for column in (
        *(partial(np.array, dtype=dtype) for dtype in (np.str_, object, np.dtypes.StringDType())),
        pa.array, lambda values: pa.chunked_array([values[:1], values[1:]]), pl.Series,
    ):  # fmt: skip
        assert ids_of(tiny, column(texts), column(others)) == want
        assert same_bits(tiny.embed(column(texts)), tiny.embed(texts))
        assert same_bits(encoder.encode(column(texts)), vectors)
    for column in (pa.array, pl.Series, np.array):
        for call in (tiny.embed, encoder.encode):
            with pytest.raises(TypeError, match=r"texts\[1\]"):
                call(column(["we", None]))  # type: ignore[operator]
    with pytest.raises(TypeError):
        encoder.encode(np.array("one"))  # type: ignore[call-overload]  # of no axis
