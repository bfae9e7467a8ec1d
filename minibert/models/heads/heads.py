"""The heads of a checkpoint, and their logits from the last hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from minibert.equations.activations import tanh
from minibert.equations.fast import PANEL
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError, Load, Text, error_of
from minibert.families.parts.config import Config
from minibert.families.parts.heads import (
    LABELS,
    NAMES,
    POOLERS,
    REFUSED,
    BoundHead,
    Head,
    architectures,
    count_labels,
    positions_taken,
)
from minibert.families.parts.modules import Linear, Product, steady
from minibert.families.parts.steps import Inputs
from minibert.families.rows import HEADS
from minibert.families.static import STATIC
from minibert.files.tables import ScratchBuffer, Weight
from minibert.files.tokenizer import Encoded
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.open.binder import TensorBinder
from minibert.models.run.packing import Packed
from minibert.models.run.pipeline import BROKEN

# Logits computed at once, 16 MiB: a few thousand words for a tile's tokens. So the word table is read once for a tile,
# with little memory beside the result. Tiles of up to TOKENS tokens have the same pieces.
PIECE = 1 << 22
TOKENS = 1024
WEIGHTS = 1 << 22  # numbers of the table in a piece: weights that stay as stored are converted piece by piece


class Heads:
    """The heads of one checkpoint, each bound at its first use: `encode` needs none."""

    def __init__(self, layer: EmbeddingLayer, config: Config, binder: TensorBinder, causal: bool, where: str) -> None:
        """Find the heads that the layer's model_type may have; no weight is read."""
        self._layer, self._config, self._binder, self._where = layer, config, binder, where
        heads = HEADS.get(layer.family.model_type, ())
        self._bound: dict[str, BoundHead] = {}
        self._architectures = architectures(config)
        self._held = {head.name: head for head in self._find([head for head in heads if head.causal in (None, causal)])}
        static = "rows of tokens: it is a static model"
        self._rest = static if layer.family is STATIC else "input layer and blocks"

    def _find(self, heads: list[Head]) -> list[Head]:
        named = {head.maps[-1].path for head in heads if head.named_by(self._architectures)}
        heads = [head for head in heads if head.named_by(self._architectures) or head.maps[-1].path not in named]
        heads = [head for head in heads if head.stored(self._config, self._binder)]
        if "multiple choice" in self._refused():  # its linear map has the path of a classifier
            heads = [head for head in heads if head.maps[-1].out != LABELS]
        # heads of text and token classes may share a path: if none is named, keep those with the most tensors
        best: dict[str, tuple[int, bool]] = {}
        for head in heads:
            best[head.maps[-1].path] = max(self._likelihood(head), best.get(head.maps[-1].path, (0, False)))
        return [head for head in heads if self._likelihood(head) == best[head.maps[-1].path]]

    def _likelihood(self, head: Head) -> tuple[int, bool]:
        last = head.maps[-1]
        biased = (last.biased is True) == self._binder.stores(f"{last.path}.bias")
        sized = not isinstance(last.out, int) or last.out == count_labels(self._config)
        return len(head.maps), biased and sized

    def _refused(self) -> str:
        """Return a sentence about a head of `architectures` that is not computed here, or ""."""
        named = ((name, task) for end, task in REFUSED.items() for name in self._architectures if name.endswith(end))
        return next((f"config.json names {name}, but {task} is not computed here" for name, task in named), "")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._held)

    def __getitem__(self, name: str | None) -> BoundHead:
        """Return a head by its name; None: the one that `architectures` names, or the only one."""
        name = self._usual() if name is None else name
        if name not in NAMES:
            raise ValueError(f"head must be one of {', '.join(NAMES)}, found {name!r}")
        if name not in self._held:
            why = ""
            if name == "next_word" and len(self._layer.family.sides) > 1:
                why = f"; the decoder of a {self._layer.family.model_type}, which generates text, is not computed here"
            message = f"{self._where}: there is no head {name!r}; {self._summary()}{why}; "
            raise error_of(CheckpointError, message, Load("a model with that head"))
        if name not in self._bound:
            self._bound[name] = self._held[name].bind(self._config, self._binder, self._words)
            self._binder.expect()
        return self._bound[name]

    @property
    def pooler(self) -> Callable[[Array], Array] | None:
        """First rows (n, dim) -> the reference's `pooler_output`, as a function; None if the file has no pooler."""
        for step in POOLERS:
            with suppress(CheckpointError):
                if self._binder.stores(f"{step.path}.weight"):
                    linear = step.bind(self._config, self._binder, self._layer.dim, self._words)
                    return lambda x: tanh(linear(x))
        return None

    def _words(self) -> Weight:
        return self._binder.weight_of(self._layer.steps[0].module.table)

    def read(self) -> None:
        """Bind all heads now; the error of a head that cannot be bound is raised at its use."""
        for name in self._held:
            with suppress(CheckpointError):
                self[name]

    def _usual(self) -> str:
        named = [head.name for head in self._held.values() if head.named_by(self._architectures)]
        named = named or ([] if self._refused() else list(self._held))
        if not named:
            raise CheckpointError(f"{self._where}: {self._summary()}; load the checkpoint of a model with a head")
        if len(named) > 1:
            raise ValueError(f"{self._where} has several heads, {', '.join(named)}; name one: head={named[0]!r}")
        return named[0]

    def _summary(self) -> str:
        held = f"its heads are {', '.join(self._held)}" if self._held else f"it has no head, only {self._rest}"
        return "; ".join(filter(None, [self._refused(), held]))


