"""What a saved file says of its model, and what is said of a file of another one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Printed, error_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_files import BY_NAME
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import minibert
from minibert.cli import main
from minibert.verify.sides.traces import ABOUT, read_file, read_traces, write_traces
from minibert.verify.verify import verify

FORMATS = ["safetensors", "npz"]


def save(folder: Path, path: Path, **options: Any) -> Path:
    verify(str(folder), save=path, **options)
    return path


def about(path: Path) -> dict[str, Any]:
    found = read_file(path)[2]
    assert found is not None
    read: dict[str, Any] = json.loads(found)
    return read


def with_about(path: Path, text: str) -> Path:
    inputs, traces = read_traces(path)
    write_traces(path, inputs, traces, text)
    return path


@pytest.mark.parametrize("ending", FORMATS)
def test_a_file_says_what_it_is_of_and_its_own_model_accepts_it(ending: str, folder: Path, tmp_path: Path) -> None:
    path = save(folder, tmp_path / f"saved.{ending}", encoder=True)
    found = about(path)
    assert found["format"] == 1 and found["model"] == str(folder) and found["model_type"] == "bert"
    assert found["versions"]["minibert"] == minibert.__version__ and found["versions"]["numpy"] == np.__version__
    assert re.fullmatch("[0-9a-f]{64}", found["sha256"])
    stored = {key.removeprefix("bert.") for key in load_file(folder / "model.safetensors")}
    assert set(found["parameters"]) <= stored and len(found["parameters"]) > 30
    if ending == "safetensors":
        with safe_open(path, framework="np") as file:
            assert set(file.metadata()) == {ABOUT}
    else:
        with np.load(path) as members:
            assert json.loads(str(members[ABOUT])) == found
    assert verify(str(folder), encoder=True, against=path).passed
    layer = about(save(folder, tmp_path / f"layer.{ending}"))["parameters"]
    assert layer.items() < found["parameters"].items()
    report = verify(str(folder), against=path, only=["sum"])  # of a whole model, its input layer alone
    assert "full_length" in report.lines[-1] and not report.passed  # which it has one batch more for
    kinds = report.lines[-1].rpartition(": ")[2].split()
    assert verify(str(folder), against=path, only=["sum"], kinds=kinds).passed


@pytest.mark.parametrize("ending", FORMATS)
def test_a_file_of_another_model_is_refused_with_both_names(
    ending: str, folder: Path, tmp_path: Path, capsys: Printed
) -> None:
    path, other = save(folder, tmp_path / f"saved.{ending}"), tmp_path / "other"
    shutil.copytree(folder, other)
    tensors = load_file(other / "model.safetensors")
    (name,) = [name for name in tensors if name.endswith("token_type_embeddings.weight")]
    tensors[name][1, 0] = np.nextafter(tensors[name][1, 0], np.float32(9))  # the last bit of one number
    save_file(tensors, other / "model.safetensors")
    assert main(["verify", str(other), "--against", str(path)]) == 2
    said = capsys.readouterr().err
    own = about(path)["sha256"][:12]
    assert f"{path} was saved from {str(folder)!r} (bert, sha256 {own})" in said and repr(str(other)) in said
    assert "1 of 5 parameters differ, first embeddings.token_type_embeddings.weight" in said
    assert main(["verify", str(BY_NAME["gpt2"].folder), "--against", str(path)]) == 2
    assert "(gpt2, sha256 " in (said := capsys.readouterr().err) and "no parameter is in both" in said


@pytest.mark.parametrize("ending", FORMATS)
def test_without_metadata_the_numbers_decide_and_a_newer_format_is_refused(
    ending: str, folder: Path, tmp_path: Path
) -> None:
    path = save(folder, tmp_path / f"saved.{ending}")
    newer = {**about(path), "format": 2, "parameters": {}, "versions": {"minibert": "9.0"}}
    assert read_file(with_about(path, ""))[2] is None and verify(str(folder), against=path).passed
    with_about(path, json.dumps(newer))
    with pytest.raises(ValueError, match=re.escape(f"{path} is of format 2, by {{'minibert': '9.0'}}")):
        verify(str(folder), against=path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["format", "parameters", "sha256", "versions", "model"]), inner, max_size=5)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(text=JSON.map(json.dumps) | st.text(min_size=1, max_size=20))
def test_any_other_metadata_is_refused_by_name_or_names_no_parameter(text: str, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "saved.safetensors"
    if not path.exists():
        save(folder, path, kinds=["plain"])
    with_about(path, text)
    message = error_of(lambda: verify(str(folder), against=path, kinds=["plain"]))
    if message is None:  # it lists no parameters: nothing says that they are others
        read = json.loads(text)
        assert read["format"] <= 1 and read["parameters"] == {}
    else:
        assert str(path) in message
