"""Files of a port that are not as they should be: each is an error that names file and key, never a traceback.

Intermediates and vectors, a debugger's folder, texts that other programs write.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Patch, Printed, error_of, failure, ran
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from ports import BERT, few, ported, saved
from safetensors.numpy import save_file

from minibert.equations.input_layer import Array
from minibert.models.open.load_encoder import load_encoder
from minibert.verify import sources
from minibert.verify.report import Comparison
from minibert.verify.shipped import TEXTS, read_texts
from minibert.verify.sources import TREE
from minibert.verify.subjects import trace
from minibert.verify.traces import ROOM, read_traces, write_traces
from minibert.verify.vectors import read_vectors
from minibert.verify.verify import FORMATS, read_against, verify

MODEL = str(BERT.folder)
ENDINGS = [".safetensors", ".npz"]
OFTEN = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=25
)


def npz(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def refused(path: Path, *words: str, **options: Any) -> str:
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        verify(MODEL, against=path, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    return str(caught.value)


def test_a_port_may_write_npz_and_store_the_same_numbers_otherwise(tmp_path: Path) -> None:
    arrays = saved()
    arrays["plain|sum"] = np.asfortranarray(arrays["plain|sum"].astype(">f4"))
    assert verify(MODEL, against=npz(tmp_path / "port.npz", arrays)).passed


SUM = saved()["plain|sum"]
BITS = (SUM.view(np.uint32) >> 16).astype(np.uint16).view(np.dtype("V2"))  # as ml_dtypes' bfloat16 comes back
NAMES = {"embeddings.word_embeddings": "wte", "embeddings.position_embeddings": "wpe"}
OF_GPT2 = {f"{kind}|{NAMES[key]}": x for kind, _, key, x in ((*name.partition("|"), x) for name, x in saved().items())
           if key in NAMES}  # fmt: skip
OF_GPT2 |= {name: x for name, x in saved().items() if "|inputs|" in name}
NARROW = {name: x[..., :8] for name, x in saved().items() if x.dtype == np.float32 and "inputs" not in name}
WRONG_SHAPE = "plain|sum has shape {}, expected (3, 7, 16); "


@pytest.mark.parametrize(
    ("beside", "odd", "words"),
    [
        (True, {"plain|sum": BITS}, "plain|sum is stored as |V2; store it as float32"),
        (True, {"types|sum": np.array(["a", "b"])}, "types|sum is a text"),
        (True, {"types|sum": np.array([1 + 2j])}, "types|sum is stored as complex128"),
        (True, {"types|sum": np.zeros(3, [("a", "f4"), ("b", "i4")])}, "types|sum is stored as"),
        (True, {"types|sum": np.array(["2024-01-01"], "datetime64[D]")}, "types|sum is stored as datetime64"),
        (True, {"plain|sum": np.array([{}], object)}, "plain|sum: not readable as NumPy (Object arrays cannot"),
        (True, {"plain|sum": SUM[:, 1:]}, WRONG_SHAPE.format((3, 6, 16))),
        *((beside, {"plain|position_ids": np.zeros((2, 7), int)}, "plain|position_ids has shape (2, 7), expected (")
          for beside in (True, False)),
        (True, {"plain|sum": SUM[0]}, WRONG_SHAPE.format((7, 16))),
        (True, {"plain|sum": SUM[:0]}, WRONG_SHAPE.format((0, 7, 16))),
        (True, NARROW, "plain|embeddings.word_embeddings has shape (3, 7, 8), expected (3, 7, 16)"),
        (False, {"sum": np.zeros(2, np.float32)}, "expected names such as \"plain|inputs|input_ids\", found 'sum'"),
        (False, {"mine|sum": np.zeros(2, np.float32)}, "no inputs for 'mine'; store them as \"mine|inputs|input_ids\""),
        (False, {"plain|mine": np.zeros(2, np.float32)}, "expected names such as plain|position_ids"),
        (False, OF_GPT2, "found wte, wpe; expected names such as plain|position_ids"),
        (False, {}, "found no tensor"),
    ],
)  # fmt: skip
def test_arrays_that_cannot_be_compared_are_named_with_what_is_expected(
    beside: bool, odd: dict[str, Array], words: str, tmp_path: Path
) -> None:
    """Of a port that has the rest of a file too, or no intermediate but these."""
    right = {name: x for name, x in saved().items() if beside}
    refused(npz(tmp_path / "port.npz", {**right, **odd}), words)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    whole = ported(saved(), tmp_path).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for content in (whole[:-1], whole[:header], whole + b"more", whole[:100], b"no such thing", b""):
        (path := tmp_path / "bad.safetensors").write_bytes(content)
        refused(path, "not a safetensors file, or cut short (")


def raw(path: Path, name: str, dtype: str, content: bytes, *shape: int) -> Path:
    """A file of safetensors with one tensor, whatever its format."""
    header = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": [0, len(content)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + content)
    return path


def test_a_format_that_numpy_cannot_hold_is_named_and_bfloat16_is_read(tmp_path: Path) -> None:
    path = tmp_path / "port.safetensors"
    for name, dtype in (("plain|sum", "F8_E4M3"), ("plain|inputs|input_ids", "F8_E5M2")):
        refused(raw(path, name, dtype, bytes(3), 3), f"{name} is stored as {dtype}; store it as F32")
    np.save(tmp_path / "v.npy", BITS[0])
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'v.npy'} is stored as |V2")):
        read_vectors(tmp_path / "v.npy")
    raw(path, "plain|sum", "BF16", b"\x80\x3f\x00\xc0", 2)  # 0x3F80 and 0xC000
    assert read_traces(path)[1]["plain"]["sum"].tolist() == [1.0, -2.0]


def test_an_array_that_no_memory_holds_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 4)})
    with zipfile.ZipFile(tmp_path / "port.npz", "w") as file:
        file.writestr("plain|sum.npy", header.getvalue() + bytes(64))
    refused(tmp_path / "port.npz", "plain|sum: not readable as NumPy (")
    np.savez_compressed(tmp_path / "packed.npz", **{"plain|sum": np.zeros(ROOM, np.uint8)})
    refused(tmp_path / "packed.npz", f"unpack to {ROOM + 128:,}")  # 128: of the array's header
    (tmp_path / "v.npy").write_bytes(header.getvalue() + bytes(64))
    with pytest.raises(ValueError, match=r"v\.npy"):
        read_vectors(tmp_path / "v.npy")


@pytest.mark.parametrize("number", [1e39, 1e300, -1e300])
@pytest.mark.parametrize("form", FORMATS)
def test_a_number_that_float32_does_not_hold_differs_without_a_warning(
    number: float, form: str, tmp_path: Path
) -> None:
    """A port in float64; not even float64 holds the square of 1e300. A warning ends a test."""
    with load_encoder(MODEL) as encoder:
        inputs = few(encoder)
        traces = {kind: trace(encoder, batch) for kind, batch in inputs.items()}
    key = next(reversed(traces["plain"]))
    (wrong := traces["plain"][key].astype(float)).flat[3] = number
    traces["plain"][key] = wrong
    write_traces(path := tmp_path / "port.npz", inputs, traces)
    report = verify(MODEL, encoder=True, against=path, batches=[*inputs], format=form)
    assert not report.passed and max(report.compared, key=lambda d: d.largest).key == key


@OFTEN
@given(
    ending=st.sampled_from([*ENDINGS, ".npy", ".jsonl"]),
    content=st.binary(max_size=120),
    at=st.integers(0, 2000),
    byte=st.integers(0, 255),
)
def test_bytes_of_any_kind_are_refused_by_name(ending: str, content: bytes, at: int, byte: int, tmp_path: Path) -> None:
    whole = tmp_path / f"whole{ending}"
    if not whole.exists():
        few = {name: x for name, x in saved().items() if name.startswith("plain|")}
        {
            ".npy": lambda: np.save(whole, few["plain|sum"][0]), ".npz": lambda: npz(whole, few),
            ".jsonl": lambda: whole.write_text('{"text": "a", "vector": [1, 2]}\n' * 9, "utf-8"),
        }.get(ending, lambda: ported(few, tmp_path, whole.name))()  # fmt: skip
    path, good = tmp_path / f"port{ending}", whole.read_bytes()
    for spoiled in (content, good[:at], good[:at] + bytes([byte]) + good[at + 1 :]):
        path.write_bytes(spoiled)
        message = error_of(lambda: (read_traces if ending in ENDINGS else read_vectors)(path))
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
    found: list[Comparison] = []
    message = error_of(lambda: found.append(verify(MODEL, against=path)))
    if message is None:
        assert found[0].lines and found[0].passed <= beside
    else:
        assert str(path) in message, message


# -- a dict, a debugger's folder, an ONNX model ----------------------------------------------------------------------


def tree(folder: Path, value: object) -> Path:
    """What the debugger writes of one module, cut short."""
    folder.mkdir()
    shown = {"shape": "torch.Size([1, 2])", "dtype": "torch.int64", "value": value}
    words = {"module_path": "BertModel.embeddings.word_embeddings", "inputs": {"args": [shown]}, "outputs": shown}
    whole = {"module_path": "BertModel", "inputs": {"kwargs": {"input_ids": shown}}, "children": [words]}
    (folder / f"BertModel{TREE}").write_text(json.dumps(whole), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("value", "name", "other", "said"),
    [
        (["tensor([[1, 2]])"], "", "", "printed tensors and no middle layers.*do_prune_layers=False, use_repr=False"),
        ("./ids.safetensors", "embeddings.word_embeddings", "wte", "expected a module embeddings.word_embeddings"),
        ("./ids.safetensors", "input_ids", "attention_mask", "no input_ids or inputs_embeds of .*, only .'att"),
    ],
)
def test_a_debugger_s_folder_is_refused_with_what_is_wrong(
    value: object, name: str, other: str, said: str, tmp_path: Path
) -> None:
    """One as it writes it by default, one of another model, one without ids."""
    folder = tree(tmp_path / "debugged", value)
    save_file({"data": np.array([[1, 2]])}, folder / "ids.safetensors")
    path = next(folder.glob("*.json"))
    path.write_text(path.read_text("utf-8").replace(name, other), "utf-8")
    with pytest.raises(ValueError, match=said):
        verify(MODEL, against=folder)


def test_a_debugger_s_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    folder, module = tree(tmp_path / "debugged", ""), {"module_path": "BertModel"}
    given: list[object] = [[1], {"kwargs": [1]}, {"args": {"a": 1}}]
    inside = [{"children": [module | {"inputs": each}]} for each in given]
    for broken in ({"children": 3}, *({"inputs": each} for each in given), *inside):
        next(folder.glob("*.json")).write_text(json.dumps(module | broken), "utf-8")
        with pytest.raises(ValueError):
            verify(MODEL, against=folder)


def test_another_folder_and_an_array_of_texts_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "sum.npy", np.zeros(3))
    with pytest.raises(ValueError):
        read_against(tmp_path)
    with pytest.raises(ValueError, match=re.escape("against['plain|sum'] is stored as")):
        read_against({"plain|sum": np.array(["a"])})


def test_without_onnx_what_to_install_is_said(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ImportError, match="'onnx>="):
        verify(MODEL, against=tmp_path / "model.onnx")


# -- vectors and texts -----------------------------------------------------------------------------------------------


def test_vectors_may_be_called_embeddings(tmp_path: Path) -> None:
    rows = [{"text": "text 0", "embedding": [1.5, -2.0, 0.0]}, {"text": "text 1", "embedding": [0.25, 4.0, 1.0]}]
    (tmp_path / "v.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found, texts = read_vectors(tmp_path / "v.jsonl")
    assert found.tolist() == [row["embedding"] for row in rows] and texts == ["text 0", "text 1"]


FIRST = '{"text": "a", "vector": [1, 2, 3]}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.npy", np.zeros(3, np.float32), "one vector a row"),
        ("v.npy", np.zeros((2, 3), np.int8), "before they are quantized"),
        ("v.npy", np.zeros((0, 3), np.float32), "one vector a row"),
        ("v.npy", np.array([["a"]]), "<U1"),
        *(("v.jsonl", FIRST + rest, message) for rest, message in (
            ("[1]", "line 2"), ('{"text": "a"}', "line 2"), ('{"vector": [1, 2, 3]}', "1 .*2 "),
            ('{"text": "a", "vector": [1, 2]}', "one vector a row"), ('{"text": "a", "vector": null}', "line 2"),
            ('\n{"text": "a", "vector": ["x", 2, 3]}', "line 3"))),
        *((f"v.{ending}", "", "numpy.save") for ending in ("safetensors", "npz", "parquet")),
    ],
)  # fmt: skip
def test_what_are_no_vectors_is_refused_by_file(name: str, content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if isinstance(content, np.ndarray):
        np.save(path, content)
    else:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{message}"):
        read_vectors(path)


@pytest.mark.parametrize("option", ["--vectors", "--texts", "--against"])
@pytest.mark.parametrize("ending", ["npy", "onnx", "safetensors"])
def test_a_pipe_is_not_waited_for(option: str, ending: str, folder: Path, tmp_path: Path, capsys: Printed) -> None:
    os.mkfifo(path := tmp_path / f"pipe.{ending}")
    assert f"{path} is no file but a pipe" in failure(capsys, "verify", folder, option, path)


def test_texts_that_are_printed_can_be_read_again(tmp_path: Path, capsys: Printed) -> None:
    printed, _ = ran(capsys, "verify", "--print-texts")
    assert printed.isascii()  # control and non-ASCII characters are escaped
    (tmp_path / "t.jsonl").write_text(printed, encoding="utf-8")
    assert read_texts(tmp_path / "t.jsonl") == [each.text for each in TEXTS]
    (tmp_path / "t.txt").write_text("one\r\n\ntwo\n", encoding="utf-8")
    assert read_texts(tmp_path / "t.txt") == ["one", "", "two"]
    for name, content, words in (("a.jsonl", '{"text": 3}', "line 1: expected a text"), ("a.csv", "text\n", "lines"),
                                 ("a.txt", "", "has no text")):  # fmt: skip
        (tmp_path / name).write_text(content, encoding="utf-8")
        message = error_of(lambda name=name: read_texts(tmp_path / name))
        assert message is not None and f"{tmp_path / name}" in message and words in message
