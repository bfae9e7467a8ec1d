"""The parts of blocks, as rows name them. `bound_blocks` has what they become with a checkpoint.

A block is a tuple of `Residual`s, in order: `x = post_norm(x + output_norm(work(pre_norm(x))))`. `work` is an
`Attention` or a `FeedForward`; a norm without a path is not there. All parts are in one file, since the author of a row
chooses among them. The input layer reads rows too, so the files that compute are imported when a block is bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.errors import CheckpointError
from minibert.families.family import Family
from minibert.files.tables import column_major

from .block_names import LegacyName, older_names, shared_names
from .config import Config, Frozen, decided, stays_causal
from .modules import Linear, steady
from .steps import Norm

if TYPE_CHECKING:
    from minibert.equations.input_layer import Array

    from .bound_blocks import BoundAttention, BoundBlock, BoundFeedForward, BoundPieces, BoundResidual, Modules
    from .plan import Term
    from .steps import Binder, Tensors

Size = str | Callable[[Config, int], int]  # a config key, or a function of the config and the block's number
FARTHEST = 1 << 31  # tokens; longer than any text, and a position plus this is still int64


class BindContext(NamedTuple):
    """One block while it is bound: its number, its path, and its modules so far, in order of computation."""

    config: Config
    tensors: Tensors
    prefix: str
    i: int
    transposed: bool
    scheme: Any  # the input row's positions in attention
    modules: Modules

    def linear(self, name: str, out: int, width: int, biased: bool | str) -> str:
        """Read a map's tensors, and return its path."""
        path = self.prefix + name
        weight = self.tensors.weight((f"{path}.weight",), (width, out) if self.transposed else (out, width))
        bias = self.tensors.vector((f"{path}.bias",), (out,)) if decided(self.config, biased) else None
        self.modules[path] = Linear(weight if self.transposed else column_major(weight), bias, self.transposed)
        return path

    def norm(self, norm: Norm, width: int) -> str:
        """Read a norm's tensors, and return its path; "" without a norm."""
        bound = norm.bound(self.config, self.tensors, self.prefix, width)
        self.modules.update(bound)
        return next(iter(bound), "")


