"""The part of the page of `minibert explain --html` about a head: its prediction, from which block on, and why.

`page_prediction.html` and `page_prediction.js` are its template and its script. The logits are those of the trace; a
page has only the likeliest labels. `contributions` defines the shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.equations.activations import sigmoid
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.equations.similarity import top_indices
from minibert.errors import CheckpointError
from minibert.families.parts.bound_blocks import Dense
from minibert.families.parts.heads import BoundHead
from minibert.families.parts.modules import LayerNorm
from minibert.models.heads.heads import logit_pieces
from minibert.models.heads.labels import REGRESSION, SEVERAL
from minibert.show.text.contributions import shares, tokens_of
from minibert.show.text.text import visible

from .page_parts import filled_part, packed

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder

LIKELIEST = 5  # labels that a page shows
ABOUT = {
    "masked_word": "The word that belongs at the chosen token's position. At a mask the model has to find it; at "
    "another token it mostly gives the token back. Choose the token at the top.",
    "next_word": "The token that comes after the chosen one. Choose it at the top; the last one's prediction goes on "
    "with "
    "the text.",
    "classes": "The class of the whole text. It is the same for every token.",
    "token_classes": "The class of the chosen token. Choose it at the top.",
    "next_sentence": "Whether the second text follows the first. It is the same for every token.",
    "answer": "Whether the answer starts at the chosen token, or ends there: logits, to be compared with those of the "
    "other tokens. Choose it at the top.",
    "replaced_token": "Whether the chosen token replaces another one that stood there. Choose it at the top.",
}
NAMES = {
    "next_sentence": ("follows", "does not follow"), "replaced_token": ("replaced",), "answer": ("starts", "ends"),
}  # fmt: skip


def shown_head(encoder: Encoder) -> tuple[BoundHead | None, str]:
    """Choose the head whose prediction a page shows: the one that config.json names, else the first, else None.

    The text says on the page why a head cannot be computed.
    """
    names = encoder.heads
    if not names:
        return None, ""
    try:
        return encoder.head(), ""
    except (ValueError, CheckpointError):  # several and none is named, or one that is not computed
        try:
            return encoder.head(names[0]), ""
        except CheckpointError as error:
            return None, f"<section><h2>What the model predicts</h2><p>{escape(visible(str(error)))}</p></section>"


def numbers(
    encoder: Encoder, head: BoundHead, input_ids: Array, trace: Mapping[str, Array], adds_up: bool = True
) -> dict[str, Any]:
    """Give the numbers that the script draws. adds_up: see `page.Run`; where it is False there are no shares.

    `trace` is of one text that has tokens, with the head: `encoder.trace(..., head=head.name)`.
    """
    activate, chance = activation_of(encoder, head)
    logits = trace["logits"].reshape(-1, head.labels)
    labels = top_indices(logits, min(LIKELIEST, head.labels))
    lens, best, highest = [], [], []
    for each in _after_each_block(encoder, head, input_ids, trace):
        chances = activate(each)
        lens.append(np.take_along_axis(chances, labels, 1))
        best.append(chances.argmax(axis=1))
        highest.append(chances.max(axis=1))
    names = names_of(encoder, head, np.concatenate([labels.ravel(), *best]))
    return {
        "each": head.takes == "every",
        "chance": chance,
        "k": labels.shape[1],
        "names": [[names[i] for i in row] for row in labels.tolist()],
        "lens": _floats(np.stack(lens, axis=1)),
        "best": [
            [(names[int(i[row])], float(most[row])) for i, most in zip(best, highest, strict=True)]
            for row in range(len(labels))
        ],
        **(_shares(encoder, head, input_ids, trace, labels) if adds_up else {"shares": None, "totals": None}),
    }


def _shares(
    encoder: Encoder, head: BoundHead, input_ids: Array, trace: Mapping[str, Array], labels: Array
) -> dict[str, str]:
    found = shares(encoder, input_ids, trace, head, labels)
    of_blocks = np.concatenate([found.heads, found.feed_forward[..., None]], axis=3)
    every = [of_blocks.reshape(*labels.shape, -1), found.input_layer[..., None], found.biases[..., None]]
    return {"shares": _floats(np.concatenate(every, axis=2)), "totals": _floats(found.total)}


def part(encoder: Encoder, head: BoundHead, data: str) -> dict[str, str]:
    """Give this part of the page: its elements ("prediction") and its script; data: its `numbers`, as JSON."""
    activation = any(not isinstance(work, Dense | LayerNorm) for _, work in head.works)
    return filled_part(
        "prediction",
        about=escape(ABOUT[head.name]),
        number="probability" if activation_of(encoder, head)[1] else "number",
        norm=", with the model's last norm before it" * bool(encoder.stack.last_norm),
        activation=", and the activation before the logits multiplies each of its inputs z by f(z) / z" * activation,
        mean=" of the prediction, less the mean logit of all predictions" * (head.labels > 1),
        data=data,
    )


def activation_of(encoder: Encoder, head: BoundHead) -> tuple[Callable[[Array], Array], bool]:
    """Choose the function that makes logits (n, labels) readable, and say whether it gives probabilities."""
    kind = encoder.config.get("problem_type") if head.name == "classes" else None
    if kind == REGRESSION or head.name == "answer":
        return np.asarray, False
    return (sigmoid if kind == SEVERAL or head.labels == 1 else softmax), True


def _after_each_block(
    encoder: Encoder, head: BoundHead, input_ids: Array, trace: Mapping[str, Array]
) -> Iterator[Array]:
    """Compute the head's logits (n, labels) after the input layer and each block; the trace has the last.

    One at a time: for 100 tokens and 250,000 labels each of them has 100 MB.
    """
    stack, tokens = encoder.stack, tokens_of(head, input_ids)
    for i in range(len(stack.blocks)):
        x = trace[f"hidden_states.{i}"][0, tokens]
        x = encoder[stack.last_norm](x) if stack.last_norm else x
        x = x.mean(axis=0, keepdims=True) if head.takes == "mean" else x
        logits = np.concatenate([piece for _, piece in logit_pieces(head, x)], axis=1)
        yield logits.mean(axis=0, keepdims=True) if head.takes == "late" else logits
    yield trace["logits"].reshape(-1, head.labels)


def names_of(encoder: Encoder, head: BoundHead, labels: Array) -> dict[int, str]:
    """Name these labels."""
    asked = np.unique(labels)
    if head.name in ("masked_word", "next_word"):
        return {i: token_name(encoder, i) for i in asked.tolist()}
    own = head.id2label or dict(enumerate(NAMES.get(head.name, ())))
    return {i: visible(own.get(i, f"LABEL_{i}")) for i in asked.tolist()}


def token_name(encoder: Encoder, i: int) -> str:
    """Write a token for the page."""
    try:
        return visible(encoder.embeddings.tokenizer.tokens(np.array(i)))
    except IndexError:  # many tables have more rows than the tokenizer has tokens
        return f"id {i}, no token"


def _floats(numbers: Array) -> str:
    return packed(numbers.astype(np.float32))
