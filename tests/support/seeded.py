"""Tables of full size from integers alone, so that everyone can make the same checkpoint without downloading it.

    h(i) = the finaliser of splitmix64, applied to index i + salt        (64-bit integers, wrapping)
    value(i) = (top 24 bits of h(i) - 2^23) * 0.1 / 2^23                 (one rounding, to float32)

Every step is exact or rounded once as IEEE 754 says, so the bits are the same on every machine and in every
version of NumPy; a random generator promises neither. Trained models have a few dimensions far larger than the
rest, where rounding is worst: the columns in `OUTLIERS` are multiplied by 32, which is exact.

Source of the finaliser: Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from checkpoints import write
from numpy.typing import NDArray

AMPLITUDE = np.float32(0.1 / 2**23)
OUTLIERS = (3, 308, 381)  # 308 and 381 are the ones that trained BERT models have
ROWS_AT_ONCE = 2048
BATCHES = ("padded", "two_segments", "full_length", "explicit_positions")

BERT = {
    "model_type": "bert", "architectures": ["BertModel"], "vocab_size": 30522, "hidden_size": 768,
    "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0, "layer_norm_eps": 1e-12,
    "num_hidden_layers": 0,  # the input layer is all there is in the file
    "num_attention_heads": 12, "intermediate_size": 3072,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2Model"], "vocab_size": 50257, "n_embd": 768, "n_positions": 1024,
    "n_layer": 0, "n_head": 12,
}  # fmt: skip


def mix(index: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """Scatter the bits of each index: splitmix64's finaliser. uint64 in, uint64 out.

    >>> [hex(h) for h in mix(np.arange(2, dtype=np.uint64), salt=0)]
    ['0xe220a8397b1dcdaf', '0x6e789e6aa1b965f4']
    """
    # the golden ratio's step, so that salt 0 gives splitmix64's own published sequence for seed 0
    offset = np.uint64((salt * 0xD1B54A32D192ED03) % 2**64)
    h = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + offset
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = h ^ (h >> np.uint64(31))
    return mixed


def values(shape: tuple[int, ...], salt: int, start: int = 0) -> NDArray[np.float32]:
    """Numbers between -0.1 and 0.1, the same on every machine; `start` is the index of the first. float32."""
    count = int(np.prod(shape))
    top = (mix(np.arange(start, start + count, dtype=np.uint64), salt) >> np.uint64(40)).astype(np.int64) - 2**23
    made: NDArray[np.float32] = top.astype(np.float32) * AMPLITUDE  # 24 bits: the conversion is exact
    return made.reshape(shape)


def table(rows: int, dim: int, salt: int) -> NDArray[np.float32]:
    """A table of embeddings, (rows, dim), with outlier columns."""
    made = np.empty((rows, dim), np.float32)
    for row in range(0, rows, ROWS_AT_ONCE):  # hashing needs several times the memory of its result
        part = made[row : row + ROWS_AT_ONCE]
        part[...] = values(part.shape, salt, start=row * dim)
    made[:, [column for column in OUTLIERS if column < dim]] *= np.float32(32)
    return made


def integers(shape: tuple[int, ...], below: int, salt: int) -> NDArray[np.int64]:
    """Integers in 0..below-1, for ids. int64."""
    mixed = mix(np.arange(int(np.prod(shape)), dtype=np.uint64), salt) >> np.uint64(33)
    made: NDArray[np.int64] = (mixed.astype(np.int64) % below).reshape(shape)
    return made


def tensors(model_type: str) -> dict[str, NDArray[np.float32]]:
    """Every tensor of the model folder, by its name in the file."""
    if model_type == "gpt2":
        return {"wte.weight": table(50257, 768, salt=11), "wpe.weight": table(1024, 768, salt=12)}
    return {
        "embeddings.word_embeddings.weight": table(30522, 768, salt=1),
        "embeddings.position_embeddings.weight": table(512, 768, salt=2),
        "embeddings.token_type_embeddings.weight": table(2, 768, salt=3),
        "embeddings.LayerNorm.weight": np.float32(1) + values((768,), salt=4),
        "embeddings.LayerNorm.bias": values((768,), salt=5),
    }


def batch(kind: str, vocab: int, longest: int) -> dict[str, NDArray[np.int64]]:
    """A batch of more than 1,000 tokens as keywords of a layer; kind is one of `BATCHES`.

    padded: rows of 20, 40, .. 160 tokens, then id 0 and mask 0; two_segments: the second one begins earlier from
    row to row; full_length: as many tokens as there are positions; explicit_positions: any position anywhere.
    """
    shape = (2, longest) if kind == "full_length" else (8, 160)
    salt = 100 + BATCHES.index(kind)
    column, row = np.arange(shape[1]), np.arange(shape[0])[:, None]
    made = {"input_ids": 1 + integers(shape, vocab - 1, salt)}
    if kind == "padded":
        mask = (column < 20 * (row + 1)).astype(np.int64)
        made = {"input_ids": made["input_ids"] * mask, "attention_mask": mask}
    elif kind == "two_segments":
        made["token_type_ids"] = (column >= 150 - 20 * row).astype(np.int64)
    elif kind == "explicit_positions":
        made["position_ids"] = integers(shape, longest, salt + 50)
    return made


def write_model(folder: Path, model_type: str) -> Path:
    """Write config.json and model.safetensors: 94 MB for bert, 158 MB for gpt2."""
    return write(folder, BERT if model_type == "bert" else GPT2, tensors(model_type))
