"""Files of tensors, the headers in which they say what they hold and the formats of their numbers: what is true is read
where it lies, what is not is refused, whatever the bytes are.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from checkpoints import BERT, GPT2, IDS, Array, pack, result, same_bits, tensors, write
from hypothesis import given, settings
from hypothesis import strategies as st

import minibert
from minibert import CheckpointError
from minibert.files.checkpoint import BITS, SafetensorsFile, open_folder, parse_header
from minibert.files.tables import NUMPY_DTYPE, as_table, convert

WORD = "embeddings.word_embeddings.weight"
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at the process in /proc")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Array:
    """The output of the simplest file."""
    return result(write(tmp_path_factory.mktemp("plain")))


# -- where the numbers lie -----------------------------------------------------------------------------------------


def test_tables_are_the_file_s_bytes_mapped_and_read_only(tmp_path: Path) -> None:
    folder = write(tmp_path)
    layer = minibert.load(folder)
    weight = layer.word_embeddings.weight
    assert same_bits(np.array(weight), tensors(BERT)[WORD])
    assert np.shares_memory(layer.word_embeddings.weight, weight)
    assert not weight.flags.owndata and not weight.flags.writeable
    with pytest.raises(ValueError):
        weight[0, 0] = 1
    # a map shows what the file holds now: a copy would not
    path = folder / "model.safetensors"
    with open(path, "r+b") as file:
        file.seek(SafetensorsFile(path).tensors[WORD].start)
        file.write(struct.pack("<f", 42.0))
    assert weight[0, 0] == 42.0 and layer.word_embeddings([0])[0, 0] == 42.0


def handles(folder: Path) -> set[str]:
    """The files below a folder that this process has open."""
    files = {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}  # noqa: PTH208
    return {name for name in files if str(folder) in name}


@linux
def test_a_file_is_mapped_once_and_its_handle_closed_and_without_a_map_it_may_go(tmp_path: Path, plain: Array) -> None:
    folder = write(tmp_path)
    layer = minibert.load(folder, mmap=False)
    assert str(folder) not in Path("/proc/self/maps").read_text()
    assert not layer.word_embeddings.weight.flags.writeable
    mapped = minibert.load(folder)
    mapped(IDS)
    (line,) = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    assert " r--" in line
    assert len(handles(folder)) <= 1  # Python's map keeps one of its own
    mapped.close()
    (folder / "model.safetensors").write_bytes(b"")
    assert same_bits(layer(IDS), plain)


@pytest.mark.parametrize("shift", range(1, 8))
def test_data_may_begin_at_any_byte(tmp_path: Path, plain: Array, shift: int) -> None:
    folder = write(tmp_path, shift=shift)
    layer = minibert.load(folder)
    assert layer.word_embeddings.weight.flags.aligned == (shift % 4 == 0)
    assert same_bits(layer(IDS), plain)
    assert same_bits(layer.trace(IDS)["embeddings.LayerNorm"], plain)
    assert same_bits(result(folder, mmap=False), plain)
    assert same_bits(result(folder, dtype="float64"), result(write(tmp_path / "even"), dtype="float64"))
    assert same_bits(layer.embed([]), np.empty((0, 8), np.float32))


def test_metadata_may_name_the_twin_that_was_dropped_and_renames_none_that_is_stored(
    tmp_path: Path, plain: Array
) -> None:
    named = tensors(BERT)
    named["some.other.name"] = named.pop(WORD)
    metadata = {"format": "pt", WORD: "some.other.name", "unrelated": "nonsense"}
    assert same_bits(result(write(tmp_path, BERT, named, metadata)), plain)
    for metadata in ({WORD: "absent"}, {"format": "pt"}):
        with pytest.raises(CheckpointError, match=WORD):
            minibert.load(write(tmp_path, BERT, named, metadata))
    folder = write(tmp_path, metadata={WORD: "embeddings.position_embeddings.weight", "twin": WORD})
    assert open_folder(str(folder)).aliases() == {"twin": WORD}
    assert same_bits(result(folder), plain)


def test_a_file_cut_short_between_its_header_and_its_numbers(tmp_path: Path) -> None:
    path = write(tmp_path) / "model.safetensors"
    file = SafetensorsFile(path, mmap=False)
    tensor = file.tensors[WORD]
    assert same_bits(file.raw(tensor), tensors(BERT)[WORD])
    for size in (tensor.stop - 1, tensor.start + 4, tensor.start, 0):
        os.truncate(path, size)
        with pytest.raises(CheckpointError, match=WORD):
            file.raw(tensor)


# -- tensors that do not fit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [BERT, checkpoints.ROBERTA, checkpoints.DISTILBERT, GPT2, checkpoints.ELECTRA])
def test_each_missing_tensor_is_named(tmp_path: Path, config: dict[str, Any]) -> None:
    for i, name in enumerate(tensors(config)):
        named = tensors(config)
        del named[name]
        says = f"{tmp_path}.*: no tensor for '{name}'; tried {name}.*does config.json belong to this file?"
        with pytest.raises(CheckpointError, match=says):
            minibert.load(write(tmp_path / str(i), config, named))


def test_a_size_of_0_in_both_config_and_file(tmp_path: Path) -> None:
    named = tensors(BERT) | {WORD: np.zeros((0, 8), np.float32)}
    with pytest.raises(CheckpointError):
        minibert.load(write(tmp_path / "rows", {**BERT, "vocab_size": 0}, named))
    header, _ = checkpoints.entries(tensors(GPT2))
    for name in header:  # sizes that NumPy cannot even write down, for no bytes at all
        header[name] |= {"shape": [0, 2**62], "data_offsets": [0, 0]}
    config = {**GPT2, "vocab_size": 0, "n_positions": 0, "n_embd": 2**62}
    folder = write(tmp_path / "wide", config, {})
    (folder / "model.safetensors").write_bytes(checkpoints.assemble(header, b""))
    with pytest.raises(CheckpointError):
        minibert.load(folder)


# -- shards --------------------------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    named = tensors(BERT)
    return checkpoints.write_shards(
        tmp_path, BERT, [{WORD: named.pop(WORD)}, named, {"encoder.rest": np.ones(3, "f4")}]
    )


def test_a_shard_is_opened_when_it_is_needed_and_named_where_it_is_bad(shards: Path, plain: Array) -> None:
    first, second, third = (shards / f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3))
    third.unlink()
    assert same_bits(result(shards), plain) and same_bits(result(shards, mmap=False), plain)
    second.unlink()
    with pytest.raises(CheckpointError, match=f"{second.name}, which model.safetensors.index.json lists"):
        minibert.load(shards)
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=first.name):
        minibert.load(shards)


def test_an_index_of_another_save(shards: Path) -> None:
    elsewhere = "model-00002-of-00003.safetensors"
    weight_map = json.loads((shards / "model.safetensors.index.json").read_text())["weight_map"]
    for changed, says in ((weight_map | {WORD: elsewhere}, f"'{WORD}'.*{elsewhere}"), ({"rest": elsewhere}, WORD)):
        checkpoints.write_index(shards, changed)
        with pytest.raises(CheckpointError, match=says):
            minibert.load(shards)


NO_FILES = [
    b"3", b"null", b'["b"]', b'"../b.safetensors"', b'"/etc/passwd"', b'"sub/b.safetensors"', b'".."', b'"."', b'""',
    b'"..\\\\b.safetensors"', b'"sub\\\\b.safetensors"', b'"\\\\\\\\server\\\\share\\\\b.safetensors"',
    b'"C:b.safetensors"', b'"C:/b.safetensors"', b'"b.safetensors", "a": "c.safetensors"',
]  # fmt: skip
NO_MAPS = [b"null", b"[]", b'"model.safetensors"', *(b'{"a": %b}' % name for name in NO_FILES), b'{"a": "b"}} trailing']
NO_OBJECTS = [b"", b"{", b"[]", b"null", b"3", b"{}", b"\xff\xfe", b"[" * 100_000]


@pytest.mark.parametrize("text", [*NO_OBJECTS, *(b'{"weight_map": %b}' % each for each in NO_MAPS)])
def test_a_damaged_index(tmp_path: Path, text: bytes) -> None:
    (write(tmp_path) / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"model.safetensors.index.json"):
        minibert.load(tmp_path)


def test_shards_that_are_no_files_and_the_single_file_goes_before_an_index(shards: Path, plain: Array) -> None:
    (shards / "folder").mkdir()
    for name in ("folder", "nul\x00", "\udcff", "\ud800", "x" * 5000):
        checkpoints.write_index(shards, dict.fromkeys(tensors(BERT), name))
        with pytest.raises(CheckpointError):
            minibert.load(shards)
    assert same_bits(result(write(shards)), plain)


def test_without_a_file_of_tensors(tmp_path: Path) -> None:
    (write(tmp_path) / "model.safetensors").unlink()  # beside one of another format: test_hostile_folder.py
    with pytest.raises(CheckpointError, match=r"config.json"):
        minibert.load(tmp_path)


@linux
def test_a_failed_load_leaves_nothing_open(tmp_path: Path) -> None:
    folder = write(tmp_path, BERT, {WORD: tensors(BERT)[WORD]})
    with pytest.raises(CheckpointError):
        minibert.load(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert str(folder) not in Path("/proc/self/maps").read_text()
    assert not handles(folder)


# -- headers that lie ----------------------------------------------------------------------------------------------

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}
FIELDS: dict[str, tuple[Any, ...]] = {  # of A, which has eight bytes; `...`: none
    # too large, too small, negative; that overflow, that wrap around to the right one, beyond 64 bits; of another kind
    "shape": ([3], [1], [-1, -2], [2**62, 2**3], [2**33, 2**31 + 1], [2**64 + 2], [2.0], ["2"], 2, "2", ...),
    "dtype": ("F99", ["F32"], "F64", ...),
    "data_offsets": ([8, 0], [0], [0, 8, 8], [-8, 0], [0.0, 8.0], [2**64, 2**64 + 8], ...),
}
LIES: dict[str, tuple[Any, int]] = {
    **{
        f"{field} {value}": ({"a": {key: of for key, of in {**A, field: value}.items() if of is not ...}}, 8)
        for field, values in FIELDS.items()
        for value in values
    },
    "a size that is true": ({"a": {**B, "shape": [True], "data_offsets": [0, 4]}}, 4),
    # whose bytes say nothing of its sizes: nought times any number is nought
    **{
        f"an empty tensor {shape}": ({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}, 0)
        for shape in ([0, 2**63], [2**70, 0], [0, -1])
    },
    "a hole before the first": ({"a": {**A, "data_offsets": [4, 12]}}, 12),
    "a hole between two": ({"a": A, "b": {**B, "data_offsets": [12, 16]}}, 16),
    "an overlap": ({"a": A, "b": {**B, "data_offsets": [4, 8]}}, 8),
    "the same place twice": ({"a": A, "b": A}, 8),
    **{f"eight bytes described, {size} there": ({"a": A}, size) for size in (12, 4, 0)},
    **{f"no object: {text!r}": (text, 0) for text in (b"[]", b"3", b"", b"{'a': 1}", b'{"a": 3}', b'{"a": null}')},
    "no UTF-8": (b'{"\xff": 1}', 0),
    "a name twice": (b'{"a": %b, "a": %b}' % ((json.dumps(A).encode(),) * 2), 8),
    "a field twice": (b'{"a": {"dtype": "F32", "shape": [2], "shape": [2], "data_offsets": [0, 8]}}', 8),
    "depth without end": (b"[" * 100_000, 0),
    "depth inside": (b'{"a": ' + b'{"a": ' * 100_000, 0),
    **{f"metadata {held}": ({"__metadata__": held, "a": A}, 8) for held in (["x"], "x", {"x": 3})},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies(tmp_path: Path, lie: str) -> None:
    header, size = LIES[lie]
    folder = write(tmp_path)
    (folder / "model.safetensors").write_bytes(checkpoints.assemble(header, bytes(size)))
    with pytest.raises(CheckpointError, match=r"model.safetensors"):
        minibert.load(folder)
    # our own reading of the header holds without safetensors' judgement too: lazily fetched files have none
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with pytest.raises(CheckpointError):
        parse_header(text, 8 + len(text), 8 + len(text) + size, "file")


FOREIGN = [b"\xff" * 64, b"{}", b"PK\x03\x04" + bytes(100), b"\x80\x02}q\x00." + bytes(100), b"<!doctype html><html>"]
CUT = [*map(bytes, (0, 1, 7, 8, 64)), *(size.to_bytes(8, "little") + b"{}" for size in (2**63, 100_000_001, 3))]


@pytest.mark.parametrize("content", FOREIGN + CUT)
def test_a_foreign_or_truncated_file(tmp_path: Path, content: bytes) -> None:
    (write(tmp_path) / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model.safetensors: not a whole safetensors file \(.*\); "):
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


POSITION = "embeddings.position_embeddings.weight"


NARROW: dict[str, Callable[[int], float]] = {  # what bits mean, by the standard library
    "F16": lambda bits: struct.unpack("<e", bits.to_bytes(2, "little"))[0],
    "BF16": lambda bits: struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0],
}


def same_numbers(a: Array, b: Array) -> bool:
    """Equal with the sign of zero, and NaN where NaN is."""
    return bool(np.array_equal(a, b, equal_nan=True) and (np.signbit(a) == np.signbit(b))[~np.isnan(b)].all())


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("kind", NARROW)
def test_every_narrow_number_is_converted_exactly(
    tmp_path: Path, kind: str, dtype: str, shift: int, mmap: bool
) -> None:
    stored = kind, (1 << 12, 16), np.arange(1 << 16, dtype="<u2").tobytes()
    (tmp_path / "model.safetensors").write_bytes(pack({"before": checkpoints.numbers(3), "table": stored}, shift=shift))
    truth = np.array([NARROW[kind](bits) for bits in range(1 << 16)]).reshape(-1, 16)
    table = open_folder(str(tmp_path), mmap).table("table", dtype)
    assert table.stored == kind and table.dtype == dtype and table.shape == truth.shape
    whole = table.array()
    assert whole.dtype == dtype and not whole.flags.writeable
    assert same_numbers(whole, truth)
    assert same_numbers(table.rows(np.arange(len(truth))[::-1]), truth[::-1])
    assert same_numbers(table.rows(slice(1, 9)), truth[1:9])
    ids, out = np.array([[0, 3], [7, 7]]), np.empty((2, 2, 16), dtype)
    assert table.rows(ids, out) is out
    assert same_numbers(out, truth[ids])


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7BFF])
def test_infinity_is_converted_without_a_nan_beside_it(bits: int) -> None:
    found = convert(np.array([1, bits], "<u2").view("<f2"), "F16", np.dtype("float32"))
    assert found.tolist() == [2.0**-24, NARROW["F16"](bits)]


@pytest.mark.parametrize("kind", ["F16", "BF16", "F64"])
def test_a_layer_of_another_format_gives_the_rows_its_file_holds(tmp_path: Path, kind: str) -> None:
    every = {name: np.round(array * 4) / 4 for name, array in tensors(BERT).items()}  # exact in each format
    wide = result(write(tmp_path / "wide", BERT, every))
    narrow = {name: checkpoints.as_stored(array, kind) for name, array in every.items()}
    for shift in range(3):
        folder = write(tmp_path / f"shifted{shift}", BERT, narrow, shift=shift)
        assert same_bits(result(folder), wide) and same_bits(result(folder, mmap=False), wide)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_a_table_hands_out_nothing_that_would_change_it(dtype: str) -> None:
    """Also one over an array of a caller's own, such as the sinusoids that a family computes."""
    own = np.ones((4, 3), dtype)
    table = as_table(own)
    for handed_out in (table.array(), table.stored_numbers, table.rows(slice(0, 2))):
        with pytest.raises(ValueError):
            handed_out[0, 0] = 7
    table.rows(np.array([0, 1]))[...] = 7  # rows by ids are a copy
    assert (table.array() == 1).all() and own.flags.writeable


