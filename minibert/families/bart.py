"""Encoder-decoders with position rows: BART, mBART, Marian, Pegasus, Whisper."""

from __future__ import annotations

from typing import Any

from minibert.equations.input_layer import sinusoidal_positions
from minibert.families.parts.block_parts import Attention, Blocks, FeedForward, Residual
from minibert.families.parts.config import Config, replace, sqrt_width, switch
from minibert.families.parts.steps import Norm, Positions, Scale, Tokens

from .family import Family
from .rows import ModelType
from .t5 import BOTH, D_MODEL, TIED


def module_scale(config: Config) -> float:
    """Return the factor inside the word module, or 1 if the config has no scaling."""
    return sqrt_width(config) if scaled(config) else 1.0


scaled = switch("scale_embedding")  # word rows are multiplied by sqrt(width)


def sinusoids_in_halves(rows: int, dim: int) -> Any:
    """Return the table that Marian and Pegasus files may leave out, since a formula computes it."""
    return sinusoidal_positions(rows, dim, layout="halves")


BART_WORDS = {**D_MODEL, "num_attention_heads": "encoder_attention_heads", "num_hidden_layers": "encoder_layers"}
BART_DEFAULTS = {"max_position_embeddings": 1024, "activation_function": "gelu"}
BART_TOKENS = Tokens(path="{side}.embed_tokens", names=TIED, scale=module_scale)
BART_POSITIONS = Positions(path="{side}.embed_positions", extra=2)
BART_NORM = Norm(path="{side}.layernorm_embedding", eps=1e-5)

BART = Family(
    model_type="bart",
    steps=(BART_TOKENS, BART_POSITIONS, BART_NORM),
    prefixes=("model.",),
    checked_prefixes=(),
    aliases=BART_WORDS,
    defaults={**BART_DEFAULTS, "pad_token_id": 1},
    sides=BOTH,
    tokenizer="RobertaTokenizer",
)

MBART = replace(
    BART,
    model_type="mbart",
    tokenizer=None,  # a text ends with a token for its language, which tokenizer.json defines
)

FIXED_POSITIONS = Positions(path="{side}.embed_positions", generate=sinusoids_in_halves)

MARIAN = Family(
    model_type="marian",
    # the decoder may have another vocabulary, and it scales inputs_embeds too
    steps=(Tokens(path="{side}.embed_tokens", names=TIED), Scale(factor=sqrt_width, when=scaled), FIXED_POSITIONS),
    decoder=(
        Tokens(path="{side}.embed_tokens", names=TIED, rows="decoder_vocab_size"),
        Scale(factor=sqrt_width, when=scaled, embeds=True),
        FIXED_POSITIONS,
    ),
    prefixes=("model.",),
    checked_prefixes=(),
    aliases={**BART_WORDS, "decoder_vocab_size": "vocab_size"},
    defaults={**BART_DEFAULTS, "pad_token_id": 58100},
    sides=BOTH,
)

PEGASUS = replace(
    MARIAN,
    model_type="pegasus",
    tokenizer="PegasusTokenizer",
    decoder=(MARIAN.steps[0], *MARIAN.decoder[1:]),
    aliases=BART_WORDS,
    defaults={**BART_DEFAULTS, "pad_token_id": 0},
)

WHISPER = Family(
    model_type="whisper",
    steps=(
        Tokens(path="decoder.embed_tokens", head="proj_out.weight"),
        Positions(path="decoder.embed_positions", rows="max_target_positions"),
    ),
    prefixes=("model.",),
    checked_prefixes=(),
    aliases={**BART_WORDS, "max_position_embeddings": "max_target_positions"},
    defaults={"pad_token_id": 50256},
    sides=("decoder",),  # no `tokenizer`: only tokenizer.json has the tokens that begin a transcript
)

ATTEND = Attention(maps=tuple(f"self_attn.{letter}_proj" for letter in "qkv"), output="self_attn.out_proj")
FEED = FeedForward(
    up="fc1", down="fc2", activation="activation_fn", act="activation_function", inner="encoder_ffn_dim"
)  # fmt: skip
PARTS: tuple[tuple[Attention | FeedForward, Norm], ...] = (
    (ATTEND, Norm(path="self_attn_layer_norm", eps=1e-5)),
    (FEED, Norm(path="final_layer_norm", eps=1e-5)),
)


def bart_blocks(before: bool = False, elsewhere: str = "") -> Blocks:
    """Return the encoder's blocks. before: norms precede the parts, and one more follows the last block."""
    return Blocks(
        path="encoder.layers.{i}",
        parts=tuple(
            Residual(work=work, pre_norm=norm if before else Norm(), post_norm=Norm() if before else norm)
            for work, norm in PARTS
        ),
        last_norm=Norm(path="encoder.layer_norm", eps=1e-5) if before else Norm(),
        checked_prefixes=("encoder.layers.", "encoder.layer_norm."),
        elsewhere=elsewhere,
    )  # fmt: skip


OF_DECODER = "the decoder's last hidden states"  # Marian and Pegasus: the encoder's

ROWS = (
    ModelType(BART, bart_blocks(elsewhere=OF_DECODER)),
    ModelType(MBART, bart_blocks(before=True, elsewhere=OF_DECODER)),
    ModelType(MARIAN, bart_blocks()),
    ModelType(PEGASUS, bart_blocks(before=True)),
    ModelType(WHISPER),
)
