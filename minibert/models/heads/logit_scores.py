"""Scores of pairs by a causal model: a text is made of each pair, and one word's logit behind it says how well it fits.

As sentence-transformers' LogitScore, with the chat template of the model's tokenizer, or with texts in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minibert.errors import CheckpointError
from minibert.families.parts.bound_blocks import Dense
from minibert.families.parts.heads import BoundHead
from minibert.files.chat_template import ChatTemplate, Message
from minibert.files.tables import ScratchBuffer
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.models.sentences.logit_score import LogitScore

Pair = tuple[str, str]
Write = Callable[[str, str], str]  # query, document -> the text that the model reads
ROLES = ("query", "document")
PROBES = (("charlie", "bravo"), ("alpha", "foxtrot"))  # each has one of these other than ("alpha", "bravo")
FILLERS = ("0", "1 2 3 4")  # tokens that are the same behind both are the template's


def answering(head: BoundHead, tokens: tuple[int | str, ...], tokenizer: Callable[[], Tokenizer]) -> BoundHead:
    """Make of a head of all words one of a few, at each text's last token: nothing is padded here.

    Raises CheckpointError for a word that the model does not have.
    """
    ids = [tokenizer().id_of(token) if isinstance(token, str) else token for token in tokens]
    for token, i in zip(tokens, ids, strict=True):
        if i is None or i >= head.labels:
            raise CheckpointError(
                f"pairs are scored by the logit of {token!r}, but the model has {head.labels} words and not that one; "
                "save it with a LogitScore that names its tokens"
            )
    rows = [head.last.part(slice(i, i + 1)) for i in ids if i is not None]
    weight = np.concatenate([np.array(row.matrix(ScratchBuffer())) for row in rows])
    bias = None if head.last.bias is None else np.concatenate([row.bias for row in rows if row.bias is not None])
    return head._replace(takes="last", pad_id=None, last=Dense(weight, bias), labels=len(rows), id2label={})


def writer(score: LogitScore, named: Mapping[str, str], system: str, template: Any) -> Write | None:
    """Say how a pair becomes one text; None: two texts, as the tokenizer puts them together.

    named: the tokenizer's special tokens by name. system: a prompt, which becomes a message of its own. template: texts
    before, between and after, instead of the folder's.

    Raises TypeError for another template, CheckpointError for one of the folder that does not write the pair.
    """
    if template is not None:
        texts = list(template) if isinstance(template, list | tuple) else []
        if len(texts) != 3 or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"template must be three texts, (before, between, after), found {template!r:.80}")
        before, between, after = texts
        return lambda query, document: f"{before}{query}{between}{document}{after}"
    chat = score.chat() if score.chats is not False else None
    if chat is None:
        if score.chats:
            raise CheckpointError(
                "this model's pairs go through a chat template, but the folder has none; fetch chat_template.jinja, or "
                "pass its texts: template=(before, between, after)"
            )
        return None
    write = _by_messages(chat, score, named, system)
    plain = _by_messages(chat, score, named, "")
    left = [role for role, probe in zip(ROLES, PROBES, strict=True) if plain(*probe) == plain("alpha", "bravo")]
    if left:
        raise CheckpointError(
            f"{chat.where}: the chat template leaves out messages of the role {' and '.join(map(repr, left))}, so that "
            "all pairs would be alike; pass texts in its place: template=(before, between, after)"
        )
    return write


def _by_messages(chat: ChatTemplate, score: LogitScore, named: Mapping[str, str], system: str) -> Write:
    parts = chat.structured if score.structured is None else score.structured
    variables = {**{f"{name}_token": token for name, token in named.items()}, **score.variables}

    def message(role: str, text: str) -> Message:
        return {"role": role, "content": [{"type": "text", "text": text}] if parts else text}

    def write(query: str, document: str) -> str:
        first = [message("system", system)] if system else []
        return chat.render([*first, message(ROLES[0], query), message(ROLES[1], document)], variables)

    return write


def encoded(
    pairs: list[Pair], write: Write, tokenizer: Tokenizer, longest: int | None, restores: bool
) -> list[Encoded]:
    """Split each pair's text; a long one loses its end, and gets back the tokens that stand behind every pair."""
    ids = tokenizer.pieces_of([write(*pair) for pair in pairs])
    long = [longest is not None and len(each) >= longest for each in ids]
    ending = _ending(write, tokenizer) if restores and any(long) else []
    found = []
    for each, cut in zip(ids, long, strict=True):
        kept = each
        if cut and longest is not None:
            kept = each[len(each) - longest :] if tokenizer.truncates_left else each[:longest]
            kept = kept[: max(0, longest - len(ending))] + ending[-longest:]
        found.append(Encoded(kept, None, len(each) - len(kept)))
    return found


def shortened(pairs: list[Pair], tokenizer: Tokenizer, most: int) -> list[Pair]:
    """Cut each second text behind its first `most` tokens: they are letters again before the template is written."""
    found = []
    spans = tokenizer.encode_with_spans([second for _, second in pairs])
    for (first, second), (_, places) in zip(pairs, spans, strict=True):
        inside = [place for place in places if place is not None]
        found.append((first, second[: inside[most - 1][1]] if len(inside) > most else second))
    return found


def _ending(write: Write, tokenizer: Tokenizer) -> list[int]:
    """Give the tokens behind the pair, by what two other pairs have in common there."""
    one, other = tokenizer.pieces_of([write(filler, filler) for filler in FILLERS])
    count = 0
    for left, right in zip(reversed(one), reversed(other), strict=False):
        if left != right:
            break
        count += 1
    return one[len(one) - count :] if 0 < count < min(len(one), len(other)) else []