# -- logits ------------------------------------------------------------------------------------------------------


def logits_of(head: BoundHead, tile: Packed, x: Array) -> Array:
    """Return the logits of packed texts: (taken tokens, labels).

    x: the last hidden states of the tokens that the head takes: see `tokens_of`.
    """
    *_, (_, logits) = head_values(head, x, tile.where()[0])
    return logits


def head_values(head: BoundHead, x: Array, texts: Array) -> Iterator[tuple[str, Array]]:
    """Yield the output of each module of a head by its path, one row for each token or text; the logits come last.

    x: see `logits_of`. texts: the text of each row, in order.
    """
    if head.pooling == "mean":
        x = _means(x, texts)
    for path, work in head.works:
        x = work(x)
        yield path, x
    y = np.empty((len(x), head.labels), x.dtype)
    for columns, piece in _pieces(head.last, x):
        y[:, columns] = piece
    yield head.path, y
    if head.pooling == "late":
        yield "logits", _means(y, texts)


def logit_pieces(head: BoundHead, x: Array, product: Product = steady) -> Iterator[tuple[slice, Array]]:
    """Yield the logits of hidden states (tokens, dim) in pieces: the slice of labels, and (tokens, some labels)."""
    for _, work in head.works:
        x = work(x)
    yield from _pieces(head.last, x, product)


