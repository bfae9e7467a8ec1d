"""`minibert verify` without torch: against a port's file, against printed numbers, and what it says of itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import seeded
from numpy.typing import NDArray
from reference_files import BY_NAME, CASES, Case
from safetensors.numpy import load_file, save_file

import minibert
from minibert.cli import main
from minibert.verify import printed
from minibert.verify import verify as verify_module
from minibert.verify.compare import Difference, batches, over_kinds, read_traces, tolerances, trace
from minibert.verify.printed import check, check_texts, find, half_units
from minibert.verify.verify import verify

Array = NDArray[Any]
BERT = BY_NAME["bert"]
LOOKUPS = ("embeddings.word_embeddings", "embeddings.token_type_embeddings", "embeddings.position_embeddings")


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "installed", lambda: False)


def stored(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((printed.DATA / f"{name}.json").read_text(encoding="utf-8"))
    return values


# -- against a file ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_s_own_file_passes(case: Case) -> None:
    report = verify(str(case.folder), side=case.side, against=case.folder / "trace.safetensors")
    assert report.passed and report.matches == []
    assert {kind for d in report.differences for kind in d.kinds} == set(case.facts["kinds"])
    assert report.lines[-1] == "no difference beyond what rounding allows"
    assert not [line for line in report.lines if "not compared" in line or "DIFFERENT" in line]


@pytest.mark.parametrize("name", ["bert", "opt", "xlm", "t5-decoder", "electra"])
def test_what_save_writes_against_accepts(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = BY_NAME[name]
    target = tmp_path / "trace.safetensors"
    arguments = ["verify", "--model", str(case.folder), "--side", case.side]
    assert main([*arguments, "--save", str(target)]) == 0
    said = capsys.readouterr().out
    assert f"wrote inputs and every intermediate of {len(batches(case.layer()))} batches to {target}" in said
    assert "compared with nothing: torch and transformers are not installed" in said
    assert [path.name for path in tmp_path.iterdir()] == ["trace.safetensors"]
    assert main([*arguments, "--against", str(target)]) == 0
    said = capsys.readouterr().out
    assert f"compared with the file {target}; the reference was not run" in said
    assert "100 %" in said and "within rounding" not in said
    with case.layer() as layer:
        inputs, traces = read_traces(target)
        assert set(inputs) == set(traces) == set(batches(layer))
        for kind, batch in inputs.items():
            again = trace(layer, batch)
            assert set(traces[kind]) == set(again)
            assert all(np.array_equal(again[key], value) for key, value in traces[kind].items())


@pytest.mark.parametrize(
    ("key", "change", "verdict"),
    [
        ("plain|sum", 1e-9, "sum differs in plain"),
        ("plain|embeddings.LayerNorm", 4e-6, "embeddings.LayerNorm differs in plain"),
        ("left_pad|position_ids", 1, "position_ids differs in left_pad"),
        ("types|embeddings.token_type_embeddings", 1e-8, "embeddings.token_type_embeddings differs in types"),
    ],
)
def test_a_difference_is_found_named_and_ends_with_1(
    key: str, change: float, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = load_file(BERT.folder / "trace.safetensors")
    value = arrays[key].copy()
    value.flat[-1] += np.asarray(change, value.dtype)
    while value.flat[-1] == arrays[key].flat[-1]:  # the smallest step that there is
        value.flat[-1] = np.nextafter(value.flat[-1], value.dtype.type(np.inf))
    save_file(arrays | {key: value}, tmp_path / "port.safetensors")
    arguments = ["verify", "--model", str(BERT.folder), "--against", str(tmp_path / "port.safetensors")]
    assert main(arguments) == 1
    said = capsys.readouterr().out
    assert verdict in said.splitlines()
    assert re.search(rf"^{re.escape(key.split('|')[1])} .* DIFFERENT$", said, re.MULTILINE)
    assert re.search(r"^none of the \d+ classic mistakes that this family allows fits$", said, re.MULTILINE)


def test_after_the_norm_rounding_is_allowed(tmp_path: Path) -> None:
    arrays = load_file(BERT.folder / "trace.safetensors")
    key = "plain|embeddings.LayerNorm"
    for off, passes in ((1e-6, True), (3e-6, False)):
        save_file(arrays | {key: arrays[key] + np.float32(off)}, tmp_path / "port.safetensors")
        assert verify(str(BERT.folder), against=tmp_path / "port.safetensors").passed == passes


def test_not_a_number_never_passes(tmp_path: Path) -> None:
    arrays = load_file(BERT.folder / "trace.safetensors")
    for key in ("plain|sum", "plain|embeddings.LayerNorm"):
        spoilt = arrays[key].copy()
        spoilt[0, 0, 0] = np.nan
        save_file(arrays | {key: spoilt}, tmp_path / "port.safetensors")
        assert not verify(str(BERT.folder), against=tmp_path / "port.safetensors").passed


def test_an_array_of_another_shape_is_refused(tmp_path: Path) -> None:
    arrays = load_file(BERT.folder / "trace.safetensors")
    ours = arrays["plain|sum"]
    for other in (ours[:, 1:], ours[0], ours[:0], ours[..., :-1]):
        save_file(arrays | {"plain|sum": np.ascontiguousarray(other)}, tmp_path / "port.safetensors")
        found = re.escape(f"sum in plain: expected shape {ours.shape}, found {other.shape}")
        with pytest.raises(ValueError, match=found):
            verify(str(BERT.folder), against=tmp_path / "port.safetensors")


def test_a_port_that_stores_no_inputs_gets_the_generated_ones(tmp_path: Path) -> None:
    with BERT.layer() as layer:
        made = trace(layer, batches(layer)["plain"])
    save_file({f"plain|{key}": np.array(array) for key, array in made.items()}, tmp_path / "port.safetensors")
    report = verify(str(BERT.folder), against=tmp_path / "port.safetensors")
    assert report.passed and "6 of 6 intermediates compared" in report.lines


# -- what a file lacks ---------------------------------------------------------------------------------------------


def ported(arrays: dict[str, Array], folder: Path) -> Path:
    save_file(arrays, path := folder / "port.safetensors")
    return path


@pytest.mark.parametrize(
    "key", sorted(key for key in load_file(BERT.folder / "trace.safetensors") if "|inputs|" not in key)
)
def test_an_intermediate_that_is_missing_anywhere_fails(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = load_file(BERT.folder / "trace.safetensors")
    value, total = arrays.pop(key), sum("|inputs|" not in name for name in arrays)
    kind, name = key.split("|")
    for more, unknown in ({}, False), ({f"{kind}|{name}x": value}, True):  # absent, and misspelt
        path = ported(arrays | more, tmp_path)
        assert main(["verify", "--model", str(BERT.folder), "--against", str(path)]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert f"{total} of {total + 1} intermediates compared" in lines
        assert f"missing: {name} in {kind}" in lines
        assert lines[-1].startswith(f"not passed: 1 of {total + 1} are missing; to compare a part: --only ")
        assert name not in lines[-1].split()
        assert (f"not compared, since this layer has no such intermediate: {name}x" in lines) == unknown
        report = verify(str(BERT.folder), against=path)
        assert report.missing == [key] and not report.passed and all(d.passes for d in report.differences)


def test_a_batch_with_inputs_alone_is_missing_and_one_without_is_not(tmp_path: Path) -> None:
    """Inputs are copied from a file that minibert wrote; a batch that is in the file at all is to be shown whole."""
    arrays = load_file(BERT.folder / "trace.safetensors")
    inputs_alone = {key: value for key, value in arrays.items() if not key.startswith("types|") or "|inputs|" in key}
    report = verify(str(BERT.folder), against=ported(inputs_alone, tmp_path))
    assert not report.passed and {key.split("|")[0] for key in report.missing} == {"types"}
    without = {key: value for key, value in arrays.items() if not key.startswith("types|")}
    report = verify(str(BERT.folder), against=ported(without, tmp_path))
    assert report.passed and report.missing == []
    (line,) = [line for line in report.lines if line.startswith("kinds of batch that the file lacks: ")]
    assert "types" in line.split(": ")[1].split(", ")


def test_only_compares_a_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = load_file(BERT.folder / "trace.safetensors")
    done = ("position_ids", "sum")
    part = {key: value for key, value in arrays.items() if "|inputs|" in key or key.split("|")[1] in done}
    spoilt = part | {"plain|embeddings.LayerNorm": np.zeros((2, 4, 16), np.float32), "plain|mine": np.zeros(3)}
    path = ported(spoilt, tmp_path)
    arguments = ["verify", "--model", str(BERT.folder), "--against", str(path), "--only"]
    assert main([*arguments, *done]) == 0
    out = capsys.readouterr().out
    assert "20 of 20 intermediates compared" in out and "LayerNorm" not in out and "missing" not in out
    assert main([*arguments, *done, "embeddings.LayerNorm"]) == 1
    assert "missing: embeddings.LayerNorm in " in capsys.readouterr().out
    report = verify(str(BERT.folder), against=path, only=["sum"])
    assert report.passed and {d.key for d in report.differences} == {"sum"}
    wrong = part["plain|sum"] + np.float32(1)
    assert not verify(str(BERT.folder), against=ported(part | {"plain|sum": wrong}, tmp_path), only=["sum"]).passed
    assert verify(str(BERT.folder), against=tmp_path / "port.safetensors", only=["position_ids"]).passed


def test_only_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = ported(load_file(BERT.folder / "trace.safetensors"), tmp_path)
    arguments = ["verify", "--model", str(BERT.folder), "--against", str(path), "--only"]
    assert main([*arguments, "sum", "embeddings.LayerNrm"]) == 1
    said = capsys.readouterr().err
    assert "no intermediate is called 'embeddings.LayerNrm' (did you mean embeddings.LayerNorm?)" in said
    assert said.endswith(
        "there are position_ids, embeddings.word_embeddings, embeddings.token_type_embeddings, "
        "embeddings.position_embeddings, sum, embeddings.LayerNorm\n"
    )
    ported({"plain|sum": np.zeros(1, np.float32)}, tmp_path)
    assert main([*arguments, "position_ids"]) == 1
    assert 'has no position_ids; store it as "plain|position_ids"' in capsys.readouterr().err
    for only, against in ((["sum"], None), ("sum", path), ([], path)):
        with pytest.raises(ValueError, match="only must list intermediates of a file"):
            verify(str(BERT.folder), against=against, save=tmp_path / "made.safetensors", only=only)
    assert not (tmp_path / "made.safetensors").exists()


# -- one file for both ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["the same", "another spelling", "symbolic", "of a folder", "hard"])
@pytest.mark.parametrize("linked", ["--save", "--against"])
def test_a_port_s_numbers_are_not_saved_over(
    link: str, linked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = load_file(BERT.folder / "trace.safetensors")
    path = ported(arrays | {"plain|sum": arrays["plain|sum"] + np.float32(1)}, tmp_path)
    before, other = path.read_bytes(), tmp_path / "other.safetensors"
    if link == "symbolic":
        other.symlink_to(path)
    elif link == "hard":
        other.hardlink_to(path)
    elif link == "of a folder":
        (tmp_path / "folder").symlink_to(tmp_path)
        other = tmp_path / "folder" / path.name
    else:
        other = path if link == "the same" else tmp_path / ".." / tmp_path.name / path.name
    names = {"--save": path, "--against": path, linked: other}
    words = [word for option, name in names.items() for word in (option, str(name))]
    there = sorted(tmp_path.iterdir())
    assert main(["verify", "--model", str(BERT.folder), *words]) == 1
    out, err = capsys.readouterr()
    assert "are one file: saving would put our numbers over those to compare with" in err and out == ""
    assert path.read_bytes() == before and sorted(tmp_path.iterdir()) == there
    assert other.samefile(path)


def test_nothing_is_saved_where_the_other_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        verify(str(BERT.folder), save=tmp_path / "made.safetensors", against=tmp_path / "absent.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"sum": np.zeros(2, np.float32)}, "expected names such as \"plain|sum\", found 'sum'"),
        ({"mine|sum": np.zeros(2, np.float32)}, "no inputs for 'mine'; store them as \"mine|inputs|input_ids\""),
        ({"plain|mine": np.zeros(2, np.float32)}, "expected names such as plain|position_ids"),
        ({}, "found no tensor"),
    ],
)
def test_a_file_with_other_names(
    arrays: dict[str, Array], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file(arrays, tmp_path / "port.safetensors")
    arguments = ["verify", "--model", str(BERT.folder), "--against", str(tmp_path / "port.safetensors")]
    assert main(arguments) == 1
    assert says in capsys.readouterr().err


def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "port.safetensors").write_bytes(b"no such thing")
    arguments = ["verify", "--model", str(BERT.folder), "--against"]
    assert main([*arguments, str(tmp_path / "port.safetensors")]) == 1
    assert "not a safetensors file" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "absent.safetensors")]) == 1
    assert "absent.safetensors" in capsys.readouterr().err
    assert main(["verify", "--model", str(BERT.folder), "--save", str(tmp_path / "trace.npy")]) == 1
    assert "must end in .safetensors" in capsys.readouterr().err


def test_texts_are_a_batch_each(minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "trace.safetensors")
    texts = ["We lived above the clouds", ""]
    assert main(["verify", "--model", str(minilm), "--text", *texts, "--save", target]) == 0
    inputs, traces = read_traces(Path(target))
    assert inputs["text 1"]["input_ids"].tolist() == [[101, 2057, 2973, 2682, 1996, 8044, 102]]
    assert traces["text 2"]["sum"].shape == (1, 2, 384)
    assert main(["verify", "--model", str(minilm), "--against", target]) == 0
    assert "text 1, text 2" in capsys.readouterr().out


# -- the table -----------------------------------------------------------------------------------------------------


def test_the_table_shows_what_the_issue_is() -> None:
    report = verify(str(BERT.folder), against=BERT.folder / "trace.safetensors")
    (header,) = [line for line in report.lines if line.startswith("intermediate")]
    assert header.split() == [
        "intermediate", "batches", "max", "difference", "equal", "rms", "error", "here", "rms", "error", "file",
        "verdict",
    ]  # fmt: skip
    (norm,) = [line for line in report.lines if line.startswith("embeddings.LayerNorm")]
    assert norm.endswith("within rounding") and "100 %" not in norm
    (total,) = [line for line in report.lines if line.startswith("sum ")]
    assert re.search(r" 10 +0 +100 % +\S+e-\d+ +\S+e-\d+  equal$", total)
    assert all(d.error_ours < 1e-6 for d in report.differences if d.key != "position_ids")


def test_summing_up_keeps_the_worst() -> None:
    some = [
        Difference("sum", (kind,), largest, equal, 3.0, 4.0, 0.0)
        for kind, largest, equal in (("a", 0.0, 1.0), ("b", 2.0, 0.5), ("c", np.nan, 0.0))
    ]
    (two,) = over_kinds(some[:2])
    assert (two.kinds, two.largest, two.equal, two.error_ours) == (("a", "b"), 2.0, 0.75, 3.0)
    (three,) = over_kinds(some)
    assert np.isnan(three.largest) and not three.passes


def test_a_share_is_never_rounded_up_to_all(tmp_path: Path) -> None:
    arrays = load_file(BERT.folder / "trace.safetensors")
    value = arrays["full_length|sum"].copy()
    value[0, 0, 0] += np.float32(1e-6)
    save_file(arrays | {"full_length|sum": value}, tmp_path / "port.safetensors")
    report = verify(str(BERT.folder), against=tmp_path / "port.safetensors")
    (total,) = [line for line in report.lines if re.match("sum +[0-9]", line)]
    assert "99.9 %" in total


# -- generated batches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_batches_are_those_that_the_family_allows(case: Case) -> None:
    with case.layer() as layer:
        made = batches(layer)
        again = batches(layer)
        positions = "position_ids" in trace(layer, made["plain"])
        vocab = layer.steps[0].module.table.shape[0]
        for kind, batch in made.items():
            trace(layer, batch)  # each can be computed
            assert all(np.array_equal(array, again[kind][name]) for name, array in batch.items())
    assert {"plain", "right_pad", "right_pad_no_mask", "left_pad", "pads_inside", "pads_inside_mask"} < set(made)
    assert (
        made["plain"]["input_ids"].max() >= vocab - 2
    )  # the table's last row, or the one before where that is padding
    assert ("explicit_positions" in made) == ("full_length" in made) == positions
    # every kind that the committed reference of this case was asked for
    asked = set(case.facts["kinds"])
    assert asked <= set(made), asked - set(made)


# -- printed numbers -----------------------------------------------------------------------------------------------


def test_nothing_to_compare_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--model", str(BERT.folder)]) == 1
    said = capsys.readouterr().err
    assert "torch and transformers are not installed" in said
    assert "only of bert-base-uncased, gpt2" in said and "--against FILE" in said


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("bert-base-uncased", "bert-base-uncased"),
        ("google-bert/bert-base-uncased", "bert-base-uncased"),
        ("./models/bert-base-uncased/", "bert-base-uncased"),
        ("/hub/models--google-bert--bert-base-uncased/snapshots/86b5", "bert-base-uncased"),
        ("openai-community/gpt2", "gpt2"),
        ("bert-base-cased", None),
        ("distilgpt2", None),
        ("gpt2-medium", None),
    ],
)
def test_stored_values_are_found_by_name_and_sizes(model: str, name: str | None) -> None:
    sizes = stored(name or "gpt2")["sizes"]
    layer: Any = SimpleNamespace(config=sizes)
    found = find(model, layer)
    assert (found and found["model"]) == name
    assert find(model, SimpleNamespace(config={**sizes, "vocab_size": 5})) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bert-base-uncased", "gpt2"])
def test_printed_numbers_agree_with_each_other(name: str) -> None:
    """The same number of the same row, printed twice with different digits, is one number."""
    seen: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    count = 0
    for entry in stored(name)["values"]:
        halves = half_units(entry["printed"])
        assert halves.shape == (len(entry["tokens"]), len(entry["columns"]))
        for i, token in enumerate(entry["tokens"]):
            lookup = entry["key"] in (LOOKUPS[0], "wte")
            place: tuple[Any, ...] = (entry["input_ids"][token],) if lookup else (token,)
            if entry["key"] in ("sum", "embeddings.LayerNorm"):
                place = (*entry["input_ids"][: token + 1], token)
            for j, column in enumerate(entry["columns"]):
                number = float(entry["printed"][i][j]), float(halves[i, j])
                seen.setdefault((entry["key"], *place, column % 768), []).append(number)
                count += 1
    assert count > 150
    twice = 0
    for key, numbers in seen.items():
        low, high = max(x - half for x, half in numbers), min(x + half for x, half in numbers)
        slack = 2e-6 if key[0] == "embeddings.LayerNorm" else 1e-12
        assert low <= high + slack, (key, numbers)
        twice += len(numbers) > 1
    assert twice > 20


def test_printed_positions_are_the_real_table_s(reference_folder: Path) -> None:
    table = np.load(reference_folder / "bert_base_uncased_position_embeddings.npy")
    entries = [entry for entry in stored("bert-base-uncased")["values"] if entry["key"] == LOOKUPS[2]]
    assert sum(len(entry["tokens"]) for entry in entries) >= 12
    for entry in entries:
        got = table[np.ix_(entry["tokens"], np.arange(768)[entry["columns"]])].astype(np.float64)
        assert (np.abs(got - np.array(entry["printed"], float)) <= half_units(entry["printed"])).all()


def test_printed_ids_are_the_tokenizer_s(minilm: Path) -> None:
    """all-MiniLM-L6-v2 has the vocabulary of bert-base-uncased."""
    values = stored("bert-base-uncased")
    with minibert.load(minilm) as layer:
        assert check_texts(layer, values) == []
        wrong = {"texts": [{"text": "We lived", "input_ids": [1, 2]}]}
        assert check_texts(layer, wrong) == ["'We lived' gives the ids [101, 2057, 2973, 102], printed are [1, 2]"]
        assert repr(layer).replace("384", "768") == values["tree"]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bert-base-uncased whose printed numbers are the true ones, and whose others are made up."""
    folder = seeded.write_model(tmp_path_factory.mktemp("hub") / "bert-base-uncased", "bert", vocab=True)
    tensors = load_file(folder / "model.safetensors")
    tables = {key: tensors[f"{key}.weight"] for key in LOOKUPS}
    for entry in stored("bert-base-uncased")["values"]:
        for token, row in zip(entry["tokens"], entry["printed"], strict=True):
            place = {LOOKUPS[0]: entry["input_ids"][token], LOOKUPS[1]: 0, LOOKUPS[2]: token}.get(entry["key"])
            if place is not None:
                tables[entry["key"]][place, entry["columns"]] = np.array(row, np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def only_lookups(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "values": [entry for entry in values["values"] if entry["key"] in LOOKUPS]}


def test_printed_rows_are_checked_to_half_a_unit(planted: Path) -> None:
    values = only_lookups(stored("bert-base-uncased"))
    with minibert.load(planted) as layer:
        checked = check(layer, values)
        assert {c.key for c in checked} == set(LOOKUPS)
        assert all(c.passes for c in checked) and sum(c.numbers for c in checked) > 250
        for entry in values["values"]:
            text = entry["printed"][0][0]
            digits = len(text.partition("e")[0].partition(".")[2])
            unit = 10.0 ** (int(text.partition("e")[2] or 0) - digits)
            entry["printed"][0][0] = f"{float(text) + 1.2 * unit:.{digits + 1}e}"  # further off than half a unit
            assert not all(c.passes for c in check(layer, values)), entry
            entry["printed"][0][0] = text


def test_a_model_with_other_numbers_fails_and_says_what_was_compared(
    planted: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows as printed, but the made-up rest of each row shows in the norm."""
    assert main(["verify", "--model", str(planted)]) == 1
    said = capsys.readouterr().out
    assert "torch and transformers are not installed, so the reference was not run" in said
    assert "compared with numbers of bert-base-uncased, as this model's name and sizes say it is" in said
    assert re.search(r"^embeddings.word_embeddings +\d+ .* as printed$", said, re.MULTILINE)
    assert re.search(r"^embeddings.LayerNorm +\d+ .* DIFFERENT$", said, re.MULTILINE)
    assert re.search(r"^none of the \d+ classic mistakes that this family allows fits$", said, re.MULTILINE)


def test_ids_without_a_tokenizer_are_not_compared_and_it_is_told(planted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bert-base-uncased"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(planted / name)
    report = verify(str(folder))
    (line,) = [line for line in report.lines if line.startswith("ids of ")]
    assert line.startswith(f"ids of 5 texts not compared: {folder} has no tokenizer")


def test_where_the_reference_runs_a_folder_s_name_promises_nothing(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "installed", lambda: True)
    monkeypatch.setattr(verify_module, "Reference", lambda *_: None)
    monkeypatch.setattr(verify_module, "_against_live", lambda *_: None)
    assert not [line for line in verify(str(planted)).lines if "printed" in line or "ship with" in line]


def test_a_model_as_printed_passes(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep: Callable[[str, Any], dict[str, Any] | None] = find
    monkeypatch.setattr(
        printed, "find", lambda model, layer: {**only_lookups(keep(model, layer) or {"values": []}), "texts": []}
    )
    report = verify(str(planted))
    assert report.passed
    assert report.lines[-1] == "every number is the one that was printed"


def test_printed_values_name_a_mistake_too(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Had the notebooks been run on a layer without type rows, that is what would be said."""
    from minibert.verify.mistakes import MISTAKES

    (mistake,) = [m for m in MISTAKES if m.name == "type rows left out"]
    values = only_lookups(stored("bert-base-uncased"))
    row = mistake.make(minibert.FAMILIES["bert"])
    with minibert.load(planted, family=row) as wrong:
        total = wrong.trace([[101, 102]])["sum"][0, :, :3]
    digits = [[f"{number:.8f}" for number in numbers] for numbers in total.tolist()]
    values["values"] = [
        {"input_ids": [101, 102], "key": "sum", "tokens": [0, 1], "columns": [0, 1, 2], "printed": digits}
    ]
    monkeypatch.setattr(printed, "find", lambda model, layer: {**values, "texts": []})
    report = verify(str(planted))
    assert not report.passed and report.matches == ["type rows left out"]


def test_tolerances_of_a_layer_without_a_norm() -> None:
    with BY_NAME["t5-encoder"].layer() as layer:
        assert tolerances(layer) == {"position_ids": 0.0, "encoder.embed_tokens": 0.0, "sum": 0.0}
