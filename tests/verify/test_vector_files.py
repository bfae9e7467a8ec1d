"""Files of vectors that other programs write."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Printed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from minibert.cli import main
from minibert.equations.input_layer import Array
from minibert.verify.sides.numpy_files import read_npz
from minibert.verify.sides.texts import TEXTS
from minibert.verify.sides.vector_files import read_texts, read_vectors

ASKED = ["we lived above the clouds", "the clouds", "", "a b c", "line\nline"]
VECTORS = np.array([[1.5, -2.0, 0.0], [0.25, 4.0, 1.0]], np.float32)


def written(folder: Path, name: str) -> Path:
    path = folder / name
    rows = [{"text": f"text {i}", "embedding": row} for i, row in enumerate(VECTORS.tolist())]
    if name.endswith(".npy"):
        np.save(path, VECTORS)
    elif name.endswith(".npz"):
        np.savez(path, ids=np.arange(2), embeddings=VECTORS)
    elif name.endswith(".safetensors"):
        save_file({"anything": VECTORS}, path)
    elif name.endswith(".jsonl"):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table({key: [row[key] for row in rows] for key in ("text", "embedding")}), path)
    return path


@pytest.mark.parametrize("name", ["v.npy", "v.npz", "v.safetensors", "v.jsonl", "v.parquet"])
def test_vectors_are_read_from_every_format(name: str, tmp_path: Path) -> None:
    found, texts = read_vectors(written(tmp_path, name))
    assert np.array_equal(found, VECTORS)
    assert texts == (["text 0", "text 1"] if name[2:] in ("jsonl", "parquet") else None)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3, np.float32), "one vector a row"),
        (np.zeros((2, 3), np.int8), "before they are quantized"),
        (np.zeros((0, 3), np.float32), "one vector a row"),
        (np.array([["a"]]), "is stored as <U1"),
    ],
)
def test_what_are_no_vectors_is_refused_by_file(array: Array, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", array)
    with pytest.raises(ValueError, match=message) as caught:
        read_vectors(tmp_path / "v.npy")
    assert "v.npy" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 2: expected a JSON object"),
        ('{"text": "a"}', "line 2: there is no 'vector'"),
        ('{"text": 3, "vector": [1, 2, 3]}', "row 2: 'text' must be a text"),
        ('{"text": "a", "vector": [1, 2]}', "one vector a row"),
        ('{"text": "a", "vector": ["x", 2, 3]}', "one vector a row"),
        ('{"text": "a", "vector": null}', "one vector a row"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "v.jsonl").write_text('{"text": "a", "vector": [1, 2, 3]}\n' + line, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_vectors(tmp_path / "v.jsonl")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), ending=st.sampled_from([".npy", ".npz", ".safetensors", ".jsonl", ".parquet"]))
def test_a_damaged_file_is_an_error_that_names_it(content: bytes, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"damaged{ending}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        read_vectors(path)


def test_an_npz_that_is_another_file_or_damaged_within_is_an_error_that_names_it(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).random((4, 8), np.float32)
    np.save(tmp_path / "v.npy", vectors)
    (tmp_path / "v.npy").rename(tmp_path / "array.npz")
    np.savez_compressed(tmp_path / "within.npz", vectors=vectors)
    whole = (tmp_path / "within.npz").read_bytes()
    (tmp_path / "within.npz").write_bytes(whole[:80] + bytes([255]) * 40 + whole[120:])
    for name in ("array.npz", "within.npz: vectors"):
        with pytest.raises(ValueError, match=f"{name}: not readable as NumPy"):
            read_vectors(tmp_path / name.partition(":")[0])


def test_an_npz_whose_arrays_are_far_larger_than_itself_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros are packed to a thousandth: 0.8 MB were read as 1.6 GB."""
    monkeypatch.setattr("minibert.verify.sides.numpy_files.ROOM", 100_000)
    zeros, numbers = np.zeros((10, 2_000), np.float32), np.random.default_rng(0).random((10, 10_000), np.float32)
    np.savez_compressed(tmp_path / "v.npz", a=zeros, b=zeros)
    assert set(read_npz(tmp_path / "v.npz", ["a"])) == {"a"}
    with pytest.raises(ValueError, match=r"v\.npz: b: .* an array of 80,000 bytes, where at most [\d,]+ can be"):
        read_npz(tmp_path / "v.npz", ["a", "b"])
    np.savez_compressed(tmp_path / "v.npz", numbers)
    assert np.array_equal(read_vectors(tmp_path / "v.npz")[0], numbers)


def test_texts_that_are_printed_can_be_read_again(tmp_path: Path, capsys: Printed) -> None:
    assert main(["verify", "--print-texts"]) == 0
    printed = capsys.readouterr().out
    assert printed.isascii()  # control characters and others are escaped
    (tmp_path / "t.jsonl").write_text(printed, encoding="utf-8")
    assert read_texts(tmp_path / "t.jsonl") == [each.text for each in TEXTS]
    (tmp_path / "t.txt").write_text("one\ntwo\n", encoding="utf-8")
    assert read_texts(tmp_path / "t.txt") == ["one", "two"]
