"""Narrow formats: a port passes under its own name alone, and a wrong module in it is found; by plain NumPy."""

from __future__ import annotations

from pathlib import Path

import encoders
import loops
import numpy as np
import pytest

import minibert
from minibert.cli import main
from minibert.verify.judge.formats import to_tf32

Array = loops.Array
QUERY = "encoder.layer.1.attention.self.query"


def quantized(x: Array) -> tuple[Array, Array, Array]:
    """One byte for each number, as ONNX's DynamicQuantizeLinear says; with size and zero."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    size = np.float32((high - low) / 255)
    zero = np.rint(-low / size)
    return np.clip(np.rint(x / size) + zero, 0, 255), size, zero


class Narrow(loops.Port):
    """Plain loops with linear maps in tf32, or of whole numbers."""

    def __init__(self, folder: Path, form: str, forgotten: str = "") -> None:
        super().__init__(folder)
        self.form, self.forgotten = form, forgotten

    def dense(self, path: str, rows: Array) -> Array:
        weight, bias = self.tensors[f"{path}.weight"], self.tensors[f"{path}.bias"] * (path != self.forgotten)
        if self.form == "tf32":
            return np.asarray(to_tf32(rows) @ to_tf32(weight).T + bias)
        size = np.abs(weight).max() / np.float32(127)
        x, x_size, zero = quantized(rows)
        whole = (x - zero).astype(np.int64) @ np.rint(weight / size).astype(np.int64).T
        return np.asarray(whole * (x_size * size) + bias, np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoders.write(tmp_path_factory.mktemp("formats") / "bert", "bert")


def arrays(folder: Path, form: str, forgotten: str = "") -> dict[str, Array]:
    inputs = {"input_ids": np.array([[2, 5, 7, 3, 4], [6, 1, 8, 9, 2]])}
    made = Narrow(folder, form, forgotten).run(inputs)
    return {"mine|inputs|input_ids": inputs["input_ids"]} | {f"mine|{key}": x for key, x in made.items()}


@pytest.mark.parametrize("form", ["tf32", "int8"])
def test_it_passes_under_its_own_name_alone(form: str, folder: Path) -> None:
    port = arrays(folder, form)
    for name in ("float32", "float16", "bfloat16", "tf32", "int8"):
        found = minibert.compare(folder, against=port, format=name)
        assert found.passed == (name == form), (name, str(found))
        if name == "float32":
            assert f"every module is right in {form}" in str(found)
        assert (f"every module is right in {form}\n" in str(found)) == (name == form)


@pytest.mark.parametrize("form", ["tf32", "int8"])
def test_hidden_states_alone_pass_under_their_own_format_alone(form: str, folder: Path) -> None:
    """What maps that are not shown give is computed in the format: once float32 passed as all of the others."""
    wide = loops.Port(folder).run({"input_ids": arrays(folder, form)["mine|inputs|input_ids"]})
    keys = [key for key in wide if key.startswith("hidden_states")]
    given = {name: x for name, x in arrays(folder, form).items() if "inputs" in name}
    for name in ("float16", "bfloat16", "tf32", "int8"):
        found = minibert.compare(folder, against=arrays(folder, form), only=keys, format=name)
        assert found.passed == (name == form), (name, str(found))
        right = given | {f"mine|{key}": wide[key] for key in keys}
        assert not minibert.compare(folder, against=right, only=keys, format=name).passed, name


def test_hidden_states_stored_in_float16_pass_as_it_and_show_a_missing_bias(folder: Path) -> None:
    """A float32 port that rounds what it saves; with its maps beside them it is no port in float16."""
    given = {"mine|inputs|input_ids": np.array([[2, 5, 7, 3, 4], [6, 1, 8, 9, 2]])}
    for forgotten in ("", "encoder.layer.1.intermediate.dense.bias"):
        port = loops.Port(folder)
        port.tensors = {key: x * (key != forgotten) for key, x in port.tensors.items()}
        made = {key: x.astype(np.float16) for key, x in port.run({"input_ids": given["mine|inputs|input_ids"]}).items()}
        whole = given | {f"mine|{key}": x.astype(np.float32) for key, x in made.items()}
        keys = [key for key in made if key.startswith("hidden_states")]
        for name in ("float32", "float16", "bfloat16"):
            found = minibert.compare(folder, against=whole, only=keys, format=name)
            assert found.passed == (name == "float16" and not forgotten), (name, str(found))
        assert forgotten == "" or "hidden_states.2" in found.differences
        assert not minibert.compare(folder, against=whole, format="float16").passed


@pytest.mark.parametrize("hidden", [("query",), ("query", "key", "value", "dense")])
def test_int8_maps_that_are_not_shown_are_computed_from_what_entered_them(
    hidden: tuple[str, ...], folder: Path
) -> None:
    """As in the folder that transformers' debugger writes of torch's dynamic int8."""
    for forgotten, passes in (("", True), ("encoder.layer.1.intermediate.dense", False)):
        port = {key: x for key, x in arrays(folder, "int8", forgotten).items() if not key.endswith(hidden)}
        keys = [key.removeprefix("mine|") for key in port if "inputs" not in key]
        found = minibert.compare(folder, against=port, only=keys, format="int8")
        assert found.passed == passes, str(found)
        assert {key.rpartition(".")[0] for key in found.differences} <= {"encoder.layer.1.intermediate"}


@pytest.mark.parametrize("form", ["tf32", "int8"])
def test_one_module_that_is_wrong_in_it_is_found(form: str, folder: Path) -> None:
    found = minibert.compare(folder, against=arrays(folder, form, QUERY), format=form)
    assert not found.passed and set(found.differences) == {QUERY}, str(found)


def test_ten_bits_are_rounded_to_the_nearest_and_ties_to_the_even() -> None:
    step = 2.0**-10
    given = [1 + 0.5 * step, 1 + 1.5 * step, 1 + 0.51 * step, -3.0, 0.0]
    assert to_tf32(np.array(given, np.float32)).tolist() == [1, 1 + 2 * step, 1 + step, -3.0, 0.0]


def test_a_format_is_of_a_whole_port(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="the format must be one of float32, float16, bfloat16, tf32, int8"):
        minibert.compare(folder, against={}, format="int4")
    with pytest.raises(ValueError, match="is for a whole port"):
        minibert.compare(folder, against=arrays(folder, "tf32"), encoder=False, format="tf32")
    assert main(["verify", str(folder), "--vectors", "none.npy", "--format", "int8"]) == 2
    assert "of vectors the verdict names the format" in capsys.readouterr().err
