"""`minibert bulk`: the metadata of its shards, its messages, and its errors."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from checkpoints import same_bits
from command_line import Patch, Printed, ran, typed
from command_line import failure as failed
from fake_hub import hub_of
from killed_runs import content
from record_files import jsonl, lines, rewritten
from reference_files import REFERENCE
from safetensors.numpy import load_file, save_file

import minibert
from minibert.bulk.stored import StoredVectors, metadata_of, shards_of
from minibert.commands import bulk as command

TEXTS = ["we lived above the clouds", "", "clouds!"]
DENSE, PROMPTS, CLS = (REFERENCE / f"sentences-{name}" for name in ("dense", "prompts", "cls"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return lines(tmp_path / "a.txt", TEXTS)


def failure(capsys: Printed, *argv: object) -> str:
    return failed(capsys, "bulk", *argv)


def told(capsys: Printed, *argv: object) -> str:
    """Return the output of a successful run."""
    out, err = ran(capsys, "bulk", *argv)
    assert out == ""
    return err


def said(folder: Path) -> dict[str, Any]:
    return metadata_of(shards_of(folder)[-1])


def test_sentence_vectors_and_all_that_a_shard_says(source: Path, tmp_path: Path, capsys: Printed) -> None:
    out = tmp_path / "out"
    for begins in (f"wrote {out}", f"{out} is complete"):  # and once more
        counts = "3 vectors of 6 in 1 shard, 0 rows left out, 0 texts truncated"
        assert told(capsys, source, "-o", out, "-m", DENSE) == f"minibert: {begins}: {counts}\n"
    assert [path.name for path in out.iterdir()] == ["vectors-00000.arrow"]
    (vectors,) = StoredVectors(out).blocks()
    assert same_bits(vectors, minibert.load_encoder(DENSE).encode(TEXTS))
    table = pa.ipc.open_file(str(out / "vectors-00000.arrow")).read_all()
    assert table.schema.metadata.keys() == {b"minibert"}
    assert table.select(["id", "text"]).to_pydict() == {"id": [0, 1, 2], "text": TEXTS}
    found = said(out)
    assert found.pop("sha256").keys() == {"id", "text", "vector"}
    assert found == {
        "minibert": minibert.__version__, "model": str(DENSE), "model_path": str(DENSE), "commit": None,
        "identity": minibert.load_encoder(DENSE).identity, "prompt_name": None, "prompt": None,
        "text_column": "text", "id_column": None, "columns": {"id": "int64", "text": "string"},
        "same_bits": False, "options": None, "result": "dense", "dim": 6, "precision": "float32",
        "similarity": "cosine", "normalized": True, "max_seq_length": 32, "format": "arrow", "rows_per_shard": 4096,
        "input": [{"name": "a.txt", "bytes": source.stat().st_size}], "shards": 1, "read": 3, "rows": 3, "cut": 0,
        "truncated": 0, "skipped": 0, "left_out": [], "at": 2, "last": True,
    }  # fmt: skip


# the input layer of the second one lies in a folder below, where `load` does not look for it
@pytest.mark.parametrize("folder", [DENSE, CLS])
def test_a_model_of_the_hub(folder: Path, source: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    with hub_of(monkeypatch, tmp_path / "home", "org/model", folder) as hub:
        argv = [source, "-o", tmp_path / "hub", "-m", "org/model"]
        told(capsys, *argv)
        commit = said(tmp_path / "hub")["commit"]
        assert commit is not None and any(commit in request.path for request in hub.requests)
        hub.forget()
        told(capsys, *argv, "--local-files-only")
        assert not hub.requests
        argv[2] = tmp_path / "no"
        assert "a-branch" in failure(capsys, *argv, "--revision", "a-branch") and not (tmp_path / "no").exists()
    told(capsys, source, "-o", tmp_path / "local", "-m", folder)
    there, here = said(tmp_path / "hub"), said(tmp_path / "local")
    assert {name for name in here if here[name] != there[name]} == {"model", "model_path", "commit"}
    assert there["model"] == there["model_path"] == "org/model"


def test_columns_and_formats(tmp_path: Path, capsys: Printed) -> None:
    rows = {"body": "we", "key": "x", "n": 1}, {"body": "clouds", "key": "ä", "n": 2}
    odd = jsonl(tmp_path / "rows.data", rows)
    argv = [odd, "-o", tmp_path / "out", "-m", DENSE, "--text-column", "body", "--id-column", "key", "--format"]
    assert "the file must end in .parquet" in failure(capsys, *argv, "parquet")
    told(capsys, *argv, "parquet", "--input-format", "jsonl", "--keep")
    stored = StoredVectors(tmp_path / "out")
    assert stored.ids([1, 0]) == {0: "x", 1: "ä"} and stored.texts([1]) == {1: "clouds"}
    assert {*said(tmp_path / "out")["columns"]} == {"key", "body"}


def test_check(source: Path, tmp_path: Path, capsys: Printed) -> None:
    out = tmp_path / "out"
    told(capsys, source, "-o", out, "-m", DENSE, "--rows-per-shard", "2")
    before = content(out)
    want = f"minibert: checked {out}: 3 vectors in 2 shards, complete and as written\n"
    assert told(capsys, "-o", out, "--check") == want
    assert f"--check reads only FOLDER, found also '{source}'" in failure(capsys, source, "-o", out, "--check")
    assert content(out) == before
    (tmp_path / "empty").mkdir()
    for name, found in (("none", "there is no such folder"), ("empty", "it holds no shard")):
        said = failure(capsys, "-o", tmp_path / name, "--check")
        assert said == f"{tmp_path / name}: {found}; name a folder that bulk wrote"


def test_stdin_is_the_input_where_none_is_named(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    """A folder of it is continued as that of a file, of which tests/bulk has the cases."""
    rows, out = [f"we lived {'a ' * (i % 7)}".encode() for i in range(45)], tmp_path / "out"
    argv = ["-o", out, "-m", DENSE, "--rows-per-shard", "10"]
    typed(monkeypatch, b"\n".join([*rows[:25], b"\xff", *rows[26:]]))
    error = "stdin, row 26: it has no text, or is not of its file's format; --bad-rows skip leaves such rows out"
    assert failure(capsys, "-", *argv) == error and len(list(out.iterdir())) == 2
    typed(monkeypatch, b"\n".join(rows))
    told(capsys, *argv)
    assert StoredVectors(out).rows == 45


def test_the_model_of_a_folder_is_known(source: Path, tmp_path: Path, capsys: Printed) -> None:
    """Here the transformer and its settings are in a folder below."""
    model, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(CLS, model, ignore=shutil.ignore_patterns("vectors*", "calls*"))
    argv = [source, "-o", out, "-m", model]
    told(capsys, *argv)
    (weights,) = model.rglob("model.safetensors")
    before, tensors = weights.read_bytes(), load_file(weights)
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    save_file(tensors | {name: -tensors[name]}, weights)
    assert f"was made with identity '{said(out)['identity']}', now it is '" in failure(capsys, *argv)
    weights.write_bytes(before)
    settings = model / "modules.json"
    settings.write_bytes(settings.read_bytes() + b" ")  # saved again
    told(capsys, *argv)
    files = {path.relative_to(model).as_posix(): path for path in model.rglob("*") if path.is_file()}
    sums = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    meta = said(out) | {"model_sha256": sums}  # as before models had an identity
    del meta["identity"], meta["truncated"]
    rewritten(out / "vectors-00000.arrow", metadata=json.dumps(meta))
    assert "is complete" in told(capsys, *argv)
    ran(capsys, "search", out, "clouds")
    for name, path in files.items():
        if name.endswith((".json", ".safetensors")):
            before = path.read_bytes()
            path.write_bytes(before + b" " if name.endswith(".json") else before[:-4] + bytes(4))
            error = failure(capsys, *argv)
            assert f"was made with model_sha256 {{'{name}': '" in error and error.count("': '") == 2
            assert f"{name} is not the same file" in failed(capsys, "search", out, "clouds")
            path.write_bytes(before)


def test_without_pyarrow(source: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = failure(capsys, source, "-o", tmp_path / "out", "-m", DENSE)
    assert said == "this needs pyarrow: pip install 'pyarrow>=18.1'"
    assert not (tmp_path / "out").exists()


def test_lines_in_a_log(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    moments = count(1.0)  # a second goes by at every look at the clock
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: next(moments)))  # no other thread's
    monkeypatch.setattr(command, "EVERY", 0)
    options = "-m", DENSE, "--rows-per-shard", "10", "-o"
    command_line = lines(tmp_path / "a.txt", ["we lived"] * 50), *options, tmp_path / "out"
    first, *_, fifth, _ = said = told(capsys, *command_line).splitlines()
    assert len(said) == 6 and first == "minibert: 10 of about 50 rows, 10 rows/s, 0:00:04 left"
    assert fifth == "minibert: 50 of about 50 rows, 10 rows/s, 0:00:00 left"
    typed(monkeypatch, b"we lived\n" * 20)
    assert told(capsys, *options, tmp_path / "stdin").startswith("minibert: 10 rows, 10 rows/s\n")
    for number in (3, 4):  # a continued run counts only the rows of this run in its rate
        (tmp_path / "out" / f"vectors-0000{number}.arrow").unlink()
    first, _, _ = told(capsys, *command_line).splitlines()
    assert first == "minibert: 40 of about 50 rows, 10 rows/s, 0:00:01 left"
