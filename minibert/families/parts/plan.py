"""A model's formulas as a list of steps: `verify` computes them plainly, one padded batch, and `explain` reads them.

First what a plan is and the steps that several parts share, then the plan of an input layer, last the terms of
scores. A block's plan is in `bound_blocks`, a head's in `heads`. A mistake of `verify` is another step in the place of
one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from minibert.equations import attention_positions, fast
from minibert.equations import blocks as equations
from minibert.equations.input_layer import Array, layer_norm, lookup, project, scale

from .config import Config
from .modules import Embedding
from .steps import Bound, Inputs, Lookup, Mask, Norm, Positions, Project, Scale, Tokens

if TYPE_CHECKING:
    from .attention_schemes import LogBuckets, RelativeBias

REAL = ".real"  # bool (batch, seq): False for padding
IDS = ".ids"  # the batch's ids (batch, seq); None if inputs_embeds was passed
GIVEN = ".given"  # the arguments of a call as `Inputs`, and the number of tokens in a cache
PIECES = ".pieces"  # rows of which each block receives a piece (batch, seq, blocks, width): see `Pieces`
POSITIONS = "position_ids"
TokenPositions = slice | Array  # neighbours, or with gaps between them
Term = Union["RelativeTerm", "PositionTerm"]


class Step(NamedTuple):
    """One formula: `values[key] = formula(*(values[name] for name in of))`.

    key, of   the name of its value in a trace, and the names of its inputs; a name that begins with "." is not traced
    kind      dense, norm, activation; of an input layer ids, positions, rows, embeds, add, scale, rows of padding, and
              own, a user's; of attention cut, view, split, rotation, growth, share, term, scores, keep, mask, masked,
              softmax, gather, join; pieces, piece; product, sum, factor, state; of a head take, logits
    part      the bound part that it belongs to: a module, an attention, a residual
    says      the formula in words; {0}, {1} are its inputs
    function  the function of `equations` that it calls
    """

    key: str
    kind: str
    formula: Callable[..., Any]
    of: tuple[str, ...]
    part: Any = None
    says: str = "{0}"
    function: Callable[..., Any] | None = None

    @property
    def hidden(self) -> bool:
        """Whether the value is left out of a trace."""
        return self.key.startswith(".")


Plan = Mapping[str, Step]
Trace = Mapping[str, Array]  # name of an intermediate -> its values


def by_key(steps: Iterable[Step]) -> dict[str, Step]:
    """Return a plan of steps in order."""
    return {step.key: step for step in steps}


def value(key: str, plan: Plan, values: MutableMapping[str, Any]) -> Any:
    """Compute one value, and its inputs if `values` do not have them yet."""
    if key not in values:
        step = plan[key]
        values[key] = step.formula(*(value(name, plan, values) for name in step.of))
    return values[key]


def run(plan: Plan, values: MutableMapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Compute all that a trace has, in order; a step whose value is None is left out."""
    for key, step in plan.items():
        if not step.hidden and (x := value(key, plan, values)) is not None:
            yield key, x


def mapped(path: str, module: Any, x: str) -> Step:
    """Return the step of a linear map."""
    stored, bias = "weight" if module.transposed else "weight^T", " + bias" if module.bias is not None else ""
    return Step(path, "dense", module, (x,), module, f"{module!r}: {{0}} @ {stored}{bias}", equations.linear)


def normed(path: str, module: Any, x: str) -> Step:
    """Return the step of a norm of each row."""
    plus = getattr(module, "plus", None)
    function: Callable[..., Any] = layer_norm if plus is None else equations.rms_norm
    if plus is None:
        bias = " + bias" if module.bias is not None else ""
        says = f"(x - mean) / sqrt(variance + {module.eps}) * weight{bias}"
    else:
        weight = f"({plus:g} + weight)" if plus else "weight"
        says = f"x / sqrt(mean(x^2) + {module.eps}) * {weight}"
    return Step(path, "norm", module, (x,), module, f"{says}, x = {{0}}, row by row", function)


