"""The blocks after the input layer, a row for each model_type: the names of their tensors and what a config decides.

Data, and `bind`. A row here shares its prefixes with the row of the same model_type in `rows`. A model_type without a
row here has an input layer only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.equations.encoder import Activation, gelu, gelu_tanh, linear, mish, quick_gelu, relu, silu, tanh
from minibert.equations.input_layer import Array

from .config import Config
from .family import Family
from .frozen import Frozen, replace
from .modules import LayerNorm

if TYPE_CHECKING:
    from .steps import Binder

# the config's word -> the equation, and how the reference prints it
ACTIVATIONS: Mapping[str, tuple[Activation, str]] = {
    "gelu": (gelu, "GELUActivation()"),
    "gelu_python": (gelu, "GELUActivation()"),
    "gelu_new": (gelu_tanh, "NewGELUActivation()"),
    "gelu_fast": (gelu_tanh, "FastGELUActivation()"),
    "gelu_accurate": (gelu_tanh, "AccurateGELUActivation()"),
    "gelu_pytorch_tanh": (gelu_tanh, "GELUTanh()"),
    "gelu_python_tanh": (gelu_tanh, "GELUTanh()"),
    "relu": (relu, "ReLU()"),
    "silu": (silu, "SiLUActivation()"),
    "swish": (silu, "SiLU()"),
    "quick_gelu": (quick_gelu, "QuickGELUActivation()"),
    "mish": (mish, "MishActivation()"),
    "tanh": (tanh, "Tanh()"),
}


class Dense:
    """`y = x @ weight^T + bias`: see `equations.encoder.linear`. `transposed`: the file holds (in, out)."""

    def __init__(self, weight: Array, bias: Array, transposed: bool = False) -> None:
        self.weight, self.bias, self.transposed = weight, bias, transposed

    def __call__(self, x: Array, out: Array | None = None) -> Array:
        return linear(x, self.weight.T if self.transposed else self.weight, self.bias, out)

    def __repr__(self) -> str:
        if self.transposed:
            return f"Conv1D(nf={self.weight.shape[1]}, nx={self.weight.shape[0]})"
        return f"Linear(in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}, bias=True)"


class Block(NamedTuple):
    """One block bound to a checkpoint: its modules by path, and which of them plays which part."""

    modules: dict[str, Any]  # path -> Dense or LayerNorm, or the printed activation; in the reference's order
    projections: tuple[str, ...]  # paths of query, key and value, or of the one that holds all three
    scores: str
    context: str
    output: str
    sum_1: str
    norm_1: str
    up: str
    activation: str
    down: str
    sum_2: str
    norm_2: str
    scale: float
    activate: Activation


class Blocks(Frozen):
    """One model_type's blocks.

    path         of one block, "{i}" is its number; the names after it are relative to it
    projections  query, key and value, or one that holds the three side by side
    output       the map after attention; `up`, `activation` and `down` are the feed-forward
    pre_norm     the norms stand before attention and feed-forward (GPT-2), not after the sums (BERT)
    last_norm    the norm after the last block
    transposed   weights are stored (in, out)
    causal       whether no token sees those after it
    relative     path of the learned bias that is added to the scores; the input row has its position scheme
    act, inner   config keys of the activation and of the feed-forward's width; `eps` a key, or the number itself
    times        the width as so many times the model's, where config.json gives none
    scale        the factor of the scores, from head_dim and the block's number
    defaults     values for config keys that config.json leaves out; `only` the one value these blocks compute
    order        the parts in the order in which the reference prints them
    checked_prefixes, unused_endings  as in `family.Family`: a tensor of the blocks that nothing uses is an error
    tree         the reference's class for each module that holds others, for printing: path -> class name
    """

    path: str = "encoder.layer.{i}"
    projections: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    output: str = "attention.output.dense"
    norm_1: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    activation: str = "intermediate.intermediate_act_fn"
    down: str = "output.dense"
    norm_2: str = "output.LayerNorm"
    pre_norm: bool = False
    last_norm: str = ""
    transposed: bool = False
    causal: Callable[[Config], bool] = lambda config: bool(config.get("is_decoder", False))
    relative: str = ""
    act: str = "hidden_act"
    inner: str = "intermediate_size"
    times: int = 0
    eps: str | float = "layer_norm_eps"
    scale: Callable[[Config, int, int], float] = lambda config, head_dim, i: 1 / math.sqrt(head_dim)
    defaults: Mapping[str, Any] = {"hidden_act": "gelu"}
    only: Mapping[str, Any] = {"add_cross_attention": False, "pruned_heads": {}}
    order: tuple[str, ...] = ("projections", "output", "norm_1", "up", "activation", "down", "norm_2")
    checked_prefixes: tuple[str, ...] = ("encoder.",)
    unused_endings: tuple[str, ...] = ()
    tree: Mapping[str, str] = {}

    def configure(self, family: Family, data: Mapping[str, Any], where: str) -> Config:
        """Read config.json for layer and blocks together. Raises CheckpointError for a key of another model."""
        both = replace(
            family, defaults={**family.defaults, **self.defaults}, only={**family.only, **self.only}, section=""
        )
        return both.configure(dict(data), where)

    def bind(self, config: Config, binder: Binder, i: int) -> Block:
        """Take one block's tensors from the checkpoint."""
        prefix = self.path.format(i=i)
        dim, heads, inner = config.integer("hidden_size"), heads_of(config), self.width(config)

        def at(name: str) -> str:
            return f"{prefix}.{name}"

        widths = {name: (3 * dim // len(self.projections), dim) for name in self.projections}
        widths |= {self.output: (dim, dim), self.up: (inner, dim), self.down: (dim, inner)}
        activate, printed = activation_of(config, self.act)
        modules: dict[str, Any] = {name: self._dense(binder, at(name), shape) for name, shape in widths.items()}
        modules |= {name: self.norm(config, binder, at(name)) for name in (self.norm_1, self.norm_2)}
        modules[self.activation] = printed
        looks, summed, worked = (name.rpartition(".")[0] for name in (self.projections[0], self.output, self.down))
        return Block(
            modules={at(name): modules[name] for part in self.order for name in _names(getattr(self, part))},
            projections=tuple(map(at, self.projections)),
            scores=at(f"{looks}.scores"),
            context=at(f"{looks}.context"),
            output=at(self.output),
            sum_1=at(f"{summed}.sum"),
            norm_1=at(self.norm_1),
            up=at(self.up),
            activation=at(self.activation),
            down=at(self.down),
            sum_2=at(f"{worked}.sum"),
            norm_2=at(self.norm_2),
            scale=self.scale(config, dim // heads, i),
            activate=activate,
        )

    def width(self, config: Config) -> int:
        """Give the feed-forward's width. Raises CheckpointError where config.json has none."""
        if self.times and config.get(self.inner) is None:
            return self.times * config.integer("hidden_size")
        return config.integer(self.inner)

    def norm(self, config: Config, binder: Binder, path: str) -> LayerNorm:
        """Take one norm's tensors; gamma and beta are the older names of weight and bias."""
        eps = config.number(self.eps) if isinstance(self.eps, str) else self.eps
        weight, bias = (
            binder.vector((f"{path}.{new}", f"{path}.{old}"), (config.integer("hidden_size"),))
            for new, old in (("weight", "gamma"), ("bias", "beta"))
        )
        return LayerNorm(weight, bias, eps)

    def _dense(self, binder: Binder, path: str, shape: tuple[int, int]) -> Dense:
        out, width = shape
        weight = binder.vector((f"{path}.weight",), (width, out) if self.transposed else shape)
        # BLAS would copy a misaligned weight at each call, so that is done here and once
        weight = weight if weight.flags.aligned else np.array(weight)
        return Dense(weight, binder.vector((f"{path}.bias",), (out,)), self.transposed)


def _names(part: str | tuple[str, ...]) -> tuple[str, ...]:
    return (part,) if isinstance(part, str) else part


def heads_of(config: Config) -> int:
    """How many heads there are. Raises CheckpointError where they do not divide the width."""
    dim, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if heads == 0 or dim % heads:
        raise config.refused(f"'hidden_size' must be a multiple of 'num_attention_heads', found {dim} and {heads}")
    return heads


def activation_of(config: Config, key: str) -> tuple[Activation, str]:
    """Give the equation that the config names. Raises CheckpointError for one that is not known."""
    name = config.get(key)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise config.refused(f"{key!r} must be one of {', '.join(ACTIVATIONS)}, found {name!r}")
    return ACTIVATIONS[name]


def _bert_tree(name: str) -> dict[str, str]:
    block = "encoder.layer.{i}"
    return {
        "": f"{name}Model",
        "encoder": f"{name}Encoder",
        block: f"{name}Layer",
        f"{block}.attention": f"{name}Attention",
        f"{block}.attention.self": f"{name}SelfAttention",
        f"{block}.attention.output": f"{name}SelfOutput",
        f"{block}.attention.attn": f"{name}SelfAttention",
        f"{block}.intermediate": f"{name}Intermediate",
        f"{block}.output": f"{name}Output",
    }


BERT = Blocks(tree=_bert_tree("Bert"))

DISTILBERT = Blocks(
    path="transformer.layer.{i}",
    projections=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    output="attention.out_lin",
    norm_1="sa_layer_norm",
    up="ffn.lin1",
    activation="ffn.activation",
    down="ffn.lin2",
    norm_2="output_layer_norm",
    causal=lambda config: False,
    act="activation",
    inner="hidden_dim",
    eps=1e-12,
    defaults={"activation": "gelu"},
    order=("projections", "output", "norm_1", "up", "down", "activation", "norm_2"),
    checked_prefixes=("transformer.",),
    tree={
        "": "DistilBertModel",
        "transformer": "Transformer",
        "transformer.layer.{i}": "TransformerBlock",
        "transformer.layer.{i}.attention": "DistilBertSelfAttention",
        "transformer.layer.{i}.ffn": "FFN",
    },
)

MPNET = Blocks(
    projections=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    output="attention.attn.o",
    norm_1="attention.LayerNorm",
    causal=lambda config: False,
    relative="encoder.relative_attention_bias",
    tree=_bert_tree("MPNet"),
)


def _gpt2_scale(config: Config, head_dim: int, i: int) -> float:
    scale = 1 / math.sqrt(head_dim) if config.get("scale_attn_weights", True) else 1.0
    return scale / (i + 1) if config.get("scale_attn_by_inverse_layer_idx", False) else scale


GPT2 = Blocks(
    path="h.{i}",
    projections=("attn.c_attn",),
    output="attn.c_proj",
    norm_1="ln_1",
    up="mlp.c_fc",
    activation="mlp.act",
    down="mlp.c_proj",
    norm_2="ln_2",
    pre_norm=True,
    last_norm="ln_f",
    transposed=True,
    causal=lambda config: True,
    act="activation_function",
    inner="n_inner",
    times=4,
    eps="layer_norm_epsilon",
    scale=_gpt2_scale,
    defaults={"activation_function": "gelu_new"},
    order=("norm_1", "projections", "output", "norm_2", "up", "down", "activation"),
    checked_prefixes=("h.", "ln_f."),
    unused_endings=(".attn.bias", ".attn.masked_bias"),  # the causal mask, which older versions stored
    tree={"h.{i}": "GPT2Block", "h.{i}.attn": "GPT2Attention", "h.{i}.mlp": "GPT2MLP"},
)

BLOCKS: Mapping[str, Blocks] = {
    "bert": BERT,
    "roberta": replace(BERT, tree=_bert_tree("Roberta")),
    "xlm-roberta": replace(BERT, tree=_bert_tree("XLMRoberta")),
    "camembert": replace(BERT, tree=_bert_tree("Camembert")),
    "electra": replace(BERT, tree=_bert_tree("Electra")),
    "ernie": replace(BERT, tree=_bert_tree("Ernie")),
    "distilbert": DISTILBERT,
    "mpnet": MPNET,
    "gpt2": GPT2,
}
"""model_type -> row."""
