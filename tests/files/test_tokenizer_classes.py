"""What each tokenizer class of transformers makes of its settings: ids of small folders with one of them changed."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizer_folders
from checkpoints import BERT, ROBERTA, change_json, write, write_wordpiece
from tokenizer_folders import BASES, PAIR, TEXTS, finder, tokenizer_json, variants, write_older_files, write_tokenizer

import minibert
from minibert import TokenizerError
from minibert.files.tokenizer import Tokenizer
from minibert.files.tokenizer_classes import ELSEWHERE
from minibert.files.tokenizer_files import open_tokenizer
from minibert.show.info import info

STORED = Path(__file__).parents[1] / "reference" / "tokenizer_ids.json"


@cache
def stored() -> dict[str, dict[str, Any]]:
    """Class -> variant -> ids of each text and of the pair."""
    found: dict[str, dict[str, Any]] = json.loads(STORED.read_text(encoding="utf-8"))
    for every in found.values():
        for ids in every.values():
            ids[:] = [plain if own is None else own for own, plain in zip(ids, every["plain"], strict=True)]
    return found


def opened(
    folder: Path, usual: str | None = "BertTokenizer", declared: str | None = None, always_usual: bool = False
) -> Tokenizer:
    return open_tokenizer(finder(folder), usual, 0, str(folder), declared, always_usual=always_usual)


def bert(folder: Path, **settings: Any) -> Tokenizer:
    return opened(write_tokenizer(folder, "BertTokenizer", {"tokenizer_config.json": settings}))


def ids_of(tokenizer: Tokenizer) -> list[list[int]]:
    single = [tokenizer.encode(text)[0].input_ids for text in TEXTS]
    return [*single, tokenizer.encode(*PAIR)[0].input_ids]


@pytest.mark.parametrize("name", BASES)
def test_ids_are_the_reference_s(tmp_path: Path, name: str) -> None:
    wanted = stored()[name]
    assert list(wanted) == list(variants(name)), "made from other variants"
    for i, (variant, files) in enumerate(variants(name).items()):
        found = ids_of(opened(write_tokenizer(tmp_path / str(i), name, files)))
        assert found == wanted[variant], variant


MASKS = {
    "BertTokenizer": "[MASK]", "MPNetTokenizer": "<mask>", "RobertaTokenizer": "<mask>", "GPT2Tokenizer": None,
    "Qwen2Tokenizer": None, "LlamaTokenizer": None, "GemmaTokenizer": "<mask>", "OpenAIGPTTokenizer": None,
    "XLMRobertaTokenizer": "<mask>", "AlbertTokenizer": "[MASK]",
}  # fmt: skip
LOWERED = dict.fromkeys(("BertTokenizer", "MPNetTokenizer", "AlbertTokenizer"), "we lived the clouds.")


@pytest.mark.parametrize("name", MASKS)
def test_ids_become_text_by_the_class_s_rules(tmp_path: Path, name: str) -> None:
    tokenizer = opened(write_tokenizer(tmp_path, name, {}))  # whose file has no rule for this
    assert tokenizer.mask == MASKS[name]
    text = tokenizer.decode(tokenizer.encode("We lived the clouds.")[0].input_ids, skip_special_tokens=True)
    assert text == (LOWERED | {"OpenAIGPTTokenizer": "we lived the clouds ."}).get(name, "We lived the clouds.")


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("bert", "BertTokenizer"), ("mpnet", "MPNetTokenizer"), ("xlm-roberta", "XLMRobertaTokenizer"),
     ("gpt2", "GPT2Tokenizer"), ("t5", "T5Tokenizer"), ("openai-gpt", "OpenAIGPTTokenizer")],
)  # fmt: skip
def test_a_model_s_type_has_its_usual_class(tmp_path: Path, model_type: str, name: str) -> None:
    """Of every other type: tests/live/test_tokenizer_live.py, beside the reference."""
    usual = minibert.FAMILIES[model_type].tokenizer
    folder = write_tokenizer(tmp_path, name, {}, model_type)
    assert ids_of(opened(folder, usual)) == stored()[name]["plain"]
    # config.json's own word goes before it, tokenizer_config.json's before both
    other = "BertTokenizer" if BASES[name].kind == "WordPiece" else "PreTrainedTokenizerFast"
    assert ids_of(opened(folder, usual, other)) != stored()[name]["plain"] or other == name
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}), encoding="utf-8")
    assert ids_of(opened(folder, usual, other)) == stored()[name]["plain"]


def test_unigram_s_scores_are_read_by_python(tmp_path: Path) -> None:
    """The library's parser is one unit in the last place off, and of two equally likely splits takes the other one."""
    folder = write_tokenizer(tmp_path, "T5Tokenizer", {})
    stored = tokenizer_json(BASES["T5Tokenizer"])
    stored["model"]["vocab"] += [["\u03b6" * 2, -11.790957158403915], ["\u03b6" * 3, -3.207290242593154]]
    stored["model"]["unk_id"] = 2  # the class's
    (folder / "tokenizer.json").write_text(json.dumps(stored), encoding="utf-8")
    two, three = range(len(tokenizer_folders.vocabulary(BASES["T5Tokenizer"])), len(stored["model"]["vocab"]))
    for tokenizer in (opened(folder), opened(folder).lowercased()):
        assert tokenizer.encode("\u03b6" * 5)[0].input_ids[1:3] == [two, three]