def activated(path: str, formula: Callable[[Array], Array], x: str) -> Step:
    """Return the step of an activation; its formula in words is that of its docstring."""
    _, _, docstring = (formula.__doc__ or "").partition("`")
    says = f"{docstring.partition('`')[0]}, x = {{0}}, each number by itself"
    return Step(path, "activation", formula, (x,), formula, says, formula)


# -- an input layer ----------------------------------------------------------------------------------------------


def given(batch: Mapping[str, Any]) -> tuple[Inputs, int]:
    """Return the keywords of a checked call as `Inputs`, and the number of tokens in a cache.

    One sequence becomes a batch.
    """
    ids: dict[str, Any] = {name: np.atleast_2d(x) for name, x in batch.items() if name.endswith(("_ids", "langs"))}
    embeds, mask = batch.get("inputs_embeds"), batch.get("attention_mask")
    if embeds is not None:
        embeds = embeds[None] if np.ndim(embeds) == 2 else embeds
    shape = np.shape(ids["input_ids"] if embeds is None else embeds)
    inputs = Inputs(shape[0], shape[1], ids, embeds, np.atleast_2d(mask) if mask is not None else None)
    return inputs, int(np.asarray(batch.get("past_length", 0)).item())


def layer_plan(bound: Sequence[Bound], config: Config) -> Plan:
    """Return the steps of a bound layer. The value of a step is None if a batch has no such intermediate."""
    steps, x = list[Step](), list[str]()  # x: keys of the rows that are added before the next step
    for step, module in bound:
        if isinstance(step, Lookup):
            steps += _looked_up(step, module, config)
            x.append(step.key)
            if isinstance(step, Tokens):
                x = [_or_embeds(steps, step.key, module.scale)]
        elif isinstance(step, Scale) and not step.embeds:
            words = next(planned.key for planned in steps if planned.kind == "rows")
            steps.append(_scaled(step.path, module, words))
            x = [_or_embeds(steps, step.path, module)]
        else:
            # a user's own two norms have two sums; a trace shows one
            visible = isinstance(step, Norm) and all(planned.key != "sum" for planned in steps)
            total = _sum(steps, "sum" if visible else f".sum of {step.path}", x, visible)
            steps.append(_after_sum(step, module, config, total))
            x = [step.path]
    if all(planned.key != "sum" for planned in steps):
        _sum(steps, "sum", x, True)
    return by_key(sorted(steps, key=lambda step: step.kind != "positions"))  # a trace begins with these


def _sum(steps: list[Step], key: str, names: Sequence[str], visible: bool) -> str:
    if len(names) == 1 and not visible:
        return names[0]
    steps.append(Step(key, "add", added, tuple(names)))
    return key


def _or_embeds(steps: list[Step], key: str, factor: float) -> str:
    """Add the step that takes the caller's inputs_embeds if they were passed, and return its key."""

    def with_embeds(call: tuple[Inputs, int], rows: Array | None) -> Array | None:
        return rows if rows is not None else call[0].inputs_embeds

    steps.append(Step(f".{key} or embeds", "embeds", with_embeds, (GIVEN, key), factor, "{1}"))
    return f".{key} or embeds"


def _looked_up(step: Lookup, module: Embedding, config: Config) -> Iterator[Step]:
    if isinstance(step, Positions):
        ids = POSITIONS
        yield Step(ids, "positions", partial(positions, step.default, config), (GIVEN,), step)
    else:
        ids = f".ids of {step.key}"
        yield Step(ids, "ids", partial(passed, step, config), (GIVEN,), step)
    offset = f" + {step.extra}" if step.extra else ""
    factor = f", times {module.scale:.6g}" if module.scale != 1.0 else ""
    says = f"{module!r}: the row of each {kind_of(step.ids)}{offset}{factor}"
    yield Step(step.key, "rows", partial(looked_up, module, step.extra), (ids,), Bound(step, module), says, lookup)


