"""`minibert embed`: what it prints, what it reads, and where it writes."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import DIM, WITHOUT_TORCH, Printed, failure, numbers, pipe, started, typed
from safetensors.numpy import load, load_file

import minibert
from minibert.cli import main
from minibert.commands.stdin import lines_as_they_come
from minibert.equations.input_layer import Array
from minibert.files.arrays import write_vectors

# -- embed -------------------------------------------------------------------------------------------------------

TEXTS = ["we lived above the clouds", "dog bites man"]


def test_embed_prints_numbers_that_read_back_exactly(folder: Path, capsys: Printed) -> None:
    assert main(["embed", "--model", str(folder), *TEXTS]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert np.array_equal(numbers(out), minibert.load(folder).embed(TEXTS))


def test_embed_of_a_real_model_reads_back_exactly(minilm: Path, capsys: Printed) -> None:
    assert main(["embed", "--model", str(minilm), "--pooling", "max", "--normalize", *TEXTS]) == 0
    assert np.array_equal(numbers(capsys.readouterr().out), minibert.load(minilm).embed(TEXTS, "max", normalize=True))


@pytest.mark.parametrize("arguments", [[], ["-"]], ids=["nothing", "-"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "open"])
def test_embed_reads_lines_of_stdin(
    arguments: list[str], end: str, last: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    texts = ["we", "", "the dog \u2028 bites"]
    content = end.join(texts) + end * last
    typed(monkeypatch, content.encode())
    assert main(["embed", "--model", str(folder), *arguments]) == 0
    assert np.array_equal(numbers(capsys.readouterr().out), minibert.load(folder).embed(texts))


def test_lines_come_as_they_are_there_and_in_chunks_of_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter and a line's end may be cut in two."""
    pipe(monkeypatch, b"on", b"e\ntw\xc3", b"\xb6\r", b"\nthree\nfour\nfive\n", b"s", b"ix")
    assert list(lines_as_they_come(2)) == [["one"], ["twö", "three"], ["four", "five"], ["six"]]