def test_float64_tables_are_rounded_to_nearest(tmp_path: Path) -> None:
    finite = [0.1, 1 + 2**-24, 1 + 3 * 2**-24, 2**-150, 1e-40, -1e-300, 1e300, -1e300]
    hard = [*finite, math.inf, -math.inf, math.nan, -0.0]
    with np.errstate(all="ignore"):
        expected = np.array(hard).astype(np.float32)
    (tmp_path / "model.safetensors").write_bytes(pack({"finite": np.array([finite]), "hard": np.array([hard])}))
    checkpoint = open_folder(str(tmp_path))
    for found in (checkpoint.table("hard").rows(np.array([0])), checkpoint.table("hard").array()):
        assert same_numbers(found, expected[None])  # warnings are errors here
    assert same_numbers(checkpoint.table("hard", "float64").array(), np.array([hard]))
    assert same_numbers(checkpoint.table("finite").rows(np.array([0])), expected[None, :8])


@pytest.mark.parametrize("kind", sorted(set(BITS) - set(NUMPY_DTYPE)))
def test_other_formats_are_refused_where_they_are_needed(tmp_path: Path, kind: str) -> None:
    named: dict[str, Any] = tensors(BERT) | {POSITION: (kind, (16, 8), bytes(16 * 8 * BITS[kind] // 8))}
    says = f"tensor '{POSITION}' is stored as {kind}; this layer reads F64, F32, F16, BF16\\Z"
    if kind in ("F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "C64"):  # a release may be older than the format
        says += "|not a whole safetensors file"
    with pytest.raises(CheckpointError, match=says):
        minibert.load(write(tmp_path, BERT, named))
    # outside the input layer it does not matter
    header, data = checkpoints.entries({**tensors(BERT), "extra": (kind, (2,), bytes(2 * BITS[kind] // 8 or 1))})
    if BITS[kind] % 8 == 0:
        assert "extra" in parse_header(json.dumps(header).encode(), 0, len(data), "file")[0]
