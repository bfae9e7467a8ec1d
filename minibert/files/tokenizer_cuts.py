"""Where a long text may be cut before it is split, so that the tokens before the cut are those of the whole text.

A tokenizer first changes letters, then splits the text, then takes each piece alone. A cut between two pieces is safe
if no step before looks across it. That is certain only for steps that are known; for others there is no safe cut.
"""

from __future__ import annotations

import json
import re
from typing import Any

from .tokenizer_classes import CLIP, QWEN

# what stands around a cut: visible ASCII, and letters of scripts that write spaces. None of these is a mark, begins a
# cluster that a space would be part of, or has a space in any of its normal forms
VISIBLE = (
    "!-~\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f"  # Latin
    "\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03ff\u0400-\u0481\u048a-\u052f"  # Greek, Cyrillic
    "\u0531-\u0556\u0561-\u0587\u10d0-\u10fa"  # Armenian, Georgian
    "\u05d0-\u05ea\u0621-\u063a\u0641-\u064a"  # Hebrew, Arabic
    "\u0904-\u0939\uac00-\ud7a3"  # Devanagari, Hangul
)
# between one of them and a single space before another one: no letter is composed, changed or removed across it, and
# each splitting below begins a piece at the space or behind it
SPACE = f"(?<=[{VISIBLE}])(?= [{VISIBLE}])"
HAN = "(?<=[\u4e00-\u9fa5])(?=[\u4e00-\u9fa5])"  # BERT's splitting makes each of these a piece of its own

CHANGES = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Strip", "Precompiled"}
# what Replace looks for, to put " or a space there: none matches across the cut, and a space before a letter stays one
REPLACED = {"``", "''"}
REPLACED_BY_REGEX = {r"\s{2,}|[\n\r\t]", r"\n", r" {2,}", r"\s+"}
WORDS = {"BertPreTokenizer", "WhitespaceSplit", "Whitespace"}  # each splits at every white space
INSIDE = {"Digits", "Punctuation"}  # split further, and never join
REGEXES = {QWEN, CLIP}


def safe_cuts(tokenizer: Any) -> re.Pattern[str] | None:
    """Give the places where any text may be cut, as a pattern of width 0; None where no place is safe.

    tokenizer: of the library, as it stands.
    """
    changing, splitting = _steps(tokenizer.normalizer, "normalizers"), _steps(tokenizer.pre_tokenizer, "pretokenizers")
    tokens = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    if not all(map(_changes_nothing_across, changing)) or getattr(tokenizer.model, "dropout", None):
        return None
    # an added token is found before all splitting, and might lie across the cut
    if any(re.search(r"\S[\s\u2581]", token) for token in tokens):
        return None
    if not _splits_at_spaces(splitting) or not _takes_texts_once(tokenizer):
        return None
    han = splitting == [{"type": "BertPreTokenizer"}] and any(step.get("handle_chinese_chars") for step in changing)
    if han and not re.search("[\u4e00-\u9fa5]", "".join(tokens)):
        return re.compile(f"{SPACE}|{HAN}")
    return re.compile(SPACE)


def _takes_texts_once(tokenizer: Any) -> bool:
    """Whether the template has each text once; else tokens at the end of the first time come before the second."""
    if tokenizer.post_processor is None:
        return True
    state = json.loads(tokenizer.post_processor.__getstate__())
    steps = state["processors"] if state["type"] == "Sequence" else [state]
    return all(
        sum(piece.get("Sequence", {}).get("id") == text for piece in step.get(form, [])) <= 1
        for step in steps
        for form in ("single", "pair")
        for text in "AB"
    )


def _steps(component: Any, key: str) -> list[dict[str, Any]]:
    """Give the steps of a normalizer or a pre-tokenizer, as the file writes them."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    steps = state[key] if state["type"] == "Sequence" else [state]
    return [step for each in steps for step in (each.get(key, [each]) if each["type"] == "Sequence" else [each])]


def _changes_nothing_across(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        pattern = step["pattern"]
        known = {'"': pattern.get("String") in REPLACED, " ": pattern.get("Regex") in REPLACED_BY_REGEX}
        return known.get(step["content"], False)
    return step["type"] in CHANGES


def _splits_at_spaces(steps: list[dict[str, Any]]) -> bool:
    """Whether a piece surely begins at a single space between letters, or behind it."""
    sure = [
        step["type"] in WORDS
        or (step["type"] == "Metaspace" and step["split"])
        or (step["type"] == "ByteLevel" and step["use_regex"])
        or (step["type"] == "Split" and step["pattern"].get("Regex") in REGEXES)
        for step in steps
    ]
    known = (
        each or step["type"] in (*INSIDE, "Metaspace", "ByteLevel") for each, step in zip(sure, steps, strict=True)
    )
    return any(sure) and all(known)
