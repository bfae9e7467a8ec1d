"""`minibert extract`: the folder it makes holds the same layer, for every family and format, and nothing half-made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from limits import CHILD_SECONDS
from needed import missing
from safetensors.numpy import load_file

import minibert
from minibert.cli import main
from minibert.files.model_folder import write_safetensors
from minibert.files.tables import convert, narrowed
from minibert.models.open import extract as extraction
from minibert.models.open.extract import extract

CASES = sorted(path.parent for path in Path(__file__).parents[1].glob("reference/*/case.json"))
GPT2 = Path(__file__).parents[1] / "reference" / "gpt2"
IDS = np.arange(12).reshape(2, 6)
# half a unit in the last place of the largest number in a table, as a share of that number
HALF_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_extracted_layer_is_the_layer(case: Path, tmp_path: Path) -> None:
    side = json.loads((case / "case.json").read_text())["side"] or "encoder"
    made = extract(case, tmp_path / "made")
    assert made.rounding_error == 0
    with minibert.load(case, side=side) as before, minibert.load(made.folder, side=side) as after:
        assert np.array_equal(before(IDS), after(IDS))
        assert type(before.attention_position) is type(after.attention_position)
    names = [path.name for path in made.folder.iterdir()]
    assert sorted(names) == ["config.json", "model.safetensors"]  # these cases have no tokenizer
    assert list(tmp_path.iterdir()) == [made.folder]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_tables_round_to_nearest_and_say_how_far(minilm: Path, tmp_path: Path, dtype: str) -> None:
    made = extract(minilm, tmp_path / "made", dtype)
    with minibert.load(minilm) as before, minibert.load(made.folder) as after:
        exact, rounded = before.word_embeddings.weight, after.word_embeddings.weight
        assert 0 < np.abs(exact - rounded).max() <= made.rounding_error
        largest = max(
            float(np.abs(module.weight).max()) for path, module in before.modules.items() if "Norm" not in path
        )
        assert made.rounding_error <= HALF_UNIT[dtype] * 2 * largest
        assert np.array_equal(before.LayerNorm.weight, after.LayerNorm.weight)  # vectors keep their format
        assert after.tokenize("clouds")["input_ids"].tolist() == before.tokenize("clouds")["input_ids"].tolist()
    assert made.bytes_after < 0.51 * (made.folder / "tokenizer.json").stat().st_size + made.bytes_before * 0.27


def test_other_readers_read_the_same_tensors(minilm: Path, tmp_path: Path) -> None:
    made = extract(minilm, tmp_path / "made")
    original, own = load_file(minilm / "model.safetensors"), load_file(made.folder / "model.safetensors")
    assert 0 < len(own) < len(original)
    assert all(np.array_equal(own[name], original[name]) for name in own)


@pytest.mark.parametrize("there", [Path.mkdir, Path.touch, lambda path: path.symlink_to(path.parent / "nowhere")])
def test_nothing_is_written_over(
    there: Callable[[Path], object], minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, command = tmp_path / "made", ["extract", "--model", str(minilm), "-o", str(tmp_path / "made")]
    there(target)
    before = target.lstat()
    assert main(command) == 1
    assert f"{target} exists; choose another name, or remove it first" in capsys.readouterr().err
    assert target.lstat() == before
    target.rmdir() if target.is_dir() else target.unlink()
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "before" in printed and "after" in printed and "rounding error" in printed
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_comes_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, load = tmp_path / "made", extraction.load

    def meanwhile(*args: Any, **more: Any) -> Any:
        target.mkdir()
        (target / "thesis.txt").write_text("mine")
        return load(*args, **more)

    monkeypatch.setattr(extraction, "load", meanwhile)
    with pytest.raises(OSError, match="made"):
        extract(GPT2, target)
    assert [(path.name, path.read_text()) for path in target.iterdir()] == [("thesis.txt", "mine")]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_names_the_folder_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extract", "--model", str(GPT2), "-o", str(tmp_path / "made")]) == 1
    assert capsys.readouterr().err == f"minibert: error: {tmp_path / 'made'}: No space left on device\n"
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = shutil.copytree(GPT2, tmp_path / "too-large")
    large, small = ("F32", np.full((53, 16), 1e6, np.float32)), ("F32", np.ones((16, 16), np.float32))
    write_safetensors(folder / "model.safetensors", {"wte.weight": large, "wpe.weight": small})
    with pytest.raises(ValueError, match=r"wte.weight.*1e\+06.*F16 cannot hold"):
        extract(folder, tmp_path / "made", "float16")
    assert list(tmp_path.iterdir()) == [folder]
    with pytest.raises(FileNotFoundError, match="make it first"):
        extract(GPT2, tmp_path / "no" / "made")
    with pytest.raises(ValueError, match="'int8'"):
        extract(GPT2, tmp_path / "made", "int8")


@given(arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_nan=True)))
def test_bfloat16_is_the_nearest_with_ties_to_even(x: np.ndarray) -> None:
    bits = narrowed(x, "BF16")
    back = convert(bits, "BF16", np.dtype("float32"))
    assert np.array_equal(np.isnan(back), np.isnan(x))
    for value, kept, near in zip(x.tolist(), bits.tolist(), back.tolist(), strict=True):
        if not np.isfinite(value):
            assert np.isnan(value) or near == value
            continue
        beside = np.array([b for b in (kept - 1, kept + 1) if 0 <= b < 65536], np.uint16)
        distance = abs(near - value)
        for other in convert(beside, "BF16", np.dtype("float64")):
            if np.isfinite(other) and np.isfinite(near):
                assert distance < abs(other - value) or (distance == abs(other - value) and kept % 2 == 0)


SMALLEST_CONTAINER = """
import os, socket, sys
def refuse(*_, **__):
    raise AssertionError("a socket was opened")