class Attention(Frozen):
    """Attention: queries, keys and values from x, probabilities in each head, and a map of the weighted sum.

    maps             paths of query, key and value, or of the one map that holds the three side by side
    output           path of the map after the weighted sum
    biased           whether `maps` have biases, or a config key that decides it; `output_biased`: `output`
    key_heads        config key of the number of key heads, if several query heads may share one
    head_dim         config key of a head's width, if queries may be wider than the model; it and `key_heads` may be
                     functions of the config and the block's number
    query_norm, key_norm  norms of each head's queries and keys; a trace has them as (batch, seq, heads, head_dim)
    value_norm       path of the norm of each head's values: that of the keys, without a weight
    heads_first      the reference's modules of these norms return (batch, heads, seq, head_dim)
    scale            (config, head width, block's number) -> the factor of the scores
    window           (config, block's number) -> how far a visible token is at most; None: all tokens are visible
    rotation         (config, block's number) -> the layer type, by which the rotary scheme rotates queries and keys;
                     without it they are not rotated
    terms            functions that make the terms of the scores (see `plan`) at a `BindContext`; None: no term
    """

    maps: tuple[str, ...]
    output: str
    biased: bool | str = True
    output_biased: bool | str = True
    key_heads: Size = ""
    head_dim: Size = ""
    query_norm: Norm = Norm()
    key_norm: Norm = Norm()
    value_norm: str = ""
    heads_first: bool = False
    scale: Callable[[Config, int, int], float] = lambda config, head_dim, i: 1 / math.sqrt(head_dim)
    window: Callable[[Config, int], int | None] = lambda config, i: None
    rotation: Callable[[Config, int], str | None] | None = None
    terms: tuple[Callable[[BindContext], Term | None], ...] = ()

    def bind(self, context: BindContext) -> BoundAttention:
        from .bound_blocks import BoundAttention

        config, (heads, key_heads, head_dim) = context.config, self.sizes(context.config, context.i)
        dim, widths = config.integer("hidden_size"), [n * head_dim for n in (heads, key_heads, key_heads)]
        outs = widths if len(self.maps) == 3 else [sum(widths)]
        maps = tuple(context.linear(name, out, dim, self.biased) for name, out in zip(self.maps, outs, strict=True))
        inside, window = maps[0].rpartition(".")[0], self.window(config, context.i)
        query_norm, key_norm = (context.norm(norm, head_dim) for norm in (self.query_norm, self.key_norm))
        value_norm = self.value_norm and context.prefix + self.value_norm
        if value_norm:
            of_keys = context.modules[key_norm]
            context.modules[value_norm] = type(of_keys)(np.ones_like(of_keys.weight), None, of_keys.eps)
        return BoundAttention(
            maps=maps,
            norms=(query_norm, key_norm, value_norm),
            scores=f"{inside}.scores",
            probabilities=f"attentions.{context.i}",
            context=f"{inside}.context",
            output=context.linear(self.output, dim, heads * head_dim, self.output_biased),
            heads=heads,
            key_heads=key_heads,
            head_dim=head_dim,
            scale=self.scale(config, head_dim, context.i),
            window=None if window is None else min(window, FARTHEST),
            rotated=self.rotation is not None,
            layer_type=self.rotation and self.rotation(config, context.i),
            heads_first=self.heads_first,
            terms=tuple(term for make in self.terms if (term := make(context)) is not None),
        )

    def sizes(self, config: Config, i: int = 0) -> tuple[int, int, int]:
        """Return heads, key heads, and a head's width in block i. Raises CheckpointError if they do not fit."""
        heads, head_dim = config.integer("num_attention_heads"), _size(config, self.head_dim, i)
        if not head_dim:
            dim = config.integer("hidden_size")
            if heads == 0 or dim % heads:
                multiple = "must be a multiple of 'num_attention_heads'"
                raise config.refused(f"'hidden_size' {multiple}, found {dim} and {heads}")
            head_dim = dim // heads
        key_heads = _size(config, self.key_heads, i) or heads
        if not heads or heads % key_heads:
            raise config.refused(f"'num_key_value_heads' must divide the {heads} heads, found {key_heads}")
        return heads, key_heads, head_dim


class FeedForward(Frozen):
    """A feed-forward: `down(f(up(x)))`, or with a gate `down(f(gate(x)) * up(x))`.

    gate        path of the gate; if it is that of `up`, one map holds both side by side, the gate's numbers first.
                Without `up` the block's piece of `Blocks.pieces` stands in the place of up(x)
    gated       whether the gate is there; if not, `ungated` is the path of `up`
    biased      whether the maps have biases, or a config key that decides it; `output_biased`: `down`, None: as `up`
    activation  path of f
    act         config key of f, or a function of the config that returns its name
    inner       config key of the width between the maps
    times       that width as a multiple of the model's, if config.json has none
    """

    up: str = ""
    down: str
    activation: str
    gate: str = ""
    gated: bool | str | Callable[[Config], bool] = True
    ungated: str = ""
    biased: bool | str = True
    output_biased: bool | str | None = None
    act: str | Callable[[Config], str] = "hidden_act"
    inner: str = "intermediate_size"
    times: int = 0

    def bind(self, context: BindContext) -> BoundFeedForward:
        from .bound_blocks import BoundFeedForward, activation_of

        dim, inner = context.config.integer("hidden_size"), self.width(context.config)
        activate = activation_of(context.config, self.act)
        gate, up = (self.gate, self.up) if decided(context.config, self.gated) else ("", self.ungated)
        together = gate == up  # gate and up are one map
        gate = gate and context.linear(gate, 2 * inner if together else inner, dim, self.biased)
        up = gate if together else up and context.linear(up, inner, dim, self.biased)
        activation = context.prefix + self.activation
        context.modules[activation] = activate
        biased = self.biased if self.output_biased is None else self.output_biased
        down = context.linear(self.down, dim, inner, biased)
        return BoundFeedForward(up, gate, activation, down, activate)

    def width(self, config: Config) -> int:
        """Return the width between the maps. Raises CheckpointError if config.json has none."""
        if self.times and config.get(self.inner) is None:
            return self.times * config.integer("hidden_size")
        return config.integer(self.inner)


