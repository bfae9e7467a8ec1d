"""The whole encoder as a subject: its batches, which of their numbers are compared, its tolerances."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache

import numpy as np

from minibert.equations.blocks import visible
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.families.parts.heads import BoundHead, architectures
from minibert.families.rows import HEADS
from minibert.models.encoder import Encoder
from minibert.models.heads.heads import positions_of, trace_head
from minibert.models.run.blocks import Stack
from minibert.verify.sides.traces import INPUT_LAYER, Traces, tokens_of, trace

from .compare import ERROR_SHARE, PORT_SHARE
from .input_layer import Subject, batches, ids_of, tolerances

# |difference| / max(1, |value|) in the blocks. Measured against torch on nine seeded models: 6.7e-6, attentions 1.1e-6
# (1.8e-6 where probabilities are near 0 and 1); on all-MiniLM-L6-v2 6.7e-5 and 4.5e-6: there the rms errors decide.
IN_BLOCKS, ATTENTION = 1e-5, 1e-6
# Tokens of the longest batch where no table of positions is as short as `FARTHEST`, and tokens beyond each length up to
# it at which the model changes. Its scores and attention weights, which grow with the square, are compared where the
# other program has them.
LONG, BEYOND, FARTHEST = 300, 8, 1024
END = "after the blocks"


def encoder_batches(encoder: Encoder) -> Traces:
    """Make a batch of every kind the encoder takes: those of the input layer, one token, and a long text."""
    kinds = {kind: batch for kind, batch in batches(encoder.embeddings).items() if "past_length" not in batch}
    kinds.pop("full_length", None)
    length = max([LONG, *(n + BEYOND for n in lengths(encoder.stack).values() if n <= FARTHEST)])
    if encoder.max_length is not None:  # to the last row of a table that is no longer than that
        length = encoder.max_length if encoder.max_length <= FARTHEST else min(length, encoder.max_length)
    kinds["long"] = {"input_ids": ids_of((1, length), encoder.embeddings, salt=5)}
    kinds["one_token"] = {"input_ids": kinds["plain"]["input_ids"][:1, :1]}
    return kinds


def lengths(stack: Stack) -> dict[str, int]:
    """The numbers of tokens beyond which a model computes otherwise, by its parts: a window, a first training."""
    windows = [block.attention.window for block in stack.blocks]
    found = {f"a window that reaches {window} tokens": window + 1 for window in windows if window is not None}
    firsts = [] if stack.rotary is None else [rotation.original_length for rotation in stack.rotary.rotations.values()]
    return found | {f"an original length of {first} tokens": first for first in firsts if first is not None}


def at_tokens(x: Array, mask: Array) -> Array:
    """Leave out the rows of padding: x (batch, seq, ...) or (1, seq, ...) or (seq,) -> (tokens, ...).

    mask (batch, seq), bool.

    >>> at_tokens(np.arange(2), np.array([[True, False], [True, True]]))
    array([0, 0, 1])
    """
    full: Array = np.broadcast_to(x, (*mask.shape, *x.shape[2:]))
    return full.reshape(mask.size, *full.shape[2:]) if mask.all() else full[mask]


def at_pairs(x: Array, mask: Array, keep: Array) -> Array:
    """Leave out the scores of pairs that no token sees: x (batch, heads, query, key) -> (pairs, heads).

    mask (batch, seq) says what is no padding, keep (query, key) what a token sees.
    """
    return np.asarray(np.moveaxis(x, 1, -1)[mask[:, :, None] & mask[:, None, :] & keep])


class EncoderSubject(Subject):
    """All of one checkpoint's encoder: input layer, blocks, and the head that config.json names or the only one."""

    noun, has_places = "encoder", True

    def __init__(self, model: Encoder, again: Callable[..., Encoder]) -> None:
        super().__init__(model, again)
        self.encoder, stack = model, model.stack
        depth = len(stack.blocks)
        self.about = f"{self.layer.family.model_type}, {depth} block{'s' * (depth != 1)}"
        self._places = {key: f"block {i}" for i, block in enumerate(stack.blocks) for key in block.keys(i, stack)}
        self.leaving = [path for block in stack.blocks for path in block.modules if path in self._places]
        if stack.last_norm:
            self._places |= {stack.last_norm: END, f"hidden_states.{depth}": END}
            self.leaving.append(stack.last_norm)
        self.head, self.without_head = _usual(model)
        kept = self.head is None and not model.sentence_config.kind  # vectors of sentences do without it
        self.pooler = model.pooler if kept else None
        if self.pooler is not None:
            self._places["pooler"] = "head pooler"
        if self.head is not None:
            paths = [*(path for path, _ in self.head.works), self.head.path, "logits"]
            self._places |= dict.fromkeys(paths, f"head {self.head.name}")
        self.weighed = frozenset(self._places)
        in_blocks = {key: ATTENTION if key.startswith("attentions.") else IN_BLOCKS for key in self._places}
        self.entering = stack.entering
        self._window = {block.attention.scores: block.attention.window for block in stack.blocks}
        self.scores = list(self._window)
        self.pairs = {key for block in stack.blocks for key in (block.attention.scores, block.attention.probabilities)}
        self.transposed_in_reference = stack.transposed_in_reference
        self.allowed |= {"hidden_states.0": list(tolerances(self.layer).values())[-1], **in_blocks}

    def batches(self) -> Traces:
        return encoder_batches(self.encoder)

    def beyond(self, inputs: Traces) -> str:
        longest = max(tokens_of(batch)[1].shape[1] for batch in inputs.values())
        further = [what for what, length in lengths(self.encoder.stack).items() if length >= longest]
        if (most := self.encoder.max_length) is None or most > longest:
            further.insert(0, "later positions")
        return f"only the first {longest} tokens were compared; untested: {', '.join(further)}" if further else ""

    def traces(self, inputs: Traces, theirs: Traces) -> Traces:
        made = super().traces(inputs, theirs)
        if "long" in made:
            left = self.pairs - theirs.get("long", {}).keys()
            made["long"] = {key: x for key, x in made["long"].items() if key not in left}
        return made

    def trace(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        found = trace(self.encoder, batch)
        if self.head is not None and self.reaches_head(batch):
            trace_head(self.head, found, *tokens_of(batch))
        if self.pooler is not None and tokens_of(batch)[1][:, 0].all():  # it takes the first token
            found["pooler"] = self.pooler(found[f"hidden_states.{len(self.encoder.stack.blocks)}"][:, 0])
        return found

    def reaches_head(self, batch: Mapping[str, Array]) -> bool:
        """Whether the head can be computed: not where the token that it takes is padding."""
        if self.head is None:
            return False
        with suppress(ValueError):
            positions_of(self.head, *tokens_of(batch))
            return True
        return False

    def seen(self, inputs: Traces) -> Callable[[str, str, Array], Array]:
        """Select the tokens that are not padding, and the scores of pairs that are seen."""
        stack = self.encoder.stack
        masks = cache(lambda kind: tokens_of(inputs[kind])[1])

        def seen(kind: str, key: str, x: Array) -> Array:
            mask = masks(kind)
            if key in self._window:
                positions = np.arange(mask.shape[1])
                return at_pairs(x, mask, visible(positions, positions, stack.causal, self._window[key]))
            if self.place(key).startswith("head ") and (self.head is None or not self.head.of_tokens(key)):
                return x  # one row for each sequence
            return at_tokens(x.swapaxes(1, 2) if key.startswith("attentions.") else x, mask)

        return seen

    def place(self, key: str) -> str:
        return self._places.get(key, INPUT_LAYER)

    def words(self, whose: str, against: str) -> str:
        share = f"{PORT_SHARE:g} times ours" if whose == "file" else f"{ERROR_SHARE:g} times the reference's"
        return (
            f"difference: |here - there| / max(1, |there|) at tokens that are not padding; in the blocks {IN_BLOCKS:g} "
            f"is allowed, {ATTENTION:g} of attentions, or an rms error of at most {share}; rms error: against "
            f"{against} in float64"
        )


def _usual(encoder: Encoder) -> tuple[BoundHead | None, str]:
    """The head whose logits are compared, or the reason why no head is; "" if the file holds no head.

    A head that is nothing but the word table is there in every GPT-2: it is compared where config.json names it.
    """
    if not encoder.heads:
        return None, ""
    try:
        head = encoder.head()
    except (CheckpointError, ValueError) as error:
        return None, str(error)
    (row,) = [
        row for row in HEADS[encoder.config.model_type] if (row.name, row.maps[-1].path) == (head.name, head.path)
    ]
    asked = not all(each.tied for each in row.maps) or row.named_by(architectures(encoder.config))
    return (head if asked else None), ""
