"""What blocks are made of: parts as a row names them. `bound_blocks` says what they become with a checkpoint.

Rows are read with the input layer, which computes no block: what computes is imported when a block is bound.

A block is a tuple of `Residual`s, in order: `x = after(x + within(work(before(x))))`. The work is attention (`Attend`)
or a feed-forward (`Feed`); a norm without a path is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.families.family import Family
from minibert.files.tables import StoredTable, Weight

from .block_names import Older, OlderNames, SharedNames
from .config import Config
from .frozen import Frozen, replace

if TYPE_CHECKING:
    from .bound_blocks import Attention, BoundBlock, BoundResidual, Dense, FeedForward, Modules
    from .steps import Binder, Tensors
    from .terms import Term

FARTHEST = 1 << 31  # tokens: no text is as long, and positions plus this are still int64


class NormAt(Frozen):
    """A norm; without a path there is none.

    eps     a config key, or the number itself
    kind    its class: LayerNorm; RMSNorm or GemmaRMSNorm, which have no bias
    biased  whether a LayerNorm has one; a config key that decides it
    """

    path: str = ""
    eps: str | float = "layer_norm_eps"
    kind: str = "LayerNorm"
    biased: bool | str = True

    def bind(self, config: Config, binder: Tensors, prefix: str, width: int) -> Modules:
        """Take its tensors; gamma and beta are the older names of weight and bias."""
        if not self.path:
            return {}
        path, eps = f"{prefix}{self.path}", config.number(self.eps) if isinstance(self.eps, str) else self.eps
        weight = binder.vector((f"{path}.weight", f"{path}.gamma"), (width,))
        biased = self.kind == "LayerNorm" and decided(config, self.biased)
        bias = binder.vector((f"{path}.bias", f"{path}.beta"), (width,)) if biased else None
        from . import bound_blocks

        return {path: getattr(bound_blocks, self.kind)(weight, bias, eps)}


class Attend(Frozen):
    """Attention: queries, keys and values from x, probabilities in each head, and a map of what is gathered.

    maps             query, key and value, or the one that holds the three side by side; `output` is the map after it
    biased           whether `maps` have biases, or a config key that decides it; `output_biased` the same of `output`
    key_heads        config key of the number of key heads, where several query heads may share one
    head_dim         config key of a head's width, where queries may be wider than the model
    query_norm, key_norm  norms of each head's queries and keys; a trace has them as (batch, seq, heads, head_dim)
    heads_first      the reference's own modules of these norms give (batch, heads, seq, head_dim)
    scale            the factor of the scores, from config, head width and the block's number
    window            how many tokens away a token sees at most, from config and the block's number; None: all
    rotation         which rotation of the input row's rotary scheme rotates queries and keys (its layer type), from
                     config and the block's number; without it they are not rotated
    terms            what makes the terms of the scores (see `terms`), from config, the block's modules and prefix, and
                     the input row's position scheme
    """

    maps: tuple[str, ...]
    output: str
    biased: bool | str = True
    output_biased: bool | str = True
    key_heads: str = ""
    head_dim: str = ""
    query_norm: NormAt = NormAt()
    key_norm: NormAt = NormAt()
    heads_first: bool = False
    scale: Callable[[Config, int, int], float] = lambda config, head_dim, i: 1 / math.sqrt(head_dim)
    window: Callable[[Config, int], int | None] = lambda config, i: None
    rotation: Callable[[Config, int], str | None] | None = None
    terms: tuple[Callable[[Config, Modules, str, Any], Term], ...] = ()

    def bind(
        self, config: Config, binder: Tensors, prefix: str, i: int, transposed: bool, scheme: Any
    ) -> tuple[Attention, Modules]:
        from .bound_blocks import Attention

        dim, (heads, key_heads, head_dim) = config.integer("hidden_size"), self.sizes(config)
        widths = (heads * head_dim, key_heads * head_dim, key_heads * head_dim)
        outs = widths if len(self.maps) == 3 else (sum(widths),)
        modules: Modules = {}
        for name, out in zip(self.maps, outs, strict=True):
            modules[prefix + name] = dense(binder, prefix + name, (out, dim), decided(config, self.biased), transposed)
        for norm in (self.query_norm, self.key_norm):
            modules |= norm.bind(config, binder, prefix, head_dim)
        output = prefix + self.output
        biased = decided(config, self.output_biased)
        modules[output] = dense(binder, output, (dim, heads * head_dim), biased, transposed)
        inside, window = prefix + self.maps[0].rpartition(".")[0], self.window(config, i)
        work = Attention(
            maps=tuple(prefix + name for name in self.maps),
            norms=tuple(norm.path and prefix + norm.path for norm in (self.query_norm, self.key_norm)),
            scores=f"{inside}.scores",
            probabilities=f"attentions.{i}",
            context=f"{inside}.context",
            output=output,
            heads=heads,
            key_heads=key_heads,
            head_dim=head_dim,
            scale=self.scale(config, head_dim, i),
            window=None if window is None else min(window, FARTHEST),
            rotated=self.rotation is not None,
            layer_type=self.rotation and self.rotation(config, i),
            heads_first=self.heads_first,
            terms=tuple(make(config, modules, prefix, scheme) for make in self.terms),
        )
        return work, modules

    def sizes(self, config: Config) -> tuple[int, int, int]:
        """Heads, key heads, and the width of a head. Raises CheckpointError where they do not fit together."""
        heads = config.integer("num_attention_heads")
        head_dim = _given(config, self.head_dim) or config.integer("hidden_size") // heads_of(config)
        key_heads = _given(config, self.key_heads) or heads
        if not heads or heads % key_heads:
            raise config.refused(f"{self.key_heads!r} must divide the {heads} heads, found {key_heads}")
        return heads, key_heads, head_dim


class Feed(Frozen):
    """A feed-forward: `down(f(up(x)))`, or with a gate `down(f(gate(x)) * up(x))`.

    gate        the same path as `up`: one map holds both side by side, the gate's numbers first
    biased      whether the maps have biases, or a config key that decides it
    activation  path of f; it is printed after `down` where `activation_last`
    act, inner  config keys of f and of the width between the maps
    times       that width as so many times the model's, where config.json gives none
    """

    up: str
    down: str
    activation: str
    gate: str = ""
    biased: bool | str = True
    activation_last: bool = False
    act: str = "hidden_act"
    inner: str = "intermediate_size"
    times: int = 0

    def bind(
        self, config: Config, binder: Tensors, prefix: str, i: int, transposed: bool, scheme: Any
    ) -> tuple[FeedForward, Modules]:
        from .activations import activation_of
        from .bound_blocks import FeedForward

        dim, inner = config.integer("hidden_size"), self.width(config)
        activate, printed = activation_of(config, self.act)
        up, gate, activation, down = (
            name and prefix + name for name in (self.up, self.gate, self.activation, self.down)
        )
        biased, wide = decided(config, self.biased), 2 * inner if up == gate else inner
        modules: Modules = {path: dense(binder, path, (wide, dim), biased, transposed) for path in (gate, up) if path}
        last: Modules = {down: dense(binder, down, (dim, inner), biased, transposed)}
        printed_act: Modules = {activation: printed}
        modules |= last | printed_act if self.activation_last else printed_act | last
        return FeedForward(up, gate, activation, down, activate), modules

    def width(self, config: Config) -> int:
        """Give the width between the maps. Raises CheckpointError where config.json has none."""
        if self.times and config.get(self.inner) is None:
            return self.times * config.integer("hidden_size")
        return config.integer(self.inner)


class Residual(Frozen):
    """One part of a block: `x = after(x + within(work(before(x))))`."""

    work: Attend | Feed
    before: NormAt = NormAt()
    within: NormAt = NormAt()
    after: NormAt = NormAt()

    def bind(
        self, config: Config, binder: Tensors, prefix: str, i: int, transposed: bool, scheme: Any, modules: Modules
    ) -> BoundResidual:
        from .bound_blocks import BoundResidual

        width = config.integer("hidden_size")
        before, within, after = (
            norm.bind(config, binder, prefix, width) for norm in (self.before, self.within, self.after)
        )
        work, own = self.work.bind(config, binder, prefix, i, transposed, scheme)
        modules |= before | own | within | after
        summed = f"{work.output.rpartition('.')[0]}.sum"
        return BoundResidual(next(iter(before), ""), work, next(iter(within), ""), summed, next(iter(after), ""))


class Blocks(Frozen):
    """One model_type's blocks.

    path        of one block, "{i}" is its number; the names in `parts` are relative to it
    parts       what a block adds to x, in order; `first` the same of block 0, where it is another
    last_norm   the norm after the last block
    transposed  weights are stored (in, out)
    causal      whether no token sees those after it; `is_causal` asks config.json too
    relative    path of the learned bias's table, for printing; the input row has its position scheme
    defaults    values for config keys that config.json leaves out; `only` the one value these blocks compute
    checked_prefixes, unused_endings  as in `family.Family`: a tensor of the blocks that nothing uses is an error
    tree        the reference's class for each module that holds others, for printing: path -> class name
    order       last parts of paths in the order in which the reference prints them, if it is not that of computing
    count       how many blocks there are
    shared      path of the module that block i uses, where several blocks use one
    older_path, older  path of a block in older files, and the names in it: path in the block -> older name
    """

    path: str = "encoder.layer.{i}"
    parts: tuple[Residual, ...]
    first: tuple[Residual, ...] = ()
    last_norm: NormAt = NormAt()
    transposed: bool = False
    causal: Callable[[Config], bool] = lambda config: config.flag("is_decoder")
    relative: str = ""
    defaults: Mapping[str, Any] = {"hidden_act": "gelu"}
    only: Mapping[str, Any] = {"add_cross_attention": False, "pruned_heads": {}}
    checked_prefixes: tuple[str, ...] = ("encoder.",)
    unused_endings: tuple[str, ...] = ()
    tree: Mapping[str, str] = {}
    order: tuple[str, ...] = ()
    count: Callable[[Config], int] = lambda config: config.integer("num_hidden_layers")
    shared: Callable[[Config, int], str] | None = None
    older_path: str = ""
    older: Mapping[str, Older] = {}

    def is_causal(self, config: Config) -> bool:
        """Whether no token sees those after it: as the row says, unless config.json lets every token see all.

        Raises CheckpointError for a model that is not causal and is said to be: the reference then masks later tokens
        in texts without padding, and in no others.
        """
        if self.causal(config):
            return stays_causal(config)
        if config.get("is_causal") is not None and stays_causal(config):
            raise config.refused("'is_causal' must be false in a model whose tokens see all others, found True")
        return False

    @property
    def begins(self) -> tuple[str, ...]:
        """How the names of the blocks' tensors begin, in older files too."""
        return tuple(path.partition("{")[0] for path in (self.path, self.older_path) if path)

    def configure(self, family: Family, data: Mapping[str, Any], where: str) -> Config:
        """Read config.json for layer and blocks together. Raises CheckpointError for a key of another model."""
        both = replace(
            family, defaults={**family.defaults, **self.defaults}, only={**family.only, **self.only}, section=""
        )
        return both.configure(dict(data), where)

    def bind_all(self, config: Config, binder: Binder, scheme: Any = None) -> tuple[BoundBlock, ...]:
        """Take the tensors of all blocks from the checkpoint; `scheme` is the input row's of positions in attention."""
        tensors = None if self.shared is None else SharedNames(binder)
        return tuple(self.bind(config, binder, i, tensors, scheme) for i in range(self.count(config)))

    def bind(
        self, config: Config, binder: Binder, i: int, tensors: Tensors | None = None, scheme: Any = None
    ) -> BoundBlock:
        """Take one block's tensors; `tensors` knows those that it shares with others."""
        from .bound_blocks import BoundBlock

        prefix, modules = self.prefix(config, i), dict[str, Any]()
        tensors = tensors or (binder if self.shared is None else SharedNames(binder))
        if self.older and not binder.stored_under((prefix,)):
            tensors = OlderNames(binder, prefix, f"{self.older_path.format(i=i)}.", self.older)
        adds = self.parts if i or not self.first else self.first
        parts = tuple(add.bind(config, tensors, prefix, i, self.transposed, scheme, modules) for add in adds)
        return BoundBlock(modules, parts)

    def prefix(self, config: Config, i: int) -> str:
        """How the keys of block i begin: where several blocks use one module, the block's number stands behind it."""
        return f"{self.path.format(i=i)}." if self.shared is None else f"{self.shared(config, i)}[{i}]."

    @property
    def attend(self) -> Attend:
        """The attention, of which every block has one."""
        return next(add.work for add in self.parts if isinstance(add.work, Attend))

    @property
    def feed(self) -> Feed:
        """The feed-forward, of which every block has one."""
        return next(add.work for add in self.parts if isinstance(add.work, Feed))


