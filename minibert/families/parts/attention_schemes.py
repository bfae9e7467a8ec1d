"""The position scheme that acts inside attention, bound to a checkpoint's numbers: `layer.attention_position`.

First the schemes, then the functions that rows name (they read a scheme's numbers from config.json and its tensors
from the checkpoint), last the rules that scale rotary frequencies. The formulas are in `equations`: `rotary`,
`rotary_scaling`, `attention_positions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations import attention_positions, rotary_scaling
from minibert.equations.attention_positions import relative_buckets
from minibert.equations.input_layer import Array
from minibert.equations.rotary import query_factor, rotary_angles, rotary_frequencies

from .config import FULL, SLIDING, Config, Frozen, thawed
from .modules import LayerNorm
from .steps import Norm

if TYPE_CHECKING:
    from .steps import Binder, Tensors

WIDEST_HEAD = 1 << 16  # dimensions; models have 32 to 512, and no tensor of an input layer bounds the number
LARGEST_ATTENTION_FACTOR = 1e6  # models have 1 to 2; it enters every score twice, and float32 ends at 3e38


# -- the schemes -------------------------------------------------------------------------------------------------


class AttentionPosition(Frozen):
    """Base class of the four schemes below; each has one method. Any other raises AttributeError.

    >>> Alibi(heads=8).rotary([[0, 1]])
    Traceback (most recent call last):
    AttributeError: this model has ALiBi, not rotary: call alibi(attention_mask)
    """

    offers: ClassVar[str]
    call: ClassVar[str]

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"this model has {self.offers}, not {name}: call {self.call}")

    def __repr__(self) -> str:
        arrays = np.ndarray | LayerNorm | None
        numbers = {name: thawed(value) for name, value in vars(self).items() if not isinstance(value, arrays)}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in numbers.items())})"


class Rotation(NamedTuple):
    """The rotation of queries and keys in layers of one type.

    attention_factor   the factor on cos and sin
    original_length    the length of the first training, if the rule needs it
    unscaled           the frequencies before scaling; None without scaling
    of_base            rope_theta -> the rotation by the same rule; None without scaling
    """

    frequencies: Array
    attention_factor: float = 1.0
    original_length: int | None = None
    unscaled: Array | None = None
    of_base: Callable[[float], Rotation] | None = None


class Rotary(AttentionPosition):
    """Rotary positions: `rotations` by layer type, key None if all layers share a rotation.

    `pairing` is the third argument of `rotate`: "neighbours" in Cohere's models, else "halves". `growth` are beta and
    length of `query_factor` in Ministral 3.

    >>> from minibert.equations.rotary import rotary_frequencies
    >>> scheme = Rotary(rotations={None: Rotation(rotary_frequencies(4))})
    >>> [array.shape for array in scheme.rotary([[0, 1, 2]])]
    [(1, 3, 4), (1, 3, 4)]
    """

    rotations: Mapping[str | None, Rotation]
    pairing: str = "halves"
    growth: tuple[float, int] | None = None
    offers: ClassVar[str] = "rotary positions"
    call: ClassVar[str] = "rotary(position_ids, layer_type=None)"

    @property
    def frequencies(self) -> Mapping[str | None, Array]:
        """Return the frequencies by layer type."""
        return {layer_type: rotation.frequencies for layer_type, rotation in self.rotations.items()}

    def rotary(self, position_ids: ArrayLike, layer_type: str | None = None) -> tuple[Array, Array]:
        """Return cos and sin as `rotary_angles` does, with this model's frequencies and factor.

        Raises ValueError for a layer_type that this model does not have.
        """
        if layer_type not in self.rotations:
            types = ", ".join(repr(name) for name in self.rotations)
            raise ValueError(f"layer_type must be one of {types} in this model, found {layer_type!r}")
        rotation = self.rotations[layer_type]
        return rotary_angles(position_ids, rotation.frequencies, rotation.attention_factor)

    def query_factor(self, position_ids: ArrayLike) -> Array | None:
        """Return the factor of each rotated query as `query_factor` does; None in a model without `growth`."""
        return None if self.growth is None else query_factor(position_ids, *self.growth)


class RelativeBias(AttentionPosition):
    """T5's and MPNet's learned bias, table (rows, heads). T5 has nothing else: no sinusoids, no position rows.

    The defaults hold for MPNet and for T5's encoder; T5's decoder has bidirectional=False.

    >>> RelativeBias(table=np.zeros((32, 12))).relative_bias(query_length=3, key_length=5).shape
    (12, 3, 5)
    """

    table: Array
    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True
    offers: ClassVar[str] = "a relative bias"
    call: ClassVar[str] = "relative_bias(query_length, key_length, past_length=0)"

    def relative_bias(self, query_length: int, key_length: int, past_length: int = 0) -> Array:
        """Return the bias (heads, query, key) as the function `relative_bias` does, by this model's table."""
        rule = self.buckets, self.max_distance, self.bidirectional
        return attention_positions.relative_bias(self.table, query_length, key_length, *rule, past_length)


