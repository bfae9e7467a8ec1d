"""A panic inside the tokenizers library is no Exception; here it is an error with the file's name."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write, write_wordpiece
from tokenizer_folders import BASES, tokenizer_json

import minibert
from minibert import TokenizerError


def charsmap(size: int, trie: bytes) -> dict[str, Any]:
    raw = size.to_bytes(4, "little") + trie
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}}


UNLISTED = {
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[NO]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {},
    }
}
ENDLESS = {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}}
DAMAGED = {
    "a map that is cut": charsmap(3, b"ab"),
    "a map shorter than it says": charsmap(2**20, bytes(16)),
    "a map that leads outside itself": charsmap(4, bytes(4)),
    "a token that the template does not list": UNLISTED,
    "a regex that never ends": ENDLESS,
    "pieces of length 0": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
}
TEXT = "a" * 40 + "!"


def damaged(folder: Path, changes: dict[str, Any]) -> Path:
    write(folder)
    write_wordpiece(folder, **changes)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    return folder


@pytest.mark.parametrize("what", DAMAGED)
def test_a_panic_is_an_error_that_names_the_file(tmp_path: Path, what: str) -> None:
    layer = minibert.load(damaged(tmp_path, DAMAGED[what]))
    says = rf"{tmp_path}/tokenizer\.json: the tokenizers library broke off \(.+\); a rule in this file is damaged"
    for use in (layer.tokenize, layer.embed, lambda text: layer.tokenizer.pieces(text)):
        if what == "a token that the template does not list" and use not in (layer.tokenize, layer.embed):
            continue  # a text alone has no template
        with pytest.raises(TokenizerError, match=says):
            use(TEXT)


def test_merges_beside_another_prefix(tmp_path: Path) -> None:
    stored = tokenizer_json(BASES["GPT2Tokenizer"])
    stored["model"] |= {"vocab": {"a": 0, "b": 1, "ab": 2}, "continuing_subword_prefix": "##", "merges": [["a", "b"]]}
    write(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored), encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        minibert.load(tmp_path).tokenize("ab")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_no_panic_passes(tmp_path: Path, kind: type[BaseException]) -> None:
    tokenizer = minibert.load(damaged(tmp_path, {})).tokenizer

    def interrupted(texts: list[str]) -> None:
        raise kind

    tokenizer._encode_batch = interrupted
    with pytest.raises(kind):
        tokenizer.encode("we")
