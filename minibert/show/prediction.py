"""A head's prediction, after which block it appears, and what each part of the model adds to it.

The last hidden state is a sum: the input rows, the output of every head and every feed-forward, and biases. The map
from there to a logit is linear except for two operations, and each is replaced by the factor that it had in this run: a
norm divides by one number, and an activation multiplies its input z by f(z) / z. So each part has a share of the logit,
and the shares add up to the logit. For GPT-2 this is known as direct logit attribution.

Only the direct path counts, from a part through the norms to the head. If a part changes a later attention or
feed-forward, that effect belongs to the later part's share.

The last section is this part of the page of `minibert explain --html`, with its template `page_prediction.html` and its
script `page_prediction.js`. The logits are the trace's; a page holds only the likeliest labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.activations import sigmoid
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.equations.similarity import top_indices
from minibert.errors import CheckpointError
from minibert.families.parts.bound_blocks import BoundAttention, BoundBlock, BoundResidual
from minibert.families.parts.heads import POOLED, BoundHead
from minibert.families.parts.modules import LayerNorm, Linear, RMSNorm
from minibert.families.parts.plan import Trace
from minibert.models.encoder import Encoder
from minibert.models.heads.heads import logit_pieces, positions_of
from minibert.models.heads.labels import REGRESSION, SEVERAL

from .page_parts import packed_float32, rendered_part
from .text import visible

LIKELIEST = 5  # labels that a page shows
ABOUT = {
    "masked_word": "The word that belongs at the chosen token's position. At a mask the model has to find it; at "
    "another token it mostly gives the token back. Choose the token at the top.",
    "next_word": "The token that comes after the chosen one. Choose it at the top; the last one's prediction continues "
    "the text.",
    "classes": "The class of the whole text. It is the same for every token.",
    "token_classes": "The class of the chosen token. Choose it at the top.",
    "next_sentence": "Whether the second text follows the first. It is the same for every token.",
    "answer": "Whether the answer starts at the chosen token, or ends there: logits, to be compared with the logits of "
    "the other tokens. Choose it at the top.",
    "replaced_token": "Whether the chosen token replaces another one that stood there. Choose it at the top.",
}
NAMES = {
    "next_sentence": ("follows", "does not follow"), "replaced_token": ("replaced",), "answer": ("starts", "ends"),
}  # fmt: skip


# -- what each part adds to a logit ------------------------------------------------------------------------------


class Shares(NamedTuple):
    """The share of each part in k logits of each of n rows, float64.

    total  (n, k): the logit; if there are several labels, less the mean over all labels, which softmax ignores
    heads  (n, k, blocks, heads), feed_forward (n, k, blocks), input_layer (n, k), biases (n, k); their sum is `total`
    """

    total: Array
    heads: Array
    feed_forward: Array
    input_layer: Array
    biases: Array


class _Backward:
    """One stage of the way back from logits to parts: `g` (tokens, k, width) is the gradient of the logits.

    `biases` (tokens, k) is the sum of the biases passed so far.
    """

    def __init__(self, g: Array, biases: Array) -> None:
        self.g, self.biases = g, biases

    def share(self, added: Array) -> Array:
        """Compute the logits that some rows (tokens, width) add: (tokens, k)."""
        return np.asarray(np.einsum("tkd,td->tk", self.g, added.astype(np.float64)))

    def through_map(self, module: Linear) -> None:
        weight = module.weight.T if module.transposed else module.weight  # (out, in)
        if module.bias is not None:
            self.biases = self.biases + self.g @ module.bias.astype(np.float64)
        self.g = self.g @ weight.astype(np.float64)

    def through_norm(self, norm: LayerNorm, x: Array) -> None:
        """Pass a norm with the input x (tokens, width)."""
        x = x.astype(np.float64)
        if norm.bias is not None:
            self.biases = self.biases + self.g @ norm.bias.astype(np.float64)
        plus = norm.plus if isinstance(norm, RMSNorm) else 0.0
        scaled = self.g * (norm.weight.astype(np.float64) + plus)
        if isinstance(norm, RMSNorm):
            size = np.sqrt((x * x).mean(axis=-1) + norm.eps)
        else:
            scaled = scaled - scaled.mean(axis=-1, keepdims=True)  # as the norm subtracts the mean of x
            size = np.sqrt(x.var(axis=-1) + norm.eps)
        self.g = scaled / size[:, None, None]

    def through_activation(self, x: Array, y: Array) -> None:
        """Pass an activation with the input x and the output y (tokens, width); 0 stays 0."""
        factor = np.divide(y, x, out=np.zeros(x.shape), where=x != 0, dtype=np.float64)
        self.g = self.g * factor[:, None]


def logit_shares(encoder: Encoder, input_ids: Array, trace: Trace, head: BoundHead, labels: Array) -> Shares:
    """Split logits into the terms that each part of the model adds.

    `trace` holds one text without padding, of these ids (1, seq), with this head: `encoder.trace(..., head=head.name)`.
    labels (n, k): k labels for each of the n rows of logits, a row for each token or one for the text.
    """
    stack, tokens = encoder.stack, _tokens_of(head, input_ids)
    rows = np.repeat(labels, len(tokens), axis=0) if head.pooling == "late" else labels
    back = _through_head(trace, head, rows, trace[f"hidden_states.{len(stack.blocks)}"][0, tokens])
    if head.pooling in POOLED:  # each token has its part of the mean, and of the biases added after it
        times = len(tokens) // len(rows) if len(rows) else 1
        back = _Backward(*(np.repeat(x / len(tokens), times, axis=0) for x in (back.g, back.biases)))
    if stack.last_norm:
        back.through_norm(encoder[stack.last_norm], trace[stack.module_inputs[stack.last_norm]][0, tokens])
    heads, feed_forwards = [], []
    for block in reversed(stack.blocks):
        for part in reversed(block.parts):
            if part.post_norm:
                back.through_norm(block.modules[part.post_norm], trace[part.sum][0, tokens])
            if isinstance(part.work, BoundAttention):
                heads.append(_head_shares(back, block, part, trace, tokens))
            else:
                feed_forwards.append(back.share(trace[part.output_norm or part.work.output][0, tokens]))
    input_layer = back.share(trace["hidden_states.0"][0, tokens])
    shares = [np.stack(heads[::-1], axis=2), np.stack(feed_forwards[::-1], axis=2), input_layer, back.biases]
    if head.pooling in POOLED:
        shares = [share.sum(axis=0, keepdims=True) for share in shares]
    return Shares(_total(trace, head, labels), *shares)


def _tokens_of(head: BoundHead, input_ids: Array) -> Array:
    """Return the positions of one text (1, seq) whose hidden states a head takes."""
    positions = positions_of(head, input_ids, np.ones(input_ids.shape, bool))
    return np.arange(input_ids.shape[1]) if positions is None else positions


def _head_shares(back: _Backward, block: BoundBlock, part: BoundResidual, trace: Trace, tokens: Array) -> Array:
    """Compute the share of each head of one block, (tokens, k, heads); the output map's bias counts as a bias."""
    attention, inside = part.work, _Backward(back.g, back.biases)
    assert isinstance(attention, BoundAttention)
    if part.output_norm:
        inside.through_norm(block.modules[part.output_norm], trace[attention.output][0, tokens])
    inside.through_map(block.modules[attention.output])
    back.biases = inside.biases
    numbers = inside.g * trace[attention.context][0, tokens].astype(np.float64)[:, None]
    return np.asarray(numbers.reshape(*numbers.shape[:2], attention.heads, attention.head_dim).sum(axis=-1))


