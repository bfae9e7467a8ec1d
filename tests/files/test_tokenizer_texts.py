"""What counts as texts: lists, columns and arrays of str; and what is refused, with its number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from checkpoints import same_bits
from some_texts import ids_of

import minibert
from minibert import EmbeddingLayer

DENSE = Path(__file__).parents[1] / "reference" / "sentences-dense"


# -- refused -------------------------------------------------------------------------------------------------------

SURROGATE = r"has a lone surrogate U\+D800 at index 1, which is no character; read the text with the right encoding"
REFUSED = [
    ((None,), TypeError, "texts must be a str or a list of str, found NoneType"),
    ((3,), TypeError, "texts must be a str or a list of str, found int"),
    (({"text": "a"},), TypeError, "texts must be a str or a list of str, found dict"),
    (({"we", "the"},), TypeError, "texts must be a str or a list of str, found set"),
    ((b"we",), TypeError, r"texts must be .* found bytes; decode it first, text.decode\('utf-8'\)"),
    ((["we", None],), TypeError, r"texts\[1\] must be a str, found NoneType"),
    ((["we", b"we"],), TypeError, r"texts\[1\] must be a str, found bytes; decode it first"),
    (([["we", "the"]],), TypeError, r"texts\[0\] must be a str, found list"),
    (([("we", "the")],), TypeError, r"texts\[0\] must be a str, found tuple"),
    (([float("nan")],), TypeError, r"texts\[0\] must be a str, found float"),
    (("a\ud800",), ValueError, r"texts\[0\] " + SURROGATE),
    ((["we", "a\ud800"],), ValueError, r"texts\[1\] " + SURROGATE),
    (("we", "a\ud800"), ValueError, r"text_pair\[0\] " + SURROGATE),
    (("we", b"the"), TypeError, "text_pair must be a str or a list of str, found bytes"),
    ((["we"], [None]), TypeError, r"text_pair\[0\] must be a str, found NoneType"),
    ((["we", "the"], ["a"]), ValueError, "one text for each of the 2 texts, found 1"),
    ((["we"], ["a", "b"]), ValueError, "one text for each of the 1 texts, found 2"),
    (
        ("a " * 15,),
        ValueError,
        "text 0 has 17 tokens, but the longest sequence is 16 .*; shorten it, or pass truncation=True",
    ),
    ((["a", "a " * 15],), ValueError, "text 1 has 17 tokens"),
]


@pytest.mark.parametrize(("texts", "kind", "says"), REFUSED)
def test_refused(tiny: EmbeddingLayer, texts: tuple[Any, ...], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        tiny.tokenize(*texts)
    with pytest.raises(kind, match=says):
        tiny.embed(texts[0], text_pair=texts[1] if len(texts) > 1 else None)


class Table:
    """A table of named columns as pandas and Polars have it: iterating gives the names."""

    def __init__(self, *names: object) -> None:
        self.columns = names

    def __iter__(self) -> Iterator[object]:
        return iter(self.columns)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            Table("we"),
            r"found Table, a table of named columns; pass the column that holds the texts, as in table\['we'\]$",
        ),
        (Table("we", "the"), r"as in table\['we'\]; it has 'we', 'the'$"),
        (Table(*"abcdefghijk"), r"; it has 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'$"),
        (Table(0, 1), r"as in table\[\.\.\.\]$"),
        (Table(), r"as in table\[\.\.\.\]$"),
    ],
)
def test_a_table_of_columns_is_refused(tiny: EmbeddingLayer, table: Table, says: str) -> None:
    for call in (tiny.tokenize, tiny.embed):
        with pytest.raises(TypeError, match="^texts must be a str or a list of str, .*" + says):
            call(table)  # type: ignore[operator]
        with pytest.raises(TypeError, match="^text_pair must be a str or a list of str, .*" + says):
            call(["we"], text_pair=table)  # type: ignore[operator]


def test_an_array_of_str_is_a_list_of_texts(tiny: EmbeddingLayer) -> None:
    texts = ["we", "the clouds"]
    for dtype in (np.str_, object, np.dtypes.StringDType()):
        assert ids_of(tiny, np.array(texts, dtype)) == ids_of(tiny, texts)
        assert same_bits(tiny.embed(texts, text_pair=np.array(texts, dtype)), tiny.embed(texts, text_pair=texts))


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"padding": "middle"}, "padding must be 'right' or 'left', found 'middle'"),
        ({"padding": True}, "padding must be 'right' or 'left', found True"),
        ({"truncation": True, "max_length": 1}, "max_length 1 has no room for the 2 special tokens"),
        ({"truncation": True, "max_length": 0}, "max_length 0 has no room for the 2 special tokens"),
        ({"truncation": True, "max_length": -1}, "max_length must be an integer >= 0, found -1"),
        ({"truncation": True, "max_length": 2.5}, "max_length must be an integer >= 0, found 2.5"),
        ({"max_length": 2}, "text 0 has 3 tokens, but the longest sequence is 2"),
    ],
)
def test_refused_settings(tiny: EmbeddingLayer, keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tiny.tokenize("we", **keywords)


def test_one_of_many_texts_is_named_by_its_own_number(tiny: EmbeddingLayer) -> None:
    texts = ["a"] * 5000
    texts[3000] = "a " * 20
    with pytest.raises(ValueError, match="text 3000 has 22 tokens"):
        tiny.embed(texts)
    texts[3000] = None  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"texts\[3000\] must be a str"):
        tiny.embed(texts)
    with pytest.raises(ValueError, match="one text for each of the 2048 texts, found 3000"):
        tiny.embed(["a"] * 2048, text_pair=["b"] * 3000)
    with pytest.raises(ValueError, match=r"^texts\[6\] has a lone surrogate"):
        tiny.tokenizer.encode(["we", "a\ud800"], start=5)
    with pytest.raises(ValueError, match=r"^text_pair\[5\] has a lone surrogate"):
        tiny.tokenizer.encode(["we"], ["a\ud800"], start=5)


# -- columns of tables ---------------------------------------------------------------------------------------------


PANDAS = [type(name, (), {})() for name in ("NAType", "NaTType")]  # its missing values are known by name


@pytest.mark.parametrize(
    "missing", [None, float("nan"), np.float32("nan"), *PANDAS], ids=lambda each: type(each).__name__
)
def test_a_missing_value_is_named_with_its_number(tiny: EmbeddingLayer, missing: Any) -> None:
    kind = type(missing).__name__
    says = rf"\[1\] must be a str, found {kind}, a missing value; leave such rows out, or put an empty text in their"
    for call in (tiny.tokenize, tiny.embed):
        with pytest.raises(TypeError, match="^texts" + says):
            call(["we", missing, "the"])
        with pytest.raises(TypeError, match="^text_pair" + says):
            call(["we", "the"], text_pair=["a", missing])
    with pytest.raises(TypeError, match=r"^texts\[0\] must be a str, found float$"):
        tiny.embed([1.5])  # type: ignore[list-item]


def test_arrow_and_polars_columns_are_lists_of_texts(tiny: EmbeddingLayer) -> None:
    texts, others = ["we", "the clouds"], ["a", "b"]
    want = tiny.embed(texts, text_pair=others)
    for column in (pa.array, lambda values: pa.chunked_array([values[:1], values[1:]]), pl.Series):
        assert same_bits(tiny.embed(column(texts), text_pair=column(others)), want)
        assert ids_of(tiny, column(texts)) == ids_of(tiny, texts)
        with pytest.raises(TypeError, match=r"^texts\[1\] must be a str, found NoneType, a missing value"):
            tiny.embed(column(["we", None]))
    encoder = minibert.load_encoder(DENSE)
    for column in (pa.array, pl.Series, np.array):
        assert same_bits(encoder.encode(column(texts)), encoder.encode(texts))
        with pytest.raises(TypeError, match=r"^texts\[1\] must be a str, found NoneType, a missing value"):
            encoder.encode(column(["we", None]))
    with pytest.raises(TypeError, match=r"^texts must be a str or a list of str, found ndarray$"):
        encoder.encode(np.array("one"))  # type: ignore[call-overload]  # of no axis
    with pytest.raises(TypeError, match=r"a table of named columns; .* as in table\['text'\]|as in table\[\.\.\.\]"):
        tiny.embed(pa.table({"text": texts}))
    with pytest.raises(TypeError, match=r"found DataFrame, .* as in table\['text'\]; it has 'text', 'other'$"):
        tiny.embed(pl.DataFrame({"text": texts, "other": others}))