def kind_of(ids: str) -> str:
    """Name one of these ids: "id", "position", "type"."""
    short = {"input_ids": "id", "token_type_ids": "type", "langs": "language"}
    return short.get(ids, ids.removesuffix("_ids").replace("_", " "))


def _scaled(path: str, factor: float, x: str) -> Step:
    return Step(path, "scale", partial(times, factor), (x,), factor, f"times {factor:.6g}", scale)


def _after_sum(step: Any, module: Any, config: Config, x: str) -> Step:
    if isinstance(step, Norm):
        return normed(step.path, module, x)
    if isinstance(step, Project):
        return mapped(step.path, module, x)._replace(function=project)
    if isinstance(step, Scale):
        return _scaled(step.path, module, x)
    if isinstance(step, Mask):
        says = "times the attention mask, so that rows of padding become zero"
        return Step(step.path, "rows of padding", partial(hidden, step, config), (x, GIVEN), step, says)
    apply = step.apply  # a user's own
    return Step(step.path, "own", lambda x, call: apply(module, call[0], x.copy()), (x, GIVEN), module)


def passed(step: Lookup, config: Config, call: tuple[Inputs, int]) -> Array | None:
    """Return the ids of a lookup as they were passed, or the family's default."""
    inputs, past = call
    ids: Any = inputs.ids.get(step.ids)
    ids = step.default(inputs, config, past) if ids is None else ids
    return None if ids is None else np.broadcast_to(ids, (inputs.batch, inputs.seq))


def positions(count: Callable[[Inputs, Config, int], Any], config: Config, call: tuple[Inputs, int]) -> Array:
    """Return the position of each token, passed or counted: (batch, seq), or (1, seq) for all texts."""
    inputs, past = call
    ids = inputs.ids.get(POSITIONS)
    ids = count(inputs, config, past) if ids is None else ids
    return np.arange(ids.start, ids.stop)[None] if isinstance(ids, slice) else np.asarray(ids)


def looked_up(module: Embedding, extra: int, ids: Array | None) -> Array | None:
    """Return the row of each id. A port's positions may be beyond the table: the nearest row is then used."""
    if ids is None:
        return None
    rows = module.table.rows(np.clip(ids + extra, 0, module.table.shape[0] - 1))
    return rows if module.scale == 1.0 else scale(rows, module.scale)


def times(factor: float, x: Array | None) -> Array | None:
    """Return x times the layer's factor."""
    return None if x is None else scale(x, factor)


def added(*rows: Array | None) -> Array:
    """Add rows one after the other; types may be missing."""
    return np.asarray(reduce(np.add, [x for x in rows if x is not None]))


def hidden(step: Mask, config: Config, x: Array, call: tuple[Inputs, int]) -> Array:
    """Return x with zeros in padding rows."""
    inputs, _ = call
    mask = step.default(inputs, config) if inputs.attention_mask is None else inputs.attention_mask
    return x if mask is None else np.asarray(x * mask[..., None].astype(x.dtype))


# -- terms of scores: what attention adds to `scale * q @ k^T`. A row names their makers: Attention(terms=...) ---------


class RelativeTerm(NamedTuple):
    """A learned number for each head and distance (T5, MPNet). `PositionTerm` has the same names.

    scheme  the numbers by distance: `shared` is computed once for all terms of one scheme
    first   block 0's scheme, if each block has another
    block   the number of its block
    name    in the field's words; `says` is its place in the formula
    alone   it depends on positions alone, and is the same for all texts and all blocks with its scheme
    """

    scheme: RelativeBias
    first: RelativeBias | None = None
    block: int = 0
    name: str = "relative bias"
    says: str = "the learned bias of the distance"
    alone: bool = True

    def shared(self, length: int) -> Array:
        """Return the bias of all blocks up to a length: (heads, query, key), all rows views of one for each head."""
        last = max(length, 1) - 1  # the token that sees each distance once
        by_distance = self.scheme.relative_bias(1, 2 * last + 1, last)[:, 0]
        return sliding_window_view(by_distance, last + 1, axis=1)[:, ::-1]

    def piece(
        self, shared: Array, q: Array, k: Array, heads: slice, queries: TokenPositions, keys: TokenPositions
    ) -> Array:
        """Return the term of some heads, queries and keys; q and k are (texts, heads, query or key, head_dim)."""
        some = shared[heads]
        return some[:, queries, keys] if isinstance(queries, slice) else some[:, queries[:, None], keys]

    def plain(self, q: Array, k: Array) -> Array:
        """Return the term of all heads, queries and keys: (batch, heads, seq, head_dim) -> (heads, query, key)."""
        return self.shared(q.shape[2])

    def plan(self, prefix: str, q: str, k: str) -> Iterator[Step]:
        """Yield the term's steps, from the names of queries and keys; the last key is `prefix` and the term's name."""
        yield Step(prefix + self.name, "term", self.plain, (q, k), self, self.says)


