"""One number of config.json takes no memory that the file's own tensors do not take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import VOCAB, numbers, same_bits, write

import minibert
from minibert.equations.input_layer import sinusoidal_positions
from minibert.errors import CheckpointError
from minibert.families.parts.steps import MOST_ROWS
from minibert.files.tables import FIRST_ROWS, FormulaTable

MARIAN = {"model_type": "marian", "vocab_size": VOCAB, "d_model": 8, "decoder_vocab_size": VOCAB}
LLAMA = {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": 8, "num_attention_heads": 2}
BLOOM = {"model_type": "bloom", "vocab_size": VOCAB, "hidden_size": 8, "n_head": 2}
MUCH = 64 << 20  # bytes; a layer of these sizes takes under 1 MB


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    minibert.FAMILIES, minibert.load  # noqa: B018  their code is not counted
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MUCH


def marian(folder: Path, **changes: Any) -> Path:
    return write(folder, {**MARIAN, **changes}, {"model.shared.weight": numbers(VOCAB, 8)})


def llama(folder: Path, **changes: Any) -> Path:
    return write(folder, {**LLAMA, **changes}, {"embed_tokens.weight": numbers(VOCAB, 8)})


def bloom(folder: Path, **changes: Any) -> Path:
    norm = {f"word_embeddings_layernorm.{part}": numbers(8) for part in ("weight", "bias")}
    return write(folder, {**BLOOM, **changes}, {"word_embeddings.weight": numbers(VOCAB, 8), **norm})


def test_sinusoids_are_made_as_far_as_they_are_needed(tmp_path: Path) -> None:
    layer = minibert.load(marian(tmp_path, max_position_embeddings=MOST_ROWS))
    want = sinusoidal_positions(2000, 8, layout="halves")
    table = layer.embed_positions.table
    for length in (4, FIRST_ROWS, FIRST_ROWS + 1, 2000, 4):
        rows = layer.trace(np.zeros((1, length), np.int64))["encoder.embed_positions"]
        assert same_bits(rows[0], want[:length])
        assert len(table._made.stored_numbers) <= max(FIRST_ROWS, 4000)
    assert layer.max_length == MOST_ROWS and repr(layer.embed_positions).endswith(f"({MOST_ROWS}, 8)")
    with pytest.raises(IndexError, match=f"{MOST_ROWS - 1}"):
        layer([[1]], position_ids=[[MOST_ROWS]])


@pytest.mark.parametrize("rows", [MOST_ROWS + 1, 10**9, 10**30])
def test_more_sinusoids_than_any_model_has_are_refused(rows: int, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"'max_position_embeddings' is {rows}, but the file has no table"):
        minibert.load(marian(tmp_path, max_position_embeddings=rows))


def test_a_table_in_the_file_bounds_its_own_rows(tmp_path: Path) -> None:
    named = {"model.shared.weight": numbers(VOCAB, 8), "model.encoder.embed_positions.weight": numbers(4, 8)}
    with pytest.raises(CheckpointError, match=r"has shape \(4, 8\), but config.json says \(1000000000, 8\)"):
        minibert.load(write(tmp_path, {**MARIAN, "max_position_embeddings": 10**9}, named))


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (llama, {"head_dim": 10**10}, "a head has 10000000000 dimensions, expected at most 65536"),
        (llama, {"head_dim": 2.5}, "'head_dim' must be an integer above 0, found 2.5"),
        (llama, {"num_attention_heads": 0.5}, "'num_attention_heads' must be an integer above 0"),
        (llama, {"num_attention_heads": 10**9}, "too small for 1000000000 heads"),
        (bloom, {"n_head": 10**10}, "'hidden_size' 8 is too small for 10000000000 heads"),
    ],
)
def test_a_scheme_of_attention_is_no_larger_than_the_model(
    make: Callable[..., Path], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    layer = minibert.load(make(tmp_path, **changes))
    assert layer([[1, 2]]).shape == (1, 2, 8)  # the input layer needs none of it
    with pytest.raises(CheckpointError, match=message):
        layer.attention_position  # noqa: B018


def test_a_formula_is_asked_for_few_lengths() -> None:
    asked: list[int] = []

    def make(length: int, dim: int) -> Any:
        asked.append(length)
        return sinusoidal_positions(length, dim)

    table = FormulaTable(make, (10_000, 4))
    whole = sinusoidal_positions(10_000, 4)
    for count in range(1, 3000, 7):
        assert same_bits(table.rows(slice(count - 1, count)), whole[count - 1 : count])
        assert same_bits(table.rows(np.array([[count, 0]])), whole[[[count, 0]]])
    assert len(asked) <= 5
    assert table.rows(np.empty((1, 0), np.int64)).shape == (1, 0, 4)
    assert same_bits(table.array(), whole) and asked[-1] == 10_000