class Residual(Frozen):
    """A part of a block: `x = factor * post_norm(x + output_norm(work(pre_norm(x))))`.

    factor  name of the stored number, if the file has one
    module  path of the reference's module that returns the sum, if one does
    """

    work: Attention | FeedForward
    pre_norm: Norm = Norm()
    output_norm: Norm = Norm()
    post_norm: Norm = Norm()
    factor: str = ""
    module: str = ""

    def bind(self, context: BindContext) -> BoundResidual:
        from .bound_blocks import BoundResidual

        width = context.config.integer("hidden_size")
        pre_norm, work = context.norm(self.pre_norm, width), self.work.bind(context)
        output_norm, post_norm = (context.norm(norm, width) for norm in (self.output_norm, self.post_norm))
        total, factor = f"{work.output.rpartition('.')[0]}.sum", 1.0
        if self.module:
            context.modules[total := context.prefix + self.module] = np.add
        if self.factor:
            factor = context.tensors.vector((context.prefix + self.factor,), (1,)).item()
        return BoundResidual(pre_norm, work, output_norm, total, post_norm, factor)


class Pieces(Frozen):
    """Rows that are computed once from the blocks' input, one piece for each block (per-layer inputs).

        pieces = norm(map(hidden_states.0) / sqrt(dim)), row by row and piece by piece

    map    path of the linear map, without a bias
    norm   the norm of each piece, one for all blocks
    width  config key of a piece's width
    """

    map: str
    norm: Norm
    width: str

    def bind(self, context: BindContext, blocks: int) -> BoundPieces:
        from .bound_blocks import BoundPieces

        dim, width = context.config.integer("hidden_size"), context.config.integer(self.width)
        path = context.linear(self.map, blocks * width, dim, False)
        return BoundPieces(path, context.norm(self.norm, width), dim**-0.5, width)


class TextVector(Frozen):
    """The pooling of a model type: the last hidden state of one token, and a map of it without a bias.

    token       config -> function of the ids (texts, seq) that returns the token's place
    projection  path of the map; without it in the file, the vector is the hidden state
    """

    token: Callable[[Config], Callable[[Array], Array]]
    projection: str

    def bind(self, config: Config, binder: Binder) -> dict[str, Any]:
        """Read the map, and return its fields of a `SentenceConfig`."""
        name, dim = f"{self.projection}.weight", config.integer("hidden_size")
        fields: dict[str, Any] = {"poolings": ("lasttoken",), "picks": self.token(config), "dim": dim}
        if not binder.stores(name):
            return fields
        weight = binder.table((name,), None)
        if weight.shape[1] != dim:
            raise config.refused(f"tensor {name!r} has shape {weight.shape}, but 'hidden_size' is {dim}")
        return fields | {"after": (partial(steady, weight=weight.array()),), "dim": weight.shape[0]}


