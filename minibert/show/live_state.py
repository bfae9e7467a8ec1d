"""A live page's request: a text and the changes to its run, read from JSON, and the encoder's `change` for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention, BoundFeedForward
from minibert.families.parts.plan import Trace
from minibert.http_guard import Field, check_fields, wrong
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.knock_out import Function, knock_out

from .attention import PARTS, terms_of

LONGEST = 4_000  # letters of a text
MOST = 600  # changes of one kind
STREAM, ATTENTION, FEED_FORWARD = "stream", "attention", "feed-forward"
PATCHED = (STREAM, ATTENTION, FEED_FORWARD)


class Patch(NamedTuple):
    """Values of the other text that replace this text's.

    block, what    the replaced values: `stream`, the input of this block, or the output of the last block; else the
                   rows that the block's attention or feed-forward adds
    place, source  token `place` receives the values of the other text's token `source`; both None: every token
                   receives the values of the token at the same place
    """

    what: str
    block: int
    place: int | None = None
    source: int | None = None


class State(NamedTuple):
    """The settings of a live page.

    replaced  (position, token): another token at that place; heads: (block, head)
    terms     (query's part, key's part), in the order of `attention.PARTS`: subtracted from block 0's scores
    """

    text: str = ""
    beside: str = ""
    replaced: tuple[tuple[int, str], ...] = ()
    heads: tuple[tuple[int, int], ...] = ()
    feed_forwards: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    terms: tuple[tuple[int, int], ...] = ()
    patches: tuple[Patch, ...] = ()

    @property
    def typed(self) -> State:
        """The state of the same text without a change."""
        return State(self.text)

    @property
    def as_json(self) -> dict[str, Any]:
        """The state in the form that `read_state` reads."""
        return {**self._asdict(), "patches": [patch._asdict() for patch in self.patches]}


# -- from JSON ---------------------------------------------------------------------------------------------------


def _counts(value: Any, below: int = 1 << 31) -> bool:
    """Check for an integer that counts from 0."""
    return type(value) is int and 0 <= value < below


def _is_pair(value: Any, first: Callable[[Any], bool], second: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) == 2 and first(value[0]) and second(value[1])


def _is_token(value: Any) -> bool:
    # a lone surrogate is not a character, and no tokenizer can read it
    return isinstance(value, str) and 0 < len(value) <= LONGEST and not any("\ud800" <= x <= "\udfff" for x in value)


def _is_patch(value: Any) -> bool:
    if not isinstance(value, dict) or not set(value) <= set(Patch._fields):
        return False
    places = [value.get(name) for name in ("place", "source")]
    fits = all(map(_counts, places)) or places == [None, None]
    return fits and value.get("what") in PATCHED and _counts(value.get("block"))


def _list_of(expected: str, fits: Callable[[Any], bool]) -> Field:
    return (
        f"a list of at most {MOST} items, each {expected}",
        lambda value: isinstance(value, list) and len(value) <= MOST and all(map(fits, value)),
    )


TEXT: Field = (
    f"a text of at most {LONGEST} letters", lambda value: isinstance(value, str) and len(value) <= LONGEST
)  # fmt: skip
OBJECT: Field = ("an object", lambda value: isinstance(value, dict))
COUNT: Field = ("an integer from 0 on", _counts)
NUMBER: Field = ("a number", lambda value: type(value) in (int, float) and abs(value) < 1e6)
STATE: dict[str, Field] = {
    "text": TEXT,
    "beside": TEXT,
    "replaced": _list_of("[position, token]", lambda value: _is_pair(value, _counts, _is_token)),
    "heads": _list_of("[block, head]", lambda value: _is_pair(value, _counts, _counts)),
    "feed_forwards": _list_of("an integer from 0 on", _counts),
    "blocks": _list_of("an integer from 0 on", _counts),
    "terms": _list_of(
        f"[query, key] of the numbers 0..{len(PARTS) - 1}, for {', '.join(PARTS)}",
        lambda value: _is_pair(value, *[lambda part: _counts(part, len(PARTS))] * 2),
    ),
    "patches": _list_of(f"an object with what ({', '.join(PATCHED)}), block, place and source", _is_patch),
}
QUESTIONS: dict[str, dict[str, Field]] = {
    "sample": {"state": OBJECT, "token": COUNT, "temperature": NUMBER, "k": COUNT, "p": NUMBER, "seed": COUNT},
    "cell": {"state": OBJECT, **dict.fromkeys(("block", "head", "query", "key"), COUNT)},
    "map": {"state": OBJECT, "token": COUNT},
}
# `saved` does not check the answers of other questions: it only writes them
SAVED: dict[str, Field] = {
    "state": OBJECT, **dict.fromkeys(("token", "sample", "cell", "map"), ("anything", lambda value: True)),
}  # fmt: skip


def read_state(sent: Any) -> State:
    """Read and check a state. Raises Refusal that names the field."""
    return State(**{name: _frozen(value) for name, value in check_fields(STATE, sent).items()})


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return Patch(**value) if isinstance(value, dict) else value


def read_question(name: str, sent: Any) -> list[Any]:
    """Read a question about a state: the state and the values of its fields; each is needed. Raises Refusal."""
    known = QUESTIONS[name]
    fields = check_fields(known, sent)
    for field in known:
        if field not in fields:
            raise wrong(field, known[field][0], None)
    return [read_state(fields.pop("state")), *(fields[field] for field in known if field != "state")]


# -- to a change -------------------------------------------------------------------------------------------------


def change_of(encoder: Encoder, state: State, other: Trace | None, batch: Trace) -> dict[str, Function]:
    """Turn a state into an encoder's `change`; `other` is the trace of the second text, `batch` holds the text's ids.

    A feed-forward that is switched off adds 0; heads and blocks: see `knock_out`. A term subtracted from block 0's
    scores is computed from the text's own rows, even if a patch replaces them. Raises ValueError for a part that is not
    there.
    """
    change: dict[str, Function] = dict(knock_out(encoder, heads=state.heads, blocks=state.blocks))
    for block in state.feed_forwards:
        _append(change, _added(encoder, BoundFeedForward, block), np.zeros_like)
    if state.terms:
        terms = terms_of(encoder, batch)
        left_out = sum(terms[pair] for pair in set(state.terms)).astype(encoder.dtype)
        _append(change, encoder.stack.blocks[0].attention.scores, lambda scores: scores - left_out)
    for patch in state.patches:
        if other is None:
            raise ValueError("values can be put in from a second text; give one")
        name = _patched_name(encoder, patch)
        _check_places(patch, batch["input_ids"].shape[1], other["hidden_states.0"].shape[1])
        _append(change, name, _replacing(other[name], patch))
    return change


def _patched_name(encoder: Encoder, patch: Patch) -> str:
    """Name the traced values that a patch replaces."""
    if patch.what != STREAM:
        return _added(encoder, BoundAttention if patch.what == ATTENTION else BoundFeedForward, patch.block)
    if patch.block > (blocks := len(encoder.stack.blocks)):
        raise ValueError(f"block {patch.block} is not there: this model's stream has states 0..{blocks}")
    return f"hidden_states.{patch.block}"


def _added(encoder: Encoder, kind: type[BoundAttention] | type[BoundFeedForward], block: int) -> str:
    """Name the traced values that a block's attention, or its feed-forward, adds."""
    knock_out(encoder, blocks=[block])  # refuses a block that is not there
    residual = next(residual for residual in encoder.stack.blocks[block].parts if isinstance(residual.work, kind))
    return residual.output_norm or residual.work.output


