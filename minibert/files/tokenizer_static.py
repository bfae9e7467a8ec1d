"""The tokenizer of a static model: an encoder's, without the tokens that no row is wanted for, numbered anew.

As model2vec 0.10 makes it with the package skeletoken. Of the tokens that are added to the vocabulary, for texts or for
the model ([CLS], [MASK]), only the padding and the unknown token stay. Words that somebody has added go too.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from minibert.errors import TokenizerError

from .tokenizer import Tokenizer

LONGEST = 512  # tokens of a text that sentence-transformers and model2vec look at
UNUSED = re.compile(r"\[unused\d+\]")


class StaticTokenizer(NamedTuple):
    """The new tokenizer, its tokenizer.json, and the tokens in its order, each with the id that it had before."""

    tokenizer: Tokenizer
    content: bytes
    tokens: list[str]
    ids: list[int]


def static_tokenizer(old: Tokenizer) -> StaticTokenizer:
    """Make a static model's tokenizer of an encoder's.

    No special token is put around a text. GPT-2's kin split its first word as any other, after a space; where other
    rules cut words before (Qwen's), each piece gets one, as in model2vec.

    Raises TokenizerError for a vocabulary that has one token twice, or none that is left.
    """
    from tokenizers import Tokenizer as Reader

    rules = json.loads(old.rules())
    model, kind = rules["model"], old.kind
    unigram = kind == "Unigram"
    vocabulary = {token: i for i, (token, _) in enumerate(model["vocab"])} if unigram else dict(model["vocab"])
    if len(vocabulary) != len(model["vocab"]):
        raise TokenizerError(
            "the tokenizer's vocabulary has a token twice, so a text's ids do not say which row it takes"
        )
    unknown = unknown_token(model)
    kept = {old.named.get("unk", unknown), old.named.get("pad"), unknown}
    added = {token["content"]: token for token in rules["added_tokens"]}
    vocabulary |= {content: token["id"] for content, token in added.items()}
    dropped = {token for token in vocabulary if UNUSED.match(token)} | (added.keys() - kept)
    tokens = sorted(vocabulary.keys() - dropped, key=vocabulary.__getitem__)
    if not tokens:
        raise TokenizerError("the tokenizer has no token but those that are added to it; there is nothing to distill")
    new = {token: i for i, token in enumerate(tokens)}
    if unigram:
        scores = dict(model["vocab"])
        model["vocab"] = [[token, scores.get(token, min(scores.values()))] for token in tokens]
        model["unk_id"] = new.get(unknown)
    else:
        model["vocab"] = new
    if kind == "BPE":
        model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & dropped]
    rules["added_tokens"] = [{**added[token], "id": new[token]} for token in tokens if token in added]
    rules |= {
        "post_processor": None,
        "padding": None,
        "truncation": {"direction": "Right", "max_length": LONGEST, "strategy": "LongestFirst", "stride": 0},
    }
    splitting = rules["pre_tokenizer"] or {}
    for step in splitting.get("pretokenizers", [splitting]):
        if step.get("type") == "ByteLevel":
            step["add_prefix_space"] = True
    content = json.dumps(rules, ensure_ascii=False, separators=(",", ":"))
    return StaticTokenizer(
        Tokenizer(Reader.from_str(content)), content.encode(), tokens, [vocabulary[t] for t in tokens]
    )


def unknown_token(model: dict[str, Any]) -> str | None:
    """Give the token for unknown words; `model` as in tokenizer.json."""
    if model["type"] == "Unigram":
        return None if model["unk_id"] is None else str(model["vocab"][model["unk_id"]][0])
    found: str | None = model.get("unk_token")
    return found
