"""BART and its kin: encoder-decoders with position rows. mBART, Marian, Pegasus, Whisper."""

from __future__ import annotations

from typing import Any

from minibert.equations.input_layer import sinusoidal_positions
from minibert.families.parts.block_parts import Attention, Blocks, FeedForward, Residual
from minibert.families.parts.config import Config
from minibert.families.parts.frozen import replace
from minibert.families.parts.readers import sqrt_width, switch
from minibert.families.parts.steps import Norm, Positions, Scale, Tokens

from .family import Family
from .rows import Row
from .t5 import BOTH, D_MODEL, TIED


def module_scale(config: Config) -> float:
    """The factor inside the word module, 1 where the config asks for none."""
    return sqrt_width(config) if scaled(config) else 1.0


scaled = switch("scale_embedding")  # word rows are multiplied by sqrt(width)


def sinusoids_in_halves(rows: int, dim: int) -> Any:
    """The table that Marian and Pegasus files may leave out, since a formula makes it."""
    return sinusoidal_positions(rows, dim, layout="halves")


BART_WORDS = {**D_MODEL, "num_attention_heads": "encoder_attention_heads", "num_hidden_layers": "encoder_layers"}
BART_TOKENS = Tokens(path="{side}.embed_tokens", names=TIED, scale=module_scale, prints_as="BartScaledWordEmbedding")
BART_POSITIONS = Positions(path="{side}.embed_positions", extra=2, prints_as="BartLearnedPositionalEmbedding")
BART_NORM = Norm(path="{side}.layernorm_embedding", eps=1e-5)

BART = Family(
    model_type="bart",
    steps=(BART_TOKENS, BART_POSITIONS, BART_NORM),
    prefixes=("model.",),
    tree={"{side}": "Bart{Side}"},
    checked_prefixes=(),
    aliases=BART_WORDS,
    defaults={"pad_token_id": 1, "max_position_embeddings": 1024},
    sides=BOTH,
    tokenizer="RobertaTokenizer",
)

MBART = replace(
    BART,
    model_type="mbart",
    tokenizer=None,  # a language after each text, which tokenizer.json knows
    steps=(
        replace(BART_TOKENS, prints_as="MBartScaledWordEmbedding"),
        replace(BART_POSITIONS, prints_as="MBartLearnedPositionalEmbedding"),
        BART_NORM,
    ),
    tree={"{side}": "MBart{Side}"},
)

FIXED_POSITIONS = Positions(
    path="{side}.embed_positions", generate=sinusoids_in_halves, prints_as="MarianSinusoidalPositionalEmbedding"
)

MARIAN = Family(
    model_type="marian",
    # the decoder may have a vocabulary of its own, and it scales the caller's inputs_embeds too
    steps=(Tokens(path="{side}.embed_tokens", names=TIED), Scale(factor=sqrt_width, when=scaled), FIXED_POSITIONS),
    decoder=(
        Tokens(path="{side}.embed_tokens", names=TIED, rows="decoder_vocab_size"),
        Scale(factor=sqrt_width, when=scaled, embeds=True),
        FIXED_POSITIONS,
    ),
    prefixes=("model.",),
    tree={"{side}": "Marian{Side}"},
    checked_prefixes=(),
    aliases={**BART_WORDS, "decoder_vocab_size": "vocab_size"},
    defaults={"pad_token_id": 58100, "max_position_embeddings": 1024},
    sides=BOTH,
)

PEGASUS_POSITIONS = replace(FIXED_POSITIONS, prints_as="PegasusSinusoidalPositionalEmbedding")

PEGASUS = replace(
    MARIAN,
    model_type="pegasus",
    tokenizer="PegasusTokenizer",
    steps=(*MARIAN.steps[:2], PEGASUS_POSITIONS),
    decoder=(MARIAN.steps[0], MARIAN.decoder[1], PEGASUS_POSITIONS),
    tree={"{side}": "Pegasus{Side}"},
    aliases=BART_WORDS,
    defaults={"pad_token_id": 0, "max_position_embeddings": 1024},
)

WHISPER = Family(
    model_type="whisper",
    steps=(
        Tokens(path="decoder.embed_tokens", head="proj_out.weight"),
        Positions(path="decoder.embed_positions", rows="max_target_positions", prints_as="WhisperPositionalEmbedding"),
    ),
    prefixes=("model.",),
    tree={"decoder": "WhisperDecoder"},
    checked_prefixes=(),
    aliases={**BART_WORDS, "max_position_embeddings": "max_target_positions"},
    defaults={"pad_token_id": 50256},
    sides=("decoder",),  # and no older tokenizer files: the tokens that begin a transcript are in tokenizer.json alone
)

ATTEND = Attention(maps=tuple(f"self_attn.{letter}_proj" for letter in "qkv"), output="self_attn.out_proj")
FEED = FeedForward(
    up="fc1", down="fc2", activation="activation_fn", act="activation_function", inner="encoder_ffn_dim"
)  # fmt: skip
PARTS: tuple[tuple[Attention | FeedForward, Norm], ...] = (
    (ATTEND, Norm(path="self_attn_layer_norm", eps=1e-5)),
    (FEED, Norm(path="final_layer_norm", eps=1e-5)),
)


def bart_blocks(name: str, before: bool = False, elsewhere: str = "") -> Blocks:
    """The encoder's blocks; `before`: norms stand before the parts, and one more comes after the last block."""
    tree = {"encoder": "Encoder", "encoder.layers.{i}": "EncoderLayer", "encoder.layers.{i}.self_attn": "Attention"}
    return Blocks(
        path="encoder.layers.{i}",
        parts=tuple(
            Residual(work=work, before=norm if before else Norm(), after=Norm() if before else norm)
            for work, norm in PARTS
        ),
        last_norm=Norm(path="encoder.layer_norm", eps=1e-5) if before else Norm(),
        causal=lambda config: False,
        defaults={"activation_function": "gelu"},
        checked_prefixes=("encoder.layers.", "encoder.layer_norm."),
        tree={path: name + kind for path, kind in tree.items()},
        order=(
            "embed_tokens", "embed_positions", "layers", "k_proj", "v_proj", "q_proj", "out_proj", "self_attn",
            "self_attn_layer_norm", "activation_fn", "fc1", "fc2",
        ),
        elsewhere=elsewhere,
    )  # fmt: skip


OF_DECODER = "the decoder's last hidden states"  # of the other two it takes the encoder's

ROWS = (
    Row(BART, bart_blocks("Bart", elsewhere=OF_DECODER)),
    Row(MBART, bart_blocks("MBart", before=True, elsewhere=OF_DECODER)),
    Row(MARIAN, bart_blocks("Marian")),
    Row(PEGASUS, bart_blocks("Pegasus", before=True)),
    Row(WHISPER),
)
