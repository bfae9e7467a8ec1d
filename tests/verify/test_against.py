"""`minibert verify --against`: a port's file, its inputs, its numbers, and what it lacks; and the batches."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from command_line import Printed, failure, ran
from ports import BERT, arrays, ported, saved
from reference_files import BY_NAME, CASES, Case
from safetensors.numpy import load_file

import minibert
from minibert.cli import main
from minibert.verify.report import Difference, compare, over_kinds
from minibert.verify.subjects import batches, padding_id, trace
from minibert.verify.traces import read_traces
from minibert.verify.verify import verify

MODEL = str(BERT.folder)
VERIFY = ["verify", "--model", MODEL, "--against"]
verified = partial(verify, MODEL)

# -- against a file ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_s_own_file_passes(case: Case, tmp_path: Path) -> None:
    report = verify(str(case.folder), side=case.side, against=case.own_file(tmp_path))
    assert report.passed and report.matches == []
    kinds = [f"reference_{kind}" for kind in case.facts["kinds"]]
    assert {kind for d in report.compared for kind in d.kinds} == set(kinds)
    (line,) = [line for line in report.lines if " batches compared" in line]
    assert re.match(rf"0 of \d+ batches compared, and {len(kinds)} of the file's own \(", line)
    assert report.lines[-2] == "no difference beyond what rounding allows"
    assert re.match("passed as far as it goes; not compared: plain, ", report.lines[-1])
    assert not [line for line in report.lines[:-1] if "not compared" in line or "DIFFERENT" in line]


@pytest.mark.parametrize("name", ["bert", "opt", "xlm", "t5-decoder", "electra"])
def test_what_save_writes_against_accepts(name: str, tmp_path: Path, capsys: Printed) -> None:
    case, target = BY_NAME[name], tmp_path / "trace.safetensors"
    arguments = ["verify", "--model", case.folder, "--side", case.side]
    *_, nothing, wrote = ran(capsys, *arguments, "--save", target)[0].splitlines()
    assert nothing.startswith("compared with nothing: torch and transformers are not installed")
    assert wrote == f"wrote inputs and every intermediate of {len(batches(case.layer()))} batches to {target}"
    assert [path.name for path in tmp_path.iterdir()] == ["trace.safetensors"]
    said, _ = ran(capsys, *arguments, "--against", target)
    assert f"compared with the file {target}; the reference was not run" in said
    assert "100 %" in said and "within rounding" not in said
    with case.layer() as layer:
        inputs, traces = read_traces(target)
        assert set(inputs) == set(traces) == set(batches(layer))
        for kind, batch in inputs.items():
            again = trace(layer, batch)
            assert set(traces[kind]) == set(again)
            assert all(np.array_equal(again[key], value) for key, value in traces[kind].items())


# -- its inputs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", sorted(key for key in saved() if "|inputs|" in key))
def test_an_input_that_is_missing_or_differs_fails(key: str) -> None:
    """The numbers may be right: what the port was given cannot be known. A batch of other inputs is not compared."""
    arrays, kind = saved(), key.split("|")[0]
    right, other = arrays.pop(key), saved()[key].copy()
    report = verified(against=arrays)
    assert not report.passed and report.wrong_inputs == [f"{key} is missing"] and f"{key} is missing" in report.lines
    assert report.lines[-1].startswith(
        "not passed: 1 of the inputs is missing or differs; copy them from a file that `verify` saved"
    )
    assert all(d.passes for d in report.compared) and report.matches == []
    other[(-1,) * other.ndim] += 1
    report = verified(against=arrays | {key: other})
    last, number = ", ".join(str(size - 1) for size in other.shape), right[(-1,) * other.ndim]
    (wrong,) = report.wrong_inputs
    assert not report.passed and wrong == f"{key}[{last}] is {number + 1}, expected {number}"
    assert f"{wrong}; {kind} was not compared" in report.lines
    assert kind not in {kind for d in report.compared for kind in d.kinds}
    total = len({name.split("|")[0] for name in arrays})
    assert [line for line in report.lines if line.startswith(f"{total - 1} of {total} batches compared")]


def test_an_input_too_many_fails() -> None:
    report = verified(against=saved() | {"plain|inputs|attention_mask": np.ones((3, 7), np.int64)})
    assert not report.passed
    assert report.wrong_inputs == ["plain|inputs|attention_mask is no input of this batch"]


def test_inputs_are_compared_by_value() -> None:
    """Another width of integers, and an array of one number with an axis more, are the same input."""
    arrays = {k: v.astype(np.int32) if v.dtype == np.int64 and "inputs" in k else v for k, v in saved().items()}
    arrays["cached|inputs|past_length"] = arrays["cached|inputs|past_length"].reshape(1)
    report = verified(against=arrays)
    assert report.passed and report.lines[-1] == "no difference beyond what rounding allows"


def test_a_batch_of_the_port_s_own_is_compared_with_its_own_inputs() -> None:
    batch = {"input_ids": np.array([[5, 6, 7]]), "token_type_ids": np.array([[1, 0, 1]])}
    with BERT.layer() as layer:
        own, total = arrays({"mine": batch}, {"mine": trace(layer, batch)}), len(batches(layer))
    report = verified(against=own)
    assert report.passed and "6 of 6 intermediates compared" in report.lines
    assert [x for x in report.lines if x.startswith(f"0 of {total} batches compared, and 1 of the file's own (mine); ")]
    assert report.lines[-1].startswith("passed as far as it goes; not compared: plain, ")
    assert "types (whether token_type_ids are read)" in report.lines[-1]
    del own["mine|inputs|token_type_ids"]
    assert not verified(against=own).passed
    with pytest.raises(ValueError, match=r"'mine'.*input_ids"):
        verified(against=own | {"mine|inputs|input_ids": np.array([[5, 6, 999]])})


def test_ids_that_a_port_gives_as_numbers_of_its_own_are_compared() -> None:
    """Its tokenizer's, beside the inputs that it was given."""
    arrays = saved()
    for ids, passes in ((arrays["plain|inputs|input_ids"], True), (arrays["types|inputs|input_ids"] + 1, False)):
        report = verified(against=arrays | {"plain|input_ids": ids})
        assert report.passed == passes and ("input_ids differs in plain" in report.lines) != passes
        assert [d.kinds for d in report.compared if d.key == "input_ids"] == [("plain",)]


