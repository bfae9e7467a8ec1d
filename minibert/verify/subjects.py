"""The part of a model that is compared, its input layer or the whole encoder: tolerances, traces and batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from typing import Any

import numpy as np

from minibert.equations.blocks import visible
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.families.parts.heads import BoundHead, architectures
from minibert.families.parts.steps import Add, Lookup, Norm, Positions, Project
from minibert.families.rows import HEADS
from minibert.models.encoder import Encoder
from minibert.models.heads.heads import positions_of, trace_head
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.run.blocks import Stack

from .report import ERROR_SHARE, PORT_SHARE, Difference, compare
from .traces import Traces

# |difference| / max(1, |value|) after a norm or a projection; against torch at most 5.7e-7. Before a norm nothing may
# differ: rows are copied and sums round alike
AFTER_NORM = 2e-6
# The same for the blocks; against torch 6.7e-6 on seeded models, 6.7e-5 on MiniLM, where the rms errors decide
IN_BLOCKS, ATTENTION = 1e-5, 1e-6

INPUT_LAYER, BLOCKS, HEAD = PARTS = "input layer", "blocks", "head"  # the parts of a model, in the order of a trace
SEQUENCES, LENGTH, PAST = 3, 7, 3  # three sequences of seven tokens; three tokens in the cache
UNMASKED = {"right_pad": "right_pad_no_mask", "pads_inside_mask": "pads_inside"}
NAMED = {"token_type_ids": "types", "langs": "languages", "task_type_ids": "tasks"}
# The longest batch has LONG tokens, or BEYOND more than each length up to FARTHEST at which the model changes; a table
# of at most FARTHEST positions is read to its end
LONG, BEYOND, FARTHEST = 300, 8, 1024
END = "after the blocks"


class Subject:
    """The input layer of one checkpoint: its batches, its traces, and the tolerance of each intermediate."""

    noun = "layer"  # its name in a report
    has_places = False  # whether a difference can arise in several places
    weighed: frozenset[str] = frozenset()  # intermediates whose larger difference passes if the rms errors agree

    # an encoder's parts
    module_outputs: Sequence[str] = ()  # modules of blocks whose output is compared
    scores: Sequence[str] = ()  # the key of each block's scores
    pairs: Collection[str] = ()  # the keys of arrays (batch, heads, query, key)
    head: BoundHead | None = None  # its logits are compared too
    pooler: Any = None  # the pooler maps the first token, if no head uses it
    without_head: str = ""  # why the logits of a head in the file are not compared

    def __init__(self, model: Any, reopen: Callable[..., Any]) -> None:
        self.model: Any = model  # an EmbeddingLayer or an Encoder
        self.layer: EmbeddingLayer = model.embeddings if self.has_places else model
        self._reopen, self._opened = reopen, ExitStack()
        self._places: dict[str, str] = {}  # intermediate -> its part of the model, if it is not the input layer
        self.allowed = {"input_ids": 0.0, **tolerances(self.layer)}  # the tolerance of each intermediate
        side = f", {self.layer.side} side" if len(self.layer.family.sides) > 1 else ""
        self.about = f"{self.layer.family.model_type}{side}"  # for the first line of a report

    @cached_property
    def exact(self) -> Subject:
        """The same model in float64, open until this subject is closed."""
        return type(self)(self._opened.enter_context(self._reopen(dtype="float64")), self._reopen)

    def close(self) -> None:
        """Close the model in float64."""
        self._opened.close()

    def trace(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Trace one batch, with the logits or the pooler's output if the model has them."""
        named = trace(self.model, batch)
        if self.head is not None and self.reaches_head(batch):
            trace_head(self.head, named, *tokens_of(batch))
        if self.pooler is not None and tokens_of(batch)[1][:, 0].all():  # it reads the first token
            named["pooler"] = self.pooler(named[f"hidden_states.{len(self.scores)}"][:, 0])
        return named

    def traces(self, inputs: Traces, theirs: Traces) -> Traces:
        """Trace all batches; the ids of a text come first if the other program computed ids too.

        In the batch "long", pairs of tokens are left out if the other program has not recorded them.
        """
        traces = Traces()
        for kind, batch in inputs.items():
            there = theirs.get(kind, {})
            ids = {"input_ids": batch["input_ids"]} if "input_ids" in there else {}
            left_out = {*self.pairs} - there.keys() if kind == "long" else ()
            traces[kind] = ids | {key: x for key, x in self.trace(batch).items() if key not in left_out}
        return traces

    def reaches_head(self, batch: Mapping[str, Array]) -> bool:
        """Whether a trace of this batch has logits: the token that the head reads must not be padding."""
        if self.head is None:
            return False
        with suppress(ValueError):
            positions_of(self.head, *tokens_of(batch))
            return True
        return False

    def select(self, inputs: Traces, kind: str, key: str, x: Array) -> Array:
        """Select the numbers of an array that are compared."""
        return x

    def compare(self, inputs: Traces, ours: Traces, theirs: Traces, truth: Traces) -> list[Difference]:
        """Compare two traces of these inputs; `truth` is a trace in float64."""
        return compare(ours, theirs, truth, self.allowed, self.weighed, partial(self.select, inputs))

    def place(self, key: str) -> str:
        """Name the part of the model that computes an intermediate: "block 3", or a part before or after the blocks."""
        return self._places.get(key, INPUT_LAYER)

    def words(self, whose: str, against: str, allowed: str = "") -> str:
        """Explain a table's numbers and tolerances.

        against: the program whose float64 the errors refer to; allowed: the largest rms error of a port in a format.
        """
        return (
            "difference: |here - there| / max(1, |there|); 0 is allowed before a norm or a projection, "
            f"{AFTER_NORM:g} after; rms error: against {against} in float64"
        )

    def beyond(self, inputs: Traces) -> str:
        """Name what only longer texts would test; "" for nothing."""
        return ""


