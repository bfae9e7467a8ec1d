"""Blocks bound to a checkpoint: their modules by path, and their plans. `block_parts` makes them.

All plans of a block's parts are in one file, since a block's plan is read from part to part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.equations import activations
from minibert.equations import blocks as equations
from minibert.equations.activations import Activation
from minibert.equations.fast import PANEL, Panels
from minibert.equations.input_layer import Array
from minibert.files.tables import ScratchBuffer, forget, map_of

from .config import Config
from .modules import Linear

if TYPE_CHECKING:
    from .plan import Step, Term

Modules = dict[str, Any]  # path -> Linear, a norm or the activation, in the order of computation
# the name in config.json -> the equation
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": activations.gelu,
    "gelu_python": activations.gelu,
    "gelu_new": activations.gelu_tanh,
    "gelu_fast": activations.gelu_tanh,
    "gelu_accurate": activations.gelu_tanh,
    "gelu_pytorch_tanh": activations.gelu_tanh,
    "gelu_python_tanh": activations.gelu_tanh,
    "relu": activations.relu,
    "silu": activations.silu,
    "swish": activations.silu,
    "quick_gelu": activations.quick_gelu,
    "tanh": activations.tanh,
    "relu6": activations.relu6,
    "leaky_relu": activations.leaky_relu,
    "sigmoid": activations.sigmoid,
    "linear": activations.identity,
}
# a class of torch.nn, made without arguments -> the equation: a sentence model's folder has the name of the class
TORCH: Mapping[str, Activation] = {
    "Identity": activations.identity,
    "Tanh": activations.tanh,
    "ReLU": activations.relu,
    "GELU": activations.gelu,
    "SiLU": activations.silu,
    "Sigmoid": activations.sigmoid,
    "LeakyReLU": activations.leaky_relu,
    "ReLU6": activations.relu6,
    "Softmax": equations.softmax,
}
Key = str | Callable[[Config], str]  # a config key of an activation, or a function that returns its name


def torch_class(path: Any) -> str:
    """Return the class of torch.nn at a path that a folder names, else ""; nothing is imported."""
    return str(path).rpartition(".")[2] if str(path).startswith("torch.nn.") else ""


def activation_name(config: Config, key: Key) -> Any:
    """Return the name of an activation in config.json; it may be of any type."""
    return config.get(key) if isinstance(key, str) else key(config)


def activation_of(config: Config, key: Key) -> Activation:
    """Return the equation that the config names. Raises CheckpointError for an unknown name."""
    name = activation_name(config, key)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        named = repr(key) if isinstance(key, str) else "the activation"
        raise config.refused(f"{named} must be one of {', '.join(ACTIVATIONS)}, found {name!r}")
    return ACTIVATIONS[name]


def fills_panels(linear: Linear, halved: bool) -> bool:
    """Return whether a weight can be split into panels; a weight that is converted at each use cannot.

    With `halved`, each half of the weight is one map.
    """
    return not linear.stored and linear.dtype == np.float32 and not linear.shape[0] % (PANEL * (1 + halved))


def panel_numbers(linear: Linear) -> int:
    """Count the numbers of a weight's whole panels. The last outputs of a word table may fill none."""
    outputs, width = linear.shape
    return outputs // PANEL * PANEL * width


def lay_out(maps: Sequence[Linear], memory: Array | None) -> None:
    """Split the weight that these maps share into panels: a copy in `memory`, or views if it is column-major."""
    weight = maps[0].matrix(ScratchBuffer())
    panels = Panels.of(weight, memory)
    if memory is not None and map_of(weight):
        forget(weight)
    for linear in maps:
        linear.panels = panels