def test_a_batch_of_no_rows_is_nothing_compared() -> None:
    none = {"mine|inputs|input_ids": np.zeros((0, 7), np.int64), "mine|sum": np.zeros((0, 7, 16), np.float32)}
    report = verified(against=none)
    assert not report.passed and report.compared == []
    assert "mine|inputs|input_ids is empty, of shape (0, 7); mine was not compared" in report.lines
    assert report.lines[-1] == "not passed: nothing was compared; is this a trace of another model?"
    report = verified(against=saved() | none)
    assert not report.passed and all(d.passes for d in report.compared)
    report = verified(against={k: v[:0] for k, v in saved().items() if k.startswith("plain|")})
    assert not report.passed
    assert report.wrong_inputs == ["plain|inputs|input_ids has shape (0, 7), expected (3, 7)"]


def test_a_text_s_ids_are_the_tokenizer_s(minilm: Path, tmp_path: Path) -> None:
    """Ids without [CLS] and [SEP], ids of [UNK] alone, and no such text at all: each fails."""
    model, text, path = str(minilm), "We lived above the clouds", tmp_path / "own.safetensors"
    verify(model, [text], save=path)
    own = {k: v for k, v in load_file(path).items() if k.startswith(("text 1|", "plain|"))}
    assert verify(model, [text], against=own, batches=["plain", "text 1"]).passed
    with minibert.load(minilm) as layer:
        ids = own["text 1|inputs|input_ids"]
        for other in (ids[:, 1:-1], np.where((ids == 101) | (ids == 102), ids, 100)):
            batch = {name: np.ones_like(other) * (name != "token_type_ids") for name in layer.tokenize(text)}
            batch["input_ids"] = other
            report = verify(model, [text], against=own | arrays({"text 1": batch}, {"text 1": trace(layer, batch)}))
            assert not report.passed and report.wrong_inputs[0].startswith("text 1|inputs|input_ids")
    plain = {key: value for key, value in own.items() if key.startswith("plain|")}
    report = verify(model, [text], against=plain, batches=["plain", "text 1"])
    assert not report.passed and "1 of our batches are not in the file: text 1; " in report.lines[-1]


