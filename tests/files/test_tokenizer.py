"""Text -> ids: real vocabularies, pairs, cutting, long text, with the tokenizers library's own answer as judge. What
counts as texts: lists, columns and arrays of str; and what is refused, with its number.
"""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from checkpoints import GPT2, T5, ids_of, same_bits, wordpiece_json, write, write_hollow, write_wordpiece
from hypothesis import given
from hypothesis import strategies as st
from printed_models import FACTS, write_gpt2_tokenizer
from reference_files import opened

import minibert
from minibert import EmbeddingLayer
from minibert.files.tokenizer import Tokenizer

CLOUDS = [101, 2057, 2973, 2682, 1996, 8044, 102]
SINAN = [101, 1045, 2572, 8254, 2319, 102]
LETTERS = st.text("abc we.", max_size=24)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingLayer:
    return minibert.load(write_wordpiece(write(tmp_path_factory.mktemp("bert"))))


@pytest.fixture(scope="module")
def real(minilm: Path) -> EmbeddingLayer:
    return minibert.load(minilm)


# -- real vocabularies ---------------------------------------------------------------------------------------------


def test_ids_of_the_sentences_everyone_tries(real: EmbeddingLayer) -> None:
    for texts, ids, mask in (
        ("We lived above the clouds", [CLOUDS], [[1] * 7]),
        (["We lived above the clouds", "I am Sinan"], [CLOUDS, [*SINAN, 0]], [[1] * 7, [1] * 6 + [0]]),
    ):
        batch = real.tokenize(texts)
        assert list(batch) == ["input_ids", "attention_mask", "token_type_ids"]
        assert all(array.dtype == np.int64 for array in batch.values())
        assert [array.tolist() for array in batch.values()] == [ids, mask, [[0] * 7] * len(ids)]
    assert [real.tokens(ids_of(real, "x" * length)[0])[1] for length in (100, 101)] == ["xx", "[UNK]"]
    assert real.tokens(SINAN) == ["[CLS]", "i", "am", "sin", "##an", "[SEP]"]


