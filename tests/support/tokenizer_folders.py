"""Folders with a small tokenizer of every class, and their variants: one setting changed at a time.

The rules in tokenizer.json are meant to be wrong for the class: what comes from it, and what from the class and from
tokenizer_config.json, shows in the ids.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from checkpoints import LETTERS, WORDS

TEXTS = (
    "We lived  above the clouds.",
    "W\u00e9 l\u00cfved \u4e2d\u6587 we\u4e2dwe",
    " we \t lived\n\nabove\u2028the \u00a0clouds  ",
    "[CLS]we [SEP][MASK]  [mask] <s>we </s> we <mask>we <MASK> [NEW]we [new] <|endoftext|>we",
    "``we'' don't 12.34e5 -- ((we))",
    "\ufb01 \u1e9b\u0323 \u0130 e\u0301 \u200b\u00ad\x00\ufffd",
    "\U0001f468\u200d\U0001f469 x" + "ab" * 10,
    "",
)
PAIR = ("we lived", "above THE clouds")


class Base(NamedTuple):
    """A tokenizer.json of a kind: its model, and the special tokens in the order of their rows."""

    kind: str
    special: tuple[str, ...]
    byte_level: bool = False
    ending: str = ""
    fallback: bool = False


_BERT = Base("WordPiece", WORDS[:5])
_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_XLMR = Base("Unigram", _FAIRSEQ)
_COHERE = ("<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>")
_LIKE_BERT = ("Bert", "DistilBert", "Electra", "ConvBert", "DPRContextEncoder", "Nobodys")
BASES = {
    **{f"{name}Tokenizer": _BERT for name in _LIKE_BERT},
    "PreTrainedTokenizerFast": _BERT,
    "MPNetTokenizer": Base("WordPiece", ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")),
    "RobertaTokenizer": Base("BPE", _FAIRSEQ, byte_level=True),
    "BartTokenizer": Base("BPE", _FAIRSEQ, byte_level=True),
    "GPT2Tokenizer": Base("BPE", ("<|endoftext|>",), byte_level=True),
    "GPTNeoXTokenizer": Base("BPE", ("<|endoftext|>", "<|padding|>"), byte_level=True),
    "CohereTokenizer": Base("BPE", _COHERE, byte_level=True),
    "Qwen2Tokenizer": Base("BPE", ("<|endoftext|>",), byte_level=True),
    "CLIPTokenizer": Base("BPE", ("<|startoftext|>", "<|endoftext|>"), byte_level=True, ending="</w>"),
    "OpenAIGPTTokenizer": Base("BPE", ("<unk>",), ending="</w>"),
    "LlamaTokenizer": Base("BPE", ("<unk>", "<s>", "</s>"), fallback=True),
    "GemmaTokenizer": Base("BPE", ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"), fallback=True),
    "XLMRobertaTokenizer": _XLMR,
    "CamembertTokenizer": _XLMR,
    "AlbertTokenizer": Base("Unigram", ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")),
    "DebertaV2Tokenizer": Base("Unigram", ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")),
    "XLNetTokenizer": Base("Unigram", ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>")),
    "T5Tokenizer": Base("Unigram", ("<pad>", "</s>", "<unk>")),
    "PegasusTokenizer": Base("Unigram", ("<pad>", "</s>", "<mask_1>", "<mask_2>", "<unk>")),
}
FLAGS = {
    "WordPiece": ({"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}),
    "BPE": ({"add_prefix_space": True}, {"legacy": True}, {"add_prefix_space": False}),
    "Unigram": ({"do_lower_case": True}, {"do_lower_case": False}, {"add_prefix_space": False}, {"keep_accents": True}),
}


def variants(name: str) -> dict[str, dict[str, Any]]:
    """Files to write, by the variant's name: tokenizer_config.json without `tokenizer_class`, and others."""
    base = BASES[name]
    token = {"content": "[NEW]", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    decoder = {str(i): {**token, "content": text, "special": True} for i, text in enumerate(base.special)}
    named = {"cls_token": base.special[-1], "sep_token": base.special[0]}
    rows = len(vocabulary(base))
    # the later one first
    later = {str(rows + 1): {**token, "content": "[new]"}, str(rows): {**token, "content": "we <"}}
    found: dict[str, dict[str, Any]] = {"plain": {}}
    found |= {json.dumps(flag): _settings(**flag) for flag in FLAGS[base.kind]}
    if base.kind == "WordPiece":
        found["both"] = _settings(strip_accents=True, do_lower_case=False)
    if name == "DebertaV2Tokenizer":
        found["punctuation"] = _settings(split_by_punct=True)
    return found | {
        "named": _settings(**named, bos_token=base.special[-1], eos_token=base.special[0]),
        "map": {"special_tokens_map.json": named, "added_tokens.json": {"[NEW]": rows}},
        "listed": {**_settings(added_tokens_decoder=decoder), "special_tokens_map.json": named},
        "unlisted": _settings(added_tokens_decoder={}),
        "later": _settings(added_tokens_decoder={**later, **decoder}),
        "extra": _settings(additional_special_tokens=["[NEW]"], new_token="[new]"),
        "flags": {"special_tokens_map.json": {"mask_token": {**token, "content": base.special[-1]}}},
        "begin and end": _settings(add_bos_token=True, add_eos_token=True),
        "split special": _settings(split_special_tokens=True),
    }


def _settings(**settings: Any) -> dict[str, Any]:
    return {"tokenizer_config.json": settings}


def vocabulary(base: Base) -> list[str]:
    from tokenizers import pre_tokenizers

    capitals = [*LETTERS.upper()]
    odd = ["\u00e9", "\u00ef", "\u4e2d", "\u6587", "(", ")", "'", '"', "`", "-", ".", "1", "2", "3", "4", "5"]
    if base.kind == "WordPiece":
        rest = [*WORDS[5:], *capitals, *odd]
        return [*base.special, *dict.fromkeys([*rest, *(f"##{letter}" for letter in [*capitals, *odd])])]
    if base.kind == "Unigram":
        pieces = ["\u2581", "\u2581we", "we", "ed", "\u2581the", "\u2581clouds", "lived", "\u2581W", " ", "above"]
        return [*base.special, *pieces, *LETTERS, *capitals[:20], *odd]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet()) if base.byte_level else [*LETTERS, *capitals[:20], *odd]
    letters += [f"<0x{i:02X}>" for i in range(256)] if base.fallback else []
    letters += ["\u2581"] if base.fallback else []
    letters += [f"{letter}{base.ending}" for letter in letters] if base.ending else []
    return [*base.special, *letters, *("".join(pair) for pair in merges(base))]