class EncoderSubject(Subject):
    """A whole encoder: input layer, blocks, and the head that config.json names or the only one."""

    noun, has_places = "encoder", True

    def __init__(self, model: Encoder, reopen: Callable[..., Encoder]) -> None:
        super().__init__(model, reopen)
        self.encoder, stack = model, model.stack
        depth = len(stack.blocks)
        self.about = f"{self.layer.family.model_type}, {depth} block{'s' * (depth != 1)}"
        self._places = {key: f"block {i}" for i, block in enumerate(stack.blocks) for key in block.keys(i, stack)}
        self.module_outputs = [path for block in stack.blocks for path in block.modules if path in self._places]
        if stack.last_norm:
            self._places |= {stack.last_norm: END, f"hidden_states.{depth}": END}
            self.module_outputs.append(stack.last_norm)
        if stack.last_map:
            self._places[stack.last_map] = END
        self.head, self.without_head = _compared_head(model)
        kept = self.head is None and not model.sentence_config.kind  # vectors of sentences do without the pooler
        self.pooler = model.pooler if kept else None
        if self.pooler is not None:
            self._places["pooler"] = "head pooler"
        if self.head is not None:
            paths = [*(path for path, _ in self.head.works), self.head.path, "logits"]
            self._places |= dict.fromkeys(paths, f"head {self.head.name}")
        self.weighed = frozenset(self._places)
        in_blocks = {key: ATTENTION if key.startswith("attentions.") else IN_BLOCKS for key in self._places}
        self._window = {block.attention.scores: block.attention.window for block in stack.blocks}
        self.scores = list(self._window)
        self.pairs = {key for block in stack.blocks for key in (block.attention.scores, block.attention.probabilities)}
        self.allowed |= {"hidden_states.0": list(self.allowed.values())[-1], **in_blocks}

    def select(self, inputs: Traces, kind: str, key: str, x: Array) -> Array:
        """Select the tokens that are not padding, and the scores of visible pairs."""
        mask = tokens_of(inputs[kind])[1]
        if key in self._window:
            positions = np.arange(mask.shape[1])
            return at_pairs(x, mask, visible(positions, positions, self.encoder.stack.causal, self._window[key]))
        if self.place(key).startswith("head ") and (self.head is None or not self.head.of_tokens(key)):
            return x  # one row per sequence
        return at_tokens(x.swapaxes(1, 2) if key.startswith("attentions.") else x, mask)

    def words(self, whose: str, against: str, allowed: str = "") -> str:
        usual = f"{PORT_SHARE:g} times ours" if whose == "file" else f"{ERROR_SHARE:g} times the reference's"
        return (
            f"difference: |here - there| / max(1, |there|) at tokens that are not padding; in the blocks {IN_BLOCKS:g} "
            f"is allowed, {ATTENTION:g} of attentions, or an rms error of at most {allowed or usual}; "
            f"rms error: against {against} in float64"
        )

    def beyond(self, inputs: Traces) -> str:
        longest = max(tokens_of(batch)[1].shape[1] for batch in inputs.values())
        further = [what for what, length in lengths(self.encoder.stack).items() if length >= longest]
        if (most := self.encoder.max_length) is None or most > longest:
            further.insert(0, "later positions")
        return f"only the first {longest} tokens were compared; untested: {', '.join(further)}" if further else ""


