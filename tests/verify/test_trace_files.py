"""Files of a port that are not as they should be: each is an error that names file and key, never a traceback."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import error_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from ports import BERT, ported, saved

from minibert.equations.input_layer import Array
from minibert.verify.report import Report
from minibert.verify.sides.traces import read_traces
from minibert.verify.vectors.vectors import read_vectors
from minibert.verify.verify import verify

MODEL = str(BERT.folder)
ENDINGS = [".safetensors", ".npz"]
OFTEN = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)


def npz(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def refused(path: Path, *words: str, **options: Any) -> str:
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        verify(MODEL, against=path, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    return str(caught.value)


def test_a_port_may_write_npz(tmp_path: Path) -> None:
    path = npz(tmp_path / "port.npz", saved())
    assert verify(MODEL, against=path).passed
    arrays = saved()
    arrays["plain|sum"] = np.asfortranarray(arrays["plain|sum"].astype(">f4"))  # the same numbers, stored otherwise
    assert verify(MODEL, against=npz(path, arrays)).passed
    arrays["plain|sum"] = arrays["plain|sum"] + np.float32(1)
    assert not verify(MODEL, against=npz(path, arrays)).passed


def test_bfloat16_in_numpy_s_files_is_named_with_its_key(tmp_path: Path) -> None:
    # as ml_dtypes' bfloat16 comes back: two bytes each, of no type
    raw = (saved()["plain|sum"].view(np.uint32) >> 16).astype(np.uint16).view(np.dtype("V2"))
    refused(npz(tmp_path / "port.npz", {**saved(), "plain|sum": raw}), "plain|sum", "bfloat16", "store it as float32")
    np.save(tmp_path / "v.npy", raw[0])
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'v.npy'} is stored as bfloat16")):
        read_vectors(tmp_path / "v.npy")


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (np.array(["a", "b"]), "is a text"),
        (np.array([1 + 2j]), "complex128"),
        (np.zeros(3, [("a", "f4"), ("b", "i4")]), "is stored as"),
        (np.array(["2024-01-01"], "datetime64[D]"), "datetime64"),
    ],
)
def test_what_are_no_numbers_is_named_with_its_key(odd: Array, words: str, tmp_path: Path) -> None:
    refused(npz(tmp_path / "port.npz", {**saved(), "types|sum": odd}), "types|sum", words)


def test_python_objects_are_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "port.npz"
    np.savez(path, **{**saved(), "plain|sum": np.array([{}], object)}, allow_pickle=True)
    refused(path, "plain|sum", "Python objects")


def test_an_array_is_not_made_that_the_file_does_not_hold(tmp_path: Path) -> None:
    header = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 4)}
    np.lib.format.write_array_header_1_0(header, fields)
    with zipfile.ZipFile(tmp_path / "port.npz", "w") as file:
        file.writestr("plain|sum.npy", header.getvalue() + bytes(64))
    refused(tmp_path / "port.npz", "plain|sum", "17,592,186,044,416 bytes")
    (tmp_path / "v.npy").write_bytes(header.getvalue() + bytes(64))
    with pytest.raises(ValueError, match=r"v\.npy: not readable as NumPy \(its header describes"):
        read_vectors(tmp_path / "v.npy")


def test_a_trace_of_another_family_is_named(tmp_path: Path) -> None:
    names = {"embeddings.word_embeddings": "wte", "embeddings.position_embeddings": "wpe"}
    arrays = {name: x for name, x in saved().items() if "inputs|" in name}
    arrays |= {f"{kind}|{names[key]}": x for name, x in saved().items()
               for kind, _, key in [name.partition("|")] if key in names}  # fmt: skip
    refused(ported(arrays, tmp_path), "found wpe, wte, as of gpt2", "expected names such as plain|position_ids")


def test_another_hidden_size_is_named_with_file_and_key(tmp_path: Path) -> None:
    arrays = {name: x[..., :8] if x.dtype == np.float32 and "inputs" not in name else x for name, x in saved().items()}
    refused(ported(arrays, tmp_path), "plain|embeddings.word_embeddings has shape (3, 7, 8), expected (3, 7, 16)")


def test_what_is_missing_everywhere_is_one_line(tmp_path: Path) -> None:
    arrays = {name: x for name, x in saved().items() if not name.endswith("|sum")}
    report = verify(MODEL, against=ported(arrays, tmp_path))
    count = sum(name.endswith("|sum") for name in saved())
    assert not report.passed and f"missing: sum in all {count} batches" in report.lines
    assert len([line for line in report.lines if line.startswith("missing: ")]) == 1


@OFTEN
@given(
    ending=st.sampled_from([*ENDINGS, ".npy"]),
    content=st.binary(max_size=120),
    at=st.integers(0, 2000),
    byte=st.integers(0, 255),
)
def test_bytes_of_any_kind_are_refused_by_name(ending: str, content: bytes, at: int, byte: int, tmp_path: Path) -> None:
    whole = tmp_path / f"whole{ending}"
    if not whole.exists():
        few = {name: x for name, x in saved().items() if name.startswith("plain|")}
        np.save(whole, few["plain|sum"][0]) if ending == ".npy" else npz(whole, few) if ending == ".npz" else ported(
            few, tmp_path, whole.name)  # fmt: skip
    path, good = tmp_path / f"port{ending}", whole.read_bytes()
    for spoiled in (content, good[:at], good[:at] + bytes([byte]) + good[at + 1 :]):
        path.write_bytes(spoiled)
        for read in (read_vectors,) if ending == ".npy" else (read_traces, read_vectors):
            message = error_of(lambda read=read: read(path))
            assert message is None or str(path) in message


KEYS = st.sampled_from([*saved(), "plain", "plain|", "|sum", "mine|inputs|input_ids", "mine|sum", "plain|inputs|mask"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)
ARRAYS = hnp.arrays(hnp.scalar_dtypes() | st.sampled_from([np.dtype("f4"), np.dtype("i8"), np.dtype("U3")]), SHAPES)
UNKNOWN = hnp.arrays(np.dtype("u2"), SHAPES).map(lambda bits: bits.view(np.dtype("V2")))


@OFTEN
@given(odd=st.dictionaries(KEYS, ARRAYS | UNKNOWN, max_size=4), beside=st.booleans())
def test_arrays_of_any_kind_are_compared_or_refused(odd: dict[str, Array], beside: bool, tmp_path: Path) -> None:
    path = tmp_path / "port.npz"
    right = {name: x for name, x in saved().items() if name.startswith("plain|")} if beside else {}
    npz(path, {**right, **odd})
    found: list[Report] = []
    message = error_of(lambda: found.append(verify(MODEL, against=path)))
    if message is None:
        assert found[0].lines and found[0].passed <= beside
    else:
        assert str(path) in message, message