class BoundAttention(NamedTuple):
    """Attention bound to a checkpoint: the paths of its modules, and the other names in a trace."""

    maps: tuple[str, ...]
    norms: tuple[str, ...]  # norms of queries, keys and values; "" for none
    scores: str
    probabilities: str
    context: str
    output: str
    heads: int
    key_heads: int
    head_dim: int
    scale: float
    window: int | None
    rotated: bool
    layer_type: str | None
    heads_first: bool  # the output of the norms in the reference
    terms: tuple[Term, ...] = ()  # they are added to the scores

    @property
    def transposed_in_reference(self) -> tuple[str, ...]:
        """List the paths whose output in the reference has the second and the third axis exchanged."""
        return self.norms if self.heads_first else ()

    @property
    def qkv_splits(self) -> tuple[int, int]:
        """Return the first columns of keys and of values if one map holds queries, keys and values."""
        queries = self.heads * self.head_dim
        return queries, queries + self.key_heads * self.head_dim

    def plan(self, x: str, i: int, modules: Modules, stack: Any) -> Iterator[Step]:
        """Yield the steps of block i's attention: queries, keys and values, scores, probabilities, weighted sum."""
        from minibert.equations import gated_blocks
        from minibert.equations.rotary import query_factor, rotate

        from .plan import REAL, Step, mapped, normed

        prefix, projections = f".{i}.", self.maps
        for path in self.maps:
            yield mapped(path, modules[path], x)
        if len(self.maps) == 1:
            projections = tuple(f"{prefix}{letter} cut" for letter in "qkv")
            for number, key in enumerate(projections):
                yield Step(key, "cut", partial(_cut, self.qkv_splits, number), (self.maps[0],), self, "qkv"[number])
        names, ends = list[str](), list[str]()
        for letter, last, norm in zip("qkv", projections, self.norms, strict=True):
            key, heads = f"{prefix}{letter}", self.heads if letter == "q" else self.key_heads
            names.append((norm or last).rpartition(".")[2].removesuffix(" cut"))
            if norm:
                view = partial(_in_heads, self.head_dim)
                yield Step(f"{key} rows", "view", view, (last,), self, "each head of {0}")
                yield normed(norm, modules[norm], f"{key} rows")
                yield Step(last := f"{key} normed", "view", lambda x: x.reshape(*x.shape[:2], -1), (norm,), self)
            split = partial(equations.split_heads, heads=heads)
            yield Step(key, "split", split, (last,), self, function=equations.split_heads)
            last = key
            if self.rotated and letter != "v":
                turn = partial(rotated, stack.rotary, self.layer_type)
                yield Step(f"{key} rotated", "rotation", turn, (last,), self, function=rotate)
                last = f"{key} rotated"
            if letter == "q" and self.rotated and stack.rotary.growth:
                says = "{0} times 1 + beta ln(1 + floor(position / length))"
                yield Step(f"{key} grown", "growth", partial(grown, stack.rotary), (last,), self, says, query_factor)
                last = f"{key} grown"
            if heads < self.heads:
                share = partial(gated_blocks.share_heads, heads=self.heads)
                yield Step(f"{key} shared", "share", share, (last,), self, function=gated_blocks.share_heads)
                last = f"{key} shared"
            ends.append(last)
        q, k, v = ends
        for term in self.terms:
            yield from term.plan(prefix, q, k)
        added = tuple(prefix + term.name for term in self.terms)
        yield Step(self.scores, "scores", partial(scored, self.scale), (q, k, *added), self,
                   self._scores_formula(*names[:2]), equations.attention_scores)  # fmt: skip
        visible = None if self.window is None else equations.visible
        mask = partial(visibility_mask, stack.causal, self.window)
        yield Step(f"{prefix}keep", "keep", mask, (REAL,), self, function=visible)
        yield Step(
            f"{prefix}mask", "mask", hidden_by, (f"{prefix}keep", self.scores), self, function=equations.additive_mask
        )
        yield Step(f"{prefix}masked", "masked", np.add, (self.scores, f"{prefix}mask"), self)
        masked = ", later tokens masked" if stack.causal else ""
        masked += "" if self.window is None else f", tokens further than {self.window} away masked"
        yield Step(self.probabilities, "softmax", equations.softmax, (f"{prefix}masked",), self,
                   f"softmax(scores){masked}: the attention weights of each row's token; their sum is 1",
                   equations.softmax)  # fmt: skip
        yield Step(f"{prefix}gathered", "gather", np.matmul, (self.probabilities, v), self)
        yield Step(self.context, "join", equations.join_heads, (f"{prefix}gathered",), self,
                   f"probabilities @ {names[2]} in each head, all {self.heads} heads side by side",
                   equations.join_heads)  # fmt: skip
        yield mapped(self.output, modules[self.output], self.context)

    def _scores_formula(self, q: str, k: str) -> str:
        terms = "".join(f" + {term.says}" for term in self.terms)
        of_root = math.isclose(self.scale, 1 / math.sqrt(self.head_dim))
        root = f", 1 / sqrt({self.head_dim}) = {self.scale:.6g}" if of_root else ""
        rotation = ", both rotated by their token's position" if self.rotated else ""
        rotation += f" as {self.layer_type} says" if self.layer_type else ""
        return f"{self.scale:.6g} * {q} @ {k}^T{terms}{root}{rotation}"