def _compared_head(encoder: Encoder) -> tuple[BoundHead | None, str]:
    """Return the head whose logits are compared, or the reason why no head is; "" if the file holds no head.

    Every GPT-2 has a head that is only the word table: it is compared if config.json names it.
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
    named = not all(table.tied for table in row.maps) or row.named_by(architectures(encoder.config))
    return (head if named else None), ""


def tolerances(layer: EmbeddingLayer) -> dict[str, float]:
    """Return the tolerance of each intermediate: 0 before the first norm or projection, then `AFTER_NORM`."""
    allowed, so_far = {"position_ids": 0.0}, 0.0
    for step, _ in layer.steps:
        if isinstance(step, Norm):
            allowed["sum"] = so_far
        if isinstance(step, Norm | Project):
            so_far = AFTER_NORM
        allowed[step.key] = 0.0 if isinstance(step, Lookup) else so_far
    allowed.setdefault("sum", so_far)
    return allowed


def at_tokens(x: Array, mask: Array) -> Array:
    """Leave out the rows of padding: x (batch, seq, ...) or (1, seq, ...) or (seq,) -> (tokens, ...).

    mask (batch, seq), bool.

    >>> at_tokens(np.arange(2), np.array([[True, False], [True, True]]))
    array([0, 0, 1])
    """
    full: Array = np.broadcast_to(x, (*mask.shape, *x.shape[2:]))
    return full.reshape(mask.size, *full.shape[2:]) if mask.all() else full[mask]


def at_pairs(x: Array, mask: Array, visible: Array) -> Array:
    """Leave out the scores of pairs that attention masks: x (batch, heads, query, key) -> (pairs, heads).

    mask (batch, seq): True at tokens, False at padding; visible (query, key): the keys that each query sees.
    """
    return np.asarray(np.moveaxis(x, 1, -1)[mask[:, :, None] & mask[:, None, :] & visible])


# -- traces -----------------------------------------------------------------------------------------------------


def trace(model: EmbeddingLayer | Encoder, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Trace one batch; past_length may be an array of one number, as in a file."""
    keywords: dict[str, Any] = dict(inputs)
    if "past_length" in keywords:
        keywords["past_length"] = int(np.asarray(keywords["past_length"]).item())
    return model.trace(keywords.pop("input_ids", None), **keywords)


def tokens_of(batch: Mapping[str, Array]) -> tuple[Array | None, Array]:
    """Return a batch's ids, and a mask that is True at tokens and False at padding, both (batch, seq)."""
    ids = batch.get("input_ids")
    shape = np.shape(batch["inputs_embeds"])[:-1] if ids is None else np.shape(ids)
    shape = shape if len(shape) == 2 else (1, *shape)
    mask = np.reshape(batch.get("attention_mask", np.ones(shape)), (shape[0], -1))[:, -shape[1] :] != 0
    return None if ids is None else np.reshape(ids, shape), np.asarray(mask)


def keys_of(traces: Mapping[str, Iterable[str]]) -> list[str]:
    """List the names of all kinds of batch in the order of computation; a name of only one kind is in its place too.

    >>> keys_of({"plain": {"a": 0, "c": 0}, "types": {"a": 0, "b": 0, "c": 0}})
    ['a', 'b', 'c']
    """
    order: list[str] = []
    for named in traces.values():
        place = 0
        for key in named:
            if key not in order:
                order.insert(place, key)
            place = order.index(key) + 1
    return order


# -- batches -----------------------------------------------------------------------------------------------------


def encoder_batches(encoder: Encoder) -> Traces:
    """Make a batch of every kind that the encoder takes: the input layer's, one token, and a long text."""
    kinds = {kind: batch for kind, batch in batches(encoder.embeddings).items() if "past_length" not in batch}
    kinds.pop("full_length", None)
    length = max([LONG, *(n + BEYOND for n in lengths(encoder.stack).values() if n <= FARTHEST)])
    if encoder.max_length is not None:
        length = encoder.max_length if encoder.max_length <= FARTHEST else min(length, encoder.max_length)
    kinds["long"] = {"input_ids": ids_of((1, length), encoder.embeddings, salt=5)}
    kinds["one_token"] = {"input_ids": kinds["plain"]["input_ids"][:1, :1]}
    return kinds


