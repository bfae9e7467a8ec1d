"""T5, mT5 and umT5: encoder-decoders without position rows."""

from __future__ import annotations

from minibert.families.parts.block_parts import Attention, BindContext, Blocks, FeedForward, Residual
from minibert.families.parts.config import Config, replace
from minibert.families.parts.plan import RelativeTerm, relative_term
from minibert.families.parts.steps import Norm, Tokens

from .family import Family, scheme
from .rows import ModelType

# a tied table is stored once: under this side's name, the shared one, the other side's or the output's
TIED = ("{side}.embed_tokens.weight", "shared.weight", "{other}.embed_tokens.weight")

BOTH = ("encoder", "decoder")
D_MODEL = {"hidden_size": "d_model"}

T5 = Family(
    model_type="t5",
    tokenizer="T5Tokenizer",
    attention=scheme("t5_bias"),
    # T5 has no sinusoids and no position table; its relative bias acts inside attention
    steps=(Tokens(path="{side}.embed_tokens", names=TIED, padding_idx=None),),
    prefixes=("transformer.",),
    checked_prefixes=(),
    aliases={**D_MODEL, "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers", "head_dim": "d_kv"},
    # n_positions of old files is not read: T5 has no longest sequence
    defaults={
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "relu",
        "layer_norm_epsilon": 1e-6,
        "d_kv": 64,
    },
    sides=BOTH,
    shared="shared",
)

MT5 = replace(T5, model_type="mt5", defaults={**T5.defaults, "feed_forward_proj": "gated-gelu"})
UMT5 = replace(MT5, model_type="umt5", tokenizer="TokenizersBackend")


def _feed_forward(config: Config) -> tuple[str, bool]:
    """Return the activation's name and whether there is a gate: "relu" or "gated-gelu", gelu by tanh."""
    kind = str(config.get("feed_forward_proj"))
    name, gated = kind.removeprefix("gated-"), kind.startswith("gated-")
    name = "gelu_new" if kind == "gated-gelu" else name
    act, gate = config.get("dense_act_fn"), config.get("is_gated_act")  # keys of save_pretrained, which win
    return name if act is None else str(act), gated if gate is None else config.flag("is_gated_act")


def _activation(config: Config) -> str:
    return _feed_forward(config)[0]


def _gated(config: Config) -> bool:
    return _feed_forward(config)[1]


def _block_bias(context: BindContext) -> RelativeTerm:
    """Return the term of umT5, in which each block has a table."""
    from minibert.families.parts.attention_schemes import t5_bias

    side = context.prefix.partition(".")[0]
    return RelativeTerm(t5_bias(context.config, context.tensors, side, context.i), context.scheme, context.i)


def rms(path: str) -> Norm:
    """Return T5's norm, without a mean and a bias."""
    return Norm(path=path, kind="RMSNorm", eps="layer_norm_epsilon")


ATTEND = Attention(
    maps=tuple(f"layer.0.SelfAttention.{letter}" for letter in "qkv"), output="layer.0.SelfAttention.o",
    biased=False, output_biased=False, head_dim="d_kv", scale=lambda config, head_dim, i: 1.0, terms=(relative_term,),
)  # fmt: skip
TABLE = "layer.0.SelfAttention.relative_attention_bias"


FF = "layer.1.DenseReluDense"
FEED = FeedForward(
    gate=f"{FF}.wi_0", up=f"{FF}.wi_1", ungated=f"{FF}.wi", down=f"{FF}.wo", activation=f"{FF}.act", gated=_gated,
    act=_activation, biased=False, inner="d_ff",
)  # fmt: skip


def t5_blocks(bias_per_block: bool = False) -> Blocks:
    """Return T5's encoder: scores are not divided, and a number for the distance is added.

    bias_per_block: every block has a table of these numbers, not only block 0.
    """
    attend = replace(ATTEND, terms=(_block_bias if bias_per_block else relative_term,))
    return Blocks(
        path="encoder.block.{i}",
        parts=(
            Residual(work=attend, pre_norm=rms("layer.0.layer_norm")),
            Residual(work=FEED, pre_norm=rms("layer.1.layer_norm")),
        ),
        last_norm=rms("encoder.final_layer_norm"),
        relative=f"encoder.block.{'{i}' if bias_per_block else '0'}.{TABLE}",
        checked_prefixes=("encoder.block.", "encoder.final_layer_norm."),
    )


ROWS = (ModelType(T5, t5_blocks()), ModelType(MT5, t5_blocks()), ModelType(UMT5, t5_blocks(bias_per_block=True)))
