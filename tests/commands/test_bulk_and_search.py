"""`minibert bulk` and `search`: what a folder of vectors says, what is found in it, messages and errors."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from checkpoints import same_bits
from command_line import Patch, Printed, failure, ran, typed
from fake_hub import hub_of
from killed_runs import content
from many_texts import many_texts
from record_files import jsonl, lines, made, rewritten, write_parquet
from reference_files import REFERENCE
from safetensors.numpy import load_file, save_file

import minibert
from minibert.bulk.stored import StoredVectors, metadata_of, shards_of
from minibert.cli import main
from minibert.commands import bulk as bulk_command
from minibert.commands import search as search_command
from minibert.equations.quantization import BITS, PRECISIONS, dequantized, hamming, quantized, ranges_of
from minibert.equations.sentences import SIMILARITIES, dot, normalized

DENSE, BARE, PROMPTS, CLS = (REFERENCE / f"sentences-{name}" for name in ("dense", "bare", "prompts", "cls"))
SAME = 2e-6  # of scores, of vectors computed beside other texts; measured: 3.6e-7
SAME_TOKENS = 2e-5  # of sums over a query's tokens or words; measured: 4.8e-6
TEXTS = [" ".join(text.split())[:60] for text in many_texts(70, seed=4)]
FEW = ["we lived above the clouds", "", "clouds!"]
QUESTION = "we lived above"

# -- bulk ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return lines(tmp_path / "a.txt", FEW)


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
    assert same_bits(vectors, minibert.load_encoder(DENSE).encode(FEW))
    table = pa.ipc.open_file(str(out / "vectors-00000.arrow")).read_all()
    assert table.schema.metadata.keys() == {b"minibert"}
    assert table.select(["id", "text"]).to_pydict() == {"id": [0, 1, 2], "text": FEW}
    meta = said(out)
    assert meta.pop("sha256").keys() == {"id", "text", "vector"}
    assert meta == {
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
        assert "a-branch" in failure(capsys, "bulk", *argv, "--revision", "a-branch") and not (tmp_path / "no").exists()
    told(capsys, source, "-o", tmp_path / "local", "-m", folder)
    there, here = said(tmp_path / "hub"), said(tmp_path / "local")
    assert {name for name in here if here[name] != there[name]} == {"model", "model_path", "commit"}
    assert there["model"] == there["model_path"] == "org/model"


def test_columns_and_formats(tmp_path: Path, capsys: Printed) -> None:
    records = {"body": "we", "key": "x", "n": 1}, {"body": "clouds", "key": "ä", "n": 2}
    odd = jsonl(tmp_path / "rows.data", records)
    argv = [odd, "-o", tmp_path / "out", "-m", DENSE, "--text-column", "body", "--id-column", "key", "--format"]
    assert "the file must end in .parquet" in failure(capsys, "bulk", *argv, "parquet")
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
    assert f"--check reads only FOLDER, found also '{source}'" in failure(capsys, "bulk", source, "-o", out, "--check")
    assert content(out) == before
    (tmp_path / "empty").mkdir()
    for name, why in (("none", "there is no such folder"), ("empty", "it holds no shard")):
        error = failure(capsys, "bulk", "-o", tmp_path / name, "--check")
        assert error == f"{tmp_path / name}: {why}; name a folder that bulk wrote"


def test_stdin_is_the_input_where_none_is_named(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    """A folder of it is continued as that of a file, of which tests/bulk has the cases."""
    texts, out = [f"we lived {'a ' * (i % 7)}".encode() for i in range(45)], tmp_path / "out"
    argv = ["-o", out, "-m", DENSE, "--rows-per-shard", "10"]
    typed(monkeypatch, b"\n".join([*texts[:25], b"\xff", *texts[26:]]))
    error = "stdin, row 26: it has no text, or is not of its file's format; --bad-rows skip leaves such rows out"
    assert failure(capsys, "bulk", "-", *argv) == error and len(list(out.iterdir())) == 2
    typed(monkeypatch, b"\n".join(texts))
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
    assert f"was made with identity '{said(out)['identity']}', now it is '" in failure(capsys, "bulk", *argv)
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
            error = failure(capsys, "bulk", *argv)
            assert f"was made with model_sha256 {{'{name}': '" in error and error.count("': '") == 2
            assert f"{name} is not the same file" in failure(capsys, "search", out, "clouds")
            path.write_bytes(before)


def test_without_pyarrow(source: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = failure(capsys, "bulk", source, "-o", tmp_path / "out", "-m", DENSE)
    assert said == "this needs pyarrow: pip install 'pyarrow>=18.1'"
    assert not (tmp_path / "out").exists()


def test_lines_in_a_log(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    moments = itertools.count(1.0)  # a second goes by at every look at the clock
    monkeypatch.setattr(bulk_command, "time", SimpleNamespace(monotonic=lambda: next(moments)))  # no other thread's
    monkeypatch.setattr(bulk_command, "EVERY", 0)
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


# -- search ----------------------------------------------------------------------------------------------------------


def rows(path: Path, texts: list[Any] = TEXTS) -> Path:
    """Rows with ids of their own; some have no text."""
    return jsonl(path, ({"id": f"r{i}", "text": text} for i, text in enumerate(texts)))


def bulk(folder: Path, source: Path, model: Path, *more: str) -> Path:
    argv = ["bulk", str(source), "-o", str(folder), "-m", str(model), "--bad-rows", "skip", "--rows-per-shard", "30"]
    assert main([*argv, *more]) == 0
    return folder


def found(capsys: Printed, folder: Path, *more: object) -> list[Any]:
    return [json.loads(line) for line in ran(capsys, "search", folder, *more, "--json")[0].splitlines()]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vectors of TEXTS by DENSE, in three shards."""
    folder = tmp_path_factory.mktemp("dense")
    return bulk(folder / "out", rows(folder / "a.jsonl"), DENSE)


