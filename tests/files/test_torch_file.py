"""Small files of torch.save: what is read of them, and that nothing in one is ever run."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_files import METADATA, archive, dict_of, harmful, many, number, tensor, text, torch_file

import minibert
from minibert.equations.input_layer import Array
from minibert.files.torch_file import read_torch_file

SHAPES = {"weight": (2, 3), "bias": (2,)}
ARRAYS = {"weight": np.arange(6, dtype="<f4").reshape(2, 3) / 8 - 0.25, "bias": np.array([3.5, -1], "<f4")}
WHOLE = torch_file(ARRAYS)
RAW = {"0": ARRAYS["weight"].tobytes(), "1": ARRAYS["bias"].tobytes()}
BIAS = tensor(1, "FloatStorage", 2, (2,))
REFUSED = minibert.CheckpointError


def read(folder: Path, content: bytes, dtype: str = "float32", shapes: Any = SHAPES) -> list[Array]:
    (folder / "x.pt").write_bytes(content)
    return read_torch_file(folder / "x.pt", shapes, np.dtype(dtype))


@pytest.mark.parametrize("stored", ["<f2", "<f4", "<f8"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_tensors_by_name(tmp_path: Path, stored: str, dtype: str) -> None:
    arrays = {name: x.astype(stored) for name, x in ARRAYS.items()}
    for found, want in zip(read(tmp_path, torch_file(arrays), dtype), ARRAYS.values(), strict=True):
        assert found.dtype == dtype and np.array_equal(found, want)


def test_bfloat16_and_a_part_of_a_storage(tmp_path: Path) -> None:
    raw = np.array([9, 9, 0x3F80, 0xC000], "<u2").tobytes()
    program = dict_of({"bias": tensor(0, "BFloat16Storage", 4, (2,), start=2)})
    (found,) = read(tmp_path, archive(program, {"0": raw}), shapes={"bias": (2,)})
    assert found.tolist() == [1, -2]


@pytest.mark.reference
def test_as_torch_itself_writes_and_reads(tmp_path: Path) -> None:
    import torch

    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        linear = torch.nn.Linear(3, 2).to(dtype)
        torch.save(linear.state_dict(), tmp_path / "theirs.pt")
        found = read_torch_file(tmp_path / "theirs.pt", SHAPES, np.dtype("float64"))
        for x, want in zip(found, (linear.weight, linear.bias), strict=True):
            assert np.array_equal(x, want.detach().double().numpy())
    (tmp_path / "ours.pt").write_bytes(WHOLE)
    theirs = torch.load(tmp_path / "ours.pt", weights_only=True)
    assert all(np.array_equal(theirs[name].numpy(), x) for name, x in ARRAYS.items())


@pytest.mark.reference
def test_the_advice_makes_a_file_that_is_read(tmp_path: Path) -> None:
    import torch

    file, x = tmp_path / "x.pt", torch.arange(6.0).reshape(3, 2)
    parameter = torch.nn.Parameter(torch.arange(8.0)[::4])
    for old in (False, True):
        torch.save({"weight": x.T, "bias": parameter}, file, _use_new_zipfile_serialization=not old)
        with pytest.raises(REFUSED) as error:
            read_torch_file(file, SHAPES, np.dtype("float32"))
        exec(str(error.value)[str(error.value).index("torch.save(") :], {"torch": torch, "file": file})
        found = read_torch_file(file, SHAPES, np.dtype("float32"))
        assert np.array_equal(found[0], x.T.numpy()) and found[1].tolist() == [0, 4]


NEGATIVE = b"}" + text("neg") + number(1) + b"s"  # torch.load then gives -x
PROGRAMS: dict[str, tuple[bytes, str]] = {
    "a call": (dict_of({"weight": b"cos\nsystem\n" + many(text("true")) + b"R", "bias": BIAS}), "calls 'os system'"),
    "a call by REDUCE of a text": (dict_of({"weight": text("x") + b")R", "bias": BIAS}), "calls 'None'"),
    "an object": (b"\x80\x02(ios\nsystem\n.", "opcode INST"),
    "a new object": (b"\x80\x02cos\nsystem\n)\x81.", "opcode NEWOBJ"),
    "a name from the stack": (b"\x80\x04" + text("os") + text("system") + b"\x93.", "opcode STACK_GLOBAL"),
    "an extension": (b"\x80\x02\x82\x01.", "opcode EXT1"),
    "a long number": (dict_of({"weight": b"\x8a\x01\x05"}), "opcode LONG1"),
    "another storage": (dict_of({"weight": tensor(0, "LongStorage", 6, (2, 3)), "bias": BIAS}), "'torch LongStorage'"),
    "a parameter": (dict_of({"weight": b"ctorch._utils\n_rebuild_parameter\n" + many(BIAS, b"\x89", b")") + b"R"}),
                    "_rebuild_parameter"),
    "a list": (b"\x80\x02]q\x00.", "opcode EMPTY_LIST"),
    "no dict": (b"\x80\x02" + number(5) + b".", "no dict of tensors"),
    "no tensor": (dict_of({"weight": number(5), "bias": BIAS}), "no dict of tensors"),
    "another name": (dict_of({"weights": BIAS}), "expected 'weight'"),
    "another shape": (dict_of({"weight": tensor(0, "FloatStorage", 6, (3, 2)), "bias": BIAS}), r"found \(3, 2\)"),
    "one more": (dict_of({"weight": tensor(0, "FloatStorage", 6, (2, 3)), "bias": BIAS, "more": BIAS}), "has 'more'"),
    "columns first": (dict_of({"weight": tensor(0, "FloatStorage", 6, (2, 3), (1, 2)), "bias": BIAS}), "strides"),
    "repeated": (dict_of({"weight": tensor(0, "FloatStorage", 6, (2, 3), (0, 0)), "bias": BIAS}), "strides"),
    "signs turned round": (dict_of({"weight": tensor(0, "FloatStorage", 6, (2, 3), more=NEGATIVE)}), "too much"),
    "negative": (dict_of({"weight": tensor(0, "FloatStorage", 6, (-2, -3)), "bias": BIAS}), "no shape"),
    "beyond": (dict_of({"weight": tensor(0, "FloatStorage", 6, (2, 3), start=1), "bias": BIAS}), "does not fit"),
    "too many numbers": (dict_of({"weight": tensor(0, "FloatStorage", 7, (2, 3)), "bias": BIAS}), "does not fit"),
    "another entry": (dict_of({"weight": tensor(7, "FloatStorage", 6, (2, 3)), "bias": BIAS}), "0 entries 'data/7'"),
    "nothing": (b".", "takes more than it has given"),
    "no end": (b"\x80\x02", "exhausted"),
    "a list that was not begun": (b"\x80\x02t.", "has not begun"),
    "what was not kept": (b"\x80\x02h\x05.", "has not kept"),
    "too long": (dict_of({"weight": text("x" * 70000)}), "too large"),
    "not a pickle": (b"\xff\xfe\xfd", "no zip archive"),
}  # fmt: skip


@pytest.mark.parametrize("what", PROGRAMS)
def test_another_program_is_refused(tmp_path: Path, what: str) -> None:
    program, said = PROGRAMS[what]
    with pytest.raises(REFUSED, match=rf"x\.pt is not read: .*{said}.*torch\.load\(file, weights_only=True\)\.items"):
        read(tmp_path, archive(program, RAW))


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_run(tmp_path: Path, protocol: int) -> None:
    bad = tmp_path / "run"
    for content in (archive(harmful(bad, protocol), RAW), harmful(bad, protocol)):
        with pytest.raises(REFUSED):
            read(tmp_path, content)
    assert not bad.exists()


def test_a_compressed_or_doubled_entry_is_refused(tmp_path: Path) -> None:
    program = dict_of({"weight": tensor(0, "FloatStorage", 6, (2, 3)), "bias": BIAS}, METADATA)
    with pytest.raises(REFUSED, match="compressed, or too large"):
        read(tmp_path, archive(program, RAW, zipfile.ZIP_DEFLATED))
    made = io.BytesIO(archive(program, RAW))
    with zipfile.ZipFile(made, "a") as file:
        file.writestr("other/data/0", RAW["0"])
    with pytest.raises(REFUSED, match="2 entries 'data/0'"):
        read(tmp_path, made.getvalue())
    with pytest.raises(REFUSED, match="byte order b'big'"):
        read(tmp_path, archive(program, RAW, order=b"big"))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_bytes_give_the_numbers_or_an_error(data: Any) -> None:
    """Bytes changed, taken out and cut off, of the archive and of the pickle inside a sound archive."""
    inside = data.draw(st.booleans())
    program = dict_of({"weight": tensor(0, "FloatStorage", 6, (2, 3)), "bias": BIAS}, METADATA)
    content = bytearray(program if inside else WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(0, len(content) - 1)))
        kind = data.draw(st.sampled_from(("change", "take out", "cut", "put in")))
        if not content:
            break
        if kind == "change":
            content[place] = data.draw(st.integers(0, 255))
        elif kind == "take out":
            del content[place]
        elif kind == "put in":
            content[place:place] = data.draw(st.binary(min_size=1, max_size=3))
        elif place:
            del content[place:]
    try:
        found = read(FOLDER, archive(bytes(content), RAW) if inside else bytes(content))
    except REFUSED:
        return
    assert [x.shape for x in found] == list(SHAPES.values())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_as_a_pickle(program: bytes) -> None:
    with pytest.raises(REFUSED):
        read(FOLDER, archive(b"\x80\x02" + program, RAW))


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    global FOLDER
    FOLDER = tmp_path_factory.mktemp("torch")


FOLDER = Path()
