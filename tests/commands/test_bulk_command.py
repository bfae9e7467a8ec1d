"""`minibert bulk`: what it writes, what meta.json says of it, what it tells, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from itertools import count
from pathlib import Path
from typing import Any

import checkpoints
import encoders
import numpy as np
import pytest
from checkpoints import same_bits
from command_line import Patch, Printed, ran, typed
from command_line import failure as failed
from fake_hub import FakeHub, use
from killed_runs import content
from pyarrow import parquet
from record_files import made
from reference_files import REFERENCE

import minibert
from minibert.cli import main
from minibert.commands import bulk as command
from minibert.models.open.extract import extract

TEXTS = ["we lived above the clouds", "", "clouds!"]
DENSE, PROMPTS, CLS = (REFERENCE / f"sentences-{name}" for name in ("dense", "prompts", "cls"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return made(tmp_path / "a.txt", "".join(f"{text}\n" for text in TEXTS))


def failure(capsys: Printed, *argv: object) -> str:
    return failed(capsys, "bulk", *argv)


def told(capsys: Printed, *argv: object) -> str:
    """What a run that ends well says."""
    out, err = ran(capsys, "bulk", *argv)
    assert out == ""
    return err


def meta(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "meta.json").read_text("utf-8"))
    return found


def killed_after(shards: int, folder: Path) -> None:
    """Leave the folder as a run that is killed after some shards does."""
    kept = (folder / "shards.jsonl").read_bytes().splitlines(True)[:shards]
    (folder / "shards.jsonl").write_bytes(b"".join(kept))
    checkpoints.change_json(folder / "meta.json", complete=False)


def sums(folder: Path, *names: str) -> dict[str, str]:
    """What sha256sum says."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


# -- what is written ---------------------------------------------------------------------------------------------

FILES = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "3_Normalize/config.json",
         "config.json", "config_sentence_transformers.json", "model.safetensors", "modules.json",
         "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"]  # fmt: skip


def test_sentence_vectors_and_all_that_meta_says(source: Path, tmp_path: Path, capsys: Printed) -> None:
    out = tmp_path / "out"
    assert told(capsys, source, "-o", out, "-m", DENSE) == (
        f"minibert: wrote {out}: 3 vectors of 6 in 1 shard, 0 rows left out, 0 texts truncated\n"
    )
    found = parquet.read_table(out / "vectors-00000.parquet")
    want = minibert.load_encoder(DENSE).encode(TEXTS)
    assert found["id"].to_pylist() == [0, 1, 2] and same_bits(np.array(found["vector"].to_pylist(), np.float32), want)
    files = [name for name in FILES if (DENSE / name).exists()]
    assert "2_Dense/model.safetensors" in files
    assert meta(out) == {
        "minibert": minibert.__version__, "model": str(DENSE), "commit": None, "sha256": sums(DENSE, *files),
        "vectors": "sentence", "prompt_name": None, "prompt": None, "text_column": "text", "id_column": None,
        "same_bits": False, "options": None,
        "dim": 6, "precision": "float32", "dtype": "float32", "similarity": "cosine", "normalized": True,
        "max_seq_length": 32, "format": "parquet", "rows_per_shard": 16384, "truncate": False,
        "input": [{"name": "a.txt", "bytes": source.stat().st_size}],
        "source": {"paths": [str(source)], "format": None, "model": str(DENSE)},
        "complete": True, "rows": 3, "skipped": 0, "cut": 0, "shards": 1,
    }  # fmt: skip


def test_input_vectors_as_npy(source: Path, tmp_path: Path, capsys: Printed) -> None:
    model, out = encoders.write(tmp_path / "model", "bert"), tmp_path / "out"
    assert "3 vectors of 16 in 2 shards" in told(
        capsys, source, "-o", out, "-m", model, "--vectors", "input", "--format", "npy", "--rows-per-shard", "2"
    )
    mapped = [np.load(file, mmap_mode="r") for file in sorted(out.glob("vectors-*.npy"))]
    assert same_bits(np.concatenate(mapped), minibert.load(model).embed(TEXTS))
    assert [json.loads(file.read_text()) for file in sorted(out.glob("ids-*.json"))] == [[0, 1], [2]]
    assert meta(out)["sha256"] == sums(model, "config.json", "model.safetensors", "vocab.txt")