@pytest.mark.parametrize(("precision", "form", "measure"), [
    *itertools.product(PRECISIONS, ("arrow", "parquet"), ("dot",)),
    *itertools.product(("float32", "uint8"), ("arrow",), ("cosine", "euclidean")),
])  # fmt: skip
def test_the_best_rows(precision: str, form: str, measure: str, tmp_path: Path, capsys: Printed) -> None:
    """The stored numbers are those of the formula, of the vectors in float32; the ranges those of the first shard."""
    used = {"dot": DENSE, "cosine": BARE, "euclidean": PROMPTS}[measure]
    texts = [None if 30 <= i < 60 and i != 37 else text for i, text in enumerate(TEXTS)]
    source, more = rows(tmp_path / "a.jsonl", texts), ("--format", form, "--precision", precision, "--threads", "2")
    folder, good = bulk(tmp_path / "out", source, used, *more), [i for i, text in enumerate(texts) if text is not None]
    whole = np.concatenate([*StoredVectors(bulk(tmp_path / "float32", source, used)).blocks()])
    encoder, stored, ranges = minibert.load_encoder(used), StoredVectors(folder), ranges_of(whole[:30])
    assert np.abs(whole - encoder.encode([TEXTS[i] for i in good])).max() <= SAME * np.abs(whole).max()
    small = np.concatenate([*stored.blocks()])
    assert small.dtype == PRECISIONS[precision] and np.array_equal(small, quantized(whole, precision, ranges))
    in_bytes, bits = precision in ("int8", "uint8"), precision in BITS
    assert np.array_equal(stored.meta["ranges"], ranges) if in_bytes else "ranges" not in stored.meta
    query = encoder.encode_query(QUESTION)[None]
    if bits:
        (scores,) = hamming(quantized(query, precision), small)
    else:
        (scores,) = SIMILARITIES[measure](query, dequantized(small, precision, ranges))
    order = np.argsort(-scores, kind="stable")[:6]
    (answer,), named = found(capsys, folder, QUESTION, "-k", "6"), "cosine" if measure == "dot" else measure
    assert answer["question"] == QUESTION
    assert answer["measure"] == (f"minus the Hamming distance of {precision} vectors" if bits else named)
    got = [each["score"] for each in answer["results"]]
    assert np.abs(np.array(got) - scores[order]).max() <= SAME * np.abs(scores).max() and got == sorted(got)[::-1]
    assert precision != "float32" or [each["id"] for each in answer["results"]] == [f"r{good[i]}" for i in order]
    assert all(each["text"] == TEXTS[int(each["id"][1:])] for each in answer["results"])


def test_equal_scores_stand_in_the_order_of_the_rows(tmp_path: Path, capsys: Printed) -> None:
    folder = bulk(tmp_path / "out", rows(tmp_path / "a.jsonl", ["above", "we"] * 40), DENSE, "--precision", "ubinary")
    (answer,) = found(capsys, folder, "above", "-k", "33")
    assert [each["id"] for each in answer["results"]] == [f"r{i}" for i in range(0, 66, 2)]
    (answer,) = found(capsys, folder, "above", "-k", "1000")  # more than there are
    assert len(answer["results"]) == 80 and answer["results"][40]["id"] == "r1"
    said = "ubinary vectors are compared by Hamming distance: a score is minus the bits that differ"
    assert ran(capsys, "search", folder, "clouds")[1] == f"minibert: {said}\n"