def _pieces(last: Linear, x: Array, product: Product = steady) -> Iterator[tuple[slice, Array]]:
    """Yield `last(x)` in pieces. Weights in their stored format have the same pieces, and therefore the same bits."""
    labels, width = last.shape
    step, buffer = max(1, min(PIECE // max(TOKENS, len(x)), WEIGHTS // width)), ScratchBuffer()
    step = -(-step // PANEL) * PANEL if last.panels else step
    rows = np.concatenate([x, x[: len(x) % 2]]) if last.panels else x  # an even count: a single row has other bits
    for first in range(0, labels, step):
        part = last.part(columns := slice(first, first + step))
        if part.panels and product is steady:
            y = np.empty((len(rows), part.shape[0]), x.dtype)
            yield columns, part.panels.linear(rows, part.bias, y)[: len(x)]
        else:
            yield columns, product(x, part.matrix(buffer), part.bias)


def check_numbers(logits: Array) -> None:
    """Raise CheckpointError for logits with NaN or infinity, which have no order."""
    if not (logits < np.inf).all():
        problem = "NaN or infinity where a number was expected, so nothing is the likeliest"
        raise CheckpointError(f"the model gives {problem}: {BROKEN}")


def refuse_long(encoded: Sequence[Encoded], longest: int | None, start: int = 0, advice: str = "") -> None:
    """Raise ValueError for a text with more tokens than the position table has rows. start: the first text's number."""
    for i, sequence in enumerate(encoded, start):
        count = len(sequence.input_ids)
        if longest is not None and count > longest:
            problem = f" has {count} tokens, but the longest sequence is {longest} (the position table)"
            raise error_of(ValueError, Text(i), f"{problem}; shorten it{advice}")


def refuse_empty(head: BoundHead, encoded: Sequence[Encoded], named: Callable[[int], Text]) -> None:
    """Raise ValueError for a text without tokens. `named` maps an index to the name of its text in the message."""
    for i, sequence in enumerate(encoded):
        if not sequence.input_ids:
            raise error_of(ValueError, named(i), f" has no token, and {head.name} needs one; leave it out")


def tokens_of(head: BoundHead, packed: Packed) -> Array | None:
    """Return the packed tokens that a head takes, after `refuse_empty`; None: all."""
    starts = packed.starts
    if head.pooling != "last":
        return starts if head.pooling == "first" else None
    ends = [positions_taken("last", head.pad_id, (1, len(ids)), ids[None]) for ids in np.split(packed.ids, starts[1:])]
    return np.concatenate([starts[:0], *ends]) + starts


def _means(x: Array, texts: Array) -> Array:
    """Average the rows of each text: (tokens, dim) and the text of each row -> (texts with tokens, dim)."""
    starts = np.flatnonzero(np.diff(texts, prepend=-1))
    lengths = np.diff(starts, append=len(texts))[:, None].astype(x.dtype)
    return np.add.reduceat(x, starts, axis=0) / lengths if len(texts) else x


# -- of a batch --------------------------------------------------------------------------------------------------


def batch_logits(
    head: BoundHead,
    input_ids: Array | None,
    keep: Array,
    dtype: np.dtype[Any],
    run: Callable[[Callable[[Packed, Array], None], Callable[[Packed], Array | None]], object],
) -> Array:
    """Compute the `logits` of the reference: (batch, seq, labels) or (batch, labels); rows of padding are zeros.

    run: takes the batch through the model: see `put` and `take` of `run_model`.
    """
    positions, every = positions_of(head, input_ids, keep), head.pooling == "every"
    make = np.zeros if every and not keep.all() else np.empty
    y: Array = make((*(keep.shape if every else keep.shape[:1]), head.labels), dtype)

    def take(tile: Packed) -> Array | None:
        texts, tokens = tile.where()
        return None if positions is None else np.flatnonzero(tokens == positions[texts])

    def put(tile: Packed, x: Array) -> None:
        if not every:
            y[tile.texts] = logits_of(head, tile, x)
            return
        for columns, piece in logit_pieces(head, x):
            y[(*tile.where(), columns)] = piece

    run(put, take)
    return y[..., 0] if head.single else y


def trace_head(head: BoundHead, trace: dict[str, Array], input_ids: Array | None, keep: Array) -> None:
    """Add a head's modules and `logits` to a trace, from its last hidden states. Rows of padding are zeros."""
    positions = positions_of(head, input_ids, keep)
    texts, tokens = np.nonzero(keep) if positions is None else (np.arange(len(keep)), positions)
    for name, rows in head_values(head, trace[next(reversed(trace))][texts, tokens], texts):
        of_tokens = head.of_tokens(name)
        padded = np.zeros((*(keep.shape if of_tokens else keep.shape[:1]), rows.shape[1]), rows.dtype)
        padded[(texts, tokens) if of_tokens else np.unique(texts)] = rows
        trace[name] = padded
    trace["logits"] = padded[..., 0] if head.single else padded


def ids_of(inputs: Inputs) -> Array | None:
    """Return the ids of a batch (batch, seq); None if inputs_embeds was passed."""
    ids = inputs.ids.get("input_ids")
    return None if ids is None else np.asarray(ids)


def positions_of(head: BoundHead, input_ids: Array | None, keep: Array) -> Array | None:
    """Return the position of each sequence's token that a head takes; None if it takes all.

    As in the reference the first position may be padding, and the last one depends on ids, not on the mask. Raises
    ValueError if the token is padding, whose row is not computed.
    """
    if head.pooling != "every" and keep.shape[1] == 0:
        raise ValueError(f"{head.name} needs a token of each sequence, found sequences of no token")
    if head.pooling == "last" and head.pad_id is None and len(keep) > 1:
        unknown = f"the ends of {len(keep)} sequences cannot be found; pass one at a time, without padding"
        takes = f"{head.name} takes the last token that is not pad_token_id, and config.json has none"
        raise ValueError(f"{takes}, so that {unknown}")
    positions = positions_taken(head.pooling, head.pad_id, keep.shape, input_ids)
    if positions is None:
        return None
    hidden = np.flatnonzero(~keep[np.arange(len(keep)), positions])
    if len(hidden):
        i, token, advice = int(hidden[0]), "first token", "pad on the right"
        if head.pooling != "first":
            token, advice = "last token that is not pad_token_id", "let ids and mask agree on what is padding"
        there = f"attention_mask[{i}, {positions[i]}] is 0 there"
        raise ValueError(f"{head.name} takes each sequence's {token}, but {there}; {advice}")
    return positions