@pytest.mark.parametrize(("option", "name"), [("--prompt-name", "prompt_name"), ("--prompt", "prompt")])
def test_a_prompt(option: str, name: str, source: Path, tmp_path: Path, capsys: Printed) -> None:
    told(capsys, source, "-o", tmp_path / "out", "-m", PROMPTS, option, "query", "--format", "npy")
    want = minibert.load_encoder(PROMPTS).encode(TEXTS, **{name: "query"})
    assert same_bits(np.load(tmp_path / "out" / "vectors-00000.npy"), want)
    assert meta(tmp_path / "out")[name] == "query"
    assert f'was made with {name} "query", now it is ' in failure(
        capsys, source, "-o", tmp_path / "out", "-m", PROMPTS, "--format", "npy"
    )


# the input layer of the second one lies in a folder below, where `load` does not look for it
@pytest.mark.parametrize(("folder", "vectors"), [(DENSE, "sentence"), (DENSE, "input"), (CLS, "sentence")])
def test_a_model_of_the_hub(
    folder: Path, vectors: str, source: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file() and "vectors" not in p.name}
    more = ["--vectors", vectors, "--format", "npy"]
    with FakeHub() as hub:
        hub.add("org/model", files)
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        told(capsys, source, "-o", tmp_path / "hub", "-m", "org/model", *more)
        commit = meta(tmp_path / "hub")["commit"]
        assert commit is not None and any(commit in request.path for request in hub.requests)
        hub.forget()
        told(capsys, source, "-o", tmp_path / "hub", "-m", "org/model", "--local-files-only", *more)
        assert not hub.requests
        error = failure(capsys, source, "-o", tmp_path / "no", "-m", "org/model", "--revision", "a-branch", *more)
        assert "a-branch" in error and not (tmp_path / "no").exists()
    told(capsys, source, "-o", tmp_path / "local", "-m", folder, *more)
    there, here = meta(tmp_path / "hub"), meta(tmp_path / "local")
    assert {name for name in here if here[name] != there[name]} == {"model", "commit", "source"}
    assert there["source"] == {**here["source"], "model": "org/model"}
    assert there["model"] == "org/model" and len(there["sha256"]) > 2
    first, second = content(tmp_path / "hub"), content(tmp_path / "local")
    assert {name for name in first if first[name] != second[name]} == {"meta.json"}
    # offline the same commit is found, and the folder continued
    told(capsys, source, "-o", tmp_path / "hub", "-m", "org/model", "--local-files-only", *more)


def test_columns_and_formats(tmp_path: Path, capsys: Printed) -> None:
    odd = made(tmp_path / "rows.data", '{"body": "we", "key": "x"}\n{"body": "clouds", "key": "ä"}\n')
    options = ["-m", DENSE, "--format", "npy", "--text-column", "body", "--id-column", "key"]
    assert "the file must end in .parquet" in failure(capsys, odd, "-o", tmp_path / "out", *options)
    told(capsys, odd, "-o", tmp_path / "out", *options, "--input-format", "jsonl")
    assert json.loads((tmp_path / "out" / "ids-00000.json").read_text("utf-8")) == ["x", "ä"]
    assert meta(tmp_path / "out")["text_column"] == "body" and meta(tmp_path / "out")["id_column"] == "key"


def test_a_source_in_the_folder_that_is_to_be_written(tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "out").mkdir()
    source = made(tmp_path / "out" / "a.txt", "we lived\n")
    error = failure(capsys, source, "-o", tmp_path / "out", "-m", DENSE)
    assert error == f"{source} lies in {tmp_path / 'out'}, which is to be written; choose another folder"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.txt"]


def test_check(source: Path, tmp_path: Path, capsys: Printed) -> None:
    out = tmp_path / "out"
    told(capsys, source, "-o", out, "-m", DENSE, "--rows-per-shard", "2")
    before = content(out)
    assert told(capsys, "-o", out, "--check") == (
        f"minibert: checked {out}: 3 vectors in 2 shards, complete and as written\n"
    )
    assert f"--check reads FOLDER alone, found also '{source}'; leave it out" in failure(
        capsys, source, "-o", out, "--check"
    )
    assert content(out) == before
    vectors = out / "vectors-00001.parquet"
    vectors.write_bytes(vectors.read_bytes()[:-9] + b"x" + vectors.read_bytes()[-8:])
    damaged = f"{vectors}: damaged, its sha256 is not that of what was written; put it back, or begin again in another"
    assert damaged in failure(capsys, "-o", out, "--check")
    assert damaged in failure(capsys, source, "-o", out, "-m", DENSE, "--rows-per-shard", "2")
    assert "No such file or directory" in failure(capsys, "-o", tmp_path / "none", "--check")