class Blocks(Frozen):
    """One model_type's blocks.

    path        path of a block with "{i}" for its number; the paths in `parts` are relative to it
    parts       the residual parts of a block, in order; `first`: those of block 0, if they differ
    last_norm   the norm after the last block
    last_map    path of the linear map after it, without a bias; `last_width`: config key of its output's width
    pieces      rows that each block receives a piece of
    transposed  weights are stored (in, out)
    causal      whether later tokens are masked; `is_causal` reads config.json too
    relative    path of the learned bias's table, with "{i}" if each block has one; the input row has the scheme
    vector      the pooling of `encode` if no modules.json names one; without it the mean
    others      reads the other modules that belong to no single block
    only, checked_prefixes  as in `family.Family`, but for loading the blocks, not the input layer alone
    count       the number of blocks
    elsewhere   the source of sentence-transformers' vectors, if it is not these blocks: they are refused here
    shared      path of the module that block i uses, if several blocks use one
    older_path, older  path of a block in older files, and the names in it: path in the block -> older name
    """

    path: str = "encoder.layer.{i}"
    parts: tuple[Residual, ...]
    first: tuple[Residual, ...] = ()
    last_norm: Norm = Norm()
    last_map: str = ""
    last_width: str = ""
    pieces: Pieces | None = None
    transposed: bool = False
    causal: Callable[[Config], bool] = lambda config: False
    relative: str = ""
    vector: TextVector | None = None
    others: Callable[[Config, Binder], Modules] = lambda config, binder: {}
    only: Mapping[str, Any] = {"add_cross_attention": False, "pruned_heads": {}}
    checked_prefixes: tuple[str, ...] = ("encoder.",)
    count: Callable[[Config], int] = lambda config: config.integer("num_hidden_layers")
    elsewhere: str = ""
    shared: Callable[[Config, int], str] | None = None
    older_path: str = ""
    older: Mapping[str, LegacyName] = {}

    def is_causal(self, config: Config) -> bool:
        """Return whether later tokens are masked: as the row says, unless config.json makes every token visible.

        Raises CheckpointError if config.json makes another model causal: the reference then masks later tokens only
        in texts without padding.
        """
        if self.causal(config):
            return stays_causal(config)
        if config.get("is_causal") is not None and stays_causal(config):
            raise config.refused("'is_causal' must be false in a model whose tokens see all others, found True")
        return False

    @property
    def begins(self) -> tuple[str, ...]:
        """List the beginnings of the blocks' tensor names, older names too."""
        return tuple(path.partition("{")[0] for path in (self.path, self.older_path) if path)

    def configure(self, family: Family, data: Mapping[str, Any], where: str) -> Config:
        """Read config.json for layer and blocks together. Raises CheckpointError for a key of another model."""
        if type(count := data.get("num_experts")) is int and count > 1:
            why = "experts are not computed here; take a model without them"
            raise CheckpointError(f"{where}: 'num_experts' is {count}, and {why}")
        return family.configure(data, where, self.only)

    def bind_all(self, config: Config, binder: Binder, scheme: Any = None) -> tuple[BoundBlock, ...]:
        """Bind all blocks to the checkpoint's tensors; `scheme` is the input layer's `attention_position`."""
        tensors = None if self.shared is None else shared_names(binder)
        return tuple(self.bind(config, binder, i, tensors, scheme) for i in range(self.count(config)))

    def bind(
        self, config: Config, binder: Binder, i: int, tensors: Tensors | None = None, scheme: Any = None
    ) -> BoundBlock:
        """Bind one block; `tensors` has the tensors that several blocks share."""
        from .bound_blocks import BoundBlock

        prefix = self.prefix(config, i)
        tensors = tensors or (binder if self.shared is None else shared_names(binder))
        if self.older and not binder.stored_under((prefix,)):
            tensors = older_names(binder, prefix, f"{self.older_path.format(i=i)}.", self.older)
        context = BindContext(config, tensors, prefix, i, self.transposed, scheme, {})
        around, count = context._replace(prefix=""), self.count(config)
        pieces = self.pieces.bind(around, count) if self.pieces and i == 0 else None
        parts = self.parts if i or not self.first else self.first
        bound = BoundBlock(context.modules, tuple(part.bind(context) for part in parts), pieces)
        if self.last_map and i + 1 == count:
            around.linear(self.last_map, self.dim(config), config.integer("hidden_size"), False)
        return bound

    def dim(self, config: Config) -> int:
        """Return the width of the last hidden state."""
        return config.integer(self.last_width if self.last_map else "hidden_size")

    def prefix(self, config: Config, i: int) -> str:
        """Return the prefix of block i's keys; if several blocks share a module, the number comes last."""
        return f"{self.path.format(i=i)}." if self.shared is None else f"{self.shared(config, i)}[{i}]."

    @property
    def attend(self) -> Attention:
        """Return the attention; every block has one."""
        return next(part.work for part in self.parts if isinstance(part.work, Attention))

    @property
    def feed(self) -> FeedForward:
        """Return the feed-forward; every block has one."""
        return next(part.work for part in self.parts if isinstance(part.work, FeedForward))


def _size(config: Config, key: Size, i: int) -> int:
    """Read a size of config.json; 0 if the row has no key, or config.json nothing under it."""
    if not isinstance(key, str):
        return key(config, i)
    return config.integer(key) if key and config.get(key) is not None else 0