def test_the_side_that_is_cut(tmp_path: Path) -> None:
    tokenizer = bert(tmp_path, truncation_side="left")
    whole = tokenizer.encode("we lived above the clouds")[0].input_ids
    (cut,) = tokenizer.encode("we lived above the clouds", truncation=True, max_length=4)
    assert cut.input_ids == [whole[0], *whole[-3:]] and cut.truncated == 3
    (pair,) = tokenizer.encode("we lived above", "the clouds", truncation=True, max_length=6)
    assert tokenizer.tokens(np.array(pair.input_ids)) == ["[CLS]", "lived", "above", "[SEP]", "clouds", "[SEP]"]


def test_named_tokens_without_a_row_get_rows_in_one_order(tmp_path: Path) -> None:
    """As in transformers: bos, eos, unk, sep, pad, cls, mask, then what else settings name, however they order it."""
    named = {"mask_token": "[M]", "cls_token": "[C]", "sep_token": "[S]", "bos_token": "[B]", "new_token": "[NEW]"}
    tokenizer = bert(tmp_path, **named)
    first = len(tokenizer_json(BASES["BertTokenizer"])["model"]["vocab"])
    assert [tokenizer.id_of(token) for token in ("[B]", "[S]", "[C]", "[M]", "[NEW]")] == [*range(first, first + 5)]
    ids = tokenizer.encode("we")[0].input_ids
    assert [ids[0], ids[-1]] == [first + 2, first + 1]


@pytest.mark.parametrize("where", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("declared", ["LlamaTokenizerFast", "PreTrainedTokenizerFast", "BertTokenizer"])
def test_files_of_qwen2_may_name_any_class(tmp_path: Path, where: str, declared: str) -> None:
    """Of this type transformers takes its own class, since published files name a wrong one; of Qwen3 it does not."""
    folder = write_tokenizer(tmp_path, "Qwen2Tokenizer", {}, "qwen2")
    change_json(folder / where, tokenizer_class=declared)
    named = declared if where == "config.json" else None
    for model_type, always in (("qwen2", True), ("qwen3", False)):
        row = minibert.FAMILIES[model_type]
        assert row.always_usual == always
        if always or declared != "BertTokenizer":
            found = ids_of(opened(folder, row.tokenizer, named, always_usual=always))
            assert (found == stored()["Qwen2Tokenizer"]["plain"]) == always


def test_a_named_token_is_special_and_what_says_nothing_new_changes_nothing(tmp_path: Path) -> None:
    tokenizer = bert(tmp_path / "named", added_tokens_decoder={}, mask_token={"content": "[NEW]", "special": False})
    row = tokenizer.id_of("[NEW]")
    assert row is not None and tokenizer.is_special(row) and not tokenizer.is_special(59)
    files = {"added_tokens.json": {"[NEW]": 0}, "tokenizer_config.json": {"cls_token": {"content": None, "lstrip": 3}}}
    tokenizer = opened(write_tokenizer(tmp_path / "nothing", "BertTokenizer", files))
    assert tokenizer.id_of("[NEW]") is None and ids_of(tokenizer) == stored()["BertTokenizer"]["plain"]


def test_a_lowercased_tokenizer_keeps_its_settings(tmp_path: Path) -> None:
    tokenizer = bert(tmp_path, do_lower_case=False, split_special_tokens=True, truncation_side="left")
    tokenizer.pad_id = 4
    lowercased = tokenizer.lowercased()
    assert lowercased.encode("WE")[0] == tokenizer.encode("we")[0] != tokenizer.encode("WE")[0]
    assert lowercased.encode("[MASK]")[0] == tokenizer.encode("[mask]")[0]  # split, and not found as a token
    cut = {"truncation": True, "max_length": 4}
    assert lowercased.encode("A b C d", **cut)[0] == tokenizer.encode("a b c d", **cut)[0]
    assert lowercased.pad_id == 4 and lowercased.lowercased().encode("WE") == lowercased.encode("WE")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tokenizer_class": "RobertaTokenizer"}, "RobertaTokenizer.*BPE"),
    ({"tokenizer_class": "HerbertTokenizerFast"}, "HerbertTokenizer"),
    *(({"tokenizer_class": name}, name) for name in sorted(ELSEWHERE)),
    ({"tokenizer_class": 3}, "'tokenizer_class' .*3"), ({"tokenizer_class": ""}, "_config.json: 'tokenizer_class'"),
    *(({"truncation_side": odd}, f"'truncation_side' .*{odd!r}") for odd in ("middle", None)),
    ({"do_lower_case": "no"}, "'do_lower_case'"), ({"strip_accents": 0}, "'strip_accents'"),
    ({"cls_token": 3}, "'cls_token'"),
    *(({"added_tokens_decoder": odd}, "added_tokens_decoder") for odd in ([1], {"x": {"content": "a"}}, {"3": {}})),
    ({"additional_special_tokens": "abc"}, "'abc'"), ({"additional_special_tokens": [3]}, "3"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "says"), REFUSED)
