"""`minibert verify` for programs and people: exit codes, JSON, batches, tolerances, lines, and `minibert.compare`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import encoders
import loops
import numpy as np
import ports
import pytest
from command_line import Patch, Printed, failure
from ports import arrays, first_difference, judged, numbers, verify_encoder
from reference_files import recipe
from test_formats import Narrow, written
from vector_port import VectorPort

import minibert
import minibert.verify
from minibert.cli import main
from minibert.errors import HubError
from minibert.models.open.load_encoder import load_encoder
from minibert.verify import verify as verify_module
from minibert.verify.traces import as_traces, read_traces, write_traces
from minibert.verify.verify import verify

KEYS = {"format", "passed", "model", "intermediates", "printed", "missing", "wrong_inputs", "texts", "matches", "local",
        "rounding", "hidden", "ruled_out", "lines"}  # fmt: skip


TEXTS = ["we lived above the clouds", "the clouds", "a b"]


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


def change(path: Path, key: str, by: float, kind: str = "plain", times: int = 1) -> None:
    inputs, traces = read_traces(path)
    traces[kind][key] = traces[kind][key] * times + np.asarray(by, traces[kind][key].dtype)
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
    failure(capsys, "verify", tmp_path / "no-model", "--against", absent)


@pytest.mark.parametrize("option", ["--against", "--vectors", "--texts", "--save"])
def test_a_name_that_is_empty_is_not_the_folder_that_we_are_in(option: str, folder: Path, capsys: Printed) -> None:
    """As a variable that is not set gives it."""
    assert "it is empty; name a file or a folder" in failure(capsys, "verify", folder, option, "")


def test_a_hub_that_is_not_there_ends_with_3(capsys: Printed, monkeypatch: Patch) -> None:
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
    change(saved, "position_ids", 0, times=0)
    assert run(capsys, *arguments, "--tolerance", "0.9")[0] == 1
    assert run(capsys, *arguments, "--tolerance", "1")[0] == 2


def test_batches_by_name(folder: Path, saved: Path, tmp_path: Path, capsys: Printed) -> None:
    few, named = tmp_path / "few.safetensors", ("--batches", "plain", "types")
    arguments = (str(folder), "--encoder", "--against")
    assert run(capsys, *arguments, str(saved), *named, "--save", str(few))[0] == 0
    assert set(read_traces(few)[1]) == {"plain", "types"}
    code, found = run(capsys, *arguments, str(few), *named)
    assert code == 0 and "long (windows, and positions that end too soon)" in found["lines"][-1]
    code, found = run(capsys, *arguments, str(few))
    assert code == 1 and found["lines"][-1].endswith("to compare a part, name it by `--batches`: plain types")
    change(few, "hidden_states.2", 1, "types")
    assert run(capsys, *arguments, str(few), *named)[0] == 1
    assert run(capsys, *arguments, str(few), "--batches", "plain")[0] == 0
    code, found = run(capsys, *arguments, str(few), "--batches", "plane")
    assert code == 2 and "no batch 'plane'" in found["error"]


def test_json_of_vectors(sentences: Path, tmp_path: Path, capsys: Printed) -> None:
    rows = zip(TEXTS, VectorPort(sentences, "pooling cls")(TEXTS).tolist(), strict=True)
    lines = [json.dumps({"text": text, "vector": x}) for text, x in rows]
    (tmp_path / "v.jsonl").write_text("\n".join(lines), encoding="utf-8")
    code, found = run(capsys, str(sentences), "--vectors", str(tmp_path / "v.jsonl"))
    assert code == 1 and set(found) == KEYS and found["matches"] == ["pooling cls"]
    assert [each["text"] for each in found["texts"]] == TEXTS
    assert "pooling max" in found["ruled_out"] and "pooling cls" not in found["ruled_out"]


# -- the lines that a person reads -----------------------------------------------------------------------------------


def test_a_part_that_is_right_is_told_first(folder: Path, tmp_path: Path, capsys: Printed) -> None:
    """One missing key with its batch; the shell's words, and Python's."""
    inputs, traces = as_traces(numbers(folder, loops.Port(folder)), "")
    total = sum(map(len, traces.values()))
    traces = {kind: {key: x for key, x in named.items() if key in ("sum", "position_ids")}
              for kind, named in traces.items()}  # fmt: skip
    report = verify_encoder(folder, arrays(inputs, traces))
    assert not report.passed
    assert report.lines[1] == f"4 of {total} compared, all right; {total - 4} missing; `only=` takes a part"
    (line,) = [line for line in report.lines if line.startswith("missing: ")]
    assert line.startswith("missing: embeddings.word_embeddings in all 2 batches, and ")
    assert report.lines[-1].endswith("to compare a part, name it by `only=`: position_ids sum")
    assert max(map(len, report.lines)) < 400
    write_traces(path := tmp_path / "part.npz", inputs, traces)
    command = ["verify", str(folder), "--encoder", "--against", str(path), "--batches", "plain", "left_pad"]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "missing; `--only` takes a part" in out and "name it by `--only`: " in out and "only=" not in out


def test_equal_lines_under_one_mistake_become_a_count(tmp_path: Path) -> None:
    folder = encoders.write(tmp_path / "bert", "bert", num_hidden_layers=5)
    report = judged(folder, loops.Port(folder, "no division by sqrt(head_dim)"))
    assert report.matches == ["no division by sqrt(head_dim)"] and len(report.local) == 5
    lines = [line for line in report.lines if line.startswith("  block ")]
    assert len(lines) == 1 and "scores and 4 more modules by " in lines[0], lines


def test_a_block_whose_maps_are_all_wrong_is_one_line(folder: Path) -> None:
    port = loops.Port(folder)
    for name, x in port.tensors.items():
        if "layer.1." in name and x.ndim == 2:
            port.tensors[name] = np.tanh(x * 3)
    report = judged(folder, port)
    lines = [line for line in report.lines if line.startswith("  block ")]
    assert len(report.local) == 6 and len(lines) == 1, report.lines
    assert lines[0].startswith("  block 1: encoder.layer.1.attention.self.query and 5 more modules by ")


def test_under_a_format_legend_and_batches_are_its_own(folder: Path) -> None:
    """Every batch differs by more than float32 allows; one of them is wrong."""
    inputs, traces = written(folder, Narrow(folder, "float16"), "float16")
    key = "encoder.layer.0.output.dense"
    traces["left_pad"][key] = traces["left_pad"][key] * np.float32(1.1)
    report = verify_encoder(folder, arrays(inputs, traces), format="float16")
    assert first_difference(report).startswith(f"block 0, {key}, in left_pad; ")
    assert "an rms error of at most 3 times that of our own computation in float16" in str(report)
    assert "10 times ours" not in str(report)


def test_at_most_five_texts_stand_with_their_tokens(sentences: Path) -> None:
    texts = [f"we lived above the clouds{' a' * n}" for n in range(9)]
    wrong = VectorPort(sentences)(texts) * np.float32([[1.0, 2.0] * 8])
    report = minibert.compare(sentences, against=wrong, texts=texts)
    at = next(i for i, line in enumerate(report.lines) if line.startswith("text "))
    assert report.lines[at].split()[-2:] == ["tokens", "text"]
    assert len(report.lines[at + 1 :]) == 6 and report.lines[-1] == "and 4 more texts"
    with load_encoder(sentences) as encoder:
        longest = encoder.tokenize("clouds " + texts[4])["input_ids"].shape[1]
    assert report.lines[at + 5].split()[2] == str(longest)


# -- `minibert.compare` ----------------------------------------------------------------------------------------------

BERT = ports.BERT.folder
WORDS, POSITIONS = (f"plain|embeddings.{name}_embeddings" for name in ("word", "position"))


def test_it_has_the_command_s_verdict() -> None:
    """After `import minibert.verify` too, which takes the name of a function of that kind."""
    arrays = ports.saved()
    right = minibert.compare(BERT, against=arrays, encoder=False)
    assert right.passed and right and right.differences == {} and right.mistakes == []
    arrays["plain|sum"] = arrays[WORDS] + arrays[POSITIONS]
    wrong = minibert.compare(BERT, against=arrays, encoder=False, batches=["plain"], only=["sum"])
    said = verify(str(BERT), against=arrays, batches=["plain"], only=["sum"])
    assert not wrong.passed and not wrong and str(wrong) == "\n".join(said.lines)
    assert wrong.mistakes == said.matches == ["type rows left out"]
    assert wrong.differences == {"sum": pytest.approx(said.compared[0].largest)}


def test_vectors_are_an_array_or_a_file(sentences: Path, tmp_path: Path) -> None:
    assert minibert.compare(sentences, against=VectorPort(sentences)(TEXTS), texts=TEXTS).passed
    np.save(path := tmp_path / "port.npy", VectorPort(sentences, "pooling cls")(TEXTS))
    wrong = minibert.compare(sentences, against=path, texts=TEXTS)
    assert wrong.mistakes == ["pooling cls"] and set(wrong.differences) == set(TEXTS)
    with pytest.raises(ValueError):
        minibert.compare(sentences, against=path, texts=TEXTS, only=["sum"])
    with pytest.raises(ValueError, match=r"\b3 .*2\b"):
        minibert.compare(sentences, against=path, texts=TEXTS[:2])


@pytest.mark.parametrize(
    ("error", "wrong", "message"),
    [
        (TypeError, dict(model=3), "^model .*int"),
        (TypeError, dict(against=None), "^against .*NoneType"),
        (TypeError, dict(against=[1.0]), "^against .*list"),
        (TypeError, dict(texts=[1, 2]), r"^texts .*\[1, 2\]"),
        (TypeError, dict(only=[3]), r"^only .*\[3\]"),
        (TypeError, dict(batches="plain"), "^batches .*'plain'"),
        (TypeError, dict(tolerance="1"), "^tolerance .*'1'"),
        (ValueError, dict(against=""), "^against "),  # which would be this folder
        (ValueError, dict(against={"plain|sum": [[1.0], [1.0, 2.0]]}), r"against\['plain\|sum'\]"),
        (ValueError, dict(against={"plain|sum": [1j]}), r"against\['plain\|sum'\] .*complex128"),
        (ValueError, dict(batches=[]), "^batches "),
        (ValueError, dict(encoder=True, side="encoder"), "^encoder "),
    ],
)
def test_what_cannot_be_compared_is_an_error(error: type[Exception], wrong: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        minibert.compare(**{"model": BERT, "encoder": False, "against": ports.saved(), **wrong})


@pytest.mark.parametrize("change", [lambda x: x[::-1], lambda x: x * np.nan])
def test_what_is_named_without_looking_at_each_text_has_the_differences_of_each(change: Any, sentences: Path) -> None:
    texts = [*TEXTS, "z y x"]
    found = minibert.compare(sentences, against=change(VectorPort(sentences)(texts)), texts=texts)
    assert len(found.mistakes) == 1 and list(found.differences) == texts and min(found.differences.values()) > 0


PORT = """
import sys
sys.path[:0] = {path!r}
import loops
from pathlib import Path

def hidden_states(ids):
    made = loops.Port(Path("model"), {mistake!r}).run({{"input_ids": ids}})
    return [made[f"hidden_states.{{i}}"] for i in range({states})]
"""


def test_the_page_s_own_test_passes_a_right_port_and_not_a_wrong_one(tmp_path: Path) -> None:
    encoders.write(tmp_path / "model", "bert")
    (tmp_path / "test_port.py").write_text(recipe("import my_port"), "utf-8")
    for mistake, exit_code in (("", 0), ("activation gelu_new", 1)):
        port = PORT.format(path=[str(Path(loops.__file__).parent)], mistake=mistake, states=encoders.DEPTH + 1)
        (tmp_path / "my_port.py").write_text(port, "utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_port.py"]
        made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert made.returncode == exit_code, made.stdout + made.stderr
        assert (f"matches: {mistake}." in made.stdout) == bool(mistake), made.stdout
