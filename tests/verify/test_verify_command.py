"""`minibert verify` for programs: its exit codes, its JSON, batches and tolerances."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Printed
from vector_port import VectorPort, write

from minibert.cli import main
from minibert.verify import verify as verify_module
from minibert.verify.traces import read_traces, write_traces
from minibert.verify.verify import verify

KEYS = {"format", "passed", "model", "intermediates", "printed", "missing", "wrong_inputs", "texts", "matches", "local",
        "rounding", "hidden", "ruled_out", "lines"}  # fmt: skip


@pytest.fixture
def saved(folder: Path, tmp_path: Path) -> Path:
    verify(str(folder), encoder=True, save=(path := tmp_path / "saved.safetensors"))
    return path


def run(capsys: Printed, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the one object on stdout."""
    code = main(["verify", *arguments, "--json"])
    out, err = capsys.readouterr()
    assert err == "" and out.count("\n") == 1

    def none(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return code, json.loads(out, parse_constant=none)


PASSING = """
import sys
from pathlib import Path
from minibert.verify.verify import verify
assert verify(sys.argv[1], encoder=True, against=Path(sys.argv[2])).passed
print(*(name for name in sys.modules if name.startswith("minibert.verify")))
"""


def test_where_nothing_differs_no_list_of_mistakes_is_loaded(folder: Path, saved: Path) -> None:
    result = subprocess.run([sys.executable, "-c", PASSING, folder, saved], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    loaded = result.stdout.split()
    assert "minibert.verify.subjects" in loaded
    assert [name for name in loaded if "mistakes" in name or name.endswith(".local")] == []


def change(path: Path, key: str, by: float, kind: str = "plain") -> None:
    inputs, traces = read_traces(path)
    traces[kind][key] = traces[kind][key] + np.float32(by)
    write_traces(path, inputs, traces)


def test_json_says_what_passed_and_what_differs_and_infinity_is_null(
    folder: Path, saved: Path, capsys: Printed
) -> None:
    code, found = run(capsys, str(folder), "--encoder", "--against", str(saved))
    assert code == 0 and set(found) == KEYS and found["passed"] is True and found["format"] == 1
    assert {each["passed"] for each in found["intermediates"]} == {True}
    assert "attentions.1" in {each["key"] for each in found["intermediates"]}
    change(saved, "hidden_states.2", np.nan)
    code, found = run(capsys, str(folder), "--encoder", "--against", str(saved))
    assert code == 1 and found["passed"] is False
    wrong = {each["key"]: each["largest"] for each in found["intermediates"] if not each["passed"]}
    assert wrong == {"hidden_states.2": None}


def test_every_key_of_the_json_is_documented() -> None:
    page = (Path(verify_module.__file__).parent / "README.md").read_text(encoding="utf-8")
    table = page.partition("| key | contents |")[2].partition("\n\n")[0]
    documented = {name for line in table.splitlines()[2:] for name in re.findall("`(.+?)`", line.split("|")[1])}
    assert documented == KEYS | {"error"}


def test_what_cannot_be_compared_ends_with_2(folder: Path, tmp_path: Path, capsys: Printed) -> None:
    absent = str(tmp_path / "absent.safetensors")
    code, found = run(capsys, str(folder), "--against", absent)
    assert code == 2 and set(found) == {"format", "passed", "error"} and absent in found["error"]
    assert main(["verify", str(tmp_path / "no-model"), "--against", absent]) == 2
    assert capsys.readouterr().err.startswith("minibert: error: ")


@pytest.mark.parametrize("option", ["--against", "--vectors", "--texts", "--save"])
def test_a_name_that_is_empty_is_not_the_folder_that_we_are_in(option: str, folder: Path, capsys: Printed) -> None:
    """As a variable that is not set gives it."""
    assert main(["verify", str(folder), option, ""]) == 2
    assert "it is empty; name a file or a folder" in capsys.readouterr().err


def test_a_hub_that_is_not_there_ends_with_3(capsys: Printed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from minibert.errors import HubError

    def absent(*_: Any, **__: Any) -> None:
        raise HubError("no answer")

    monkeypatch.setattr("minibert.verify.verify.load", absent)
    assert main(["verify", "some-model"]) == 3
    assert "no answer" in capsys.readouterr().err
    monkeypatch.delenv("MINIBERT_MODEL", raising=False)
    assert main(["verify"]) == 3
    assert "error: no model was named, and the default, " in capsys.readouterr().err
    assert run(capsys, "some-model") == (3, {"format": 1, "passed": False, "error": "no answer"})


def test_a_tolerance_is_for_numbers_and_not_for_ids(folder: Path, saved: Path, capsys: Printed) -> None:
    arguments = (str(folder), "--encoder", "--against", str(saved))
    change(saved, "encoder.layer.0.output.dense", 0.004)
    assert run(capsys, *arguments)[0] == 1
    assert run(capsys, *arguments, "--tolerance", "0.005")[0] == 0
    assert run(capsys, *arguments, "--tolerance", "0.003")[0] == 1
    inputs, traces = read_traces(saved)
    traces["plain"]["position_ids"] = traces["plain"]["position_ids"] * 0
    write_traces(saved, inputs, traces)
    assert run(capsys, *arguments, "--tolerance", "0.9")[0] == 1
    assert run(capsys, *arguments, "--tolerance", "1")[0] == 2


def test_batches_by_name(folder: Path, saved: Path, tmp_path: Path, capsys: Printed) -> None:
    few, named = tmp_path / "few.safetensors", ("--batches", "plain", "types")
    arguments = (str(folder), "--encoder", "--against")
    assert run(capsys, *arguments, str(saved), *named, "--save", str(few))[0] == 0
    assert set(read_traces(few)[1]) == {"plain", "types"}
    assert few.stat().st_size < saved.stat().st_size / 3
    code, found = run(capsys, *arguments, str(few), *named)
    assert code == 0 and "long (windows, and positions that end too soon)" in found["lines"][-1]
    code, found = run(capsys, *arguments, str(few))
    assert code == 1 and found["lines"][-1].endswith("to compare a part, name it by `--batches`: plain types")
    change(few, "hidden_states.2", 1, "types")
    assert run(capsys, *arguments, str(few), *named)[0] == 1
    assert run(capsys, *arguments, str(few), "--batches", "plain")[0] == 0
    code, found = run(capsys, *arguments, str(few), "--batches", "plane")
    assert code == 2 and "no batch 'plane'" in found["error"]


def test_json_of_vectors(tmp_path: Path, capsys: Printed) -> None:
    folder, texts = write(tmp_path / "model"), ["we lived above the clouds", "the clouds", "a b"]
    port = VectorPort(folder, "first token")
    lines = (json.dumps({"text": text, "vector": x}) for text, x in zip(texts, port(texts).tolist(), strict=True))
    (tmp_path / "v.jsonl").write_text("\n".join(lines), encoding="utf-8")
    code, found = run(capsys, str(folder), "--vectors", str(tmp_path / "v.jsonl"))
    assert code == 1 and set(found) == KEYS and found["matches"] == ["pooling cls"]
    assert [each["text"] for each in found["texts"]] == texts
    assert "pooling max" in found["ruled_out"] and "pooling cls" not in found["ruled_out"]
