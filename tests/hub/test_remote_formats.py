"""A lazy layer of any stored format, asked twice: what a first call leaves behind does not disturb a second one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import BERT, as_stored, same_bits, tensors, write, write_wordpiece
from fake_hub import FakeHub

import minibert
from minibert.files.tables import NUMPY_DTYPE, SMALL_TABLE

ROWS, POSITIONS, DIM = 300, 512, 768
CONFIG = {**BERT, "vocab_size": ROWS, "max_position_embeddings": POSITIONS, "hidden_size": DIM, "embedding_size": DIM}


@pytest.mark.parametrize("kind", NUMPY_DTYPE)
def test_the_second_length_is_as_right_as_the_first(tmp_path: Path, hub: FakeHub, kind: str) -> None:
    """By a name on the Hub and at the size of a real table, with nothing made smaller than it is."""
    held = {name: as_stored(array, kind) for name, array in tensors(CONFIG).items()}
    folder = write_wordpiece(write(tmp_path / "model", CONFIG, held))
    assert POSITIONS * DIM <= SMALL_TABLE
    hub.add("org/tiny", {path.name: path for path in folder.iterdir()})
    local, lazy = minibert.load(folder), minibert.load("org/tiny", lazy=True)
    for length in (3, 9):
        assert same_bits(lazy(np.arange(length)), local(np.arange(length)))
    texts = ["a", "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3]
    assert same_bits(lazy.embed(texts), local.embed(texts))
