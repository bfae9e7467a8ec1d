"""Every kind of tokenizer file: read, absent or damaged. A panic inside the tokenizers library is no Exception; here it
is an error with the file's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import pytest
from checkpoints import BERT, GPT2, ROBERTA, WORDS, ids_of, wordpiece_json, write, write_byte_level, write_wordpiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_folders import BASES, charsmap, tokenizer_json

import minibert
from minibert import TokenizerError

SETTINGS = "tokenizer_config.json"

FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SMALL_ROBERTA = {**ROBERTA, "vocab_size": 258 + 5, "pad_token_id": 259, "max_position_embeddings": 300}
OPT = {**GPT2, "vocab_size": 262}  # its files begin with their own token
OPENS = {"add_bos_token": True, "bos_token": {"content": "</s>"}, "eos_token": {"content": "</s>"}}


def windows(folder: Path) -> None:
    (folder / "vocab.txt").write_bytes("".join(f"{word}\r\n" for word in WORDS).encode())


def both(folder: Path) -> None:
    write_wordpiece(checkpoints.write_vocab(folder, ("nonsense",)))


def byte_level(*special: str) -> Callable[[Path], Path]:
    return lambda folder: write_byte_level(folder, special)


READ: list[tuple[dict[str, Any], Callable[[Path], object], dict[str, Any], dict[str, str]]] = [
    *((BERT, checkpoints.write_vocab, settings_, texts) for settings_, texts in (
        ({}, {"We lived, above": "[CLS] we lived [UNK] above [SEP]", "clo": "[CLS] c ##l ##o [SEP]"}),
        ({}, {"[MASK] we": "[CLS] [MASK] we [SEP]"}),
        ({"add_bos_token": True}, {"We": "[CLS] we [SEP]"}),  # this class has no such token
        ({"cls_token": None, "sep_token": None}, {"We": "[CLS] we [SEP]"}),
        ({"cls_token": "[MASK]"}, {"We": "[MASK] we [SEP]"}),
        ({"cls_token": {"content": "[MASK]", "lstrip": False}}, {"We": "[MASK] we [SEP]"}))),
    (BERT, windows, {}, {"we lived": "[CLS] we lived [SEP]"}),
    (BERT, both, {}, {"we": "[CLS] we [SEP]"}),  # tokenizer.json goes first
    (GPT2, write_byte_level, {}, {"he we": "he Ġw e", "e<|endoftext|>": "e <|endoftext|>", "": ""}),
    (OPT, byte_level("<|endoftext|>", "</s>"), OPENS, {"he": "</s> he", "": "</s>"}),
    # of these files alone transformers makes a mask that leaves the space before it; a later file says otherwise
    (SMALL_ROBERTA, byte_level(*FAIRSEQ), {}, {"he we": "<s> he Ġw e </s>", "he <mask>": "<s> he Ġ <mask> </s>"}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "put", "settings_", "texts"), READ)
def test_a_text_is_split_as_its_files_say(
    tmp_path: Path, config: dict[str, Any], put: Any, settings_: dict[str, Any], texts: dict[str, str]
) -> None:
    put(write(tmp_path, config))
    if settings_:
        (tmp_path / SETTINGS).write_text(json.dumps(settings_), encoding="utf-8")
    layer = minibert.load(tmp_path)
    for text, tokens in texts.items():
        assert " ".join(layer.tokens(layer.tokenize(text)["input_ids"][0])) == tokens


def test_roberta_s_pairs_and_mask(tmp_path: Path) -> None:
    layer = minibert.load(write_byte_level(write(tmp_path, SMALL_ROBERTA), FAIRSEQ))
    pair = layer.tokenize(["he", "he he"], ["we", ""])
    assert layer.tokens(pair["input_ids"]) == [
        ["<s>", "he", "</s>", "</s>", "w", "e", "</s>"],
        ["<s>", "he", "Ġ", "he", "</s>", "</s>", "</s>"],
    ]
    assert not pair["token_type_ids"].any(), "RoBERTa's table has one row for all types"
    assert layer(**pair).shape == (2, 7, 8)
    takes = {"mask_token": {"content": "<mask>", "lstrip": True, "normalized": False}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(takes), encoding="utf-8")
    layer = minibert.load(tmp_path)
    assert layer.tokens(ids_of(layer, "he <mask>")[0]) == ["<s>", "he", "<mask>", "</s>"]


def as_it_stands(folder: Path, **changes: Any) -> Path:
    """Write a model whose tokenizer.json is read whole; else the class of its type takes the vocabulary alone."""
    write_wordpiece(write(folder), **changes)
    (folder / SETTINGS).write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    return folder


PADDED = {
    "strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 4, "pad_type_id": 1,
    "pad_token": "[MASK]",
}  # fmt: skip
TRUNCATED = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize("extra", [{"truncation": TRUNCATED}, {"padding": PADDED}])
def test_stored_padding_and_truncation_are_cleared(tmp_path: Path, extra: dict[str, Any]) -> None:
    batch = minibert.load(as_it_stands(tmp_path, **extra)).tokenize(["we lived above the clouds", "we"])
    assert batch["input_ids"].shape == (2, 7)
    assert batch["attention_mask"].sum(axis=1).tolist() == [7, 3]
    assert batch["input_ids"][1].tolist() == [2, WORDS.index("we"), 3, 0, 0, 0, 0]


NO_ROWS = (None, -1, 10_000, True, "0")  # ids of padding that give way to 0


@pytest.mark.parametrize(("config", "pad_id"), [*(({**checkpoints.T5, "pad_token_id": odd}, 0) for odd in NO_ROWS),
                                                ({**checkpoints.DISTILBERT, "pad_token_id": 4}, 4)])  # fmt: skip
def test_padding_is_the_config_s_where_the_table_has_its_row(
    tmp_path: Path, config: dict[str, Any], pad_id: int
) -> None:
    layer = minibert.load(write_wordpiece(write(tmp_path, config)))
    batch = layer.tokenize(["we", "we lived"])
    assert list(batch) == ["input_ids", "attention_mask"]
    assert batch["input_ids"][0, -1] == pad_id
    assert layer(**batch).shape == (2, 4, 8)


def test_ids_with_gaps(tmp_path: Path) -> None:
    model = json.loads(wordpiece_json())["model"]
    gap = model["vocab"].pop("lived")
    layer = minibert.load(write_wordpiece(write(tmp_path), model=model))
    assert layer.tokens([checkpoints.VOCAB - 1]) == ["clouds"]
    says = f"id {gap} is below {checkpoints.VOCAB}, but this tokenizer has no token"
    with pytest.raises(IndexError, match=says):
        layer.tokens([gap])


def test_without_a_tokenizer_nothing_can_be_embedded(tmp_path: Path) -> None:
    """A stream that ends at once needs none."""
    assert minibert.load(write(tmp_path)).embed([]).shape == (0, 8)


@given(data=st.data())
@settings(max_examples=60)
def test_damaged_tokenizer_json_is_refused_or_gives_ids(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = write(tmp_path_factory.mktemp("damaged"))
    content = bytearray(wordpiece_json(), "utf-8")
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content) - 1))
        content[start : start + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=3))
    (folder / "tokenizer.json").write_bytes(content)
    try:
        batch = minibert.load(folder).tokenize("we [MASK] lived")
    except TokenizerError:
        return
    assert batch["input_ids"].min() >= 0 and batch["input_ids"].shape == batch["attention_mask"].shape


WORDS_FILE, UNREADABLE = b"[UNK]\n[CLS]\n[SEP]\n", "vocab.json: unreadable tokenizer file"
NO_FILES = b"", b"{}", b"[]", b"null", b"not json", b'{"version": "1.0"}', b"\xff\xfe\x00", b"[" * 100_000
# MPNet joins pairs as RoBERTa does: read as BERT's, its vocab.txt would give wrong ids
MPNET = {**checkpoints.DISTILBERT, "model_type": "mpnet", "hidden_size": 8}
DAMAGED: list[tuple[dict[str, Any], dict[str, bytes], str]] = [
    *((BERT, {"tokenizer.json": content}, "tokenizer.json") for content in NO_FILES),
    (MPNET, {"vocab.txt": WORDS_FILE, SETTINGS: b'{"cls_token": "[CLS]", "sep_token": "[SEP]"}'}, r"tokenizer\.json"),
    (BERT, {"vocab.txt": b""}, r"vocab.txt: .*'\[UNK\]'"),
    (BERT, {"vocab.txt": b"[UNK]\n[CLS]\n"}, r"vocab.txt: .*'\[SEP\]'"),
    (BERT, {"vocab.txt": b"\xff\xfe\n"}, "vocab.txt"),
    (BERT, {"vocab.txt": WORDS_FILE, SETTINGS: b"{"}, "tokenizer_config.json"),
    (BERT, {"vocab.txt": WORDS_FILE, SETTINGS: b"[]"}, "list"),
    (BERT, {"vocab.json": b"{}", "merges.txt": b""}, "tokenizer.json"),
    (GPT2, {"vocab.json": b"{}"}, "vocab.json .*merges.txt"),
    *((GPT2, {"vocab.json": text, "merges.txt": b""}, UNREADABLE) for text in (b"[]", b"{", b'{"a": -1}')),
    (GPT2, {"vocab.json": b'{"a": 0}', "merges.txt": b"a b\n"}, UNREADABLE),
    (ROBERTA, {"vocab.json": b'{"a": 0}', "merges.txt": b""}, "'<s>'"),
    (GPT2, {"vocab.json": b'{"a": 0}', "merges.txt": b"", SETTINGS: b'{"add_bos_token": true}'}, r"'<\|endoftext\|>'"),
]


@pytest.mark.parametrize(("config", "files", "says"), DAMAGED)
def test_damaged_files(tmp_path: Path, config: dict[str, Any], files: dict[str, bytes], says: str) -> None:
    write(tmp_path, config)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=says):
        minibert.load(tmp_path).tokenize("we")


def test_a_vocabulary_without_an_unknown_token(tmp_path: Path) -> None:
    model = json.loads(wordpiece_json())["model"] | {"unk_token": "[NONE]"}
    layer = minibert.load(as_it_stands(tmp_path, model=model))
    assert layer.tokenize("we")["input_ids"].shape == (1, 3)
    with pytest.raises(TokenizerError):
        layer.tokenize("\u4e2d")


def test_a_tokenizer_of_another_model_is_told_by_its_ids(tmp_path: Path) -> None:
    layer = minibert.load(write_wordpiece(write(tmp_path, {**BERT, "vocab_size": 10})))
    says = r"input_ids\[0, 1\] is \d+, but the table has rows 0..9; is this the right tokenizer"
    with pytest.raises(IndexError, match=says):
        layer(**layer.tokenize("we"))
    with pytest.raises(IndexError, match=says):
        layer.embed("we")
    with pytest.raises(IndexError, match=r"input_ids\[1, 1\]"):  # of many texts, the shortest are packed first
        layer.embed(["we we", "we"])


UNLISTED = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[NO]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {},
}
ENDLESS = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
PANICS = {
    "a map that is cut": {"normalizer": charsmap(3, b"ab")},
    "a map shorter than it says": {"normalizer": charsmap(2**20, bytes(16))},
    "a map that leads outside itself": {"normalizer": charsmap(4, bytes(4))},
    "a token that the template does not list": {"post_processor": UNLISTED},
    "a regex that never ends": {"pre_tokenizer": ENDLESS},
    "pieces of length 0": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
}
TEXT = "a" * 40 + "!"


@pytest.mark.parametrize("what", PANICS)
def test_a_panic_is_an_error_that_names_the_file(tmp_path: Path, what: str) -> None:
    layer = minibert.load(as_it_stands(tmp_path, **PANICS[what]))
    says = rf"{tmp_path}/tokenizer\.json: the tokenizers library broke off \(.+\); a rule in this file is damaged"
    pieces = (
        [lambda text: layer.tokenizer.pieces(text)] if "template" not in what else []
    )  # a text alone has no template
    for use in (layer.tokenize, layer.embed, *pieces):
        with pytest.raises(TokenizerError, match=says):
            use(TEXT)


def test_merges_beside_another_prefix(tmp_path: Path) -> None:
    stored = tokenizer_json(BASES["GPT2Tokenizer"])
    stored["model"] |= {"vocab": {"a": 0, "b": 1, "ab": 2}, "continuing_subword_prefix": "##", "merges": [["a", "b"]]}
    (write(tmp_path) / "tokenizer.json").write_text(json.dumps(stored), encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        minibert.load(tmp_path).tokenize("ab")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_no_panic_passes(tmp_path: Path, kind: type[BaseException]) -> None:
    tokenizer = minibert.load(as_it_stands(tmp_path)).tokenizer

    def interrupted(texts: list[str]) -> None:
        raise kind

    tokenizer._encode_batch = interrupted
    with pytest.raises(kind):
        tokenizer.encode("we")
