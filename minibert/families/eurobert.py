"""EuroBERT, Llama's blocks without a causal mask; UltraBERT, whose blocks have windows and two rotary thetas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minibert.families.parts.config import FULL, SLIDING, Config, layer_type, of_each_block, replace

from .llama import BIASED, GATED, LLAMA, LLAMA_BLOCKS, llama_blocks
from .modernbert import first_or_mean
from .parts.heads import ANSWER, CLASSIFIER, TOKEN_CLASSES, WORDS, Act, HeadLinear, classes, masked_word
from .rows import ModelType

if TYPE_CHECKING:
    from minibert.families.parts.attention_schemes import Rotary
    from minibert.families.parts.steps import Binder


EUROBERT = replace(
    LLAMA,
    model_type="eurobert",
    defaults={
        **LLAMA.defaults,
        "pad_token_id": 128001,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "classifier_pooling": "late",
    },
)

EUROBERT_BLOCKS = replace(LLAMA_BLOCKS, causal=lambda config: False)

POOLINGS = {"bos": "first", "mean": "mean", "late": "late"}


def _pooling(config: Config) -> str:
    pooling = config.get("classifier_pooling")
    if pooling not in POOLINGS:
        raise config.refused(f"'classifier_pooling' must be one of {', '.join(POOLINGS)}, found {pooling!r}")
    return POOLINGS[pooling]


EUROBERT_HEADS = (
    masked_word(
        HeadLinear(path="lm_head", out=WORDS, biased="mlp_bias", tied=True),  # the blocks' key is read here too
        architectures=("ForMaskedLM",),
    ),
    classes(
        HeadLinear(path="dense"),
        Act(path="activation", word="gelu"),  # regardless of hidden_act
        CLASSIFIER,
        pooling=_pooling,
    ),
    TOKEN_CLASSES,
)


def _numbers(config: Config, key: str, kinds: Any) -> tuple[Any, ...]:
    """Read the numbers that an older file lists under a key."""
    return of_each_block(config, key, "a number", lambda entry: isinstance(entry, kinds) and (entry or 0) >= 0)


def _windows(config: Config) -> tuple[int | None, ...]:
    return _numbers(config, "attention_windows", (int, type(None)))


def _type(config: Config, i: int) -> str:
    """Return the type of block i; in older files a listed number above 0 means a window."""
    windows = _windows(config)
    return layer_type(config, i, bool(windows[i]) if windows else (i + 1) % 3 != 0)


def _window(config: Config, i: int) -> int | None:
    """Return the window, an inclusive radius; the first window in an older file applies to all blocks."""
    if _type(config, i) == FULL:
        return None
    return next(filter(None, _windows(config)), None) or config.integer("sliding_window")


def _rotary(config: Config, binder: Binder, side: str) -> Rotary:
    """Read one rotation for each type; an older file lists a theta for each block; a type's last theta is used."""
    from minibert.families.parts.attention_schemes import layered_rotary

    thetas, rope = {FULL: 2560000.0, SLIDING: 10000.0}, config.part("rope_parameters")
    if rope and (missing := {_type(config, i) for i in range(config.integer("num_hidden_layers"))} - set(rope)):
        raise config.refused(f"'rope_parameters' must have one set per layer type; missing {sorted(missing)}")
    if not rope:
        thetas |= {_type(config, i): theta for i, theta in enumerate(_numbers(config, "rope_theta", (int, float)))}
    return layered_rotary(config, binder, side, thetas={name: ("", theta) for name, theta in thetas.items()})


ULTRABERT = replace(
    EUROBERT,
    model_type="ultrabert",
    prefixes=("model.", "ultrabert."),  # the reference's save_pretrained writes the second
    attention=_rotary,
    defaults={
        **EUROBERT.defaults,
        "pad_token_id": 0,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "sliding_window": 128,
        "classifier_pooling": "cls",
        "prediction_head_size": 768,
    },
)

ULTRABERT_BLOCKS = replace(
    llama_blocks(
        replace(BIASED, rotation=_type, window=_window),
        replace(GATED, biased="mlp_bias"),
    ),
    causal=lambda config: False,
)  # fmt: skip

ULTRABERT_HEADS = (
    masked_word(
        HeadLinear(path="head.linear1", out="prediction_head_size", biased=False),
        Act(path="head.linear1.act_fn", word="gelu_pytorch_tanh"),  # regardless of hidden_act
        HeadLinear(path="head.linear2", biased=False),
        Act(path="head.linear2.act_fn", word="gelu_pytorch_tanh"),
        HeadLinear(path="head.decoder", out=WORDS, biased=False, tied=True, in_file="cls"),
        architectures=("ForMaskedLM",),
    ),
    classes(CLASSIFIER, pooling=first_or_mean),
    TOKEN_CLASSES,
    ANSWER,
)

ROWS = (
    ModelType(EUROBERT, EUROBERT_BLOCKS, EUROBERT_HEADS),
    ModelType(ULTRABERT, ULTRABERT_BLOCKS, ULTRABERT_HEADS),
)
