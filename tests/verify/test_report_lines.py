"""The lines that a person reads: a right part, counts for equal lines, the factor in force, and at most five texts."""

from __future__ import annotations

from pathlib import Path

import encoders
import loops
import numpy as np
import pytest
from command_line import Printed
from ports import few, judged, verify_part
from test_formats import Narrow, written
from vector_port import VectorPort, write

import minibert
from minibert.cli import main
from minibert.models.open.load_encoder import load_encoder
from minibert.verify.traces import read_traces, write_traces
from minibert.verify.verify import verify


def saved(folder: Path, path: Path, mistake: str = "") -> Path:
    with load_encoder(folder) as encoder:
        inputs = few(encoder)
    port = loops.Port(folder, mistake)
    write_traces(path, inputs, {kind: port.run(batch) for kind, batch in inputs.items()})
    return path


def test_a_part_that_is_right_is_told_first(folder: Path, tmp_path: Path, capsys: Printed) -> None:
    """One missing key with its batch; the shell's words, and Python's."""
    inputs, traces = read_traces(saved(folder, tmp_path / "whole.npz"))
    total = sum(map(len, traces.values()))
    traces = {kind: {key: x for key, x in named.items() if key in ("sum", "position_ids")}
              for kind, named in traces.items()}  # fmt: skip
    write_traces(path := tmp_path / "part.npz", inputs, traces)
    report = verify_part(str(folder), encoder=True, against=path)
    assert not report.passed
    assert report.lines[1] == f"4 of {total} compared, all right; {total - 4} missing; `only=` takes a part"
    (line,) = [line for line in report.lines if line.startswith("missing: ")]
    assert line.startswith("missing: embeddings.word_embeddings in all 2 batches, and ")
    assert report.lines[-1].endswith("to compare a part, name it by `only=`: position_ids sum")
    assert max(map(len, report.lines)) < 400
    command = ["verify", str(folder), "--encoder", "--against", str(path), "--batches", "plain", "left_pad"]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "missing; `--only` takes a part" in out and "name it by `--only`: " in out and "only=" not in out


def test_equal_lines_under_one_mistake_become_a_count(tmp_path: Path) -> None:
    folder = encoders.write(tmp_path / "bert", "bert", num_hidden_layers=5)
    report = judged(folder, tmp_path / "port.safetensors", loops.Port(folder, "no division by sqrt(head_dim)"))
    assert report.matches == ["no division by sqrt(head_dim)"] and len(report.local) == 5
    lines = [line for line in report.lines if line.startswith("  block ")]
    assert len(lines) == 1 and "scores and 4 more modules by " in lines[0], lines


def test_a_block_whose_maps_are_all_wrong_is_one_line(folder: Path, tmp_path: Path) -> None:
    port = loops.Port(folder)
    for name, x in port.tensors.items():
        if "layer.1." in name and x.ndim == 2:
            port.tensors[name] = np.tanh(x * 3)
    report = judged(folder, tmp_path / "port.safetensors", port)
    lines = [line for line in report.lines if line.startswith("  block ")]
    assert len(report.local) == 6 and len(lines) == 1, report.lines
    assert lines[0].startswith("  block 1: encoder.layer.1.attention.self.query and 5 more modules by ")


def test_under_a_format_legend_and_batches_are_its_own(folder: Path, tmp_path: Path) -> None:
    """Every batch differs by more than float32 allows; one of them is wrong."""
    inputs, traces = written(folder, Narrow(folder, "float16"), "float16")
    key = "encoder.layer.0.output.dense"
    traces["left_pad"][key] = traces["left_pad"][key] * np.float32(1.1)
    write_traces(path := tmp_path / "port.safetensors", inputs, traces)
    report = verify_part(str(folder), encoder=True, against=path, format="float16")
    text = "\n".join(report.lines)
    assert f"first difference: block 0, {key}, in left_pad; " in text
    assert "an rms error of at most 3 times that of our own computation in float16" in text
    assert "10 times ours" not in text


def test_a_trace_without_batches_is_told_how_names_look(folder: Path) -> None:
    with pytest.raises(ValueError, match=r'expected names such as "plain\|inputs\|input_ids", found'):
        minibert.compare(folder, against={"sum": np.zeros(3, np.float32)})


def test_at_most_five_texts_stand_with_their_tokens(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    texts = [f"we lived above the clouds{' a' * n}" for n in range(9)]
    wrong = VectorPort(folder)(texts) * np.float32([[1.0, 2.0] * 8])
    report = minibert.compare(folder, against=wrong, texts=texts)
    at = next(i for i, line in enumerate(report.lines) if line.startswith("text "))
    assert report.lines[at].split()[-2:] == ["tokens", "text"]
    assert len(report.lines[at + 1 :]) == 6 and report.lines[-1] == "and 4 more texts"
    with load_encoder(folder) as encoder:
        longest = encoder.tokenize("clouds " + texts[4])["input_ids"].shape[1]
    assert report.lines[at + 5].split()[2] == str(longest)


def test_what_was_saved_and_not_compared_ends_with_the_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibert.verify.verify.installed", lambda: False)
    report = verify(str(folder), encoder=True, save=(path := tmp_path / "trace.npz"))
    assert report.passed and report.lines[-1].endswith(f"batches to {path}")
    assert report.lines[-2].startswith("compared with nothing: ")