def _through_head(trace: Trace, head: BoundHead, labels: Array, x: Array) -> _Backward:
    """Go back from the logits to the hidden states x (tokens, dim) that the head takes: one row, or one per token."""
    weight, bias = head.last.weight, head.last.bias
    g, biases = weight[labels].astype(np.float64), np.zeros(labels.shape)
    if bias is not None:
        biases = bias[labels].astype(np.float64)
    if head.labels > 1:
        g = g - weight.mean(axis=0, dtype=np.float64)
        biases = biases - (0.0 if bias is None else bias.mean(dtype=np.float64))
    back, first = _Backward(g, biases), x.mean(axis=0, keepdims=True) if head.pooling == "mean" else x
    inputs = [first, *(trace[path].reshape(len(labels), -1) for path, _ in head.works)]
    for (_, layer), layer_input, layer_output in zip(head.works[::-1], inputs[-2::-1], inputs[:0:-1], strict=True):
        if isinstance(layer, Linear):
            back.through_map(layer)
        elif isinstance(layer, LayerNorm):
            back.through_norm(layer, layer_input)
        else:
            back.through_activation(layer_input, layer_output)
    return back


def _total(trace: Trace, head: BoundHead, labels: Array) -> Array:
    logits = trace["logits"].reshape(len(labels), head.labels)
    chosen = np.take_along_axis(logits, labels, axis=1).astype(np.float64)
    mean = logits.mean(axis=1, dtype=np.float64, keepdims=True) if head.labels > 1 else 0.0
    return np.asarray(chosen - mean)


# -- the predictions ---------------------------------------------------------------------------------------------


def shown_head(encoder: Encoder) -> tuple[BoundHead | None, str]:
    """Choose the head for the page: the head that config.json names, else the first, else None.

    The second value is the reason why a head cannot be computed, as HTML.
    """
    names = encoder.heads
    if not names:
        return None, ""
    try:
        return encoder.head(), ""
    except (ValueError, CheckpointError):  # several heads and no name, or a head not computed here
        try:
            return encoder.head(names[0]), ""
        except CheckpointError as error:
            return None, f"<section><h2>What the model predicts</h2><p>{escape(visible(str(error)))}</p></section>"