def test_stdin_is_continued(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    argv = ["-m", DENSE, "--format", "npy", "--rows-per-shard", "10"]
    rows = [f"we lived {'a ' * (i % 7)}".encode() for i in range(45)]
    typed(monkeypatch, b"\n".join(rows))
    told(capsys, "-o", tmp_path / "whole", *argv)
    typed(monkeypatch, b"\n".join([*rows[:25], b"\xff", *rows[26:]]))
    error = failure(capsys, "-", "-o", tmp_path / "out", *argv)
    assert "stdin, row 26: not UTF-8: byte 0xff at 0" in error and "; --bad-rows skip lists such rows" in error
    assert len(list((tmp_path / "out").glob("vectors-*"))) == 2
    typed(monkeypatch, b"\n".join(rows))
    told(capsys, "-o", tmp_path / "out", *argv)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert meta(tmp_path / "out")["input"] == [{"name": "-", "bytes": None}]
    typed(monkeypatch, b"\n".join([b"another", *rows[1:]]))
    assert "the input is another one: of the 10 rows of shard 0" in failure(capsys, "-o", tmp_path / "out", *argv)


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["extracted", "convbert"])
def test_a_model_without_blocks(kind: str, source: Path, tmp_path: Path, capsys: Printed) -> None:
    model = tmp_path / "model"
    if kind == "extracted":
        extract(encoders.write(tmp_path / "bert", "bert"), model)
    else:
        checkpoints.write(model, checkpoints.CONVBERT)
        checkpoints.write_wordpiece(model)
    error = failure(capsys, source, "-o", tmp_path / "out", "-m", model)
    assert "; --vectors input takes the input layer alone: for each text the mean over its tokens' rows before" in error
    assert ("no tensor of the blocks" if kind == "extracted" else "has an input layer here, but no blocks") in error
    assert not (tmp_path / "out").exists()
    told(capsys, source, "-o", tmp_path / "out", "-m", model, "--vectors", "input")


def test_a_text_that_is_too_long(tmp_path: Path, capsys: Printed) -> None:
    model, source = encoders.write(tmp_path / "model", "bert"), made(tmp_path / "a.txt", "we\n" + "we " * 30)
    argv = [source, "-o", tmp_path / "out", "-m", model, "--vectors", "input"]
    assert f"{source}, row 2: the text has 32 tokens, but the longest" in failure(capsys, *argv)
    assert "1 row left out, 0 texts truncated" in told(capsys, *argv, "--bad-rows", "skip")
    assert "was made with truncate false, now it is true" in failure(capsys, *argv, "--truncate")
    argv[2] = tmp_path / "truncated"
    assert "2 vectors of 16 in 1 shard, 0 rows left out, 1 text truncated" in told(capsys, *argv, "--truncate")


@pytest.mark.parametrize(("change", "error"), [
    (["-m", str(PROMPTS)], 'was made with model "'),
    (["--vectors", "input"], 'was made with vectors "sentence", now it is "input"'),
    (["--format", "npy"], 'was made with format "parquet", now it is "npy"'),
    (["--rows-per-shard", "3"], "was made with rows_per_shard 16384, now it is 3"),
    (["--id-column", "id"], 'was made with id_column null, now it is "id"'),
])  # fmt: skip
def test_another_run_into_the_same_folder(change: list[str], error: str, tmp_path: Path, capsys: Printed) -> None:
    argv = [made(tmp_path / "a.csv", "id,text\nx,we\n"), "-o", tmp_path / "out", "-m", DENSE]
    told(capsys, *argv)
    before = content(tmp_path / "out")
    assert error in failure(capsys, *argv, *change)
    assert content(tmp_path / "out") == before