def _cut(splits: int | tuple[int, int], number: int, x: Array) -> Array:
    return np.split(x, splits, axis=-1)[number]


def _in_heads(head_dim: int, x: Array) -> Array:
    return x.reshape(*x.shape[:2], -1, head_dim)


def rotated(rotary: Any, layer_type: str | None, x: Array) -> Array:
    """Rotate queries or keys by the angles of their positions: (batch, heads, seq, head_dim)."""
    from minibert.equations.rotary import rotate

    cos, sin = rotary.rotary(np.arange(x.shape[-2]), layer_type)
    return rotate(x, cos, sin, rotary.pairing)


def grown(rotary: Any, x: Array) -> Array:
    """Multiply rotated queries by the factor of their positions: (batch, heads, seq, head_dim)."""
    return np.asarray(x * rotary.query_factor(np.arange(x.shape[-2]))[:, None].astype(x.dtype))


def scored(scale: float, q: Array, k: Array, *terms: Array) -> Array:
    """Return `scale * q @ k^T` plus the terms."""
    return sum(terms, equations.attention_scores(q, k, scale))


def visibility_mask(causal: bool, window: float | None, real: Array, ahead: int = 0) -> Array:
    """Return which keys are visible, bool (batch, 1, query or 1, key); `ahead`: how many later tokens a token sees."""
    visible, positions = real[:, None, None, :], np.arange(real.shape[1])
    if causal:
        visible = visible & np.tri(len(positions), k=ahead, dtype=bool)
    return visible if window is None else visible & equations.visible(positions, positions, window=window)


def hidden_by(visible: Array, scores: Array) -> Array:
    """Return the mask that is added to scores."""
    return equations.additive_mask(visible, scores.dtype)


class BoundFeedForward(NamedTuple):
    """A feed-forward bound to a checkpoint: the paths of its modules; `output` maps back to the model's width."""

    up: str  # "" if the block's piece stands in its place
    gate: str  # "" without a gate; the same as `up` if one map holds both
    activation: str
    output: str
    activate: Activation

    def plan(self, x: str, i: int, modules: Modules, stack: Any) -> Iterator[Step]:
        """Yield the steps: to the larger width, activation (of the gate, if there is one), product, and back."""
        from .plan import PIECES, Step, activated, mapped

        gate, up, product = self.gate or self.up, self.up, self.activation
        yield mapped(gate, modules[gate], x)
        if self.gate == self.up:
            gate, up = f".{i}.gate", f".{i}.up"
            for number, half in enumerate((gate, up)):
                says = f"the {('first', 'second')[number]} half of {{0}}"
                yield Step(half, "cut", partial(_cut, 2, number), (self.up,), self, says)
        yield activated(self.activation, self.activate, gate)
        if self.gate:
            if not self.up:
                says = f"the piece of block {i} of {stack.pieces.norm}"
                yield Step(up := f".{i}.piece", "piece", lambda x: x[..., i, :], (PIECES,), self, says)
            elif self.gate != self.up:
                yield mapped(up, modules[up], x)
            product = f".{i}.product" if self.up else f".{i}.gated piece"
            yield Step(product, "product", np.multiply, (self.activation, up), self, "({0} * {1})")
        yield mapped(self.output, modules[self.output], product)


