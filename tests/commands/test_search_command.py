"""`minibert search`: what it finds in a folder of `bulk`, what it shows of the input, and what it refuses."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Patch, Printed, ran, typed
from command_line import failure as failed
from many_texts import many_texts
from record_files import jsonl, made, write_parquet
from reference_files import REFERENCE

import minibert
from minibert.bulk.stored import StoredVectors
from minibert.cli import main
from minibert.commands import search as command
from minibert.equations.quantization import BITS, PRECISIONS, dequantized, hamming, quantized, ranges_of
from minibert.equations.sentences import SIMILARITIES, dot, normalized

DENSE, BARE, PROMPTS = (REFERENCE / f"sentences-{name}" for name in ("dense", "bare", "prompts"))
SAME = 2e-6  # of scores, of vectors computed beside other texts; measured: 3.6e-7
SAME_TOKENS = 2e-5  # of sums over a query's tokens or words; measured: 4.8e-6
TEXTS = [" ".join(text.split())[:60] for text in many_texts(70, seed=4)]
QUESTION = "we lived above"


def rows(path: Path, texts: list[Any] = TEXTS) -> Path:
    """Rows with ids of their own; some have no text."""
    return jsonl(path, ({"id": f"r{i}", "text": text} for i, text in enumerate(texts)))


def bulk(folder: Path, source: Path, model: Path, *more: str) -> Path:
    argv = ["bulk", str(source), "-o", str(folder), "-m", str(model), "--bad-rows", "skip", "--rows-per-shard", "30"]
    assert main([*argv, *more]) == 0
    return folder


def found(capsys: Printed, folder: Path, *more: object) -> list[Any]:
    return [json.loads(line) for line in ran(capsys, "search", folder, *more, "--json")[0].splitlines()]


def failure(capsys: Printed, folder: Path, *more: object) -> str:
    return failed(capsys, "search", folder, *(more or [QUESTION]))


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
    monkeypatch.setattr(command, "QUESTIONS", 3)  # a chunk ends in the middle
    questions = [f"{QUESTION} {text}" for text in TEXTS[:7]]
    want = found(capsys, dense, "-k", "2", *questions)
    assert [each["question"] for each in want] == questions
    lines, file = "\n\n".join(questions) + "\n  \n", "-" if name == "-" else tmp_path / name
    if file == "-":
        typed(monkeypatch, lines.encode())
    elif name.endswith(".jsonl"):
        rows(file, questions)
    elif name.endswith(".parquet"):
        write_parquet(file, [(str(i), text) for i, text in enumerate(questions)])
    else:
        made(file, lines)
    got = found(capsys, dense, "-k", "2", "--questions", file)
    assert [each["question"] for each in got] == questions
    for one, other in zip(got, want, strict=True):  # computed beside other questions
        assert [each["text"] for each in one["results"]] == [each["text"] for each in other["results"]]
        assert all(abs(a["score"] - b["score"]) <= SAME for a, b in zip(one["results"], other["results"], strict=True))


def test_many_results_are_kept_for_few_questions(dense: Path, capsys: Printed, monkeypatch: Patch) -> None:
    together, search = list[int](), StoredVectors.search
    monkeypatch.setattr(StoredVectors, "search", lambda *given: (together.append(len(given[1])), search(*given))[1])
    monkeypatch.setattr(command, "RESULTS", 8)
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
    _, err = ran(capsys, "search", folder, "clouds " * 100, "man", "-k", "1")
    assert err == "minibert: 1 question truncated: too long for this model; tokens left out: 70 of question 1\n"
    monkeypatch.setattr(command, "QUESTIONS", 2)
    _, err = ran(capsys, "search", folder, "man", "clouds", "clouds", "man", "clouds " * 101, "-k", "1")
    assert err.endswith("; tokens left out: 71 of question 5\n")


def test_columns_that_are_shown(tmp_path: Path, capsys: Printed) -> None:
    """Instead of the text; in JSON apart from score and id, whose names columns may have."""
    both = {"text": "clouds", "score": 1.5, "url": "/a"}, {"text": "man", "score": float("nan"), "url": None}
    folder = bulk(tmp_path / "out", jsonl(tmp_path / "a.jsonl", both), DENSE)
    lines = ran(capsys, "search", folder, "clouds", "--show", "url", "score")[0].splitlines()
    assert lines[0] == "1.000  0  /a  1.5" and lines[1].endswith("  1  null  nan") and len(lines) == 2
    ((best, other),) = [each["results"] for each in found(capsys, folder, "clouds", "--show", "url", "score")]
    assert best["columns"] == {"url": "/a", "score": 1.5} and best.keys() == {"score", "id", "columns"}
    assert other["columns"] == {"url": None, "score": None} and abs(best["score"] - 1) <= SAME
    error = failure(capsys, folder, "clouds", "--show", "vector", "-m", tmp_path / "none")
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
    with pytest.raises(ValueError, match=r"^k "):
        folder.search(queries, 0)


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
    assert f"was made with another model than {PROMPTS}: " in failure(capsys, dense, "a", "-m", PROMPTS)
    moved = shutil.copytree(DENSE, tmp_path / "moved")
    found(capsys, dense, "a", "-m", moved)  # the same by another name
    (moved / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "x"}}), "utf-8")
    here, there = (minibert.load_encoder(folder).identity for folder in (DENSE, moved))
    message = failure(capsys, dense, "a", "-m", moved)
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
    message = failure(capsys, folder, "man")
    assert f"{folder} was made with the model" in message and message.endswith("; --model names it where it is now")


def test_questions_that_are_refused(dense: Path, tmp_path: Path, capsys: Printed) -> None:
    file = made(tmp_path / "q", b"we\n\xff\n")
    assert failure(capsys, dense, "--questions", file).startswith(f"line 2 of {file} is not UTF-8 (")
    for wrong in (["--questions", file, "a"], ["-k", "3"]):
        assert "give questions as arguments, or a file" in failure(capsys, dense, *wrong)
    for empty in (b"", b"\n \n"):
        message = failure(capsys, dense, "--questions", made(file, empty))
        assert message == f"{file}: expected texts, one on each line, found none"
    assert "no such file" in failure(capsys, dense, "--questions", tmp_path / "none").lower()
