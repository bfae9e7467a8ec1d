"""Each head of each block adds a part to a prediction, and all parts add up to it.

The last hidden state is a sum: the input rows, what every head and every feed-forward added, and biases. What stands
between a part and a logit is linear but for two things, and both keep here the factor that they had in this run: a norm
divides by one number, and an activation multiplies its input z by f(z) / z. So each part has a share of its own, and
the shares add up to the logit. For GPT-2 this is known as direct logit attribution.

Only the direct way counts, from a part through the norms to the head. A part's effect on later attention and
feed-forwards is in their shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention, BoundBlock, BoundResidual, Dense
from minibert.families.parts.heads import POOLED, BoundHead
from minibert.families.parts.modules import LayerNorm, RMSNorm
from minibert.models.encoder import Encoder
from minibert.models.heads.heads import positions_of


class Shares(NamedTuple):
    """Logits of each part, float64: k logits of each of n rows.

    total  (n, k): the logit, less the mean of all labels' where there are several, which softmax does not see
    heads  (n, k, blocks, heads), feed_forward (n, k, blocks), input_layer (n, k), biases (n, k); their sum is `total`
    """

    total: Array
    heads: Array
    feed_forward: Array
    input_layer: Array
    biases: Array


class _Back:
    """A step on the way back from logits to the parts: `g` (tokens, k, width) weights a number's share in a logit.

    `biases` (tokens, k) sums the biases passed so far.
    """

    def __init__(self, g: Array, biases: Array) -> None:
        self.g, self.biases = g, biases

    def of(self, added: Array) -> Array:
        """Compute the logits that some rows (tokens, width) add: (tokens, k)."""
        return np.asarray(np.einsum("tkd,td->tk", self.g, added.astype(np.float64)))

    def through_map(self, module: Dense) -> None:
        weight = module.weight.T if module.transposed else module.weight  # (out, in)
        if module.bias is not None:
            self.biases = self.biases + self.g @ module.bias.astype(np.float64)
        self.g = self.g @ weight.astype(np.float64)

    def through_norm(self, norm: LayerNorm, x: Array) -> None:
        """Pass a norm, whose input was x (tokens, width)."""
        x = x.astype(np.float64)
        if norm.bias is not None:
            self.biases = self.biases + self.g @ norm.bias.astype(np.float64)
        plus = norm.plus if isinstance(norm, RMSNorm) else 0.0
        scaled = self.g * (norm.weight.astype(np.float64) + plus)
        if isinstance(norm, RMSNorm):
            size = np.sqrt((x * x).mean(axis=-1) + norm.eps)
        else:
            scaled = scaled - scaled.mean(axis=-1, keepdims=True)  # the norm takes the mean off x: the same here
            size = np.sqrt(x.var(axis=-1) + norm.eps)
        self.g = scaled / size[:, None, None]

    def through_activation(self, x: Array, y: Array) -> None:
        """Pass an activation, whose input was x and whose output y (tokens, width); 0 stays 0."""
        factor = np.divide(y, x, out=np.zeros(x.shape), where=x != 0, dtype=np.float64)
        self.g = self.g * factor[:, None]


def shares(encoder: Encoder, input_ids: Array, trace: Mapping[str, Array], head: BoundHead, labels: Array) -> Shares:
    """Split logits into the terms that each part of the model adds.

    `trace` is of one text without padding, of these ids (1, seq), with this head: `encoder.trace(..., head=head.name)`.
    labels (n, k): which labels of each of the n rows that the head gives, a row for each token or one for the text.
    """
    stack, tokens = encoder.stack, tokens_of(head, input_ids)
    rows = np.repeat(labels, len(tokens), axis=0) if head.takes == "late" else labels
    back = _through_head(trace, head, rows, trace[f"hidden_states.{len(stack.blocks)}"][0, tokens])
    if head.takes in POOLED:  # each token has its part of the mean, and of what is added behind it
        times = len(tokens) // len(rows) if len(rows) else 1
        back = _Back(*(np.repeat(x / len(tokens), times, axis=0) for x in (back.g, back.biases)))
    if stack.last_norm:
        back.through_norm(encoder[stack.last_norm], trace[stack.entering[stack.last_norm]][0, tokens])
    of_heads, of_feeds = [], []
    for block in reversed(stack.blocks):
        for part in reversed(block.parts):
            if part.after:
                back.through_norm(block.modules[part.after], trace[part.sum][0, tokens])
            if isinstance(part.work, BoundAttention):
                of_heads.append(_of_heads(back, block, part, trace, tokens))
            else:
                of_feeds.append(back.of(trace[part.within or part.work.output][0, tokens]))
    entered = back.of(trace["hidden_states.0"][0, tokens])
    parts = [np.stack(of_heads[::-1], axis=2), np.stack(of_feeds[::-1], axis=2), entered, back.biases]
    if head.takes in POOLED:
        parts = [part.sum(axis=0, keepdims=True) for part in parts]
    return Shares(_total(trace, head, labels), *parts)


def tokens_of(head: BoundHead, input_ids: Array) -> Array:
    """Find the tokens of one text (1, seq) that a head computes from."""
    positions = positions_of(head, input_ids, np.ones(input_ids.shape, bool))
    return np.arange(input_ids.shape[1]) if positions is None else positions


def _of_heads(back: _Back, block: BoundBlock, part: BoundResidual, trace: Mapping[str, Array], tokens: Array) -> Array:
    """Compute the vector that each head of one block adds: (tokens, k, heads). No head has the output map's bias."""
    work, own = part.work, _Back(back.g, back.biases)
    assert isinstance(work, BoundAttention)
    if part.within:
        own.through_norm(block.modules[part.within], trace[work.output][0, tokens])
    own.through_map(block.modules[work.output])
    back.biases = own.biases
    numbers = own.g * trace[work.context][0, tokens].astype(np.float64)[:, None]
    return np.asarray(numbers.reshape(*numbers.shape[:2], work.heads, work.head_dim).sum(axis=-1))


def _through_head(trace: Mapping[str, Array], head: BoundHead, labels: Array, x: Array) -> _Back:
    """Go back from the logits to the hidden states x (tokens, dim) that the head takes: one row, or one a token."""
    weight, bias = head.last.weight, head.last.bias
    g, biases = weight[labels].astype(np.float64), np.zeros(labels.shape)
    if bias is not None:
        biases = bias[labels].astype(np.float64)
    if head.labels > 1:
        g = g - weight.mean(axis=0, dtype=np.float64)
        biases = biases - (0.0 if bias is None else bias.mean(dtype=np.float64))
    back, entering = _Back(g, biases), x.mean(axis=0, keepdims=True) if head.takes == "mean" else x
    inputs = [entering, *(trace[path].reshape(len(labels), -1) for path, _ in head.works)]
    for (_, work), before, after in zip(head.works[::-1], inputs[-2::-1], inputs[:0:-1], strict=True):
        if isinstance(work, Dense):
            back.through_map(work)
        elif isinstance(work, LayerNorm):
            back.through_norm(work, before)
        else:
            back.through_activation(before, after)
    return back


def _total(trace: Mapping[str, Array], head: BoundHead, labels: Array) -> Array:
    logits = trace["logits"].reshape(len(labels), head.labels)
    asked = np.take_along_axis(logits, labels, axis=1).astype(np.float64)
    mean = logits.mean(axis=1, dtype=np.float64, keepdims=True) if head.labels > 1 else 0.0
    return np.asarray(asked - mean)
