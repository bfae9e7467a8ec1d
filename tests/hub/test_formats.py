"""A lazy layer of any stored format, asked many times: each answer is that of the same file on disk, to the bit.

Rows come as they are asked for, so what a first call leaves behind must not stand in the way of a second one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from checkpoints import BERT, Stored, bfloat16, same_bits, stored, tensors, write, write_wordpiece
from fake_hub import FakeHub
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_repository import Memory

import minibert
from minibert.equations.input_layer import Array
from minibert.files.tables import SMALL_TABLE
from minibert.hub import remote
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.open.load import Opened, assemble

FORMATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
ROWS, POSITIONS = 300, 512
CONFIG = {**BERT, "vocab_size": ROWS, "max_position_embeddings": POSITIONS}


def as_stored(array: Array, kind: str) -> Stored:
    if kind == "BF16":
        return bfloat16(array)
    if kind.startswith("F8"):
        patterns = np.random.default_rng(array.shape).integers(0x20, 0x50, array.shape)  # neither huge nor NaN
        return kind, array.shape, patterns.astype("u1").tobytes()
    return stored(array.astype({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[kind]))


def write_format(folder: Path, kind: str, config: dict[str, Any]) -> Path:
    """A BERT whose tensors are all of one format."""
    write(folder, config, {name: as_stored(array, kind) for name, array in tensors(config).items()})
    return write_wordpiece(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {kind: tmp_path_factory.mktemp("formats") / kind for kind in FORMATS}
    for kind, folder in made.items():
        write_format(folder, kind, CONFIG)
    return made


def ids_below(limit: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, limit - 1), min_size=1, max_size=most)


# What a caller may ask of a layer: a function of the layer and what it is given.
ASKED = st.one_of(
    st.tuples(st.just("call"), ids_below(ROWS, 40), st.integers(0, POSITIONS - 40)),
    st.tuples(st.just("trace"), ids_below(ROWS, 8), st.integers(0, POSITIONS - 8)),
    st.tuples(st.just("positions"), ids_below(POSITIONS, 8), st.just(0)),
    st.tuples(st.just("module"), ids_below(POSITIONS, 8), st.just(0)),
    st.tuples(st.just("embed"), st.lists(st.integers(0, 30), min_size=1, max_size=4), st.just(0)),
)


def answer(layer: EmbeddingLayer, asked: tuple[str, list[int], int]) -> list[Array]:
    kind, numbers, past = asked
    if kind == "call":
        return [layer(numbers, past_length=past)]
    if kind == "trace":
        return list(layer.trace(numbers, past_length=past).values())
    if kind == "positions":
        words = [i % ROWS for i in numbers]
        return [layer([words], position_ids=[numbers], token_type_ids=[[i % 2 for i in numbers]])]
    if kind == "module":
        return [layer.position_embeddings(numbers)]
    return list(layer.embed(["a " * length for length in numbers]))


@settings(max_examples=40)
@given(kind=st.sampled_from(FORMATS), asks=st.lists(ASKED, min_size=2, max_size=6), dtype=st.sampled_from(["f4", "f8"]))
def test_many_calls_of_a_lazy_layer_give_what_the_file_on_disk_gives(
    folders: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    asks: list[tuple[str, list[int], int]],
    dtype: str,
) -> None:
    folder, name = folders[kind], np.dtype(dtype).name
    memory = Memory(
        tmp_path_factory.mktemp("ranges"), {"model.safetensors": (folder / "model.safetensors").read_bytes()}
    )

    def find(file: str) -> Path | None:
        return folder / file if (folder / file).exists() else None

    def checkpoint(sub: str = "") -> remote.RemoteCheckpoint:
        return remote.RemoteCheckpoint(memory, None, lazy=True, mmap=True)

    opened = Opened(find, checkpoint, "memory", "memory")
    with (
        mock.patch.object(remote, "ROWWISE_FROM", 0),
        mock.patch.object(remote, "MERGE_BYTES", 0),  # so that nobody's neighbours come along
        minibert.load(folder, dtype=name) as local,
        assemble(opened, checkpoint(), minibert.FAMILIES["bert"], dtype=name) as lazy,
    ):
        assert isinstance(lazy.position_embeddings.table, remote.RowTable)
        for asked in asks:
            for found, expected in zip(answer(lazy, asked), answer(local, asked), strict=True):
                assert same_bits(found, expected), asked


@pytest.mark.parametrize("kind", FORMATS)
def test_the_second_length_is_as_right_as_the_first(tmp_path: Path, hub: FakeHub, kind: str) -> None:
    """By a name on the Hub and at the size of a real table, with nothing made smaller than it is."""
    folder = write_format(tmp_path / "model", kind, {**CONFIG, "hidden_size": 768, "embedding_size": 768})
    assert POSITIONS * 768 <= SMALL_TABLE
    hub.add("org/tiny", {path.name: path for path in folder.iterdir()})
    local, lazy = minibert.load(folder), minibert.load("org/tiny", lazy=True)
    for length in (3, 9):
        assert same_bits(lazy(np.arange(length)), local(np.arange(length)))
    texts = ["a", "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3]
    assert same_bits(lazy.embed(texts), local.embed(texts))
