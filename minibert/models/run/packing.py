"""Token ids -> packed texts: the tokens of several sequences without padding, cut into tiles and pieces of attention.

The arguments of a call and the ids of texts become the same `Packed`: a whole batch, or a tile of it. All ids are
checked and completed here; later code never sees a wrong id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.fast import check_ids
from minibert.equations.input_layer import Array
from minibert.errors import Option, error_of
from minibert.families.family import Family
from minibert.families.parts.config import Config
from minibert.families.parts.steps import Add, Bound, Inputs, Lookup, Mask, Positions
from minibert.files.tokenizer import Encoded
from minibert.threads.kernels import Rows

from .attention import Masks, keys_of, masks_of

# Numbers in a block of an input layer. Threads with smaller blocks wait more often for the interpreter's lock.
TILE_NUMBERS = 1024 * 768
# A matrix product of more rows is no faster, takes more memory, and keeps other callers waiting longer.
TILE_TOKENS = 512  # approximate: SLACK allows a few more
TILE_ROWS = 1024  # for a model without blocks: only the rows have to fit into a cache
ONE_TILE = 128  # up to this many tokens are never cut
ENOUGH_TOKENS = 256  # tokens in a tile if threads have too few tiles to share; smaller tiles are slower
SHARES = 8  # few tokens are cut into at most this many tiles
SLACK = 1.25  # a tile may be this much larger, to end with a whole sequence
# Attention of a longer sequence is cut by queries: memory then grows with the length, not with the square. Each query
# has all its keys at once, so softmax needs no running sum, which would be faster by a tenth to a quarter only.
LONG = 1024  # tokens
QUERIES = 128  # queries of one piece; 64 and fewer are slower
SCORES = 1 << 17  # scores of one piece: they stay in the L2 cache
ONES = "attention_mask must hold 1 for a token and 0 for padding; an additive mask is not supported"
LONGEST_PAST = 2**31  # tokens; more than any cache holds, and sums stay below 64 bits


class Group(NamedTuple):
    """Some sequences of one length, side by side in a tile."""

    first: int  # the first row
    texts: Array  # the indices of the sequences in the batch
    length: int
    positions: Array | None  # positions of the tokens in each sequence, if padding is between them; else None
    rows: int  # rows of each sequence: tokens and padding rows
    unseen: int = 0  # the number of last tokens in each sequence that no token sees

    def of(self, x: Array) -> Array:
        """Return the tokens of the group: (rows, ...) -> (texts, length, ...), a view."""
        count = len(self.texts)
        found = x[self.first : self.first + count * self.rows].reshape(count, self.rows, *x.shape[1:])
        return found[:, : self.length]

    def part(self, start: int, stop: int) -> Group:
        """Return some of the sequences as a group."""
        return self._replace(first=self.first + start * self.rows, texts=self.texts[start:stop])


class Piece(NamedTuple):
    """One piece of attention, computed at once: some sequences of one length, some heads, some queries."""

    group: Group
    keys: Group  # the same sequences, with the earlier tokens of a cache
    heads: slice
    queries: slice
    visible: Mapping[int | None, slice]  # a block's window -> the keys that these queries see
    masks: Masks | None  # None: every query sees every key


class Packed(NamedTuple):
    """The tokens of some sequences without padding, the shortest sequence first; or a tile of them.

    inputs: all tokens as one long sequence, checked and completed. texts and lengths (texts,): the index of each
    sequence in the batch, and its number of tokens. positions (tokens,): each token's position in its sequence, None if
    all are 0, 1, 2, ... unseen (texts,): the number of last tokens that no token sees, None if there are none.
    """

    inputs: Inputs
    texts: Array
    lengths: Array
    positions: Array | None = None
    unseen: Array | None = None

    @property
    def ids(self) -> Array:
        """The id of each token."""
        ids: Any = self.inputs.ids["input_ids"]
        return np.asarray(ids[0])

    @property
    def starts(self) -> Array:
        """The first token of each sequence."""
        starts: Array = np.cumsum(self.lengths) - self.lengths
        return starts

    def where(self) -> tuple[Array, Array]:
        """Return each token's sequence in the batch and its position there."""
        positions = self.positions
        if positions is None:
            positions = np.arange(self.inputs.seq) - np.repeat(self.starts, self.lengths)
        return np.repeat(self.texts, self.lengths), positions

    def groups(self, gaps: bool = False, multiple: int = 1) -> list[Group]:
        """Return the sequences of each length as groups; gaps: also split by positions.

        multiple: the rows of each sequence are a multiple of this number.
        """
        kinds: list[Any] = self.lengths.tolist()
        unseen = [0] * len(kinds)
        positions: list[Array] = []
        if self.unseen is not None:
            unseen = self.unseen.tolist()
            kinds = list(zip(kinds, unseen, strict=True))
        if gaps and self.positions is not None:
            parts = np.split(self.positions, self.starts[1:])
            positions = [own if len(own) and own[-1] - own[0] != len(own) - 1 else own[:0] for own in parts]
            kinds = [(length, own.tobytes()) for length, own in zip(kinds, positions, strict=False)]
        found, first, start = [], 0, 0
        for _, same in groupby(kinds):
            stop, length = start + len(list(same)), int(self.lengths[start])
            own = positions[start] if positions and len(positions[start]) else None
            rows = -(-length // multiple) * multiple
            found.append(Group(first, self.texts[start:stop], length, own, rows, unseen[start]))
            first, start = first + (stop - start) * rows, stop
        return found

    def tiles(self, tokens: int | None = None) -> list[Packed]:
        """Cut into tiles of whole sequences, of about `tokens` tokens (None: the size by `tile_tokens`)."""
        if self.inputs.seq <= (ONE_TILE if tokens is None else tokens):
            return [self] * bool(len(self.texts))
        tokens = tile_tokens(self.inputs.seq) if tokens is None else tokens
        found, stop = [], 0
        for part in cuts(self.lengths, tokens):
            here = slice(stop, stop := stop + int(self.lengths[part].sum()))
            positions = None if self.positions is None else self.positions[here]
            unseen = None if self.unseen is None else self.unseen[part]
            inputs = self.inputs.tile(slice(0, 1), here)
            found.append(Packed(inputs, self.texts[part], self.lengths[part], positions, unseen))
        return found


def padded(count: int, rows: Rows, fewest: int = 1) -> int:
    """Return the number of rows after padding, `fewest` or more: see `Rows.fewest`.

    >>> [padded(count, Rows(total=4, wide=16)) for count in (0, 1, 5, 8, 9, 17, 27)]
    [0, 4, 8, 8, 16, 20, 32]
    """
    if not count:
        return 0
    count = max(count, fewest)
    count += -count % rows.total
    return count + (-count % rows.wide if count % rows.wide > rows.wide // 2 else 0)


class Layout(NamedTuple):
    """The rows of a tile in its matrix products: tokens and padding rows."""

    rows: int
    tokens: slice | Array  # the row of each token

    @classmethod
    def of(cls, lengths: Array, rows: Rows, fewest: int = 1) -> Layout:
        """Lay out sequences of these lengths one after another, on at least `fewest` rows."""
        tokens = int(lengths.sum())
        if rows.text == 1:
            return cls(padded(tokens, rows, fewest), slice(tokens))
        each = -(-lengths // rows.text) * rows.text
        before = np.cumsum(each) - each - (np.cumsum(lengths) - lengths)  # padding rows before each sequence
        return cls(padded(int(each.sum()), rows, fewest), np.arange(tokens) + np.repeat(before, lengths))

    def filled(self, x: Array) -> Array:
        """Scatter token values into padded rows: (tokens, ...) -> (rows, ...). Padding repeats the first token."""
        if len(x) == self.rows:
            return x
        y = np.empty((self.rows, *x.shape[1:]), x.dtype)
        y[slice(len(x), None) if isinstance(self.tokens, slice) else ...] = x[0]
        y[self.tokens] = x
        return y


class Preparation:
    """Checks and completes the inputs of one layer: the arguments of a call, or the ids of texts.

    Values that depend only on the layer are computed once.
    """

    def __init__(self, family: Family, config: Config, steps: Sequence[Bound], dtype: np.dtype[Any]) -> None:
        self._family, self._config, self._dtype = family, config, dtype
        self._vocab, self._width = steps[0].module.table.shape
        self._embeds_shape = f"(batch, seq, {self._width})"
        tables = [(each, module.table.shape[0], each.lowest()) for each, module in steps if isinstance(each, Lookup)]
        # all lookups except the word lookup: a step, the rows of its table, the smallest id
        self._steps = [each for each in tables if each[0].ids != "input_ids"]
        self._masks = [each for each, _ in steps if isinstance(each, Mask)]
        self._counted = any(isinstance(step, Positions) and step.rule == "mask" for step, _, _ in self._steps)
        self._reads_mask = bool(self._masks) or self._counted
        types = (step for step, _ in steps if isinstance(step, Add) and step.ids == "token_type_ids")
        self.adds_types = any(step.missing is not None for step in types)

    def __call__(
        self,
        input_ids: ArrayLike | None,
        given: Mapping[str, Any],
        attention_mask: ArrayLike | None = None,
        past_length: int = 0,
        inputs_embeds: ArrayLike | None = None,
    ) -> tuple[Inputs, bool]:
        """Return the checked inputs of one call, and whether a single sequence (seq,) was passed.

        Raises TypeError (floats, ragged lists, an argument this family has no use for), IndexError (an id past its
        table), ValueError (shapes that disagree, a sequence too long, both or neither of ids and inputs_embeds).
        """
        if (input_ids is None) == (inputs_embeds is None):
            found = "neither" if input_ids is None else "both"
            raise ValueError(f"pass input_ids (batch, seq) or inputs_embeds {self._embeds_shape}, found {found}")
        past_length = _count(past_length)
        if input_ids is not None:
            first = input_ids[0] if isinstance(input_ids, list) and input_ids else input_ids
            if isinstance(first, str | Mapping):
                found = "a text" if isinstance(first, str) else "a mapping"
                advice = "as in layer(**layer.tokenize(text)) or encoder.trace(**encoder.tokenize(text))"
                raise TypeError(f"input_ids must be integers, found {found}; tokenize a text first, {advice}")
            ids = check_ids(input_ids, self._vocab, "input_ids")
            single, shape = _batch_of(ids.shape, "input_ids", "(batch, seq)")
            inputs = Inputs(*shape, {"input_ids": ids.reshape(shape)})
        else:
            embeds = _numbers(inputs_embeds, "inputs_embeds", self._dtype)
            if embeds.ndim == 0 or embeds.shape[-1] != self._width:
                raise ValueError(f"inputs_embeds must be {self._embeds_shape}, found shape {embeds.shape}")
            single, shape = _batch_of(embeds.shape[:-1], "inputs_embeds", self._embeds_shape)
            inputs = Inputs(*shape, {}, embeds.reshape(*shape, self._width))
        mask = None
        if attention_mask is not None:
            mask = self._checked_mask(inputs, attention_mask, past_length)
        elif self._masks:
            mask = self._masks[0].default(inputs, self._config)
        inputs = inputs._replace(attention_mask=mask)
        self._take_ids(inputs, given, past_length)
        for name, value in given.items():
            if value is not None and name not in inputs.ids and not self._family.accepts(name):
                raise TypeError(f"{self._family.model_type} takes no {name} in its input layer; leave it out")
        if not self._masks:
            inputs = inputs._replace(attention_mask=None)  # already read for the positions; no step reads it
        return inputs, single

    def _checked_mask(self, inputs: Inputs, given: ArrayLike, past_length: int) -> Array | None:
        """Check the attention mask; return it only if a step uses it."""
        mask = _numbers(given, "attention_mask", self._dtype if self._reads_mask else None)
        mask = mask[None] if mask.ndim == 1 else mask
        # a mask that multiplies rows has their length; an unused mask may omit the cached tokens
        longest = inputs.seq if self._masks else inputs.seq + past_length
        if mask.ndim != 2 or mask.shape[0] != inputs.batch or mask.shape[1] not in (inputs.seq, longest):
            expected = f"({inputs.batch}, {longest}), as long as past and ids together"
            raise ValueError(f"attention_mask must be {expected}, found shape {mask.shape}")
        if self._reads_mask and not np.isin(mask, (0, 1)).all():
            raise ValueError(ONES)
        if self._counted and mask.shape[1] != inputs.seq + past_length:
            shapes = f"expected ({inputs.batch}, {inputs.seq + past_length}), found {mask.shape}"
            raise ValueError(f"attention_mask must cover the cached tokens too: {shapes}")
        return mask if self._reads_mask else None

    def _take_ids(self, inputs: Inputs, given: Mapping[str, Any], past_length: int) -> None:
        """Check all ids that the steps look up, or fill in the family's defaults."""
        shape = (inputs.batch, inputs.seq)
        for step, rows, lowest in self._steps:
            value = given.get(step.ids)
            if value is None:
                default: Any = step.default(inputs, self._config, past_length)
                if default is not None:
                    inputs.ids[step.ids] = default
                if isinstance(step, Positions) and inputs.seq:
                    end = default.stop if isinstance(default, slice) else int(default.max(initial=-1)) + 1
                    if end + step.extra > rows:
                        limit = rows - step.extra - step.first(self._config)
                        past = f" after {past_length} cached ones" if past_length else ""
                        says = f"a sequence of {inputs.seq} tokens{past} is too long: the position table ends at "
                        advice = f"{limit} tokens; shorten it, or tokenize with "
                        raise error_of(ValueError, says, advice, Option("truncation", True))
                continue
            ids = check_ids(value, rows - step.extra, step.ids, lowest)
            ids = ids[None] if ids.ndim == 1 else ids
            if ids.shape != shape and not (ids.ndim == 2 and ids.shape == (1, inputs.seq)):
                raise ValueError(f"{step.ids} must be {shape} as the ids are, found shape {np.shape(value)}")
            inputs.ids[step.ids] = ids

    def pack(self, encoded: Sequence[Encoded]) -> Packed:
        """Join the ids of texts, and complete them as a call completes sequences without padding.

        Types are left out if the layer does not use them. Raises IndexError that names the text and the position.
        """
        unseen = None
        if any(each.unseen for each in encoded):
            if self._reads_mask:
                why = "since its input layer reads the mask"
                raise ValueError(f"tokens that no token sees are not computed in this family, {why}")
            unseen = np.array([each.unseen for each in encoded])
        if len(encoded) == 1:  # nothing to sort or join: a tenth of the time of one short text
            ids, ordered = np.array(encoded[0].input_ids, np.int64), encoded
            texts, lengths = np.zeros(1, np.int64), np.array([len(ids)])
        else:
            lengths = np.fromiter((len(each.input_ids) for each in encoded), np.int64, len(encoded))
            texts = np.argsort(lengths, kind="stable")
            if unseen is not None:  # sort equal numbers next to each other
                texts = np.lexsort((unseen, lengths))
                unseen = unseen[texts]
            lengths, ordered = lengths[texts], [encoded[i] for i in texts.tolist()]
            ids = _joined_ids([each.input_ids for each in ordered])
        inputs = Inputs(1, len(ids), {"input_ids": ids[None]})
        packed = Packed(inputs, texts, lengths, unseen=unseen)
        _check(packed, ids, self._vocab, "input_ids")
        alike = [inputs]  # the same inputs, one batch for each length
        if len(texts) > 1:
            groups = packed.groups()
            alike = [Inputs(len(each.texts), each.length, {"input_ids": each.of(ids)}) for each in groups]
        if self._masks:
            masks = [self._masks[0].default(each, self._config) for each in alike]
            alike = [each._replace(attention_mask=mask) for each, mask in zip(alike, masks, strict=True)]
            joined = masks[0] if len(texts) == 1 else _joined(masks, packed)
            packed = packed._replace(inputs=inputs._replace(attention_mask=joined))
        types = self.adds_types and any(each.token_type_ids is not None for each in ordered)
        for step, rows, lowest in self._steps:
            if types and step.ids == "token_type_ids":
                found = _joined_ids([each.token_type_ids or [0] * len(each.input_ids) for each in ordered])
                _check(packed, found, rows - step.extra, step.ids, lowest)
                inputs.ids[step.ids] = found[None]
                continue
            defaults = [step.default(each, self._config, 0) for each in alike]
            default = defaults[0] if len(texts) == 1 else _joined(defaults, packed)
            if default is not None:
                inputs.ids[step.ids] = default
        return packed


def _joined_ids(rows: list[list[int]]) -> Array:
    return np.fromiter(chain.from_iterable(rows), np.int64)


def _check(packed: Packed, ids: Array, rows: int, name: str, first: int = 0) -> None:
    try:
        check_ids(ids, rows, name, first)
    except IndexError:
        token = int(np.flatnonzero((ids < first) | (ids >= rows))[0])
        i = int(np.searchsorted(packed.starts, token, side="right")) - 1
        check_ids(ids[token], rows, f"{name}[{packed.texts[i]}, {token - packed.starts[i]}]", first)
        raise


def _joined(defaults: Sequence[Any], packed: Packed) -> Any:
    """Join default ids, one value for each length: a number, arrays, or slices that differ only in their end."""
    if not defaults or defaults[0] is None or isinstance(defaults[0], int):
        return defaults[0] if defaults else None
    if isinstance(defaults[0], slice):
        return (packed.where()[1] + defaults[0].start)[None]
    return np.concatenate([each.reshape(-1) for each in defaults])[None]


def _count(past_length: Any) -> int:
    """Return any integer as an int. Raises TypeError for a bool or float, ValueError beyond the limits."""
    if isinstance(past_length, bool) or not isinstance(past_length, int | np.integer):
        raise TypeError(f"past_length must be an integer, found {type(past_length).__name__} {past_length!r}")
    if not 0 <= past_length < LONGEST_PAST:
        raise ValueError(f"past_length must be >= 0 and no more than a cache can hold, found {past_length}")
    return int(past_length)


def _batch_of(shape: tuple[int, ...], name: str, expected: str) -> tuple[bool, tuple[int, int]]:
    if len(shape) == 2:
        return False, (shape[0], shape[1])
    if len(shape) == 1:
        return True, (1, shape[0])
    raise ValueError(f"{name} must be {expected} or one sequence of it, found {len(shape)} axes of shape {shape}")


def _numbers(value: Any, name: str, dtype: np.dtype[Any] | None) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TypeError(f"{name}: every row must have the same length ({error})") from None
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be numbers, found {array.dtype}")
    return array if dtype is None else array.astype(dtype, copy=False)


def unpadded(inputs: Inputs, keep: Array, texts: Array | None = None) -> Packed:
    """Pack the tokens of a call's checked inputs without padding: rows of the input layer do not depend on each other.

    keep (batch, seq): False for padding. texts: some sequences of one length; None: all, the shortest first.
    """
    lengths = np.count_nonzero(keep, axis=1)
    texts = np.argsort(lengths, kind="stable") if texts is None else texts
    if inputs.batch == 1 and keep.all():  # already one long sequence
        return Packed(inputs, texts, lengths, np.arange(inputs.seq))
    members, positions = np.nonzero(keep[texts])
    rows = texts[members]

    def of(ids: Any) -> Any:
        if isinstance(ids, slice):
            return (positions + ids.start)[None]
        if ids is None or isinstance(ids, int):
            return ids
        return np.broadcast_to(ids, (inputs.batch, inputs.seq, *ids.shape[2:]))[rows, positions][None]

    ids = {name: of(each) for name, each in inputs.ids.items()}
    packed = Inputs(1, len(rows), ids, of(inputs.inputs_embeds), of(inputs.attention_mask))
    return Packed(packed, texts, lengths[texts], positions)


# -- cutting into tiles and pieces -------------------------------------------------------------------------------


def tile_tokens(tokens: int) -> int:
    """Return the tile size for a call. The size does not depend on the number of threads, so results are bitwise equal.

    The target is one tile or an even number of tiles: on two threads three tiles take as long as four.

    >>> [tile_tokens(tokens) for tokens in (100, 139, 410, 600, 4000, 100_000)]
    [100, 70, 205, 150, 500, 512]
    """
    tiles = 1 if tokens <= ONE_TILE else min(SHARES, 2 * -(-tokens // (2 * ENOUGH_TOKENS)))
    return min(TILE_TOKENS, max(1, -(-tokens // tiles)))


def cuts(lengths: Array, tokens: int) -> Iterator[slice]:
    """Cut consecutive sequences into equal parts of about `tokens` tokens, or of one longer sequence.

    A part of several sequences has at most `SLACK` times as many tokens.

    >>> [(part.start, part.stop) for part in cuts(np.array([2, 2, 3, 9]), 5)]
    [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    left = -(-total // max(1, tokens))  # the parts that are left
    start = before = 0
    while start < len(ends):
        aim = before + (total - before) / max(1, left)
        stop = int(np.searchsorted(ends, aim, side="right"))  # the end nearer to the target, before or after it
        if stop < len(ends) and ends[stop] - aim < aim - (ends[stop - 1] if stop else 0):
            stop += 1
        stop = max(start + 1, min(stop, int(np.searchsorted(ends, before + SLACK * tokens, side="right"))))
        yield slice(start, stop)
        start, before, left = stop, int(ends[stop - 1]), left - 1


def pieces_of(
    groups: Sequence[Group],
    heads: int,
    causal: bool,
    windows: set[int | None],
    dtype: np.dtype[Any],
    past: int = 0,
    whole: bool = False,
) -> list[Piece]:
    """Cut attention into pieces of few scores: by texts and heads, and a long sequence by queries too.

    past: how many earlier tokens a cache has. whole: compute all scores of a group together.
    """
    found, masked = [], causal or windows != {None}
    for group in groups:
        length = past + group.length - group.unseen  # the number of keys
        positions = np.arange(past + group.length) if group.positions is None else group.positions
        step = QUERIES if length > LONG and not whole else max(1, group.length)
        masks = masks_of(positions, past, causal, dtype, len(windows)) if masked else None
        texts = max(1, len(group.texts))
        together = texts if whole else max(1, SCORES // (heads * group.length**2))
        for some in range(0, texts, together):
            own = group if together >= texts else group.part(some, some + together)
            keys = own._replace(length=length, rows=own.rows + past)
            numbers = len(own.texts) * heads * min(step, group.length) * length
            heads_step = heads if whole else -(-heads // -(-numbers // SCORES))
            for start in range(0, max(1, group.length), step):
                queries = slice(start, min(start + step, group.length))
                visible: dict[int | None, slice] = {None: slice(0, length)}
                if masked:
                    visible = {window: keys_of(queries, past, length, causal, window) for window in windows}
                for first in range(0, heads, heads_step):
                    some_heads = slice(first, first + heads_step)
                    found.append(Piece(own, keys, some_heads, queries, visible, masks))
    return found