def _append(change: dict[str, Function], name: str, function: Function) -> None:
    """Apply a function to a traced value after the functions that change it already."""
    earlier = change.get(name)
    change[name] = function if earlier is None else lambda values: function(earlier(values))


def _replacing(other_rows: Array, patch: Patch) -> Function:
    def replaced(values: Array) -> Array:
        if patch.place is None:
            return other_rows
        values[0, patch.place] = other_rows[0, patch.source]
        return values

    return replaced


def _check_places(patch: Patch, count: int, other_count: int) -> None:
    if patch.place is None and count != other_count:
        raise ValueError(f"values of every token need two texts of as many tokens, found {count} and {other_count}; "
                         "choose one token")  # fmt: skip
    for place, tokens in ((patch.place, count), (patch.source, other_count)):
        if place is not None:
            check_token(place, tokens)


def check_token(place: int, count: int) -> None:
    """Raise ValueError for a token that a text of `count` tokens does not have."""
    if place >= count:
        raise ValueError(f"token {place} is not there: the text has {count}; choose another one")


def with_replaced(layer: EmbeddingLayer, input_ids: Array, replaced: Iterable[tuple[int, str]]) -> Array:
    """Replace some tokens in ids (1, seq). Raises ValueError if a text is not one token."""
    ids = input_ids.copy()
    for place, token in replaced:
        check_token(place, ids.shape[1])
        ids[0, place] = _id_of(layer, token, layer.tokens(ids[0, place : place + 1])[0] or "")
    return ids


def _id_of(layer: EmbeddingLayer, token: str, old_token: str) -> int:
    """Find the id of a typed token: by its name, or as a word of one token, with a space if the old token has one."""
    tokenizer, spaced = layer.tokenizer, old_token[:1] in ("Ġ", "▁")
    named = tokenizer.id_of(token)
    texts = [f" {token}", token] if spaced else [token, f" {token}"]
    readings = [[] if named is None else [named], *map(tokenizer.pieces, texts)]
    for ids in readings[1:] + readings[:1] if spaced else readings:
        if len(ids) == 1:
            return ids[0]
    names = ", ".join(map(repr, layer.tokens(np.array(tokenizer.pieces(token), np.int64)))) if token else "no token"
    raise ValueError(f"{token!r:.40} must be one token of this tokenizer, found {names:.200}; write another word")