def test_settings_that_cannot_be_followed(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    with pytest.raises(TokenizerError, match=says) as found:
        bert(tmp_path, **config)
    assert str(tmp_path) in str(found.value)


def test_the_class_of_a_small_bert_s_file(tmp_path: Path) -> None:
    """RoBERTa's type with a WordPiece file: the file is read as it stands. config.json may name a class, too."""
    write_wordpiece(write(tmp_path / "undeclared", ROBERTA))
    folder = write_wordpiece(write(tmp_path / "declared", {**BERT, "tokenizer_class": "RobertaTokenizer"}))
    # not BERT's class, which would make "We" an unknown word
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    for name in ("undeclared", "declared"):
        layer = minibert.load(tmp_path / name)
        assert layer.tokens(layer.tokenize("We")["input_ids"][0]) == ["[CLS]", "we", "[SEP]"]


@pytest.mark.parametrize("declared", ["BertTokenizer", "HerbertTokenizer"])
def test_a_type_whose_files_name_a_wrong_class_is_read_as_it_stands(tmp_path: Path, declared: str) -> None:
    """ModernBERT's usual class goes before a declared one, which would change the rules or be refused."""
    folder = write_tokenizer(tmp_path, "BertTokenizer", {"tokenizer_config.json": {"tokenizer_class": declared}})
    plain = {name: stored()[name]["plain"] for name in ("PreTrainedTokenizerFast", "BertTokenizer")}
    found = ids_of(opened(folder, minibert.FAMILIES["modernbert"].tokenizer))
    assert found == plain["PreTrainedTokenizerFast"] != plain["BertTokenizer"]


@pytest.mark.parametrize(("trims", "first"), [(None, 3), (True, 3), (False, 2)])
def test_a_token_s_place_has_its_space_only_if_settings_say_so(tmp_path: Path, trims: bool | None, first: int) -> None:
    config = {} if trims is None else {"trim_offsets": trims}
    tokenizer = opened(write_tokenizer(tmp_path, "RobertaTokenizer", {"tokenizer_config.json": config}))
    ((encoded, spans),) = tokenizer.encode_with_spans(["he we"])
    assert tokenizer.tokens(np.array(encoded.input_ids))[2] == "\u0120w" and spans[2] == (first, 4)


@pytest.mark.parametrize("model_type", [None, "some"])
@pytest.mark.parametrize("name", ["BertTokenizer", *tokenizer_folders.OLDER])
def test_older_files_split_as_tokenizer_json(tmp_path: Path, name: str, model_type: str | None) -> None:
    """The rules are the class's; else a row that reads no older file, or another one's rules, would pass."""
    for i, files in enumerate(variants(name).values()):
        folder = write_tokenizer(tmp_path / str(i), name, files, model_type)
        texts = [text for text in TEXTS if "[MASK]" not in text]  # tokenizer.json lists more special tokens
        want = [opened(folder, name).pieces(text) for text in texts]
        older = opened(write_older_files(folder, name), name)
        assert [older.pieces(text) for text in texts] == want


def test_types_of_the_file_come_where_they_are_asked_for(tmp_path: Path) -> None:
    """ALBERT was trained with types 0 and 1 for pairs, and its class in transformers gives zeros."""
    shutil.copytree(STORED.parent / "albert", tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    write_tokenizer(tmp_path, "AlbertTokenizer", {"config.json": config})
    layer, pair = minibert.load(tmp_path), ("we", "lived")
    types = layer.tokenize(*pair, types="file")["token_type_ids"]
    seconds = np.flatnonzero(types[0])
    assert seconds.size and np.all(types[0, seconds[0] :] == 1), "the second text and its [SEP]"
    assert not layer.tokenize(*pair)["token_type_ids"].any()
    assert any('tokenize(a, b, types="file")' in line for line in info(layer))
    with pytest.raises(ValueError, match="'zero'"):
        layer.tokenize(*pair, types="zero")
    named = ["input_ids", "token_type_ids", "attention_mask"]
    change_json(tmp_path / "tokenizer_config.json", model_input_names=named)
    again = minibert.load(tmp_path)
    assert np.array_equal(again.tokenize(*pair)["token_type_ids"], types)
    assert not any("types=" in line for line in info(again))