socket.socket = refuse
assert os.getuid() != 0, "runs as root"
assert "HOME" not in os.environ
sys.dont_write_bytecode = True
def refuse_writing(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        raise AssertionError(f"{arguments[0]} was opened for writing")
sys.addaudithook(refuse_writing)
import minibert
layer = minibert.load(".")
vectors = layer.embed(["We lived above the clouds", "a"])
print(vectors.shape, float(vectors[0, 0]))
from minibert.cli import main
assert main(["embed", "--model", ".", "We lived above the clouds"]) == 0
"""


def test_runs_from_an_extracted_folder_without_network_home_disk_or_root(minilm: Path, tmp_path: Path) -> None:
    folder = extract(minilm, tmp_path / "made", "float16").folder
    with minibert.load(folder) as layer:
        expected = layer.embed("We lived above the clouds")
    # a user namespace takes root's powers, a network namespace leaves no interface that is up
    isolated = ["unshare", "--user", "--net"]
    unshare = shutil.which("unshare") and subprocess.run([*isolated, "true"], capture_output=True).returncode == 0
    if not unshare and os.getuid() == 0:
        missing("runs as root, and this system lets nobody make a user namespace to give that up")
    folder.chmod(0o555)
    passed = ("PATH", "LD_LIBRARY_PATH", "OPENBLAS_")  # the last ones choose the kernel
    environment = {name: value for name, value in os.environ.items() if name.startswith(passed)}
    package = str(Path(minibert.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    try:
        run = subprocess.run(
            [*(isolated if unshare else []), sys.executable, "-c", SMALLEST_CONTAINER],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=CHILD_SECONDS,
        )  # fmt: skip
    finally:
        folder.chmod(0o755)
    assert run.returncode == 0, run.stderr
    first, line = run.stdout.splitlines()
    assert first == f"(2, 384) {float(expected[0, 0])}"
    assert np.array_equal(np.array(line.split(), np.float32), expected[0])