@pytest.mark.parametrize("name", ["q.txt", "q.jsonl", "q.parquet", "questions", "-"])
def test_questions_from_a_file(name: str, dense: Path, tmp_path: Path, capsys: Printed, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(search_command, "QUESTIONS", 3)  # a chunk ends in the middle
    questions = [f"{QUESTION} {text}" for text in TEXTS[:7]]
    want = found(capsys, dense, "-k", "2", *questions)
    assert [each["question"] for each in want] == questions
    content_of_each = "\n\n".join(questions) + "\n  \n"
    typed(monkeypatch, content_of_each.encode())
    made(Path("q.txt"), content_of_each)
    made(Path("questions"), content_of_each)
    rows(Path("q.jsonl"), questions)
    write_parquet(Path("q.parquet"), [*enumerate(questions)])
    got = found(capsys, dense, "-k", "2", "--questions", name)
    assert [each["question"] for each in got] == questions
    for one, other in zip(got, want, strict=True):  # computed beside other questions
        assert [each["text"] for each in one["results"]] == [each["text"] for each in other["results"]]
        assert all(abs(a["score"] - b["score"]) <= SAME for a, b in zip(one["results"], other["results"], strict=True))


def test_many_results_are_kept_for_few_questions(dense: Path, capsys: Printed, monkeypatch: Patch) -> None:
    together, search = list[int](), StoredVectors.search
    monkeypatch.setattr(StoredVectors, "search", lambda *given: (together.append(len(given[1])), search(*given))[1])
    monkeypatch.setattr(search_command, "RESULTS", 8)
    for k, want in ((1, [7]), (3, [2, 2, 2, 1]), (9, [1] * 7)):
        together.clear()
        found(capsys, dense, *TEXTS[:7], "-k", str(k))
        assert together == want


def test_as_text(tmp_path: Path, capsys: Printed, monkeypatch: Patch) -> None:
    texts = ["clouds", "we\nlived\x1b[31m", "man"]
    folder = bulk(tmp_path / "out", rows(tmp_path / "a.jsonl", texts), DENSE)
    best = [f"{each['score']:.3f}  {each['id']}  " for each in found(capsys, folder, "clouds", "-k", "2")[0]["results"]]
    out, err = ran(capsys, "search", folder, "clouds", "-k", "2")
    assert out == f"{best[0]}clouds\n{best[1]}" + {"r1": r"we\nlived\x1b[31m", "r2": "man"}[best[1].split()[1]] + "\n"
    assert err == "" and best[0].startswith("1.000  r0  ")
    out, _ = ran(capsys, "search", folder, "clouds", "man", "-k", "1")
    assert out == "clouds\n  1.000  r0  clouds\nman\n  1.000  r2  man\n"
    monkeypatch.setattr(search_command, "QUESTIONS", 2)
    _, err = ran(capsys, "search", folder, "man", "clouds", "clouds", "man", "clouds " * 101, "-k", "1")
    assert err == "minibert: 1 question truncated: too long for this model; tokens left out: 71 of question 5\n"


def test_columns_that_are_shown(tmp_path: Path, capsys: Printed) -> None:
    """Instead of the text; in JSON apart from score and id, whose names columns may have."""
    both = {"text": "clouds", "score": 1.5, "url": "/a"}, {"text": "man", "score": float("nan"), "url": None}
    folder = bulk(tmp_path / "out", jsonl(tmp_path / "a.jsonl", both), DENSE)
    shown = ran(capsys, "search", folder, "clouds", "--show", "url", "score")[0].splitlines()
    assert shown[0] == "1.000  0  /a  1.5" and shown[1].endswith("  1  null  nan") and len(shown) == 2
    ((best, other),) = [each["results"] for each in found(capsys, folder, "clouds", "--show", "url", "score")]
    assert best["columns"] == {"url": "/a", "score": 1.5} and best.keys() == {"score", "id", "columns"}
    assert other["columns"] == {"url": None, "score": None} and abs(best["score"] - 1) <= SAME
    error = failure(capsys, "search", folder, "clouds", "--show", "vector", "-m", tmp_path / "none")
    assert error == f"{folder} has no column 'vector'; it has 'id', 'score', 'text', 'url'"


def test_from_python(dense: Path) -> None:
    """`search` takes a folder's blocks, and gives what the folder itself does; one that says so is not normalized."""
    folder = StoredVectors(dense)
    assert folder.meta["normalized"] is True and folder.meta["similarity"] == "cosine"
    query = normalized(np.ones((1, folder.dim), np.float32))
    assert folder.compare(query, 2 * query).round(5).tolist() == [[2]]
    queries = minibert.load_encoder(DENSE).encode_query([QUESTION, "man"])
    for one, other in zip(minibert.search(queries, folder.blocks(), 4, dot), folder.search(queries, 4), strict=True):
        assert np.array_equal(one, other)
    numbers, _ = folder.search(queries[0], 40)
    assert folder.ids(numbers[0]) == {i: f"r{i}" for i in numbers[0].tolist()}
    assert folder.texts(set(numbers[0].tolist())) == {i: TEXTS[i] for i in numbers[0].tolist()}
    for precision in ("int8", "ubinary"):
        with pytest.raises(TypeError):
            folder.search(quantized(queries, precision))
    with pytest.raises(ValueError, match="found queries of 3"):
        folder.search(np.ones((1, 3), np.float32))


@pytest.mark.parametrize(("name", "kind"), [("late-fixed", "tokens"), ("uses-sparse", "sparse")])
def test_models_of_token_and_sparse_vectors(name: str, kind: str, tmp_path: Path, capsys: Printed) -> None:
    """The question is asked as a query; the numbers themselves are proved in tests/bulk."""
    folder = bulk(tmp_path / "out", rows(tmp_path / "a.jsonl"), REFERENCE / name)
    assert f"{kind} vectors of 70 texts, " in capsys.readouterr().err
    query = minibert.load_encoder(REFERENCE / name).encode_query([QUESTION])
    numbers, scores = StoredVectors(folder).search(query, 4)
    (answer,) = found(capsys, folder, QUESTION, "-k", "4")
    assert answer["measure"] == ("maxsim" if kind == "tokens" else "dot")
    assert [each["text"] for each in answer["results"]] == [TEXTS[i] for i in numbers[0]]
    assert np.allclose([each["score"] for each in answer["results"]], scores[0], SAME_TOKENS, SAME_TOKENS)


def test_another_model(dense: Path, tmp_path: Path, capsys: Printed) -> None:
    assert f"was made with another model than {PROMPTS}: " in failure(capsys, "search", dense, "a", "-m", PROMPTS)
    moved = shutil.copytree(DENSE, tmp_path / "moved")
    found(capsys, dense, "a", "-m", moved)  # the same by another name
    (moved / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "x"}}), "utf-8")
    here, there = (minibert.load_encoder(folder).identity for folder in (DENSE, moved))
    message = failure(capsys, "search", dense, "a", "-m", moved)
    assert f"its identity is {there}, that of the vectors' model {here}" in message


