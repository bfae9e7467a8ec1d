"""`minibert encode` and `minibert similar`: their output on stdout and in files, and their errors."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from command_line import Patch, Printed, failure, numbers, ran, typed
from record_files import made
from reference_files import REFERENCE
from safetensors.numpy import load_file

import minibert
from minibert.cli import main
from minibert.equations.quantization import PRECISIONS, quantized

TEXTS = ["we lived above the clouds", "", "clouds!"]
DENSE, PROMPTS = str(REFERENCE / "sentences-dense"), str(REFERENCE / "sentences-prompts")
SAME = 1e-6  # of numbers of size 1, computed beside other texts; measured: 1.2e-7


def test_encode_prints_numbers_that_read_back_exactly(capsys: Printed) -> None:
    out, err = ran(capsys, "encode", "-m", DENSE, *TEXTS)
    assert np.array_equal(numbers(out), minibert.load_encoder(DENSE).encode(TEXTS)) and err == ""


def test_encode_reads_lines_of_stdin(monkeypatch: Patch, capsys: Printed) -> None:
    lines = [f"we lived {'a ' * (i % 7)}" for i in range(1300)]
    typed(monkeypatch, "\n".join(lines).encode())
    assert np.allclose(
        numbers(ran(capsys, "encode", "-m", DENSE)[0]), minibert.load_encoder(DENSE).encode(lines), 0, SAME
    )


def test_a_file_of_texts_is_no_text(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    """Its name has a vector, which nobody wants; a name of no file, of a folder or of a long text is a text."""
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "q.parquet", "")
    (tmp_path / "x.txt").mkdir()
    for command in ("encode", "embed"):
        message = failure(capsys, command, "-m", DENSE, "we", "./q.parquet")
        assert "'./q.parquet' is a file" in message and "`minibert bulk ./q.parquet -o FOLDER` reads" in message
        ran(capsys, command, "-m", DENSE, "./r.parquet", "x.txt", "q", "we " * 5 + "a" * 300 + ".csv")


def test_encode_with_a_closed_stream(monkeypatch: Patch, capsys: Printed) -> None:
    with monkeypatch.context() as change:
        change.setattr(sys, "stderr", None)  # what Python makes of `2>&-`
        assert main(["encode", "-m", DENSE, "clouds!"]) == 0
    assert numbers(capsys.readouterr().out).shape == (1, minibert.load_encoder(DENSE).encode("clouds!").size)


@pytest.mark.parametrize(
    ("options", "method", "told"),
    [
        (["--prompt-name", "query"], "encode", {"prompt_name": "query"}),
        (["--prompt", "query"], "encode", {"prompt": "query"}),
        (["--task", "query"], "encode_query", {}),
        (["--task", "query", "--prompt", ""], "encode_query", {"prompt": ""}),
        (["--task", "document"], "encode_document", {}),
    ],
)
def test_encode_with_a_prompt_or_for_a_task(
    options: list[str], method: str, told: dict[str, str], capsys: Printed
) -> None:
    encoder = minibert.load_encoder(PROMPTS)
    want = getattr(encoder, method)(TEXTS, **told)
    assert np.array_equal(numbers(ran(capsys, "encode", "-m", PROMPTS, *options, *TEXTS)[0]), want)
    assert not np.allclose(want, encoder.encode(TEXTS), 0, 0.01)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_encode_normalizes_shortens_and_quantizes(precision: str, tmp_path: Path, capsys: Printed) -> None:
    """Printed and in a file; the ranges of int8 come from all texts, even from several chunks."""
    texts, path = [f"{text} we {'a ' * (i % 5)}" for i, text in enumerate(TEXTS * 200)], tmp_path / "vectors.npy"
    options = ["-m", PROMPTS, "--normalize", "--truncate-dim", "13", "--precision", precision]
    vectors = minibert.load_encoder(PROMPTS, truncate_dim=13).encode(texts, normalize_embeddings=True)
    want = quantized(vectors, precision)
    ran(capsys, "encode", *options, "-o", path, *texts)
    found = np.load(path)
    printed = numbers(ran(capsys, "encode", *options, *texts)[0])
    assert (found.dtype, found.shape) == (want.dtype, want.shape) and printed.shape == want.shape
    near = SAME if precision == "float32" else 1e-3 if precision == "float16" else 1
    assert np.allclose(found.astype(float), want, 0, near) and np.array_equal(found, printed.astype(found.dtype))
    _, err = ran(capsys, "encode", *options, *["we", "lived", "above", "the", "clouds", "in", "a"])
    few = f"minibert: {precision} takes its ranges from 7 vectors; 100 or more make better ones\n"
    assert err == (few if precision in ("int8", "uint8") else "")


def test_similar_prints_a_table(minilm: Path, capsys: Printed) -> None:
    texts = ["How do I reset my password?", "How do I boil an egg?", "I forgot my login credentials"]
    assert ran(capsys, "similar", "-m", minilm, *texts)[0] == (
        "           1       2       3\n"
        "   1   1.000   0.177   0.678  How do I reset my password?\n"
        "   2   0.177   1.000   0.093  How do I boil an egg?\n"
        "   3   0.678   0.093   1.000  I forgot my login credentials\n"
    )


def test_similar_finds_the_nearest_lines_of_a_file(
    minilm: Path, tmp_path: Path, capsys: Printed, monkeypatch: Patch
) -> None:
    """In a file of several chunks, the best in the last one; of two equal lines the first comes first."""
    monkeypatch.setattr("minibert.models.run.pipeline.TextPipeline.chunk", 64)
    eggs, forgot = "How do I boil an egg?", "I forgot my login credentials"
    lines = [*[eggs, ""] * 50, "Reset the password ", *["eggs"] * 90, forgot]
    file = made(tmp_path / "lines.txt", "\n".join(lines))
    similar = "similar", "-m", minilm, "How do I reset my password?", "--file", file
    found = ran(capsys, *similar, "-k", "4")[0].splitlines()
    assert [line[7:] for line in found] == ["Reset the password ", forgot, eggs, eggs]
    assert found[1][:5] == "0.678" and found[0] > found[1] > found[2]
    for empty in ("", "\n\n"):
        made(file, empty)
        assert failure(capsys, *similar) == f"{file}: expected texts, one on each line, found none"


@pytest.mark.parametrize("name", ["uses-sparse", "uses-sparse-router"])
@pytest.mark.parametrize("task", [None, "query"])
def test_sparse_vectors_are_lines_or_arrays(name: str, task: str | None, tmp_path: Path, capsys: Printed) -> None:
    argv = ["encode", "-m", REFERENCE / name, *TEXTS, *(["--task", task] if task else [])]
    encoder = minibert.load_encoder(REFERENCE / name)
    want = encoder.encode_query(TEXTS) if task else encoder.encode_sparse(TEXTS)
    lines = ran(capsys, *argv)[0].splitlines()
    for line, vector in zip(lines, want, strict=True):
        pairs = [pair.split(":") for pair in line.split()]
        assert [int(i) for i, _ in pairs] == vector.ids.tolist()
        assert np.array_equal(np.array([weight for _, weight in pairs], np.float32), vector.weights)
    file = tmp_path / "a.safetensors"
    assert "ids (" in ran(capsys, *argv, "-o", file)[1]
    found = load_file(file)
    ends = found["offsets"].tolist()
    for (start, end), vector in zip(pairwise(ends), want, strict=True):
        assert np.array_equal(found["ids"][start:end], vector.ids) and found["ids"].dtype == np.int64
        assert np.array_equal(found["weights"][start:end], vector.weights) and found["weights"].dtype == np.float32
    for more, error in ((["--normalize"], "is for dense vectors"), (["--precision", "int8"], "is for sentence vectors"),
                        (["-o", tmp_path / "a.npy"], "different numbers of tokens or weights")):  # fmt: skip
        assert error in failure(capsys, *argv, *more)