def stays_causal(config: Config) -> bool:
    """What config.json says under `is_causal`: in a causal model, false lets every token see all others.

    Raises CheckpointError for null too: the reference then masks later tokens only in texts without padding.
    """
    value = config.get("is_causal", True)
    if not isinstance(value, bool):
        raise config.refused(f"'is_causal' must be true or false, found {value!r}")
    return value


def dense(binder: Tensors, path: str, shape: tuple[int, int], biased: bool, transposed: bool) -> Dense:
    """Take one map's tensors; shape (out, in)."""
    from .bound_blocks import Dense

    weight = aligned(binder.weight((f"{path}.weight",), shape[::-1] if transposed else shape))
    return Dense(weight, binder.vector((f"{path}.bias",), shape[:1]) if biased else None, transposed)


def aligned(weight: Weight) -> Weight:
    """Copy a misaligned weight once, or BLAS would do so at each call. A table's numbers are aligned when converted."""
    return weight if isinstance(weight, StoredTable) or weight.flags.aligned else np.array(weight)


def heads_of(config: Config) -> int:
    """How many heads there are. Raises CheckpointError where they do not divide the width."""
    dim, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if heads == 0 or dim % heads:
        raise config.refused(f"'hidden_size' must be a multiple of 'num_attention_heads', found {dim} and {heads}")
    return heads


def decided(config: Config, biased: bool | str) -> bool:
    """Whether there is a bias: the row says it, or a config key."""
    return config.flag(biased) if isinstance(biased, str) else biased


def _given(config: Config, key: str) -> int:
    """What config.json says under a key that a row may lack: 0 where there is no key, or nothing under it."""
    return config.integer(key) if key and config.get(key) is not None else 0
