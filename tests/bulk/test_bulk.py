"""Many texts to a folder of vectors: the vectors of embed and encode, the counts, the shards and their edges."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import encoders
import numpy as np
import polars as pl
import pytest
from checkpoints import same_bits, wordpiece_json
from command_line import Patch
from killed_runs import content
from many_texts import many_texts
from numpy.typing import NDArray
from pyarrow import parquet
from record_files import made, write_parquet
from reference_files import REFERENCE
from shard_folders import FORMS

import minibert
from minibert.bulk import job as module
from minibert.bulk.job import bulk
from minibert.bulk.records import Records
from minibert.bulk.shards import ShardFolder
from minibert.models.open.vectors import open_vectors

SAME = 1e-6  # of a vector's length, computed beside other texts; measured: 2.9e-7
TEXTS = [" ".join(text.split())[:60] for text in many_texts(230, seed=2)]


def run(model: Path, source: Path, folder: Path, vectors: str = "input", form: str = "npy", **options: Any) -> Any:
    """Write the folder; give meta.json."""
    opened = open_vectors(model, vectors, truncation=True)
    settings = {"vectors": vectors, "sha256": opened.sha256()}
    with opened.model:
        found = bulk(Records([str(source)]), ShardFolder(folder, form), opened, settings, **options)
    assert json.loads((folder / "meta.json").read_text("utf-8")) == found and found["complete"]
    return found


def lines(path: Path, texts: Iterable[str]) -> Path:
    return made(path, "".join(f"{text}\n" for text in texts))


def read_back(folder: Path) -> tuple[list[Any], NDArray[np.float32]]:
    """All ids and vectors of a folder of npy."""
    ids = [ident for file in sorted(folder.glob("ids-*")) for ident in json.loads(file.read_text("utf-8"))]
    found = [np.load(file, mmap_mode="r") for file in sorted(folder.glob("vectors-*"))]
    return ids, np.concatenate(found)


# -- the vectors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows_per_shard", [1, 7, 100, 230, 1000])
def test_vectors_are_those_of_embed(rows_per_shard: int, model: Path, tmp_path: Path) -> None:
    source = lines(tmp_path / "a.txt", TEXTS)
    meta = run(model, source, tmp_path / "out", rows_per_shard=rows_per_shard, truncation=True)
    with minibert.load(model) as layer:
        want = layer.embed(TEXTS, truncation=True)
    ids, found = read_back(tmp_path / "out")
    assert ids == list(range(230)) and same_bits(found, want)
    assert (meta["rows"], meta["skipped"], meta["dim"], meta["rows_per_shard"]) == (230, 0, 16, rows_per_shard)
    assert meta["shards"] == len(list((tmp_path / "out").glob("vectors-*"))) == -(-230 // rows_per_shard)


@pytest.mark.parametrize("folder", ["sentences-dense", "sentences-cls", "sentences-prompts", None])
def test_vectors_are_those_of_encode(folder: str | None, model: Path, tmp_path: Path) -> None:
    used = model if folder is None else REFERENCE / folder
    run(used, lines(tmp_path / "a.txt", TEXTS), tmp_path / "out", "sentence", rows_per_shard=50)
    with minibert.load_encoder(used) as encoder:
        want = encoder.encode(TEXTS)
        shards = [encoder.encode(TEXTS[start : start + 50]) for start in range(0, 230, 50)]
    _, found = read_back(tmp_path / "out")
    # only texts of one shard are batched together
    assert found.dtype == np.float32 and same_bits(found, np.concatenate(shards))
    lengths = np.linalg.norm(want, axis=1, keepdims=True)
    assert np.max(np.abs(found - want) / lengths) <= SAME


def test_chunks_are_smaller_than_shards(model: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """The bits of sentence vectors hang on the chunk; those of the input layer on nothing."""
    source = lines(tmp_path / "a.txt", TEXTS)
    opened = open_vectors(model, "input", truncation=True)
    opened = opened._replace(make=lambda whole=opened.pipeline: whole._replace(chunk=16))
    bulk(Records([str(source)]), ShardFolder(tmp_path / "a", "npy"), opened, {}, rows_per_shard=50, truncation=True)
    run(model, source, tmp_path / "b", rows_per_shard=50, truncation=True)
    first, second = content(tmp_path / "a"), content(tmp_path / "b")
    assert {name for name in first if first[name] != second[name]} == {"meta.json"}


@pytest.mark.parametrize("names", [False, True])
def test_parquet_is_read_by_others(names: bool, model: Path, tmp_path: Path) -> None:
    ids = [f"ä{i}" if names else 10 * i for i in range(230)]
    rows = list(zip(ids, TEXTS, strict=True))
    if names:
        write_parquet(tmp_path / "a.parquet", rows)
    else:
        made(tmp_path / "a.jsonl", "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in rows))
    source = tmp_path / ("a.parquet" if names else "a.jsonl")
    run(model, source, tmp_path / "out", form="parquet", rows_per_shard=100, truncation=True)
    with minibert.load(model) as layer:
        want = layer.embed(TEXTS, truncation=True)
    pattern = str(tmp_path / "out" / "vectors-*.parquet")

    table = parquet.read_table(tmp_path / "out" / "vectors-00001.parquet")
    assert table["id"].to_pylist() == ids[100:200]
    frame = pl.read_parquet(pattern)
    assert frame["id"].to_list() == ids and frame["vector"].dtype == pl.Array(pl.Float32, 16)
    assert same_bits(frame["vector"].to_numpy(), want)
    ordered = f"read_parquet('{pattern}', filename=true, file_row_number=true) ORDER BY filename, file_row_number"
    found = duckdb.sql(f"SELECT id, vector FROM {ordered}").fetchall()
    assert [ident for ident, _ in found] == ids
    assert same_bits(np.array([vector for _, vector in found], np.float32), want)


# -- bad rows, and how much is read --------------------------------------------------------------------------------


def jsonl(path: Path, texts: Iterable[Any]) -> Path:
    return made(path, "".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.mark.parametrize("form", FORMS)
def test_bad_rows_are_left_out_and_listed(form: str, model: Path, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["we", None, "lived", 3, 4, 5, 6, "above", "the", "clouds"])
    meta = run(model, source, tmp_path / "out", form=form, rows_per_shard=np.int64(3), bad_rows="skip")
    assert (meta["rows"], meta["skipped"], meta["cut"], meta["shards"]) == (5, 5, 0, 3)
    listed = [json.loads(line) for line in (tmp_path / "out" / "bad_rows.jsonl").read_text("utf-8").splitlines()]
    assert [row["row"] for row in listed] == [2, 4, 5, 6, 7] and {row["file"] for row in listed} == {str(source)}
    assert listed[1]["problem"] == "'text' must be a text, found 3"
    assert not list((tmp_path / "out").glob("*-00001.*"))  # nothing of this shard is a text
    if form == "npy":
        ids, found = read_back(tmp_path / "out")
        with minibert.load(model) as layer:
            assert ids == [0, 2, 7, 8, 9] and same_bits(found, layer.embed(["we", "lived", "above", "the", "clouds"]))


def test_nothing_but_bad_rows_and_no_rows_at_all(model: Path, tmp_path: Path) -> None:
    meta = run(model, jsonl(tmp_path / "a.jsonl", [None] * 5), tmp_path / "bad", rows_per_shard=2, bad_rows="skip")
    assert (meta["rows"], meta["skipped"], meta["shards"]) == (0, 5, 0)
    assert set(content(tmp_path / "bad")) == {"meta.json", "shards.jsonl", "bad_rows.jsonl"}
    meta = run(model, made(tmp_path / "a.txt", ""), tmp_path / "none")
    assert (meta["rows"], meta["skipped"], meta["shards"]) == (0, 0, 0)
    assert set(content(tmp_path / "none")) == {"meta.json"}
    assert run(model, tmp_path / "a.txt", tmp_path / "none") == meta  # once more


def test_a_run_that_stops_keeps_its_shards_and_goes_on(model: Path, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", [None if i == 47 else text for i, text in enumerate(TEXTS)])
    options: dict[str, Any] = dict(rows_per_shard=10, truncation=True)
    error = f"{source}, row 48: 'text' must be a text, found null; bad_rows=\"skip\" lists"
    with pytest.raises(ValueError, match=error):
        run(model, source, tmp_path / "out", **options)
    kept = content(tmp_path / "out")
    assert len([name for name in kept if name.startswith("vectors")]) == 4 and b'"complete": false' in kept["meta.json"]
    with pytest.raises(ValueError, match="row 48"):
        run(model, source, tmp_path / "out", **options)
    assert content(tmp_path / "out") == kept
    run(model, source, tmp_path / "out", bad_rows="skip", **options)
    run(model, source, tmp_path / "whole", bad_rows="skip", **options)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    vectors = {name: file for name, file in kept.items() if name.startswith("vectors")}
    assert content(tmp_path / "out").items() >= vectors.items()


def test_texts_that_are_too_long(model: Path, tmp_path: Path) -> None:
    """The model has 24 positions: [CLS], 22 words and [SEP] fit."""
    texts = ["we lived", "we " * 22, "we " * 23, "clouds"]
    source = lines(tmp_path / "a.txt", texts)
    error = r"a.txt, row 3: the text has 25 tokens, but the longest sequence is 24 \(the position table\); truncation"
    with pytest.raises(ValueError, match=error):
        run(model, source, tmp_path / "stops")
    meta = run(model, source, tmp_path / "skips", bad_rows="skip")
    assert (meta["rows"], meta["skipped"], meta["cut"]) == (3, 1, 0) and read_back(tmp_path / "skips")[0] == [0, 1, 3]
    assert run(model, source, tmp_path / "skips", bad_rows="skip") == meta
    meta = run(model, source, tmp_path / "cuts", truncation=True)
    assert (meta["rows"], meta["skipped"], meta["cut"]) == (4, 0, 1)
    with minibert.load(model) as layer:
        assert same_bits(read_back(tmp_path / "cuts")[1], layer.embed(texts, truncation=True))
        assert same_bits(read_back(tmp_path / "skips")[1], layer.embed([texts[i] for i in (0, 1, 3)]))
    meta = run(model, source, tmp_path / "sentences", "sentence")
    assert (meta["rows"], meta["skipped"], meta["cut"]) == (4, 0, 1)


def test_a_text_that_the_tokenizer_refuses(tmp_path: Path) -> None:
    model = encoders.write(tmp_path / "model", "bert")
    settings = json.loads(wordpiece_json())
    settings["model"]["unk_token"] = "[NONE]"
    (model / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    source = jsonl(tmp_path / "a.jsonl", ["we", None, "clouds", "\u4e2d", "we"])
    with pytest.raises(minibert.TokenizerError, match=r"a\.jsonl, row 4: the tokenizer refuses a text"):
        run(model, source, tmp_path / "out", bad_rows="skip")


# -- continued, or not -----------------------------------------------------------------------------------------------


def test_another_input_is_refused(model: Path, tmp_path: Path) -> None:
    texts = ["we lived", "above", "clouds", "the", "we"]
    source, out = lines(tmp_path / "a.txt", texts), tmp_path / "out"
    run(model, source, out, rows_per_shard=2)
    before, other = content(out), "the input is another one: of the 2 rows of shard 1, ids or texts were others"
    for now, rows_per_shard, error in (
        (["we lived", "above", "sduolc", "the", "we"], 2, other),  # as many bytes
        ([*texts, "more"], 2, r'was made with input \[\{"name": "a.txt", "bytes": \d+\}\], now it is '),
        (texts, 3, "was made with rows_per_shard 2, now it is 3"),
    ):
        with pytest.raises(ValueError, match=error):
            run(model, lines(source, now), out, rows_per_shard=rows_per_shard)
    assert content(out) == before


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('{"id": 1, "text": "a"}\n', '{"id": 2, "text": "a"}\n'),
        ('{"text": "aaaa"}\n{"text": null}\n', '{"text": null}\n{"text": "aaaa"}\n'),
    ],
)
def test_other_ids_and_other_bad_rows_are_another_input(first: str, second: str, model: Path, tmp_path: Path) -> None:
    run(model, made(tmp_path / "a.jsonl", first), tmp_path / "out", bad_rows="skip")
    with pytest.raises(ValueError, match=r"the input is another one: of the \d rows of shard 0, ids or texts"):
        run(model, made(tmp_path / "a.jsonl", second), tmp_path / "out", bad_rows="skip")


@pytest.mark.parametrize("count", [2, 5, 6])
@pytest.mark.parametrize("more", [-1, 1])
def test_a_stream_of_other_length_is_refused(count: int, more: int, model: Path, tmp_path: Path) -> None:
    """How many rows a stream has is known only after it has ended once."""
    source, out = lines(tmp_path / "a.txt", TEXTS[:count]), tmp_path / "out"

    def again() -> None:
        opened = open_vectors(model, "input", truncation=True)
        records = Records([str(source)])
        records.sizes = [None]
        with opened.model:
            bulk(records, ShardFolder(out, "npy"), opened, {}, rows_per_shard=2, truncation=True)

    again()
    before = content(out)
    lines(source, TEXTS[: count + more])
    with pytest.raises(ValueError, match="the input is another one"):
        again()
    (out / "meta.json").write_bytes(before["meta.json"].replace(b'"complete": true', b'"complete": false'))
    if count % 2 or more < 0:  # killed at its very end
        with pytest.raises(ValueError, match="the input is another one"):
            again()
    lines(source, TEXTS[:count])
    again()
    assert content(out) == before


# -- what else -----------------------------------------------------------------------------------------------------


def test_an_error_of_the_writer_reaches_the_caller(model: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    add = ShardFolder.add

    def failing(self: ShardFolder, *given: Any) -> None:
        if len(self.shards) == 2:
            raise RuntimeError("the writer's own")
        add(self, *given)

    monkeypatch.setattr(ShardFolder, "add", failing)
    with pytest.raises(RuntimeError, match="the writer's own"):
        run(model, lines(tmp_path / "a.txt", TEXTS), tmp_path / "out", rows_per_shard=20, truncation=True)
    assert content(tmp_path / "out")["shards.jsonl"].count(b"\n") == 2


def test_texts_are_let_go_when_their_vectors_are_there(model: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """A shard of long texts would not fit into memory."""
    kept: list[int] = []
    write = module._write

    def seen(folder: ShardFolder, precision: str, shard: Any) -> None:
        kept.append(len(pickle.dumps(shard)))
        write(folder, precision, shard)

    monkeypatch.setattr(module, "_write", seen)
    run(model, lines(tmp_path / "a.txt", ["we", "we " * 10_000]), tmp_path / "out", bad_rows="skip")
    run(model, lines(tmp_path / "a.txt", ["we", "we " * 10_000]), tmp_path / "cut", truncation=True)
    assert len(kept) == 2 and max(kept) < 3000


def test_arguments_that_are_refused(model: Path, tmp_path: Path) -> None:
    source = lines(tmp_path / "a.txt", ["we"])
    with pytest.raises(ValueError, match="rows_per_shard"):
        run(model, source, tmp_path / "out", rows_per_shard=0)
    with pytest.raises(ValueError, match="bad_rows must be 'stop' or 'skip', found 'drop'"):
        run(model, source, tmp_path / "out", bad_rows="drop")
    assert not (tmp_path / "out").exists()