# -- what a file lacks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", sorted(key for key in saved() if key.startswith(("plain|", "types|")) and "|inputs|" not in key)
)
def test_an_intermediate_that_is_missing_anywhere_fails(key: str, tmp_path: Path, capsys: Printed) -> None:
    arrays = saved()
    value, total = arrays.pop(key), sum("|inputs|" not in name for name in arrays)
    kind, name = key.split("|")
    for more, unknown in ({}, False), ({f"{kind}|{name}x": value}, True):  # absent, and misspelt
        path = ported(arrays | more, tmp_path)
        assert main([*VERIFY, str(path)]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert f"{total} of {total + 1} intermediates compared" in lines
        assert f"missing: {name} in {kind}" in lines
        assert lines[-1].startswith(
            f"not passed: 1 of {total + 1} are missing; to compare a part, name it by `--only`: "
        )
        assert name not in lines[-1].split()
        assert (f"not compared, since this layer has no such intermediate: {name}x" in lines) == unknown
        report = verified(against=path)
        assert report.missing == [key] and not report.passed and all(d.passes for d in report.compared)


def test_a_batch_with_inputs_alone_is_missing_and_one_that_is_not_there_fails_unless_others_are_named() -> None:
    report = verified(against={k: x for k, x in saved().items() if not k.startswith("types|") or "|inputs|" in k})
    assert not report.passed and {key.split("|")[0] for key in report.missing} == {"types"}
    without = {key: value for key, value in saved().items() if not key.startswith("types|")}
    report = verified(against=without)
    assert not report.passed and report.missing == []
    assert report.lines[-1].startswith("not passed: 1 of our batches are not in the file: types; to compare a part")
    report = verified(against=without, batches=report.lines[-1].rpartition(": ")[2].split())
    assert report.passed
    assert report.lines[-1] == "passed as far as it goes; not compared: types (whether token_type_ids are read)"


def test_only_compares_a_part(tmp_path: Path, capsys: Printed) -> None:
    done = ("position_ids", "sum")
    part = {key: value for key, value in saved().items() if "|inputs|" in key or key.split("|")[1] in done}
    spoilt = part | {"plain|embeddings.LayerNorm": np.zeros((3, 7, 16), np.float32), "plain|mine": np.zeros(3)}
    path = ported(spoilt, tmp_path)
    *lines, last = ran(capsys, *VERIFY, path, "--only", *done)[0].splitlines()
    out = "\n".join(lines)
    assert "24 of 24 intermediates compared" in out and "LayerNorm" not in out and "missing" not in out
    assert last.startswith("passed as far as it goes; not compared: ") and "embeddings.LayerNorm" in last
    assert main([*VERIFY, str(path), "--only", *done, "embeddings.LayerNorm"]) == 1
    assert "missing: embeddings.LayerNorm in " in capsys.readouterr().out
    report = verified(against=path, only=["sum"])
    assert report.passed and {d.key for d in report.compared} == {"sum"}
    assert not verified(against=part | {"plain|sum": part["plain|sum"] + np.float32(1)}, only=["sum"]).passed
    assert verified(against=path, only=["position_ids"]).passed


def test_only_that_cannot_be(tmp_path: Path, capsys: Printed) -> None:
    path, made = ported(saved(), tmp_path), tmp_path / "made.safetensors"
    said = failure(capsys, *VERIFY, path, "--only", "sum", "embeddings.LayerNrm")
    assert "no intermediate is called 'embeddings.LayerNrm' (did you mean embeddings.LayerNorm?)" in said
    assert said.endswith(
        "there are position_ids, embeddings.word_embeddings, embeddings.token_type_embeddings, "
        "embeddings.position_embeddings, sum, embeddings.LayerNorm"
    )
    ported({"plain|sum": np.zeros(1, np.float32)}, tmp_path)
    said = failure(capsys, *VERIFY, path, "--only", "position_ids")
    assert 'has no position_ids; store it as "plain|position_ids"' in said
    for only, against in ((["sum"], None), ("sum", path), ([], path)):
        with pytest.raises(ValueError, match=r"^only "):
            verified(against=against, save=made, only=only)
    assert not made.exists()


# -- one file for both ---------------------------------------------------------------------------------------------


def test_a_port_s_numbers_are_not_saved_over(tmp_path: Path, capsys: Printed) -> None:
    path, other = ported(saved(), tmp_path), tmp_path / "other.safetensors"
    other.symlink_to(path)
    before = path.read_bytes()
    for save, against in ((path, path), (path, other), (other, path)):
        said = failure(capsys, *VERIFY, against, "--save", save)
        assert "are one file: saving would overwrite the numbers to compare with" in said
        assert path.read_bytes() == before and other.samefile(path)


def test_nothing_is_saved_where_the_other_file_cannot_be_read_or_the_ending_is_another(
    tmp_path: Path, capsys: Printed
) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        verified(save=tmp_path / "made.safetensors", against=tmp_path / "absent.safetensors")
    said = failure(capsys, "verify", MODEL, "--save", tmp_path / "trace.npy")
    assert "must end in .safetensors" in said and list(tmp_path.iterdir()) == []


def test_another_model_s_trace_fails(tmp_path: Path) -> None:
    """Its inputs differ, and where they do not, its numbers."""
    for name in ("roberta", "marian-encoder"):
        verify(str(BY_NAME[name].folder), save=tmp_path / f"{name}.safetensors")
    report = verified(against=tmp_path / "roberta.safetensors")
    line = "pads_inside_mask|inputs|input_ids[0, 1] is 1, expected 0; pads_inside_mask was not compared"
    assert not report.passed and line in report.lines
    assert [line for line in report.lines if line.startswith("position_ids differs in plain, inputs_embeds, ")]
    report = verified(against=tmp_path / "marian-encoder.safetensors")
    assert not report.passed and report.compared == []
    line = "inputs_embeds|inputs|inputs_embeds has shape (3, 7, 20), expected (3, 7, 16); inputs_embeds was not "
    assert line in str(report)
    assert report.lines[-1] == "not passed: nothing was compared; is this a trace of another model?"


def test_texts_are_a_batch_each(minilm: Path, tmp_path: Path, capsys: Printed) -> None:
    target, texts = tmp_path / "trace.safetensors", tmp_path / "texts.txt"
    texts.write_text("We lived above the clouds\n\n", encoding="utf-8")
    ran(capsys, "verify", "--model", minilm, "--texts", texts, "--save", target)
    inputs, traces = read_traces(target)
    assert inputs["text 1"]["input_ids"].tolist() == [[101, 2057, 2973, 2682, 1996, 8044, 102]]
    assert traces["text 2"]["sum"].shape == (1, 2, 384)
    assert "text 1, text 2" in ran(capsys, "verify", "--model", minilm, "--against", target)[0]


# -- the table -----------------------------------------------------------------------------------------------------


def test_the_table_shows_what_the_issue_is(tmp_path: Path) -> None:
    report = verified(against=BERT.own_file(tmp_path))
    header = "intermediate batches max difference equal rms error here rms error file verdict"
    assert [line.split() for line in report.lines if line.startswith("intermediate")] == [header.split()]
    (norm,) = [line for line in report.lines if line.startswith("embeddings.LayerNorm")]
    assert norm.endswith("within rounding") and "100 %" not in norm
    (total,) = [line for line in report.lines if line.startswith("sum ")]
    assert re.search(r" 10 +0 +100 % +- +-  equal$", total)  # what is equal is not computed in float64
    key = "full_length|sum"
    (wrong := saved()[key].copy())[0, 0, 0] += np.float32(1e-6)
    report = verified(against=saved() | {key: wrong})
    (total,) = [line for line in report.lines if re.match("sum +[0-9]", line)]
    assert "99.9 %" in total  # never rounded up to all


def test_summing_up_keeps_the_worst() -> None:
    some = [
        Difference("sum", (kind,), *numbers, 0.0)
        for kind, *numbers in (("a", 0.0, 1.0, 1.0, 2.0), ("b", 2.0, 0.5, 7.0, 14.0), ("c", np.nan, 0.0, 0.0, 0.0))
    ]
    (two,) = over_kinds(some[:2])
    assert (two.kinds, two.largest, two.equal) == (("a", "b"), 2.0, 0.75)
    assert (two.error_ours, two.error_theirs) == (5.0, 10.0)  # root mean squares, no means
    (three,) = over_kinds(some)
    assert np.isnan(three.largest) and not three.passes


def test_a_difference_is_relative_to_theirs() -> None:
    ours, theirs = {"plain": {"sum": np.array([1.0, 0.5])}}, {"plain": {"sum": np.array([-4.0, 0.25])}}
    (difference,) = compare(ours, theirs, {}, {"sum": 0.0})
    assert (difference.largest, difference.equal) == (1.25, 0.0)


# -- the batches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_batches_are_those_that_the_family_allows(case: Case) -> None:
    with case.layer() as layer:
        made, again = batches(layer), batches(layer)
        positions = "position_ids" in trace(layer, made["plain"])
        vocab, padding = layer.steps[0].module.table.shape[0], padding_id(layer)
        for kind, batch in made.items():
            trace(layer, batch)  # each can be computed
            assert all(np.array_equal(array, again[kind][name]) for name, array in batch.items())
    ids, mask = made["mask_unlike_ids"].values()
    assert (ids[mask == 1] == padding).any() and (ids[mask == 0] != padding).any() and mask.any(axis=1).all()
    assert {"plain", "right_pad", "right_pad_no_mask", "left_pad", "pads_inside", "pads_inside_mask"} < set(made)
    last = vocab - 2  # the table's last row, or the one before where that is padding
    assert made["plain"]["input_ids"].max() >= last
    assert ("explicit_positions" in made) == ("full_length" in made) == positions
    asked = set(case.facts["kinds"])  # of the committed reference of this case
    assert asked <= set(made), asked - set(made)