def test_a_model_that_is_gone_or_elsewhere(tmp_path: Path, capsys: Printed, monkeypatch: Patch) -> None:
    shutil.copytree(DENSE, tmp_path / "there" / "model")
    monkeypatch.chdir(tmp_path / "there")
    source = rows(tmp_path / "a.jsonl")
    folder = bulk(tmp_path / "out", Path(os.path.relpath(source)), Path("./model"))
    monkeypatch.chdir(tmp_path)  # both were named by a path from another working directory
    assert found(capsys, folder, "man", "-k", "1")[0]["results"][0]["text"]
    monkeypatch.setenv("MINIBERT_MODEL", str(PROMPTS))  # is for commands that name no model; the folder names one
    found(capsys, folder, "man")
    shutil.rmtree(tmp_path / "there" / "model")
    message = failure(capsys, "search", folder, "man")
    assert f"{folder} was made with the model" in message and message.endswith("; --model names it where it is now")


def test_questions_that_are_refused(dense: Path, tmp_path: Path, capsys: Printed) -> None:
    file = tmp_path / "q"
    for wrong in (["--questions", file, "a"], ["-k", "3"]):
        assert "give questions as arguments, or a file" in failure(capsys, "search", dense, *wrong)
    for empty in (b"", b"\n \n"):
        message = failure(capsys, "search", dense, "--questions", made(file, empty))
        assert message == f"{file}: expected texts, one on each line, found none"
    assert "no such file" in failure(capsys, "search", dense, "--questions", tmp_path / "none").lower()