class BoundPieces(NamedTuple):
    """`Pieces` bound to a checkpoint: the paths of its modules, the factor after the map, the width of a piece."""

    map: str
    norm: str
    factor: float
    width: int

    def plan(self, x: str, modules: Modules) -> Iterator[Step]:
        """Yield the steps: the map, its factor, and the norm of each piece (batch, seq, blocks, width)."""
        from .plan import PIECES, Step, mapped, normed, times

        yield mapped(self.map, modules[self.map], x)
        says = f"{self.factor:.6g} * {{0}}"
        yield Step(".scaled", "pieces", partial(times, self.factor), (self.map,), self, says)
        cut = partial(_in_heads, self.width)
        yield Step(".cut", "view", cut, (".scaled",), self, f"each {self.width} numbers of {{0}}")
        yield normed(self.norm, modules[self.norm], ".cut")
        yield Step(PIECES, "state", np.asarray, (self.norm,), self)


class BoundResidual(NamedTuple):
    """One `Residual` bound to a checkpoint: paths of the norms ("" for none), and of the sum; and its factor."""

    pre_norm: str
    work: BoundAttention | BoundFeedForward
    output_norm: str
    sum: str
    post_norm: str
    factor: float = 1.0

    def plan(self, x: str, i: int, modules: Modules, stack: Any) -> Iterator[Step]:
        """Yield the steps of `factor * post_norm(x + output_norm(work(pre_norm(x))))`."""
        from .plan import Step, normed, times

        if self.pre_norm:
            yield normed(self.pre_norm, modules[self.pre_norm], x)
        steps = list(self.work.plan(self.pre_norm or x, i, modules, stack))
        yield from steps
        output = steps[-1].key
        if self.output_norm:
            yield normed(self.output_norm, modules[self.output_norm], output)
        yield Step(self.sum, "sum", np.add, (x, self.output_norm or output), self, "{0} + {1}")
        if self.post_norm:
            yield normed(self.post_norm, modules[self.post_norm], self.sum)
        if self.factor != 1:
            x, says = self.post_norm or self.sum, f"{self.factor:.6g} * {{0}}"
            yield Step(self.scaled(i), "factor", partial(times, self.factor), (x,), self, says)

    def scaled(self, i: int) -> str:
        """Return the key of the result."""
        return f".{i}.scaled" if self.factor != 1 else self.post_norm or self.sum


class BoundBlock(NamedTuple):
    """One block bound to a checkpoint: its modules by path, and its parts in the order of computation.

    Block 0 has the pieces of all blocks, if there are any.
    """

    modules: Modules
    parts: tuple[BoundResidual, ...]
    pieces: BoundPieces | None = None

    def plan(self, i: int, stack: Any) -> dict[str, Step]:
        """Return all steps of block i, from `hidden_states.{i}` to the next; the last one ends with norm and map."""
        from .plan import Step, by_key, mapped, normed

        x = f"hidden_states.{i}"
        steps = [*self.pieces.plan(x, self.modules)] if self.pieces else list[Step]()
        for part in self.parts:
            steps += part.plan(x, i, self.modules, stack)
            x = part.scaled(i)
        if i + 1 == len(stack.blocks) and stack.last_norm:
            steps.append(normed(stack.last_norm, stack.others[stack.last_norm], x))
            x = stack.last_norm
        if i + 1 == len(stack.blocks) and stack.last_map:
            steps.append(mapped(stack.last_map, self.modules[stack.last_map], x))
            x = stack.last_map
        return by_key([*steps, Step(f"hidden_states.{i + 1}", "state", np.asarray, (x,))])

    def keys(self, i: int, stack: Any) -> list[str]:
        """List the traced steps of block i in the order of computation, the next hidden states last."""
        return [step.key for step in self.plan(i, stack).values() if not step.hidden]

    @property
    def attention(self) -> BoundAttention:
        """Return the block's attention; every block has one."""
        return next(part.work for part in self.parts if isinstance(part.work, BoundAttention))

    @property
    def feed_forward(self) -> BoundFeedForward:
        """Return the block's feed-forward; every block has one."""
        return next(part.work for part in self.parts if isinstance(part.work, BoundFeedForward))