class Alibi(AttentionPosition):
    """BLOOM's slopes times key positions.

    >>> Alibi(heads=8).alibi([[1, 1, 1, 0]]).shape
    (1, 8, 1, 4)
    """

    heads: int
    offers: ClassVar[str] = "ALiBi"
    call: ClassVar[str] = "alibi(attention_mask)"

    def alibi(self, attention_mask: ArrayLike) -> Array:
        """Return the bias (batch, heads, 1, key) as `alibi_bias` does, with this model's heads."""
        return attention_positions.alibi_bias(attention_mask, self.heads)


class LogBuckets(AttentionPosition):
    """DeBERTa's rows by distance: `relative_positions` numbers rows of `relative_embeddings` (2 span, dim).

    These are the rows of `table`, layer-normed by `norm` if the config asks for it.

    >>> scheme = LogBuckets(table=np.zeros((16, 4)), buckets=8, max_positions=17)
    >>> scheme.relative_embeddings[scheme.relative_positions(2, 3)].shape
    (2, 3, 4)
    """

    table: Array
    norm: LayerNorm | None = None
    buckets: int
    max_positions: int
    offers: ClassVar[str] = "relative positions in log buckets"
    call: ClassVar[str] = "relative_positions(query_length, key_length), rows of relative_embeddings"

    @property
    def relative_embeddings(self) -> Array:
        """Return the rows after their norm."""
        return self.table if self.norm is None else self.norm(self.table)

    def relative_positions(self, query_length: int, key_length: int) -> Array:
        """Return the rows' numbers (query, key) as `log_bucket_rows` does, with this model's buckets."""
        return attention_positions.log_bucket_rows(query_length, key_length, self.buckets, self.max_positions)


# -- rotary positions in config.json ----------------------------------------------------------------------------


