"""`minibert encode`, `embed` and `similar`: their input, their output on stdout and in files, and their errors."""

from __future__ import annotations

import io
import subprocess
import sys
import weakref
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import same_bits
from command_line import DIM, Patch, Printed, failure, numbers, ran, typed
from record_files import made
from reference_files import REFERENCE
from safetensors.numpy import load, load_file

import minibert
from minibert.cli import main
from minibert.equations.input_layer import Array
from minibert.equations.quantization import PRECISIONS, quantized
from minibert.files.arrays import write_vectors
from minibert.files.reading import STDIN, arriving_texts

TEXTS = ["we lived above the clouds", "", "clouds!"]
DENSE, PROMPTS = str(REFERENCE / "sentences-dense"), str(REFERENCE / "sentences-prompts")
SAME = 1e-6  # of numbers of size 1, computed beside other texts; measured: 1.2e-7


def test_encode_reads_lines_of_stdin(monkeypatch: Patch, capsys: Printed) -> None:
    lines = [f"we lived {'a ' * (i % 7)}" for i in range(1300)]
    typed(monkeypatch, "\n".join(lines).encode())
    out, _ = ran(capsys, "encode", "-m", DENSE)
    assert np.allclose(numbers(out), minibert.load_encoder(DENSE).encode(lines), 0, SAME)


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


@pytest.mark.parametrize(("options", "method", "told"), [
    ([], "encode", {}), (["--task", "query"], "encode_query", {}), (["--task", "document"], "encode_document", {}),
    (["--prompt-name", "query"], "encode", {"prompt_name": "query"}), (["--prompt", "a"], "encode", {"prompt": "a"}),
    (["--task", "query", "--prompt", ""], "encode_query", {"prompt": ""}),
])  # fmt: skip
def test_printed_vectors_read_back(options: list[str], method: str, told: dict[str, str], capsys: Printed) -> None:
    encoder = minibert.load_encoder(PROMPTS)
    out, err = ran(capsys, "encode", "-m", PROMPTS, *options, *TEXTS)
    assert np.array_equal(numbers(out), getattr(encoder, method)(TEXTS, **told))
    assert options or err == ""
    assert np.allclose(numbers(out), encoder.encode(TEXTS), 0, 0.01) == (options == [])


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


def test_similar_finds_the_nearest_lines(minilm: Path, tmp_path: Path, capsys: Printed, monkeypatch: Patch) -> None:
    """In a file of several chunks, the best in the last one; of two equal lines the first comes first."""
    monkeypatch.setattr("minibert.models.run.pipeline.TextPipeline.chunk", 64)
    eggs, forgot = "How do I boil an egg?", "I forgot my login credentials"
    lines = [*[eggs, ""] * 50, "Reset the password ", *["eggs"] * 90, forgot]
    similar = "similar", "-m", minilm, "How do I reset my password?", "-k", "4", "--file"
    found = ran(capsys, *similar, made(tmp_path / "lines.txt", "\n".join(lines)))[0].splitlines()
    assert [line[7:] for line in found] == ["Reset the password ", forgot, eggs, eggs]
    assert found[1][:5] == "0.678" and found[0] > found[1] > found[2]


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


FULL = ["we lived above the clouds", "dog bites man"]
LONG = "we lived " * 20
ONE_TOO_MANY = "we " * 15  # with [CLS] and [SEP] 17 tokens of 16


@pytest.mark.parametrize(("arguments", "options"), [
    ([], {}), (["--pooling", "max", "--normalize"], {"pooling": "max", "normalize": True}),
    (["--truncate", LONG, ONE_TOO_MANY], {"truncation": True}),
])  # fmt: skip
def test_printed_numbers_read_back_exactly(
    arguments: list[str], options: dict[str, Any], folder: Path, minilm: Path, capsys: Printed
) -> None:
    for model in (folder, minilm):
        out, err = ran(capsys, "embed", "--model", model, *FULL, *arguments)
        texts = FULL + [LONG, ONE_TOO_MANY] * ("truncation" in options)
        assert np.array_equal(numbers(out), minibert.load(model).embed(texts, **options))
        left_out = "26 of text 3, 1 of text 4"
        told = f"minibert: 2 texts truncated: too long for this model; tokens left out: {left_out}\n"
        assert err == (told if options.get("truncation") and model == folder else "")


@pytest.mark.parametrize("texts", [["we", "the dog \u2028 bites"], []])
def test_embed_reads_lines_of_stdin(texts: list[str], folder: Path, monkeypatch: Patch, capsys: Printed) -> None:
    for arguments in ([], ["-"]):
        typed(monkeypatch, "\n".join(texts).encode())
        out, err = ran(capsys, "embed", "--model", folder, *arguments)
        assert err == "" and out.count("\n") == len(texts)
        assert not texts or np.array_equal(numbers(out), minibert.load(folder).embed(texts))