def activation_of(encoder: Encoder, head: BoundHead) -> tuple[Callable[[Array], Array], bool]:
    """Return the function from logits (n, labels) to the numbers shown, and whether they are probabilities."""
    kind = encoder.config.get("problem_type") if head.name == "classes" else None
    if kind == REGRESSION or head.name == "answer":
        return np.asarray, False
    return (sigmoid if kind == SEVERAL or head.labels == 1 else softmax), True


def names_of(encoder: Encoder, head: BoundHead, labels: Array) -> dict[int, str]:
    """Map these labels to their names."""
    numbers = np.unique(labels).tolist()
    if head.name in ("masked_word", "next_word"):
        return {i: token_name(encoder, i) for i in numbers}
    names = head.id2label or dict(enumerate(NAMES.get(head.name, ())))
    return {i: visible(names.get(i, f"LABEL_{i}")) for i in numbers}


def token_name(encoder: Encoder, i: int) -> str:
    """Write the token of an id for a page."""
    try:
        return visible(encoder.embeddings.tokenizer.tokens(np.array(i)))
    except IndexError:  # many tables have more rows than the tokenizer has tokens
        return f"id {i}, no token"


# -- on the page -------------------------------------------------------------------------------------------------


def prediction_numbers(
    encoder: Encoder, head: BoundHead, input_ids: Array, trace: Trace, adds_up: bool = True
) -> dict[str, Any]:
    """Compute the numbers that the script draws. adds_up: see `page.Run`; if it is False, there are no shares.

    `trace` holds one text that has tokens, with the head: `encoder.trace(..., head=head.name)`.
    """
    activate, chance = activation_of(encoder, head)
    logits = trace["logits"].reshape(-1, head.labels)
    labels = top_indices(logits, min(LIKELIEST, head.labels))
    lens, best, highest = [], [], []
    for block_logits in _after_each_block(encoder, head, input_ids, trace):
        chances = activate(block_logits)
        lens.append(np.take_along_axis(chances, labels, 1))
        best.append(chances.argmax(axis=1))
        highest.append(chances.max(axis=1))
    names = names_of(encoder, head, np.concatenate([labels.ravel(), *best]))
    packed_shares = totals = None
    if adds_up:
        shares = logit_shares(encoder, input_ids, trace, head, labels)
        in_blocks = np.concatenate([shares.heads, shares.feed_forward[..., None]], axis=3)
        terms = [in_blocks.reshape(*labels.shape, -1), shares.input_layer[..., None], shares.biases[..., None]]
        packed_shares, totals = packed_float32(np.concatenate(terms, axis=2)), packed_float32(shares.total)
    return {
        "each": head.pooling == "every",
        "chance": chance,
        "k": labels.shape[1],
        "names": [[names[i] for i in row] for row in labels.tolist()],
        "lens": packed_float32(np.stack(lens, axis=1)),
        "best": [
            [(names[int(i[row])], float(most[row])) for i, most in zip(best, highest, strict=True)]
            for row in range(len(labels))
        ],
        "shares": packed_shares,
        "totals": totals,
    }


def prediction_part(encoder: Encoder, head: BoundHead, data: str) -> dict[str, str]:
    """Render this part of the page: its elements ("prediction") and its script; data: its numbers, as JSON."""
    activation = any(not isinstance(layer, Linear | LayerNorm) for _, layer in head.works)
    return rendered_part(
        "prediction",
        about=escape(ABOUT[head.name]),
        number="probability" if activation_of(encoder, head)[1] else "number",
        norm=", with the model's last norm before it" * bool(encoder.stack.last_norm),
        activation=", and the activation before the logits multiplies each of its inputs z by f(z) / z" * activation,
        mean=" of the prediction, less the mean logit of all predictions" * (head.labels > 1),
        data=data,
    )


def _after_each_block(encoder: Encoder, head: BoundHead, input_ids: Array, trace: Trace) -> Iterator[Array]:
    """Compute the head's logits (n, labels) after the input layer and after each block; the trace holds the last.

    One array at a time: for 100 tokens and 250,000 labels each takes 100 MB.
    """
    stack, tokens = encoder.stack, _tokens_of(head, input_ids)
    for i in range(len(stack.blocks)):
        x = trace[f"hidden_states.{i}"][0, tokens]
        x = encoder[stack.last_norm](x) if stack.last_norm else x
        x = x.mean(axis=0, keepdims=True) if head.pooling == "mean" else x
        logits = np.concatenate([piece for _, piece in logit_pieces(head, x)], axis=1)
        yield logits.mean(axis=0, keepdims=True) if head.pooling == "late" else logits
    yield trace["logits"].reshape(-1, head.labels)