def lengths(stack: Stack) -> dict[str, int]:
    """Return the numbers of tokens beyond which a model computes differently: a window, an original length."""
    windows = [block.attention.window for block in stack.blocks]
    found = {f"a window that reaches {window} tokens": window + 1 for window in windows if window is not None}
    firsts = [] if stack.rotary is None else [rotation.original_length for rotation in stack.rotary.rotations.values()]
    return found | {f"an original length of {first} tokens": first for first in firsts if first is not None}


def batches(layer: EmbeddingLayer) -> Traces:
    """Make a batch of every kind that the layer takes: kind -> keywords of a call (past_length as a one-number array).

    plain; with a mask right_pad, left_pad, pads_inside_mask, mask_unlike_ids; without one pads_inside,
    right_pad_no_mask; inputs_embeds; types, languages, tasks; explicit_positions, full_length; cached and cached_mask.
    The ids come from integer arithmetic, the same on every machine.
    """
    longest = layer.max_length
    seq = LENGTH if longest is None else max(1, min(LENGTH, longest - PAST))
    ids = ids_of((SEQUENCES, seq), layer, salt=1)
    kinds: Traces = {"plain": {"input_ids": ids}}
    right, left, inside = (np.ones(ids.shape, np.int64) for _ in range(3))
    right[1, seq // 2 :] = left[1, : seq // 2] = inside[0, 1::3] = inside[1, ::2] = 0
    for kind, mask in {"right_pad": right, "left_pad": left, "pads_inside_mask": inside}.items():
        padded = np.where(mask == 1, ids, padding_id(layer))
        kinds[kind] = {"input_ids": padded, "attention_mask": mask}
        if kind != "left_pad":
            kinds[UNMASKED[kind]] = {"input_ids": padded}
    # the mask hides words and keeps padding: positions count by the mask or by the ids
    mask, padded = np.ones_like(ids), ids.copy()
    mask[0, 1::3], padded[1, ::3] = 0, padding_id(layer)
    kinds["mask_unlike_ids"] = {"input_ids": padded, "attention_mask": mask}
    numbers = _hash((*ids.shape, layer.steps[0].module.table.shape[1]), 2)
    kinds["inputs_embeds"] = {"inputs_embeds": (numbers % 2001 / 10000 - 0.1).astype(np.float32)}
    for step, module in layer.steps:
        if isinstance(step, Add):
            rows = _hash(ids.shape, 3) % min(3, module.table.shape[0])
            kinds[NAMED.get(step.ids, step.ids)] = {"input_ids": ids, step.ids: rows}
        elif isinstance(step, Positions):
            positions = module.table.shape[0] - step.extra
            scattered = np.stack([np.arange(seq)[::-1], *(_hash((SEQUENCES - 1, seq), 4) % positions)])
            scattered[-1, -1] = positions - 1
            kinds["explicit_positions"] = {"input_ids": ids, "position_ids": scattered}
            assert longest is not None  # there is a table of positions
            kinds["full_length"] = {"input_ids": ids_of((1, longest), layer, salt=5)}
            if not step.cached or (layer.side == "encoder" and "decoder" in layer.family.sides):
                continue
            kinds["cached"] = {"input_ids": ids, "past_length": np.array(PAST)}
            if step.rule == "mask":
                mask = np.ones((SEQUENCES, PAST + seq), np.int64)
                mask[1, : PAST - 1] = 0
                kinds["cached_mask"] = {**kinds["cached"], "attention_mask": mask}
    return kinds


def padding_id(layer: EmbeddingLayer) -> int:
    """Return the id of padding, or 0 if the config names none that has a row."""
    for step, _ in layer.steps:
        if isinstance(step, Positions) and step.rule == "padding":
            return step.padding(layer.config)
    pad = layer.config.get("pad_token_id")
    return pad if type(pad) is int and 0 <= pad < layer.steps[0].module.table.shape[0] else 0


def ids_of(shape: tuple[int, int], layer: EmbeddingLayer, salt: int) -> Array:
    """Make ids without padding; the table's last row is among them."""
    vocab, pad = layer.steps[0].module.table.shape[0], padding_id(layer)
    other = _hash(shape, salt) % max(1, vocab - 1)
    ids: Array = np.minimum(other + (other >= pad), vocab - 1)
    if pad != vocab - 1:
        ids[0, -1] = vocab - 1
    return ids


def _hash(shape: tuple[int, ...], salt: int) -> Array:
    """Make scattered integers of 31 bits, by multiplications that overflow."""
    index = np.arange(1, 1 + int(np.prod(shape)), dtype=np.uint64) + np.uint64(salt << 32)
    mixed = index * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray((mixed >> np.uint64(33)).astype(np.int64).reshape(shape))