def rotary(
    config: Config,
    binder: Binder | None = None,
    side: str = "",
    *,
    theta: float = 10000.0,
    share: float | None = None,
    theta_keys: tuple[str, ...] = ("rope_theta",),
    share_key: str = "partial_rotary_factor",
    pairing: str = "halves",
) -> Rotary:
    """Read one rotation for all layers: `rope_scaling` or `rope_parameters`, older keys, or the family's default.

    theta       the family's default (Nomic 1000); theta_keys: its older names (GPT-NeoX "rotary_emb_base")
    share       the default of the rotating part of a head (GPT-NeoX 0.25); share_key: its older name ("rotary_pct").
                None: the whole head rotates and no key can change it, as in Llama, unless the frequencies are
                scaled, since all rules read "partial_rotary_factor"

    Raises CheckpointError for an unknown rope_type, for parameters that differ by layer, and for numbers that are
    absent or impossible.

    >>> numbers = {"hidden_size": 8, "num_attention_heads": 2, "rope_theta": 100.0}
    >>> rotary(Config(numbers)).frequencies[None]
    array([1. , 0.1], dtype=float32)
    >>> rotary(Config({**numbers, "rope_scaling": {"type": "linear", "factor": 4.0}})).frequencies[None]
    array([0.25 , 0.025], dtype=float32)
    """
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    parameters = config.part(key)
    nested = [name for name, value in parameters.items() if isinstance(value, Mapping)]
    if nested:
        raise config.refused(f"{key!r} must hold numbers; found one set per layer type: {nested}")
    shares = (parameters.get("partial_rotary_factor"), config.get(share_key), share)
    rope = {
        **parameters,
        "rope_theta": number(parameters, "rope_theta", default=number(config, *theta_keys, default=theta)),
        "partial_rotary_factor": next((part for part in shares if part is not None), None),
    }
    if config.get("original_max_position_embeddings") is not None:  # overrides the key inside the parameters
        rope["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    rotation = read_rotation(config, Config(rope), share is not None)
    return Rotary(rotations={None: rotation}, pairing=pairing)


def gte_rotary(config: Config, binder: Binder | None = None, side: str = "") -> Rotary:
    """Read GTE's rotation: as `rotary`, and the "ntk" scaling of published files, unknown to the reference.

    The default theta is 160000, and 10000 in files of the older model_type "new". Raises CheckpointError as `rotary`,
    and for settings of "ntk" besides a factor of 1 or more.
    """
    theta, scaling = 10000.0 if config.get("model_type") == "new" else 160000.0, config.part("rope_scaling")
    if scaling.get("rope_type", scaling.get("type")) != "ntk":
        return rotary(config, binder, side, theta=theta)
    factor, dim = number(scaling, "factor"), head_dim(config)
    if factor < 1 or scaling.get("mixed_b") is not None:
        raise config.refused(f"'ntk' scaling must have a factor of 1 or more and no 'mixed_b', found {dict(scaling)}")
    base = number(config, "rope_theta", default=theta)
    frequencies, unscaled = rotary_scaling.ntk_frequencies(dim, base, factor), rotary_frequencies(dim, base)
    return Rotary(rotations={None: Rotation(frequencies, unscaled=unscaled)})


# layer type -> (older key, default)
MODERNBERT_THETAS = {FULL: ("global_rope_theta", 160000.0), SLIDING: ("local_rope_theta", 10000.0)}
GEMMA3_THETAS = {FULL: ("rope_theta", 1000000.0), SLIDING: ("rope_local_base_freq", 10000.0)}


def layered_rotary(
    config: Config,
    binder: Binder | None = None,
    side: str = "",
    *,
    thetas: Mapping[str, tuple[str, float]] = MODERNBERT_THETAS,
    scaled: Collection[str] = (FULL, SLIDING),
) -> Rotary:
    """Read one rotation for each layer type: `rope_parameters[layer type]`, else the older key, else the default.

    thetas: layer type -> (older key, default). An older config's `rope_scaling` holds for the types in `scaled`
    (Gemma 3: the full layers alone). As in the reference, "rope_type" alone names that scaling, not the older "type".

    Raises CheckpointError as `rotary`, and for `rope_parameters` that are not sorted by layer type.
    """
    by_type, scaling = config.part("rope_parameters"), config.part("rope_scaling")
    flat = [name for name in ("rope_type", "type", "factor") if by_type.get(name, "default") != "default"]
    if flat:
        raise config.refused(f"'rope_parameters' must hold one set per layer type; found {flat}")
    rotations: dict[str | None, Rotation] = {}
    for layer_type, (key, default) in thetas.items():
        rope = {**by_type.part(layer_type), **(scaling if layer_type in scaled else {})}
        if not by_type:
            rope.setdefault("rope_type", "default")  # before the older "type" is read
        rope["rope_theta"] = number(Config(rope), "rope_theta", default=number(config, key, default=default))
        rope.setdefault("partial_rotary_factor", config.get("partial_rotary_factor"))
        rope["truncate"] = by_type.get("truncate", True)  # the reference reads it only there
        rotations[layer_type] = read_rotation(config, Config(rope))
    return Rotary(rotations=rotations)


gemma3_rotary = partial(layered_rotary, thetas=GEMMA3_THETAS, scaled=(FULL,))
"""`layered_rotary` with Gemma 3's keys and numbers; an older config's scaling is that of its full layers."""


# -- the other schemes in config.json and in the file ------------------------------------------------------------


@contextmanager
def _settings_of(config: Config, *keys: str) -> Iterator[None]:
    """Add the config's keys to the error about numbers that a formula refuses."""
    try:
        yield
    except ValueError as error:
        raise config.refused(f"{' and '.join(map(repr, keys))}: {error}") from None


def t5_bias(config: Config, binder: Tensors, side: str, i: int = 0) -> RelativeBias:
    """Read T5's bias from block 0 of a stack, umT5's from block i; the encoder's is bidirectional."""
    names = "relative_attention_num_buckets", "relative_attention_max_distance"
    buckets, max_distance = (whole(config, name) for name in names)
    with _settings_of(config, *names):
        relative_buckets([0], buckets, max_distance, side == "encoder")
    name = f"{side}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight"
    return RelativeBias(
        table=binder.vector((name,), (buckets, config.integer("num_attention_heads"))),
        buckets=buckets,
        max_distance=max_distance,
        bidirectional=side == "encoder",
    )


def mpnet_bias(config: Config, binder: Binder, side: str) -> RelativeBias:
    """Read MPNet's bias; the config key only sizes the table: the reference computes 32 buckets up to distance 128.

    With fewer rows it computes texts that are short enough. Raises CheckpointError for a table without the rows of two
    tokens.
    """
    key = "relative_attention_num_buckets"
    rows, heads = config.integer(key), config.integer("num_attention_heads")
    if rows <= (last := int(relative_buckets(1))):
        problem = f"found {rows}; the next token's bucket is row {last}"
        raise config.refused(f"{key!r} must be 32, the buckets that MPNet computes, {problem}")
    return RelativeBias(table=binder.vector(("encoder.relative_attention_bias.weight",), (rows, heads)))


def alibi(config: Config, binder: Binder | None = None, side: str = "") -> Alibi:
    """Read the number of heads, `n_head` in BLOOM's config. Raises CheckpointError for more than the model is wide."""
    heads, dim = whole(config, "n_head", "num_attention_heads"), config.get("hidden_size")
    if isinstance(dim, int) and heads > dim:
        raise config.refused(f"'hidden_size' {dim} is too small for {heads} heads")
    return Alibi(heads=heads)


def deberta_log_buckets(config: Config, binder: Binder, side: str = "") -> LogBuckets | None:
    """Read DeBERTa's scheme; None unless the config sets `relative_attention`.

    It reads `encoder.rel_embeddings.weight` (2 span, dim), and `encoder.LayerNorm` if `norm_rel_ebd` holds
    "layer_norm". `max_relative_positions` below 1 means `max_position_embeddings`. Raises CheckpointError.
    """
    if not config.flag("relative_attention"):
        return None
    buckets, max_positions, rows = deberta_rows(config)
    if buckets > 0:
        with _settings_of(config, "position_buckets", "max_relative_positions", "max_position_embeddings"):
            attention_positions.log_buckets([0], buckets, max_positions)
    dim = whole(config, "hidden_size")
    table = binder.vector(("encoder.rel_embeddings.weight",), (rows, dim))
    norm = deberta_norm(config).bound(config, binder, "", dim).get("encoder.LayerNorm")
    return LogBuckets(table=table, norm=norm, buckets=buckets, max_positions=max_positions)


def deberta_rows(config: Config) -> tuple[int, int, int]:
    """Return DeBERTa's buckets (below 1: none), the distance at which the last begins, and the rows of its table."""
    max_positions = config.integer("max_relative_positions", default=-1, above=-math.inf)
    if max_positions < 1:
        max_positions = whole(config, "max_position_embeddings")
    buckets = config.integer("position_buckets", default=-1, above=-math.inf)
    return buckets, max_positions, 2 * (buckets if buckets > 0 else max_positions)


def deberta_norm(config: Config) -> Norm:
    """Return the norm of DeBERTa's distance rows; it has no path unless `norm_rel_ebd` asks for a norm."""
    kinds = [part.strip() for part in str(config.get("norm_rel_ebd")).lower().split("|")]
    return Norm(path="encoder.LayerNorm" if "layer_norm" in kinds else "")


# -- rotary frequencies, scaled by a rule ------------------------------------------------------------------------


def number(config: Config, *keys: str, default: float | None = None) -> float:
    """Return the first of `keys` that the config sets, a number above 0."""
    return config.number(*keys, default=default, above=0)


def whole(config: Config, *keys: str) -> int:
    """Return the first of `keys` that the config sets, an integer above 0."""
    return config.integer(*keys, above=0)


def head_dim(config: Config) -> int:
    """Return the size of a head: `head_dim` (Llama, Mistral and Qwen2 may set it), or hidden size over heads."""
    if config.get("head_dim"):
        size = whole(config, "head_dim")
    else:
        hidden_size, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
        if hidden_size < heads:
            raise config.refused(f"hidden_size {hidden_size} is too small for {heads} heads")
        size = hidden_size // heads
    if size > WIDEST_HEAD:
        raise config.refused(f"a head has {size} dimensions, expected at most {WIDEST_HEAD}")
    return size


def read_rotation(config: Config, rope: Config, partial_by_default: bool = False) -> Rotation:
    """Read one rotation from its settings, with "rope_theta" among them; lengths and sizes from the config.

    Only a part of a head may rotate: if a rule scales the frequencies, or if the family's unscaled rule reads
    "partial_rotary_factor" too (`partial_by_default`).

    Raises CheckpointError for numbers that are absent or impossible, and for an unknown rope_type. A rule whose
    frequencies change with a text's length is one: a text's vectors would change with the texts around it.
    """
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    rope_type = "longrope" if "short_factor" in rope else rope_type  # Phi-3's files call it "su" and "yarn" too
    if not isinstance(rope_type, str) or rope_type not in RULES:
        unknown = f"{rope_type!r} scaling of the rotary frequencies ('rope_type' or 'type')"
        raise config.refused(f"it asks for {unknown}, which minibert does not compute; it knows {', '.join(RULES)}")
    size = head_dim(config)
    share = number(rope, "partial_rotary_factor", default=1.0) if partial_by_default or rope_type != "default" else 1.0
    dim, base = int(size * share), rope["rope_theta"]
    if not 1 <= dim <= size:
        raise config.refused(f"it asks to rotate {dim} of the {size} dimensions of a head")
    of_base = partial(RULES[rope_type], config, rope, dim)
    try:
        rotation = of_base(base)
        if rope_type != "default":
            rotation = rotation._replace(unscaled=rotary_frequencies(dim, base), of_base=of_base)
    except (TypeError, ValueError) as error:
        raise config.refused(f"{rope_type!r} scaling of the rotary frequencies: {error}") from None
    if abs(rotation.attention_factor) > LARGEST_ATTENTION_FACTOR:
        problem = f"multiplied by {rotation.attention_factor:g} ('attention_factor', 'mscale')"
        most = f"expected at most {LARGEST_ATTENTION_FACTOR:g}"
        raise config.refused(f"{rope_type!r} scaling: cos and sin would be {problem}, {most}")
    return rotation


def _stated(rope: Config, key: str) -> float | None:
    """Return the number under `key`; None if the key is missing or null."""
    return None if rope.get(key) is None else number(rope, key)


def _original_length(config: Config, rope: Config) -> int:
    key, reached = "original_max_position_embeddings", "max_position_embeddings"
    return whole(rope, key) if rope.get(key) is not None else whole(config, reached)


def _yarn(config: Config, rope: Config, dim: int, base: float) -> Rotation:
    if "factor" not in rope:
        number(rope, "factor")  # null is allowed, a missing key is not
    length = _original_length(config, rope)
    factor = _stated(rope, "factor") or number(config, "max_position_embeddings") / length
    ramp = number(rope, "beta_fast", default=32), number(rope, "beta_slow", default=1), rope.flag("truncate", True)
    attention_factor = _stated(rope, "attention_factor")
    if attention_factor is None:
        mscales = (rope.get(key) and number(rope, key) for key in ("mscale", "mscale_all_dim"))
        attention_factor = rotary_scaling.yarn_attention_factor(factor, *mscales)
    return Rotation(rotary_scaling.yarn_frequencies(dim, base, factor, length, *ramp), attention_factor, length)


def _llama3(config: Config, rope: Config, dim: int, base: float) -> Rotation:
    length = _original_length(config, rope)
    factor, low, high = (number(rope, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    frequencies = rotary_scaling.llama3_frequencies(rotary_frequencies(dim, base), factor, low, high, length)
    return Rotation(frequencies, original_length=length)


def _default(config: Config, rope: Config, dim: int, base: float) -> Rotation:
    return Rotation(rotary_frequencies(dim, base))


def _linear(config: Config, rope: Config, dim: int, base: float) -> Rotation:
    return Rotation(rotary_scaling.linear_frequencies(rotary_frequencies(dim, base), number(rope, "factor")))


# rope_type -> rule; functions, not lambdas, so that a rotation that keeps its rule can be pickled
RULES: dict[str, Callable[[Config, Config, int, float], Rotation]] = {
    "default": _default,
    "linear": _linear,
    "yarn": _yarn,
    "llama3": _llama3,
}
