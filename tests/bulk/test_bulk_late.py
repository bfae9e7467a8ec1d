"""Token vectors in the folders of `bulk`: flat arrays with offsets or lists of Parquet, and `search` in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from checkpoints import same_bits
from record_files import made
from reference_files import REFERENCE
from shard_folders import FORMS

import minibert
from minibert.bulk.manifest import read_shards
from minibert.bulk.stored import StoredVectors
from minibert.cli import main
from minibert.equations.input_layer import Array

FIXED, LEAST, KEPT = (REFERENCE / f"late-{name}" for name in ("fixed", "least", "kept"))
SAME = 2e-5  # of scores, sums over a query's tokens, of vectors computed beside other texts; measured: 4.8e-6
NARROW = 0.05  # of scores by numbers in float16 or int8, as a share of the score; measured: 1.5e-3
WORDS = ["we", "lived", "above the clouds", "!", "a b c d e f g h i j k l m n o p", "x y", ""]
TEXTS = [f"{WORDS[i % 7]} {WORDS[i // 7 % 7]} {WORDS[i % 5]}" for i in range(60)]
QUESTIONS = ["the clouds", "we lived x"]


def run(tmp_path: Path, model: Path, form: str = "npy", **options: Any) -> Path:
    """Write a folder of `TEXTS` in several shards."""
    source, folder = made(tmp_path / "a.txt", "".join(f"{text}\n" for text in TEXTS)), tmp_path / "out"
    more = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    assert main(["bulk", str(source), "-o", str(folder), "-m", str(model), "--format", form,
                 "--rows-per-shard", "25", *more]) == 0  # fmt: skip
    return folder


def flat(folder: Path) -> tuple[Array, Array]:
    """All token vectors of a folder of npy, and how many each text has."""
    rows = [np.load(file) for file in sorted(folder.glob("vectors-*"))]
    return np.concatenate(rows), np.concatenate([np.diff(np.load(file)) for file in sorted(folder.glob("offsets-*"))])


@pytest.mark.parametrize("model", [FIXED, LEAST, KEPT], ids=lambda path: path.name)
def test_vectors_are_those_of_encode_document(tmp_path: Path, model: Path) -> None:
    rows, lengths = flat(run(tmp_path, model))
    want = minibert.load_encoder(model).encode_document(TEXTS)
    assert lengths.tolist() == [len(each) for each in want]
    assert rows.dtype == np.float32 and np.allclose(rows, np.concatenate(want), atol=SAME)
    meta = json.loads((tmp_path / "out" / "meta.json").read_text("utf-8"))
    assert meta["dim"] == rows.shape[1] and meta["similarity"] == ("meanmaxsim" if model == LEAST else "maxsim")


def test_both_forms_hold_the_same(tmp_path: Path) -> None:
    """Parquet has a list of vectors in each row, which other programs read."""
    (tmp_path / "npy").mkdir()
    rows, lengths = flat(run(tmp_path / "npy", FIXED))
    table = pl.read_parquet(str(run(tmp_path, FIXED, "parquet") / "*.parquet"))
    assert table["vector"].dtype == pl.List(pl.Array(pl.Float32, 6)) and table["id"].to_list() == list(range(60))
    assert table["vector"].list.len().to_list() == lengths.tolist()
    found = np.array([vector for each in table["vector"].to_list() for vector in each], np.float32)
    assert same_bits(found, rows)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "uint8"])
def test_search_gives_the_similarity_of_the_model(tmp_path: Path, form: str, precision: str) -> None:
    folder = run(tmp_path, FIXED, form, precision=precision)
    encoder, stored = minibert.load_encoder(FIXED), StoredVectors(folder)
    queries = encoder.encode_query(QUESTIONS)
    want = encoder.similarity(queries, encoder.encode_document(TEXTS))
    ids, scores = stored.search(queries, 60)
    near = SAME if precision == "float32" else NARROW * np.abs(want).max()
    assert np.abs(np.take_along_axis(want, ids, 1) - scores).max() <= near
    assert (np.diff(scores) <= 0).all() and stored.late and stored.measure == "maxsim"
    mean = StoredVectors(folder, "meanmaxsim").search(queries, 3)
    assert np.array_equal(mean[0], ids[:, :3]) and np.allclose(mean[1] * 12, scores[:, :3], rtol=1e-6)
    assert np.array_equal(stored.search([queries[1]], 7)[0][0], ids[1, :7])
    with pytest.raises(ValueError, match="has vectors of 6 numbers, found queries of 5"):
        stored.search([np.ones((3, 5), "f4")])
    with pytest.raises(TypeError, match="queries must be vectors of tokens, found str"):
        stored.search("we")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be one of maxsim, meanmaxsim, found 'cosine'"):
        StoredVectors(folder, "cosine")


def test_texts_without_a_token(tmp_path: Path) -> None:
    """They come last, with a score of their own; a shard may have no other texts."""
    folder = run(tmp_path, KEPT)
    encoder = minibert.load_encoder(KEPT)
    empty = [i for i, each in enumerate(encoder.encode_document(TEXTS)) if not len(each)]
    ids, scores = StoredVectors(folder).search(encoder.encode_query(QUESTIONS), 60)
    assert 0 < len(empty) < 60 and (scores[:, -len(empty) :] == -1e9).all()
    assert ids[0, -len(empty) :].tolist() == empty
    only = made(tmp_path / "only.txt", "!\n!\n")
    assert main(["bulk", str(only), "-o", str(tmp_path / "few"), "-m", str(KEPT), "--format", "parquet"]) == 0
    assert StoredVectors(tmp_path / "few").search(encoder.encode_query("we")[None])[1].tolist() == [[-1e9, -1e9]]


def test_a_run_that_is_continued_and_checked(tmp_path: Path) -> None:
    folder = run(tmp_path, FIXED)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name.partition("-")[0] for name in before if name.endswith(".npy")} == {"vectors", "offsets"}
    for name in ("offsets-00002.npy", "vectors-00002.npy"):
        (folder / name).unlink()
    lines = (folder / "shards.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "shards.jsonl").write_bytes(b"".join(lines[:2]))
    meta = json.loads(before["meta.json"]) | {"complete": False}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    run(tmp_path, FIXED)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert main(["bulk", "-o", str(folder), "--check"]) == 0
    (folder / "offsets-00001.npy").write_bytes(before["offsets-00000.npy"])
    assert main(["bulk", "-o", str(folder), "--check"]) == 1


@pytest.mark.parametrize("change", ["first", "last", "order", "kind", "rows"])
def test_offsets_that_are_no_texts_ends_are_refused(tmp_path: Path, change: str) -> None:
    folder = run(tmp_path, FIXED)
    path = folder / "offsets-00000.npy"
    offsets = np.load(path)
    if change == "order":
        offsets[2], offsets[3] = offsets[3], offsets[2] - 1
    elif change in ("first", "last"):
        offsets[0 if change == "first" else -1] += 1
    offsets = offsets.view(np.float64) if change == "kind" else offsets
    offsets = offsets.reshape(2, -1) if change == "rows" else offsets
    np.save(path, offsets)
    assert path.stat().st_size == read_shards(folder)[0][0].files[path.name]["bytes"]
    with pytest.raises(ValueError, match=r"offsets-00000\.npy: expected offsets of 25 texts"):
        StoredVectors(folder).search([np.ones((2, 6), "f4")])


def test_the_command(tmp_path: Path, capsys: Any) -> None:
    folder = run(tmp_path, FIXED)
    assert "token vectors of 60 texts, 6 numbers each, in 3 shards" in capsys.readouterr().err
    assert main(["search", str(folder), *QUESTIONS, "--json", "-k", "4"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    encoder = minibert.load_encoder(FIXED)
    want = encoder.similarity(encoder.encode_query(QUESTIONS), encoder.encode_document(TEXTS))
    for line, scores in zip(lines, want, strict=True):
        assert line["measure"] == "maxsim" and len(line["results"]) == 4
        for each in line["results"]:
            assert abs(each["score"] - scores[each["id"]]) <= SAME and each["text"] == TEXTS[each["id"]]
    source = str(tmp_path / "a.txt")
    assert main(["bulk", source, "-o", str(tmp_path / "bits"), "-m", str(FIXED), "--precision", "binary"]) == 1
    assert "--precision binary has no measure for vectors of tokens; take int8" in capsys.readouterr().err


def test_an_embedder_gives_them_too() -> None:
    found = minibert.Embedder(FIXED)({"text": TEXTS[:5]})["vector"]
    for each, want in zip(found, minibert.load_encoder(FIXED).encode_document(TEXTS[:5]), strict=True):
        assert np.allclose(each, want, atol=SAME)
