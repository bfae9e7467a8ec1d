"""CLIP's text model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from minibert.equations.input_layer import Array
from minibert.equations.sentences import first_of_id, first_of_largest
from minibert.families.parts.block_parts import Attention, Blocks, FeedForward, Residual, TextVector
from minibert.families.parts.config import Config, replace
from minibert.families.parts.steps import Norm, Positions, Tokens

from .family import Family
from .rows import ModelType

CLIP_TEXT_MODEL = Family(
    model_type="clip_text_model",
    steps=(
        Tokens(path="embeddings.token_embedding", padding_idx=None),
        Positions(path="embeddings.position_embedding", cached=False),
    ),
    prefixes=("text_model.",),
    section="text_config",
    defaults={
        "max_position_embeddings": 77,
        "pad_token_id": 1,
        "vocab_size": 49408,
        "hidden_size": 512,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "eos_token_id": 49407,
    },
)

CLIP = replace(CLIP_TEXT_MODEL, model_type="clip", tokenizer="CLIPTokenizer")


def _end_of_text(config: Config) -> Callable[[Array], Array]:
    """Return the function that finds the end of text: the first `eos_token_id`, in older files (2) the largest id."""
    eos_id = config.integer("eos_token_id")
    return first_of_largest if eos_id == 2 else partial(first_of_id, wanted=eos_id)


CLIP_BLOCKS = Blocks(
    path="encoder.layers.{i}",
    parts=(
        Residual(
            work=Attention(
                maps=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), output="self_attn.out_proj"
            ),
            pre_norm=Norm(path="layer_norm1"),
        ),
        Residual(
            work=FeedForward(up="mlp.fc1", down="mlp.fc2", activation="mlp.activation_fn"),
            pre_norm=Norm(path="layer_norm2"),
        ),
    ),
    last_norm=Norm(path="final_layer_norm"),
    causal=lambda config: True,
    only={"is_causal": True},  # if false, the reference's two attention implementations differ
    checked_prefixes=("encoder.", "final_layer_norm."),
    vector=TextVector(token=_end_of_text, projection="text_projection"),
)

ROWS = (ModelType(CLIP_TEXT_MODEL, CLIP_BLOCKS), ModelType(CLIP, CLIP_BLOCKS))