def test_a_file_of_the_model_that_has_changed(source: Path, tmp_path: Path, capsys: Printed) -> None:
    """Wherever it lies: here the transformer and its settings are in a folder below."""
    model = tmp_path / "model"
    shutil.copytree(CLS, model, ignore=shutil.ignore_patterns("vectors*", "calls*"))
    argv = [source, "-o", tmp_path / "out", "-m", model]
    told(capsys, *argv)
    files = {path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()}
    assert meta(tmp_path / "out")["sha256"].keys() == files
    assert "0_Transformer/sentence_roberta_config.json" in files
    for name in sorted(name for name in files if name.endswith((".json", ".safetensors"))):
        before = (model / name).read_bytes()
        (model / name).write_bytes(before + b" " if name.endswith(".json") else before[:-4] + bytes(4))
        error = failure(capsys, *argv)
        assert f'was made with sha256 {{"{name}": "' in error and error.count('": "') == 2
        (model / name).write_bytes(before)
    told(capsys, *argv)
    added = "0_Transformer/sentence_bert_config.json"  # which is read before the other
    shutil.copy(model / "0_Transformer/sentence_roberta_config.json", model / added)
    assert f'"{added}": null' in failure(capsys, *argv)


def test_wrong_arguments(source: Path, tmp_path: Path, capsys: Printed) -> None:
    argv = [str(source), "-o", str(tmp_path / "out"), "-m", str(DENSE)]
    for wrong in ("--rows-per-shard x", "--bad-rows drop", "--vectors all", "--fromat npy"):
        assert main(["bulk", *argv, *wrong.split()]) == 2 and "usage: minibert bulk" in capsys.readouterr().err
    assert main(["bulk", argv[0]]) == 2 and "-o" in capsys.readouterr().err
    assert "--rows-per-shard must be an integer >= 1, found 0" in failure(capsys, *argv, "--rows-per-shard", "0")
    assert not (tmp_path / "out").exists()


def test_without_pyarrow(source: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    argv = ["-o", tmp_path / "out", "-m", DENSE]
    need = "Parquet needs pyarrow: pip install 'pyarrow>=18.1'"
    assert failure(capsys, source, *argv) == f"{need}; --format npy does without"
    assert failure(capsys, made(tmp_path / "a.parquet", ""), *argv, "--format", "npy") == need
    assert not (tmp_path / "out").exists()
    told(capsys, source, *argv, "--format", "npy")


# -- progress -----------------------------------------------------------------------------------------------------


def test_lines_in_a_log(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    moments = count(1.0)  # a second goes by at every look at the clock
    monkeypatch.setattr(command.time, "monotonic", lambda: next(moments))
    monkeypatch.setattr(command, "EVERY", 0)
    rows, options = made(tmp_path / "a.txt", "we lived\n" * 50), ["-m", DENSE, "--rows-per-shard", "10"]
    lines = told(capsys, rows, "-o", tmp_path / "out", *options).splitlines()
    assert len(lines) == 6 and lines[0] == "minibert: 10 of about 50 rows, 10 rows/s, 0:00:04 left"
    assert lines[4] == "minibert: 50 of about 50 rows, 10 rows/s, 0:00:00 left"
    typed(monkeypatch, b"we lived\n" * 20)
    lines = told(capsys, "-o", tmp_path / "stdin", *options).splitlines()
    assert lines[0] == "minibert: 10 rows, 10 rows/s"
    # a continued run counts only the rows of this run in its rate
    killed_after(3, tmp_path / "out")
    lines = told(capsys, rows, "-o", tmp_path / "out", *options).splitlines()
    assert lines[0] == "minibert: 40 of about 50 rows, 10 rows/s, 0:00:01 left" and len(lines) == 3


@pytest.mark.parametrize("step", [1, 0])
def test_a_bar_on_a_terminal(step: int, tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    """A second goes by at every look; or none, and a run that ends at once needs no bar."""
    import tqdm.std

    moments = count(0.0, float(step))
    monkeypatch.setattr(tqdm.std, "time", lambda: next(moments))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    rows = made(tmp_path / "a.txt", "we lived\n" * 50)
    shown = told(capsys, rows, "-o", tmp_path / "out", "-m", DENSE, "--rows-per-shard", "10")
    assert [word in shown for word in ("bulk:", "50/50", "row/s")] == [bool(step)] * 3
    assert shown.rstrip().endswith("50 vectors of 6 in 5 shards, 0 rows left out, 0 texts truncated")


def test_without_stderr(source: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    with monkeypatch.context() as change:
        change.setattr(sys, "stderr", None)
        assert main(["bulk", str(source), "-o", str(tmp_path / "out"), "-m", str(DENSE)]) == 0
    assert meta(tmp_path / "out")["complete"]