def relative_term(context: Any) -> RelativeTerm:
    """Return the term of the input row's scheme, at a `block_parts.BindContext`."""
    return RelativeTerm(context.scheme, block=context.i)


class PositionTerm(NamedTuple):
    """Scores of queries, or keys, with the rows of distances (DeBERTa).

    map       the map of the rows: that of the keys if queries look at them, or the other way round
    mapped    returns the mapped rows times `scale`, (heads, rows, head_dim); computed once
    of_keys   the keys look at them
    backward  the distances have the wrong direction
    """

    scheme: LogBuckets
    map: Any
    mapped: Callable[[], Array]
    heads: int
    scale: float
    of_keys: bool
    name: str
    says: str
    backward: bool = False
    alone: bool = False

    def shared(self, length: int) -> Array:
        """Return the row of each distance key - query, from 1 - length to length - 1."""
        return np.concatenate(
            [self.scheme.relative_positions(length, 1)[:0:-1, 0], self.scheme.relative_positions(1, length)[0]]
        )

    def piece(
        self, shared: Array, q: Array, k: Array, heads: slice, queries: TokenPositions, keys: TokenPositions
    ) -> Array:
        """Return the same piece as `RelativeTerm.piece`. q, or k, times all distances is looked up without a copy."""
        rows, middle = self.mapped()[heads], len(shared) // 2  # the place of distance 0
        if not isinstance(queries, slice) or not isinstance(keys, slice):
            distances = np.asarray(keys) - np.asarray(queries)[:, None]
            return self._scores(q, k, rows, shared[distances + middle], 1.0)
        places = shared[keys.start - queries.stop + 1 + middle : keys.stop - queries.start + middle]
        if self.of_keys:
            return fast.by_distance(k @ rows[:, places[::-1]].swapaxes(1, 2), q.shape[2]).swapaxes(2, 3)
        return fast.by_distance(q @ rows[:, places].swapaxes(1, 2), k.shape[2])

    def plain(self, q: Array, k: Array, rows: Array) -> Array:
        """Return the term of all heads, queries and keys, from the mapped rows (rows, dim)."""
        places = self.scheme.relative_positions(q.shape[2], k.shape[2])
        return self._scores(q, k, equations.split_heads(rows, self.heads), places.T if self.backward else places,
                            self.scale)  # fmt: skip

    def _scores(self, q: Array, k: Array, rows: Array, places: Array, factor: float) -> Array:
        if self.of_keys:
            return attention_positions.position_to_content(k, rows, places, factor)
        return attention_positions.content_to_position(q, rows, places, factor)

    def plan(self, prefix: str, q: str, k: str) -> Iterator[Step]:
        """Yield the term's steps: the rows of distances, their norm and their map, then the term."""
        table = f"{prefix}distances"
        yield Step(table, "table", partial(np.asarray, self.scheme.table), (), self, "the rows of distances")
        if self.scheme.norm is not None:
            yield normed(f"{prefix}normed distances", self.scheme.norm, table)
            table = f"{prefix}normed distances"
        yield mapped(f"{prefix}{self.name} rows", self.map, table)
        yield Step(prefix + self.name, "term", self.plain, (q, k, f"{prefix}{self.name} rows"), self, self.says)