def test_lines_come_as_they_are_there_and_in_chunks_of_so_many(monkeypatch: Patch) -> None:
    typed(monkeypatch, b"on", b"e\ntw\xc3", b"\xb6\r", b"\nthree\nfour\nfive\n", b"s", b"ix")
    assert list(arriving_texts(STDIN)) == [["one"], ["twö", "three", "four", "five"], ["six"]]


def test_an_error_about_a_text_names_its_line(folder: Path, monkeypatch: Patch, capsys: Printed) -> None:
    typed(monkeypatch, b"\n" + b"we\n" * 3000 + b" \n\n" + b"we " * 20 + b"\n\n")
    assert main(["embed", "--model", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert "error: line 3004 of stdin has 22 tokens, but the longest sequence is 16 (max_length, else the " in err
    assert "shorten it, or pass --truncate" in err
    assert out.count("\n") >= 2047, "two chunks come before, with one empty line"


def test_a_closed_stdin(folder: Path, monkeypatch: Patch, capsys: Printed) -> None:
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    for stdin in (None, closed):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert "stdin is closed; name a file, or give the texts" in failure(capsys, "embed", "--model", folder)


def test_a_stream_into_a_file_keeps_no_chunk(folder: Path, tmp_path: Path) -> None:
    kept: list[weakref.ref[Array]] = []

    def vectors() -> Iterator[Array]:
        for i in range(5):
            rows = np.full((i, DIM), i, np.float32)
            kept.append(weakref.ref(rows))
            yield rows
            assert sum(ref() is not None for ref in kept) == 1

    path = tmp_path / "vectors.npy"
    write_vectors(path, ".npy", vectors(), DIM, np.dtype("f4"), "mean")
    assert np.load(path)[:, 0].tolist() == [1, 2, 2, 3, 3, 3, 4, 4, 4, 4]


@pytest.mark.parametrize("ending", [".npy", ".safetensors"])
def test_embed_writes_a_file(ending: str, folder: Path, tmp_path: Path, capsys: Printed) -> None:
    path = tmp_path / f"vectors{ending}"
    printed = ran(capsys, "embed", "--model", folder, *FULL, "-o", path)
    assert printed == ("", f"minibert: wrote {path}: embeddings (2, 8)\n")
    written = {"embeddings": np.load(path)} if ending == ".npy" else load_file(path)
    assert written.keys() == {"embeddings"}
    assert same_bits(written["embeddings"], minibert.load(folder).embed(FULL))


@pytest.mark.parametrize("texts", [FULL, []], ids=["two texts", "no text"])
def test_embed_prints_and_writes_tokens(
    texts: list[str], folder: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    """Printed, a token is a line and an empty line ends a text; in a file, offsets tell the texts apart."""
    command, path = ("embed", "--model", folder, "--pooling", "none"), tmp_path / "tokens.safetensors"
    expected = [rows.tolist() for rows in minibert.load(folder).embed(texts, None)]
    for more in ((), ("-o", path)):
        typed(monkeypatch, "".join(f"{text}\n" for text in texts).encode())
        out, _ = ran(capsys, *command, *more)
        *printed, rest = out.split("\n\n")
        assert rest == "" and [numbers(each).tolist() for each in printed] == ([] if more else expected)
    written = load_file(path)
    embeddings, offsets = written["embeddings"], written["offsets"]
    assert embeddings.dtype == np.float32 and offsets.dtype == np.int64 and offsets[-1] == len(embeddings)
    assert [embeddings[start:stop].tolist() for start, stop in pairwise(offsets)] == expected


@pytest.mark.skipif(sys.platform == "win32", reason="/dev/stdout is POSIX")
@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_stdout_gets_the_bytes_and_keeps_what_it_has(pooling: str, folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "minibert", "embed", "--model", str(folder), "--pooling", pooling, *FULL]
    through = subprocess.run([*command, "-o", "/dev/stdout"], capture_output=True, check=True).stdout
    log = tmp_path / "log"
    log.write_bytes(b"before")
    with log.open("ab") as file:
        subprocess.run([*command, "-o", "/dev/stdout"], stdout=file, check=True)
    assert log.read_bytes() == b"before" + through
    if pooling == "mean":
        assert np.array_equal(np.load(io.BytesIO(through)), minibert.load(folder).embed(FULL))
    else:
        assert load(through)["offsets"].tolist() == [0, 7, 12]