def merges(base: Base) -> list[tuple[str, str]]:
    if base.ending:
        return [("w", f"e{base.ending}"), ("h", f"e{base.ending}")]
    space = "\u0120" if base.byte_level else "\u2581"
    return [("h", "e"), (space, "w"), ("e", "d"), (space, "c"), (space, space)]


def tokenizer_json(base: Base, **changes: Any) -> dict[str, Any]:
    """The content of tokenizer.json: the vocabulary, and rules that no class here has."""
    tokens = vocabulary(base)
    rows = {token: i for i, token in enumerate(tokens)}
    model: dict[str, Any] = {"type": base.kind, "vocab": rows}
    if base.kind == "WordPiece":
        unknown = "[UNK]"
        model |= {"unk_token": unknown, "continuing_subword_prefix": "##", "max_input_chars_per_word": 7}
    elif base.kind == "BPE":
        model |= {"merges": [list(pair) for pair in merges(base)], "fuse_unk": False, "byte_fallback": base.fallback}
        if base.ending:
            model["end_of_word_suffix"] = base.ending
    else:
        model |= {"vocab": [[token, 0.0 if i < len(base.special) else -1.0 - i / 50] for i, token in enumerate(tokens)]}
        model |= {"unk_id": 0, "byte_fallback": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [{"id": i, "content": text, **flags} for i, text in enumerate(base.special)]
    first = base.special[0]
    template = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": first, "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {first: {"id": first, "ids": [0], "tokens": [first]}},
    }
    normalizers = [{"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True}]
    if base.kind == "Unigram":
        normalizers.append(charsmap(1024, bytes(1024)))  # without any character in it
    normalizer = {"type": "Sequence", "normalizers": normalizers}
    rules = {"normalizer": normalizer, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": template}
    nothing: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "decoder": None}
    return {**nothing, **rules, "added_tokens": special, "model": model} | changes


def charsmap(size: int, trie: bytes) -> dict[str, Any]:
    """A map of characters as sentencepiece stores it."""
    raw = base64.b64encode(size.to_bytes(4, "little") + trie).decode()
    return {"type": "Precompiled", "precompiled_charsmap": raw}


def finder(folder: Path) -> Callable[[str], Path | None]:
    return lambda name: folder / name if (folder / name).is_file() else None


def write_tokenizer(folder: Path, name: str, variant: dict[str, Any], model_type: str | None = None) -> Path:
    """The tokenizer files of a variant; the class is declared, or left to the model's type."""
    folder.mkdir(parents=True, exist_ok=True)
    declared = {} if model_type else {"tokenizer_class": name}
    files = {
        "config.json": {"model_type": model_type or "bert"},
        "tokenizer.json": tokenizer_json(BASES[name]),
        **variant,
        "tokenizer_config.json": {**declared, **variant.get("tokenizer_config.json", {})},
    }
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return folder


OLDER = ("GPT2Tokenizer", "RobertaTokenizer", "Qwen2Tokenizer", "OpenAIGPTTokenizer")  # of vocab.json with merges.txt


def write_older_files(folder: Path, name: str) -> Path:
    """Replace a folder's tokenizer.json by vocab.txt, or by vocab.json and merges.txt."""
    (folder / "tokenizer.json").unlink()
    if BASES[name].kind == "WordPiece":
        (folder / "vocab.txt").write_text("\n".join([*vocabulary(BASES[name]), ""]), encoding="utf-8")
        return folder
    rows = {token: i for i, token in enumerate(vocabulary(BASES[name]))}
    (folder / "vocab.json").write_text(json.dumps(rows), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges(BASES[name]))]
    (folder / "merges.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return folder