@pytest.mark.parametrize("every", [False, True])
def test_gpt2_ids_as_published(request: pytest.FixtureRequest, tmp_path: Path, every: bool) -> None:
    """By GPT-2's tokens at their real ids, those of these texts or all, which need no table of this size."""
    config = {**GPT2, "vocab_size": 50257, "n_embd": 1, "n_positions": 64}
    write_hollow(tmp_path, config, {"wte.weight": (50257, 1), "wpe.weight": (64, 1)})
    write_gpt2_tokenizer(tmp_path)
    if every:
        real: Path = request.getfixturevalue("reference_folder") / "tokenizers"
        kept = (tmp_path / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
        for file in ("vocab.json", "merges.txt"):
            shutil.copy(real / f"gpt2_{file}", tmp_path / file)
        merges = (tmp_path / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
        assert [merges[int(place)] for place in FACTS["gpt2"]["merges"]] == kept
    gpt2 = minibert.load(tmp_path)
    # from the readme and tests of GPT-2's own implementations
    published = {
        "Hello world": [15496, 995], " Hello world<|endoftext|>": [18435, 995, 50256],
        "I use computer": [40, 779, 3644],
        "Alan Turing theorized that computers would one day become":
            [36235, 39141, 18765, 1143, 326, 9061, 561, 530, 1110, 1716],
    }  # fmt: skip
    assert {text: ids_of(gpt2, text)[0] for text in published} == published
    batch = gpt2.tokenize(["Hello world", "Hello"])
    assert list(batch) == ["input_ids", "attention_mask"], "GPT-2 would add a word row for a type, even for type 0"
    assert batch["input_ids"].tolist() == [[15496, 995], [15496, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert gpt2.tokens(batch["input_ids"][0]) == ["Hello", "Ġworld"]
    assert gpt2.tokenizer.size == 50257


# -- one, many, pairs ----------------------------------------------------------------------------------------------


def test_one_text_is_a_batch_of_one_and_none_an_empty_batch(tiny: EmbeddingLayer) -> None:
    one, batch = tiny.tokenize("we lived"), tiny.tokenize([])
    for same in (["we lived"], ("we lived",), iter(["we lived"]), np.array(["we lived"])):
        assert all(same_bits(array, one[key]) for key, array in tiny.tokenize(same).items())
    assert all(same_bits(array, np.zeros((0, 0), np.int64)) for array in batch.values()) and batch.keys() == one.keys()
    assert tiny(**batch).shape == (0, 0, 8)
    assert tiny.tokenize([], [])["input_ids"].shape == (0, 0)


PAIRS: list[tuple[Any, Any, list[str], list[list[int]]]] = [
    ("we", "the clouds", ["[CLS] we [SEP] the clouds [SEP]"], [[0, 0, 0, 1, 1, 1]]),
    (["a b c d"], [""], ["[CLS] a b c d [SEP] [SEP]"], [[0, 0, 0, 0, 0, 0, 1]]),
    # an empty second text in a list is a second text, whatever stands beside it
    *((["we"], pair, ["[CLS] we [SEP] [SEP]"], [[0, 0, 0, 1]]) for pair in ([""], ("",), np.array([""]))),
    (["we", "we"], ["", "the clouds"], ["[CLS] we [SEP] [SEP] [PAD] [PAD]", "[CLS] we [SEP] the clouds [SEP]"],
     [[0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 1]]),
    # of two plain strings an empty second one is none
    ("we", "", ["[CLS] we [SEP]"], [[0, 0, 0]]),
    ("", "", ["[CLS] [SEP]"], [[0, 0]]),
    ("", "we", ["[CLS] [SEP] we [SEP]"], [[0, 0, 1, 1]]),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "tokens", "types"), PAIRS)
def test_pairs_have_types(
    tiny: EmbeddingLayer, first: Any, second: Any, tokens: list[str], types: list[list[int]]
) -> None:
    batch = tiny.tokenize(first, second)
    assert [" ".join(row) for row in tiny.tokens(batch["input_ids"])] == tokens
    assert batch["token_type_ids"].tolist() == types


def test_a_model_is_told_of_two_texts_where_its_tokenizer_s_class_says_so(tmp_path: Path) -> None:
    """As in transformers: BERT's class does, the one that reads tokenizer.json as it stands does not."""
    folder = write_wordpiece(write(tmp_path))

    def types(**settings: Any) -> list[int]:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        found: list[int] = minibert.load(folder).tokenize("we", "the")["token_type_ids"][0].tolist()
        return found

    told, names = [0, 0, 0, 1, 1], ["input_ids", "attention_mask"]
    assert types() == types(tokenizer_class="BertTokenizer") == told
    assert not any(types(tokenizer_class="PreTrainedTokenizerFast") + types(tokenizer_class="DistilBertTokenizer"))
    assert not any(types(model_input_names=names))
    assert types(tokenizer_class="TokenizersBackend", model_input_names=[*names, "token_type_ids"]) == told
    with pytest.raises(minibert.TokenizerError, match="'model_input_names'"):
        types(model_input_names="input_ids")


def test_types_of_single_texts_are_the_template_s(tmp_path: Path) -> None:
    """A template may give even a text alone another segment than 0; an empty text does not show it."""
    from tokenizers.processors import TemplateProcessing

    template = TemplateProcessing("[CLS] $A:1 [SEP]", "$A $B:1", [("[CLS]", 2), ("[SEP]", 3)])
    folder = write_wordpiece(write(tmp_path), post_processor=json.loads(template.__getstate__()))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "token_type_ids"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    layer = minibert.load(folder)
    assert layer.tokenize(["", "we the"])["token_type_ids"].tolist() == [[0, 0, 0, 0], [0, 1, 1, 0]]
    pairs = layer.tokenize(["we the we", "we"], ["", "the"])  # of which the longest has no second text
    assert pairs["token_type_ids"].tolist() == [[0, 0, 0], [0, 1, 0]]
    rows = layer(layer.tokenize("we the")["input_ids"], token_type_ids=[[0, 1, 1, 0]])[0]
    for texts in (["we the"], ["", "we the"], ["we the", ""]):
        assert same_bits(layer.embed(texts, None)[texts.index("we the")], rows)


@given(st.lists(LETTERS, max_size=5), st.sampled_from(["right", "left"]))
def test_a_text_has_the_same_ids_in_every_batch_and_padding_is_0(
    tiny: EmbeddingLayer, texts: list[str], padding: str
) -> None:
    batch = tiny.tokenize(texts, padding=padding, truncation=True)
    for i, text in enumerate(texts):
        keep = batch["attention_mask"][i].astype(bool)
        alone = tiny.tokenize(text, truncation=True)
        assert all(batch[key][i, keep].tolist() == alone[key][0].tolist() for key in batch)
        assert not any(batch[key][i, ~keep].any() for key in batch)
        length = int(keep.sum())
        assert keep[:length].all() if padding == "right" else keep[len(keep) - length :].all()


# -- truncation ----------------------------------------------------------------------------------------------------


@given(LETTERS, st.one_of(st.none(), LETTERS), st.integers(2, 30))
def test_truncation_equals_the_library_s_own(text: str, pair: str | None, max_length: int) -> None:
    from tokenizers import Tokenizer as Reader

    if pair and max_length < 3:
        max_length = 3  # room for the special tokens; less is an error here
    ours = Tokenizer(Reader.from_str(wordpiece_json())).encode(text, pair, truncation=True, max_length=max_length)[0]
    reader = Reader.from_str(wordpiece_json())
    reader.enable_truncation(max_length)
    theirs = reader.encode(text, pair or None)
    assert ours.input_ids == theirs.ids
    assert (ours.token_type_ids or [0] * len(ours.input_ids)) == theirs.type_ids  # None: all of them 0
    assert len(ours.input_ids) <= max_length


def test_truncation_goes_to_the_position_table_by_default(tiny: EmbeddingLayer, tmp_path: Path) -> None:
    batch = tiny.tokenize("a " * 50, truncation=True)
    assert batch["input_ids"].shape == (1, 16) and batch["input_ids"][0, -1] == 3
    assert tiny(**batch).shape == (1, 16, 8)
    assert tiny.tokenize("a " * 50, truncation=True, max_length=1000)["input_ids"].shape == (1, 16)
    assert tiny.tokenize("a b c", truncation=True, max_length=4)["input_ids"][0, -1] == 3
    assert ids_of(tiny, "a b c", truncation=True, max_length=2) == [[2, 3]]
    without = minibert.load(write_wordpiece(write(tmp_path, T5)))
    assert without.tokenize("a " * 50)["input_ids"].shape == (1, 52)
    assert without.tokenize("a " * 50, truncation=True, max_length=20)["input_ids"].shape == (1, 20)
    with pytest.raises(ValueError, match=r"^t5 .*max_length"):
        without.tokenize("a", truncation=True)
    assert same_bits(without.embed(["a"], truncation=True), without.embed(["a"])), "there is nothing to cut"


def test_a_megabyte_works(real: EmbeddingLayer) -> None:
    long = "cloud " * 170_000
    for text, length in ((long, 512), ("x" * 1_000_000, 3), ("\u4e2d" * 350_000, 512)):
        batch = real.tokenize(text, truncation=True)
        ids = batch["input_ids"]
        assert ids.shape == (1, length) and (ids[0, 0], ids[0, -1]) == (101, 102)
        assert np.isfinite(real(**batch)).all()
    with pytest.raises(ValueError, match=r"170002.* 512"):
        real.embed(long)
    assert same_bits(real.embed(long, truncation=True), real.embed("cloud " * 510))


# -- what is no text, and how many go at once ----------------------------------------------------------------------


def test_threads_share_a_tokenizer(minilm: Path, real: EmbeddingLayer) -> None:
    texts = [[f"cloud {i} " * (i % 40), "we lived"] for i in range(200)]
    alone = [real.tokenize(some, truncation=bool(i % 2)) for i, some in enumerate(texts)]
    fresh = minibert.load(minilm)  # whose tokenizer no one has opened yet
    with ThreadPoolExecutor(8) as pool:
        together = pool.map(lambda pair: fresh.tokenize(pair[1], truncation=bool(pair[0] % 2)), enumerate(texts))
    for a, b in zip(alone, together, strict=True):
        assert all(same_bits(a[key], b[key]) for key in a)


ALONE = [(["a cloud"] * 16, [1] * 16), (["a cloud"] * 17, [17]), (["cloud" * 400, ""], [1, 1]),
         (["cloud" * 400, "a"], [2])]  # fmt: skip


@pytest.mark.parametrize(("texts", "calls"), ALONE)
def test_few_short_texts_go_to_the_library_one_by_one(
    real: EmbeddingLayer, texts: list[str], calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads, once awake, take the cores from the products of these texts, and count as others' work."""
    tokenizer, asked = real.tokenizer, list[int]()
    split = tokenizer._encode_batch
    monkeypatch.setattr(tokenizer, "_encode_batch", lambda some: [asked.append(len(some)), split(some)][1])
    cut: dict[str, Any] = {"truncation": True, "max_length": 512}
    found = tokenizer.encode(texts, **cut)
    assert asked == calls
    assert [each.input_ids for each in found] == [tokenizer.encode([text], **cut)[0].input_ids for text in texts]


PANDAS = [type(name, (), {})() for name in ("NAType", "NaTType")]  # its missing values are known by name
ONE, STR = "must be a str or a list of str, found ", "must be a str, found "
SURROGATE = r"has a lone surrogate U\+D800 at index 1; read the text with the right encoding"
MISSING = "a missing value; leave the row out, or pass ''"
TABLE = ONE + "DataFrame, a table; pass one of its columns, as in "
NO_TEXTS: list[tuple[Any, Any, type[Exception], str]] = [
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
    (["we"], pl.DataFrame(schema=["we", "the"]), TypeError, rf"^text_pair {TABLE}table\['we'\]; it has 'we', 'the'$"),
    (pl.DataFrame(schema=[*"abcdefghijk"]), None, TypeError, r"; it has 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'$"),
    *((SimpleNamespace(columns=numbers), None, TypeError, r"a table; .*, as in table\[\.\.\.\]$")
      for numbers in ((0, 1), ())),  # which pandas may have
    (pa.table({"text": ["we"]}), None, TypeError, "a table; pass one of its columns"),
    (pl.DataFrame({"text": ["we"]}), None, TypeError, rf"^texts {TABLE}table\['text'\]$"),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "pair", "kind", "says"), NO_TEXTS)
def test_refused(tiny: EmbeddingLayer, texts: Any, pair: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        tiny.tokenize(texts, pair)
    if pair is None:
        with pytest.raises(kind, match=says):
            tiny.embed(texts)


NO_SETTINGS: list[tuple[dict[str, Any], str]] = [
    *(({"padding": odd}, f"^padding .*{odd}") for odd in ("middle", True)),
    *(({"truncation": True, "max_length": n}, f"^max_length {n} .*2") for n in (0, 1)),
    *(({"truncation": True, "max_length": n}, f"^max_length .*{n}") for n in (-1, 2.5)),
    ({"max_length": 2}, r"\b3 .*2\b"),
]


@pytest.mark.parametrize(("keywords", "says"), NO_SETTINGS)
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
    texts, others, encoder = ["we", "the clouds"], ["a", "b"], opened("sentences-dense")
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