def test_a_writer_that_waits_gets_the_vector_of_its_line(folder: Path) -> None:
    command = [sys.executable, "-m", "minibert", "embed", "--model", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        for text in ("we", "dog bites man"):
            process.stdin.write(f"{text}\n")
            process.stdin.flush()
            line = process.stdout.readline()  # the next text is not written before
            assert np.array_equal(numbers(line), minibert.load(folder).embed([text]))
        process.stdin.close()
        assert process.stdout.read() == ""
    assert process.returncode == 0


def test_embed_of_an_empty_stdin_prints_nothing(folder: Path, tmp_path: Path, capsys: Printed) -> None:
    result = started("embed", "--model", str(folder))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_error_about_a_text_names_its_line(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    typed(monkeypatch, b"we\n" * 3000 + b"we " * 20 + b"\n")
    assert main(["embed", "--model", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert (
        "error: line 3001 of stdin has 22 tokens, but the longest sequence is 16; shorten it, or pass --truncate" in err
    )
    assert out.count("\n") >= 2048, "what came before is given"


def test_a_closed_stdin_and_pairs_without_texts(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    for closed in (None, io.TextIOWrapper(io.BytesIO())):
        if closed is not None:
            closed.close()
        monkeypatch.setattr(sys, "stdin", closed)
        assert "stdin is closed, and no text is an argument" in failure(capsys, "embed", "--model", str(folder))
    assert "--pair goes with texts that are arguments" in failure(capsys, "embed", "-", "--pair", "x")


@pytest.mark.parametrize("output", [None, "vectors.npy"])
def test_a_bar_where_a_person_looks_at_stderr_alone(
    output: str | None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("minibert.commands.embed.BAR_AFTER", 0.0)
    for stdout, stderr, bar in (
        (io.StringIO, Screen, True),
        (io.StringIO, io.StringIO, False),
        (Screen, Screen, output),
    ):
        typed(monkeypatch, b"we\n" * 5000)
        monkeypatch.setattr(sys, "stdout", stdout())
        monkeypatch.setattr(sys, "stderr", screen := stderr())
        assert main(["embed", "-m", str(folder), *(["-o", str(tmp_path / output)] if output else [])]) == 0
        assert ("5000text" in screen.getvalue()) == bool(bar)


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


def test_embed_without_pooling_prints_a_token_a_line(folder: Path, capsys: Printed) -> None:
    assert main(["embed", "--model", str(folder), "--pooling", "none", *TEXTS]) == 0
    first, second, rest = capsys.readouterr().out.split("\n\n")
    expected = minibert.load(folder).embed(TEXTS, None)
    assert rest == ""
    assert np.array_equal(numbers(first), expected[0]) and np.array_equal(numbers(second), expected[1])


def test_embed_takes_pairs_and_truncates(folder: Path, capsys: Printed) -> None:
    long = "we " * 20
    assert main(["embed", "--model", str(folder), "dog", long, "--truncate", "--pair", "man", "--pair", "the"]) == 0
    expected = minibert.load(folder).embed(["dog", long], text_pair=["man", "the"], truncation=True)
    assert np.array_equal(numbers(capsys.readouterr().out), expected)


def test_embed_tells_how_many_texts_it_truncated(
    folder: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the other commands do, on stderr; of short texts it says nothing."""
    short, long = "dog", "we lived " * 20
    for texts, told in (
        ([short], ""),
        ([short, long], "minibert: 1 text truncated: too long for this model\n"),
        ([long, short, long], "minibert: 2 texts truncated: too long for this model\n"),
        ([short, long, "--pair", "man", "--pair", short], "minibert: 1 pair truncated: too long for this model\n"),
    ):
        assert main(["embed", "--model", str(folder), "--truncate", *texts]) == 0
        assert capsys.readouterr().err == told
    typed(monkeypatch, f"{long}\n{short}\n{long}\n".encode())
    assert main(["embed", "--model", str(folder), "--truncate"]) == 0
    assert capsys.readouterr().err == "minibert: 2 texts truncated: too long for this model\n"


def test_embed_writes_npy(folder: Path, tmp_path: Path, capsys: Printed) -> None:
    path = tmp_path / "vectors.npy"
    path.write_text("what was here before")
    assert main(["embed", "--model", str(folder), *TEXTS, "-o", str(path)]) == 0
    assert capsys.readouterr() == ("", f"minibert: wrote {path}: embeddings (2, 8)\n")
    written = np.load(path)
    assert written.dtype == np.float32 and np.array_equal(written, minibert.load(folder).embed(TEXTS))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tiny", "vectors.npy"]


def test_embed_writes_safetensors(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "vectors.safetensors"
    assert main(["embed", "--model", str(folder), *TEXTS, "-o", str(path)]) == 0
    assert {name: array.tolist() for name, array in load_file(path).items()} == {
        "embeddings": minibert.load(folder).embed(TEXTS).tolist()
    }


@pytest.mark.parametrize("texts", [TEXTS, []], ids=["two texts", "no text"])
def test_embed_writes_tokens_with_offsets(
    texts: list[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "".join(f"{text}\n" for text in texts).encode())
    path = tmp_path / "tokens.safetensors"
    assert main(["embed", "--model", str(folder), "--pooling", "none", "-o", str(path)]) == 0
    written = load_file(path)
    embeddings, offsets = written["embeddings"], written["offsets"]
    expected = minibert.load(folder).embed(texts, None)
    assert embeddings.dtype == np.float32 and offsets.dtype == np.int64 and offsets[-1] == len(embeddings)
    parts = [embeddings[start:stop] for start, stop in itertools.pairwise(offsets)]
    assert [part.tolist() for part in parts] == [rows.tolist() for rows in expected]


# -- where a file goes -------------------------------------------------------------------------------------------

# each with the argument that names its file; no model is there, so that one which is looked for is the error
WRITERS = {
    "embed": (["embed", "we", "-o"], ".npy"),
    "explain": (["explain", "we", "--html"], ".html"),
    "verify": (["verify", "--save"], ".safetensors"),
    "plot": (["plot", "rows", "-o"], ".svg"),
}
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="pipes with a name and /dev are POSIX")


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_given_for_a_file_is_refused_before_anything_is_computed(
    name: str, tmp_path: Path, capsys: Printed
) -> None:
    (arguments, ending), target = WRITERS[name], tmp_path / "made"
    for path in (target, target.with_suffix(ending)):
        path.mkdir()
        message = failure(capsys, *arguments, str(path), "--model", "./nowhere")
        assert message == f"{path} is a folder; name the file to write, in it or elsewhere"
        assert list(path.iterdir()) == []


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_said_and_leaves_nothing_behind(
    name: str, folder: Path, tmp_path: Path, capsys: Printed
) -> None:
    arguments, ending = WRITERS[name]
    for path in (tmp_path / f"vectors{ending}", tmp_path / f"there{ending}"):
        if path.stem == "there":
            path.write_text("before")
        message = failure(capsys, *arguments, str(path), "--model", str(folder))
        assert message == f"{path}: No space left on device"
        assert sorted(file.name for file in tmp_path.iterdir()) in (["tiny"], [path.name, "tiny"])
    assert path.read_text() == "before"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("name", WRITERS)
def test_a_device_that_is_full(name: str, folder: Path, capsys: Printed) -> None:
    message = failure(capsys, *WRITERS[name][0], "/dev/full", "--model", str(folder))
    assert message == "/dev/full: No space left on device"
    assert Path("/dev/full").is_char_device()


@POSIX
@pytest.mark.parametrize("name", WRITERS)
def test_a_device_stays_one(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibert.verify.verify.installed", lambda: False)  # to save is all that is asked
    assert main([*WRITERS[name][0], os.devnull, "--model", str(folder)]) == 0
    assert Path(os.devnull).is_char_device()


@POSIX
def test_a_pipe_with_a_name_gets_the_bytes(folder: Path, tmp_path: Path) -> None:
    pipe, kept = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: kept.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert main(["embed", "--model", str(folder), *TEXTS, "-o", str(pipe)]) == 0
    reader.join(30)
    assert np.array_equal(np.load(io.BytesIO(kept[0])), minibert.load(folder).embed(TEXTS))
    assert pipe.is_fifo()


@POSIX
@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_stdout_gets_the_bytes_and_keeps_what_it_has(pooling: str, folder: Path, tmp_path: Path) -> None:
    """Through a pipe, and sent to a file that is added to."""
    command = [sys.executable, "-m", "minibert", "embed", "--model", str(folder), "--pooling", pooling, *TEXTS]
    through = subprocess.run([*command, "-o", "/dev/stdout"], capture_output=True, check=True).stdout
    log = tmp_path / "log"
    log.write_bytes(b"before")
    with log.open("ab") as file:
        subprocess.run([*command, "-o", "/dev/stdout"], stdout=file, check=True)
    assert log.read_bytes() == b"before" + through
    if pooling == "mean":
        assert np.array_equal(np.load(io.BytesIO(through)), minibert.load(folder).embed(TEXTS))
    else:
        assert load(through)["offsets"].tolist() == [0, 7, 12]


@POSIX
def test_verify_saves_to_stdout_and_talks_elsewhere(folder: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, "verify", "--model", str(folder), "--save", "/dev/stdout"]
    result = subprocess.run(command, capture_output=True, check=False)
    assert "plain|sum" in load(result.stdout)
    assert b"wrote inputs" in result.stderr
