"""Headers that lie: what a file says of its own tensors is read where it is true, and refused where it is not."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from checkpoints import BERT, Array, assemble, result, write
from hypothesis import given, settings
from hypothesis import strategies as st

import minibert
from minibert import CheckpointError
from minibert.files.checkpoint import SafetensorsFile, parse_header

# -- headers that lie ----------------------------------------------------------------------------------------------

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}
LIES: dict[str, tuple[Any, int]] = {
    "a hole before the first": ({"a": {**A, "data_offsets": [4, 12]}}, 12),
    "a hole between two": ({"a": A, "b": {**B, "data_offsets": [12, 16]}}, 16),
    "an overlap": ({"a": A, "b": {**B, "data_offsets": [4, 8]}}, 8),
    "the same place twice": ({"a": A, "b": A}, 8),
    "more bytes than described": ({"a": A}, 12),
    "fewer bytes than described": ({"a": A}, 4),
    "no bytes at all": ({"a": A}, 0),
    "a shape too large for its bytes": ({"a": {**A, "shape": [3]}}, 8),
    "a shape too small for its bytes": ({"a": {**A, "shape": [1]}}, 8),
    "a negative size": ({"a": {**A, "shape": [-1, -2]}}, 8),
    "a size that overflows": ({"a": {**A, "shape": [2**62, 2**3]}}, 8),
    "sizes that wrap around to the right one": ({"a": {**A, "shape": [2**33, 2**31 + 1]}}, 8),
    "a size beyond 64 bits": ({"a": {**A, "shape": [2**64 + 2]}}, 8),
    "a size that is a float": ({"a": {**A, "shape": [2.0]}}, 8),
    "a size that is true": ({"a": {**B, "shape": [True], "data_offsets": [0, 4]}}, 4),
    "a size that is a text": ({"a": {**A, "shape": ["2"]}}, 8),
    "a shape that is a number": ({"a": {**A, "shape": 2}}, 8),
    "a shape that is a text": ({"a": {**A, "shape": "2"}}, 8),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, 8),
    "no format": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, 8),
    "no offsets": ({"a": {"dtype": "F32", "shape": [2]}}, 8),
    "an unknown format": ({"a": {**A, "dtype": "F99"}}, 8),
    "a format that is a list": ({"a": {**A, "dtype": ["F32"]}}, 8),
    "another format of another size": ({"a": {**A, "dtype": "F64"}}, 8),
    "offsets the wrong way round": ({"a": {**A, "data_offsets": [8, 0]}}, 8),
    "one offset": ({"a": {**A, "data_offsets": [0]}}, 8),
    "three offsets": ({"a": {**A, "data_offsets": [0, 8, 8]}}, 8),
    "negative offsets": ({"a": {**A, "data_offsets": [-8, 0]}}, 8),
    "offsets that are floats": ({"a": {**A, "data_offsets": [0.0, 8.0]}}, 8),
    # whose bytes say nothing of its sizes: nought times any number is nought
    **{
        f"an empty tensor {shape}": ({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}, 0)
        for shape in ([0, 2**63], [2**70, 0], [0, -1])
    },
    "offsets beyond 64 bits": ({"a": {**A, "data_offsets": [2**64, 2**64 + 8]}}, 8),
    "a tensor that is a number": ({"a": 3}, 0),
    "a tensor that is null": ({"a": None}, 0),
    "a list": ([], 0),
    "a number": (b"3", 0),
    "nothing": (b"", 0),
    "no JSON": (b"{'a': 1}", 0),
    "no UTF-8": (b'{"\xff": 1}', 0),
    "a name twice": (b'{"a": %b, "a": %b}' % ((json.dumps(A).encode(),) * 2), 8),
    "a field twice": (b'{"a": {"dtype": "F32", "shape": [2], "shape": [2], "data_offsets": [0, 8]}}', 8),
    "depth without end": (b"[" * 100_000, 0),
    "depth inside": (b'{"a": ' + b'{"a": ' * 100_000, 0),
    "metadata that is a list": ({"__metadata__": ["x"], "a": A}, 8),
    "metadata that is a text": ({"__metadata__": "x", "a": A}, 8),
    "metadata that holds numbers": ({"__metadata__": {"x": 3}, "a": A}, 8),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies(tmp_path: Path, lie: str) -> None:
    header, size = LIES[lie]
    folder = write(tmp_path)
    (folder / "model.safetensors").write_bytes(assemble(header, bytes(size)))
    with pytest.raises(CheckpointError, match=r"model.safetensors"):
        minibert.load(folder)
    # our own reading of the header holds without safetensors' judgement too: lazily fetched files have none
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with pytest.raises(CheckpointError):
        parse_header(text, 8 + len(text), 8 + len(text) + size, "file")


FOREIGN = [b"\xff" * 64, b"{}", b"PK\x03\x04" + bytes(100), b"\x80\x02}q\x00." + bytes(100), b"<!doctype html><html>"]
CUT = [*map(bytes, (0, 1, 7, 8, 64)), *(size.to_bytes(8, "little") + b"{}" for size in (2**63, 100_000_001, 3))]


NOT_WHOLE = r"model.safetensors: not a whole safetensors file \(.*\); .* fetch it again"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 440449768\n"
LEFT_BEHIND = "is a Git LFS pointer, not the tensors; run git lfs pull"


@pytest.mark.parametrize(("content", "says"), [*((each, NOT_WHOLE) for each in FOREIGN + CUT), (POINTER, LEFT_BEHIND)])
def test_a_foreign_or_truncated_file(tmp_path: Path, content: bytes, says: str) -> None:
    (write(tmp_path) / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=says):
        minibert.load(tmp_path)


def agrees_with_safetensors(path: Path) -> None:
    """Either refuse a file, or read in it what the format's own library reads."""
    from safetensors import safe_open

    try:
        ours = SafetensorsFile(path)
    except CheckpointError:
        return
    with safe_open(str(path), framework="np") as theirs:
        assert sorted(ours.tensors) == sorted(theirs.keys())
        assert (ours.metadata or None) == (theirs.metadata() or None)
        for name, tensor in ours.tensors.items():
            place = theirs.get_slice(name)
            assert (tensor.dtype, list(tensor.shape)) == (place.get_dtype(), place.get_shape())
            if tensor.dtype in ("F32", "F64", "F16") and math.prod(tensor.shape):
                assert ours.raw(tensor).tobytes() == theirs.get_tensor(name).tobytes()


@given(data=st.data())
@settings(max_examples=200)
def test_mutated_bytes_are_refused_or_read_right(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, plain: Array
) -> None:
    folder = write(tmp_path_factory.mktemp("mutated"), BERT, metadata={"format": "pt"})
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    stop = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, stop - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.one_of(st.binary(max_size=3), st.sampled_from([b"0", b"1", b"9", b'"', b",", b"]", b"}", b"-", b"."]))
        )
    path.write_bytes(content)
    agrees_with_safetensors(path)
    with contextlib.suppress(CheckpointError):
        assert result(folder).shape == plain.shape
