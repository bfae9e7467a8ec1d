"""Many texts to a folder of vectors: the vectors of embed and encode, the columns, who reads them, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import duckdb
import encoders
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from checkpoints import same_bits, wordpiece_json, write_wordpiece
from command_line import Patch
from hypothesis import example, given
from hypothesis import strategies as st
from killed_runs import content
from many_texts import many_texts
from numpy.typing import NDArray
from pyarrow import dataset, parquet
from record_files import jsonl, lines, made, rewritten
from reference_files import REFERENCE

import minibert
from minibert.bulk import job as job_module
from minibert.bulk import stored
from minibert.bulk.job import _after as after
from minibert.bulk.job import bulk
from minibert.bulk.stored import FORMATS, StoredVectors
from minibert.bulk.texts import Texts
from minibert.models.open.load_encoder import TextModel, open_vectors
from minibert.models.run.pipeline import chunked
from minibert.models.sentences.comparing import similarity

SAME = 1e-6  # of a vector's length, computed beside other texts; measured: 2.9e-7
SAME_TOKENS = 2e-5  # of a token's numbers; measured: 4.8e-6
SAME_SCORES = 1e-6  # of the largest score, a sum over a query's tokens; measured: 2.4e-7 with AVX2
WEIGHT = 6e-6  # of a sparse weight up to 1.3, computed beside other texts; measured: 2.2e-6, with the kernel Haswell
NARROW = 0.05  # of scores by numbers in float16 or int8, as a share of the score; measured: 1.5e-3
TEXTS = [" ".join(text.split())[:60] for text in many_texts(230, seed=2)]
LATE = [REFERENCE / f"late-{name}" for name in ("fixed", "least", "kept")]
SPARSE = [REFERENCE / name for name in ("uses-sparse", "uses-sparse-router")]
WORDS = ["we", "lived", "above the clouds", "!", "a b c d e f g h i j k l m n o p", "x y", ""]
SHORT = [f"{WORDS[i % 7]} {WORDS[i // 7 % 7]} {WORDS[i % 5]}" for i in range(60)]
QUESTIONS = ["the clouds", "we lived x"]


def job(source: Path, folder: Path, model: TextModel, keep: list[str] | None = None, **options: Any) -> Any:
    return bulk(Texts([str(source)], keep=keep), folder, model, {}, **options)


def run(model: Path, source: Path, folder: Path, **options: Any) -> Any:
    """Write the folder; give what its last shard says."""
    opened = open_vectors(model)
    with opened.model:
        return job(source, folder, opened, **options)


def table_of(folder: Path) -> Any:
    form = next(folder.iterdir()).suffix[1:]
    return dataset.dataset(sorted(map(str, folder.iterdir())), format=form).to_table()


def vectors_of(folder: Path) -> NDArray[Any]:
    return np.array(table_of(folder)["vector"].to_pylist(), np.float32)


# -- the vectors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["sentences-dense", "sentences-cls", "sentences-prompts", None])
@pytest.mark.parametrize("rows_per_shard", [7, 115, 1000])
def test_vectors_are_those_of_encode(rows_per_shard: int, folder: str | None, model: Path, tmp_path: Path) -> None:
    used, texts = model if folder is None else REFERENCE / folder, TEXTS[: 20 * rows_per_shard]
    source, out = lines(tmp_path / "a.txt", texts), tmp_path / "out"
    said = run(used, source, out, rows_per_shard=np.int64(rows_per_shard))
    with minibert.load_encoder(used) as encoder:
        want = encoder.encode(texts)
        each = [encoder.encode(texts[i : i + rows_per_shard]) for i in range(0, len(texts), rows_per_shard)]
    found = vectors_of(out)
    assert same_bits(found, np.concatenate(each))  # only texts of one shard are computed together
    assert np.max(np.abs(found - want) / np.linalg.norm(want, axis=1, keepdims=True)) <= SAME
    assert table_of(out)["id"].to_pylist() == list(range(len(texts))) and table_of(out)["text"].to_pylist() == texts
    assert (said["rows"], said["skipped"], said["dim"]) == (len(texts), 0, want.shape[1])
    names = [f"vectors-{i:05}.arrow" for i in range(len(each))]
    assert sorted(content(out)) == names and said["shards"] == len(names)
    assert [stored.metadata_of(out / name)["last"] for name in names] == [False] * (len(names) - 1) + [True]


@pytest.mark.parametrize("used", LATE, ids=lambda path: path.name)
@pytest.mark.parametrize(("form", "precision"), [("arrow", "float32"), ("parquet", "int8"), ("arrow", "float16")])
def test_token_vectors(used: Path, form: str, precision: str, tmp_path: Path) -> None:
    """As lists of lists; a text without a token has none and comes last."""
    options: Any = {"form": form, "precision": precision, "rows_per_shard": 25}
    run(used, lines(tmp_path / "a.txt", SHORT), tmp_path / "out", **options)
    encoder, stored = minibert.load_encoder(used), StoredVectors(tmp_path / "out")
    documents, queries = encoder.encode_document(SHORT), encoder.encode_query(QUESTIONS)
    found = table_of(tmp_path / "out")["vector"].to_pylist()
    assert [len(each) for each in found] == [len(each) for each in documents]
    if precision == "float32":
        for each, want in zip(found, documents, strict=True):
            assert np.allclose(np.array(each, "f4").reshape(-1, stored.dim), want, atol=SAME_TOKENS)
    want = encoder.similarity(queries, documents)
    numbers, scores = stored.search(queries, 60)
    near = (SAME_SCORES if precision == "float32" else NARROW) * np.abs(want[want > -1e8]).max()
    assert np.abs(np.take_along_axis(want, numbers, 1) - scores).max() <= near
    assert stored.late and stored.measure == ("meanmaxsim" if used == LATE[1] else "maxsim")
    empty = [i for i, each in enumerate(documents) if not len(each)]
    assert numbers[0, 60 - len(empty) :].tolist() == empty
    with pytest.raises(ValueError, match=r"\b50\b"):
        stored.search([np.ones((3, 50), "f4")])
    with pytest.raises(TypeError):
        stored.search("we")  # type: ignore[arg-type]


@pytest.mark.parametrize("used", SPARSE, ids=lambda path: path.name)
@pytest.mark.parametrize("form", FORMATS)
def test_sparse_vectors(used: Path, form: str, tmp_path: Path) -> None:
    """As lists of ids and weights; the scores are the model's similarity of queries and documents."""
    said = run(used, lines(tmp_path / "a.txt", SHORT), tmp_path / "out", form=form, rows_per_shard=25)
    encoder, stored = minibert.load_encoder(used), StoredVectors(tmp_path / "out")
    documents = encoder.encode_document(SHORT)
    for row, want in zip(table_of(tmp_path / "out")["vector"].to_pylist(), documents, strict=True):
        assert [pair["id"] for pair in row] == want.ids.tolist()
        assert np.allclose([pair["weight"] for pair in row], want.weights, rtol=1e-5, atol=WEIGHT)
    queries = encoder.encode_query(QUESTIONS)
    want = encoder.similarity(queries, documents)
    numbers, scores = stored.search(queries, 60)
    assert np.allclose(np.take_along_axis(want, numbers, 1), scores, rtol=1e-5, atol=1e-6)
    assert stored.sparse and stored.measure == "dot" and stored.dim == said["dim"] > max(queries[0].ids)
    stored.meta["similarity"] = "cosine"  # as `bulk --similarity-fn-name cosine` writes it
    cosine = stored.search(queries[0], 3)
    want = similarity("cosine", queries[:1], documents)
    assert np.allclose(cosine[1], np.take_along_axis(want, cosine[0], 1), rtol=1e-5)
    with pytest.raises(TypeError):
        stored.search(np.ones((1, stored.dim), "f4"))
    with pytest.raises(ValueError, match='precision="int8"'):
        run(used, tmp_path / "a.txt", tmp_path / "no", precision="int8")


# -- who reads them ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [False, True])
def test_folders_are_read_by_others_as_they_are(names: bool, model: Path, tmp_path: Path) -> None:
    """All columns of the input are there, and nothing else is in the folder."""
    ids = [f"ä{i}" if names else 10 * i for i in range(230)]
    rows = [{"id": ident, "text": text, "url": f"/{ident}"} for ident, text in zip(ids, TEXTS, strict=True)]
    source = jsonl(tmp_path / "a.jsonl", rows)
    for form in FORMATS:
        run(model, source, tmp_path / form, form=form, rows_per_shard=100)
    with minibert.load_encoder(model) as encoder:
        want = np.concatenate([encoder.encode(TEXTS[i : i + 100]) for i in range(0, 230, 100)])
    arrow = tmp_path / "arrow"
    for frame in (pl.read_parquet(tmp_path / "parquet"), pl.read_ipc(arrow / "*.arrow"), pl.scan_ipc(arrow).collect()):
        assert frame.columns == ["id", "text", "url", "vector"] and frame["vector"].dtype == pl.Array(pl.Float32, 16)
        assert frame.drop("vector").to_dicts() == rows and same_bits(frame["vector"].to_numpy(), want)
    shards = dataset.dataset(arrow, format="arrow")  # noqa: F841  DuckDB finds it by its name
    for source_of in (f"'{tmp_path}/parquet/*.parquet'", f"read_parquet('{tmp_path}/parquet/*')", "shards"):
        found = duckdb.sql(f"SELECT id, text, url, vector FROM {source_of} ORDER BY ALL").fetchall()
        assert sorted((*row, list(vector)) for *row, vector in found) == sorted(
            (row["id"], row["text"], row["url"], vector) for row, vector in zip(rows, want.tolist(), strict=True)
        )


def test_a_folder_that_finishes_at_once(model: Path, tmp_path: Path) -> None:
    """Without a row, or with bad rows alone, it is a folder of one shard that others read."""
    for name, text in (("none.jsonl", ""), ("bad.jsonl", '{"text": null, "n": 1}\n' * 3)):
        said = run(model, made(tmp_path / name, text), tmp_path / name[:3], form="parquet", skip=True)
        assert (said["rows"], said["skipped"], said["shards"]) == (0, text.count("\n"), 1)
        assert run(model, tmp_path / name, tmp_path / name[:3], form="parquet", skip=True) == said
        assert pl.read_parquet(tmp_path / name[:3]).height == 0
        with pytest.raises(ValueError):
            StoredVectors(tmp_path / name[:3])


# -- bad rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_bad_rows_end_a_run_or_are_left_out_and_listed(form: str, model: Path, tmp_path: Path) -> None:
    """A run that ends keeps its shards. A vector's bits depend on its chunk, which has no bad row and may be small."""
    bad, out, opened = {110, 112, *range(150, 200), 229}, tmp_path / "out", open_vectors(model)
    source = jsonl(tmp_path / "a.jsonl", ({"text": None if i in bad else text} for i, text in enumerate(TEXTS)))
    options: Any = {"form": form, "rows_per_shard": 50}
    opened.pipeline.chunk = 16
    for _ in range(2):
        with pytest.raises(ValueError, match=f"{source}, row 111"):
            job(source, out, opened, **options)
        kept = content(out)
        assert len(kept) == 2
    done: list[int] = []
    said = job(source, out, opened, skip=True, progress=done.append, **options)
    assert content(out).items() >= kept.items() and stored.check_folder(out) == (177, 5)
    assert (said["rows"], said["skipped"], said["shards"]) == (177, 53, 5)
    assert done[0] == 100 and {150, 200, 230} <= {*done} <= {*range(231)}  # a shard of bad rows counts too
    listed = [line for path in sorted(out.iterdir()) for line in stored.metadata_of(path)["left_out"]]
    assert listed == [f"{source}, row {i + 1}: it has no text, or is not of its file's format" for i in sorted(bad)]
    shards = [[i for i in range(start, start + 50) if i < 230 and i not in bad] for start in range(0, 230, 50)]
    assert table_of(out)["id"].to_pylist() == [i for shard in shards for i in shard]
    with minibert.load_encoder(model) as encoder:
        each = [encoder.encode([TEXTS[i] for i in some]) for shard in shards for some in chunked(shard, 16)]
    assert same_bits(vectors_of(out), np.concatenate(each))


@pytest.mark.parametrize("form", FORMATS)
def test_long_texts_and_columns_end_a_shard(form: str, model: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """A column of strings holds 2 GiB; the ends are the same however the rows come, so that a run goes on."""
    monkeypatch.setattr(job_module, "LONGEST_SHARD", 1000)
    pages = ["x" * length for length in (400, 400, 3000, 0, 900, 500, 300)]
    rows = [{"text": text, "page": page} for text, page in zip(SHORT, pages, strict=False)]
    (deep := tmp_path / ("long" * 40)).mkdir()  # a path counts for nothing
    source, out = jsonl(deep / "a.jsonl", rows), tmp_path / "out"
    run(model, source, out, form=form)
    tables, whole = [next(stored.batches(path, 100)) for path in stored.shards_of(out)], content(out)
    assert [[len(page) for page in each["page"].to_pylist()] for each in tables] == [
        [400, 400], [3000], [0, 900], [500, 300],
    ]  # fmt: skip
    assert table_of(out)["page"].to_pylist() == pages and stored.check_folder(out) == (7, 4)
    for name in sorted(whole)[1:]:
        (out / name).unlink()
    run(model, source, out, form=form)
    assert content(out) == whole


def test_texts_that_are_too_long(model: Path, tmp_path: Path) -> None:
    """The model has 24 positions: [CLS], 22 words and [SEP] fit."""
    source = lines(tmp_path / "a.txt", ["we " * 23, "we " * 22, "we " * 23, "we " * 30, "we"])
    said = run(model, source, tmp_path / "out", rows_per_shard=2)
    assert (said["rows"], said["skipped"], said["cut"]) == (5, 0, 3)
    assert run(model, source, tmp_path / "out") == said
    counts = [stored.metadata_of(path) for path in stored.shards_of(tmp_path / "out")]
    assert [(each["truncated"], each["cut"]) for each in counts] == [(1, 1), (2, 3), (0, 3)]


def test_a_text_that_the_tokenizer_refuses(tmp_path: Path) -> None:
    model = encoders.write_with_words(tmp_path / "model", "bert")
    write_wordpiece(model, model=json.loads(wordpiece_json())["model"] | {"unk_token": "[NONE]"})
    source = jsonl(tmp_path / "a.jsonl", ({"text": text} for text in ("we", None, "clouds", "\u4e2d", "we")))
    with pytest.raises(minibert.TokenizerError, match=r"a\.jsonl, row 4"):
        run(model, source, tmp_path / "out", skip=True)
    shutil.copytree(REFERENCE / "sentences-causal", causal := tmp_path / "causal")
    (causal / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 8, "pooling_mode": "max"}')
    with pytest.raises(ValueError, match=r"b\.txt, row 2"):
        run(causal, lines(tmp_path / "b.txt", ["we", "", "we"]), tmp_path / "max")


# -- going on, or not ----------------------------------------------------------------------------------------------


def test_another_input_is_refused(model: Path, tmp_path: Path) -> None:
    """The last row that was written is compared, and how many there are; the size of a file says the rest."""
    rows = [{"id": f"a{i}", "text": text} for i, text in enumerate(["we", "lived", "above", "clouds", "the"])]
    out, opened = tmp_path / "out", open_vectors(model)

    def again(rows: list[dict[str, Any]], stream: bool = True) -> Any:
        texts = Texts([str(jsonl(tmp_path / "a.jsonl", rows))])
        texts.sizes = [None] if stream else texts.sizes  # a stream has none
        return bulk(texts, out, opened, {}, rows_per_shard=2)

    again(rows)
    (out / "vectors-00002.arrow").unlink()  # as a killed run leaves it
    before = content(out)
    for row in ([{**rows[3], "id": "a9"}], [{**rows[3], "text": "sduolc"}], []):
        with pytest.raises(ValueError, match="'clouds'"):
            again([*rows[:3], *row])
    with pytest.raises(ValueError, match=r"input \[.*'bytes': None.*'bytes': \d+"):
        again(rows, stream=False)
    assert content(out) == before
    again(rows)
    for other in ([*rows, {"id": "a5", "text": "we"}], rows[:4]):
        with pytest.raises(ValueError, match=r"\b5\b"):
            again(other)


def test_rows_that_are_passed_over() -> None:
    tables = [pa.table({"x": [*range(*ends)]}) for ends in ((0, 3), (3, 4), (4, 9))]
    for count in range(11):
        assert [x for table in after(iter(tables), count) for x in table["x"].to_pylist()] == [*range(count, 9)]


def test_settings_that_are_refused(model: Path, tmp_path: Path) -> None:
    source, out = jsonl(tmp_path / "a.jsonl", [{"text": "we", "n": 1}, {"text": "lived", "n": 2}]), tmp_path / "out"
    with pytest.raises(NotADirectoryError, match=r"a\.jsonl"):
        run(model, source, source)
    run(model, source, out)
    before = content(out)
    for options, error in (
        ({"rows_per_shard": 3}, "rows_per_shard 4096.* 3"), ({"form": "parquet"}, "'arrow'.*'parquet'"),
        ({"keep": []}, "columns {'n': 'int64'}.*{'n': None}"), ({"precision": "binary"}, "'float32'.*'binary'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=error):
            run(model, source, out, **options)  # type: ignore[arg-type]
    assert content(out) == before


@pytest.mark.parametrize(("names", "error"), [
    (["notes.txt"], "'notes.txt'"), (["vectors-00000.arrow"], "vectors-00000.arrow"),
    (["vectors-00001.arrow"], r"vectors-00000\.arrow: .*vectors-00001\.arrow"),
    (["vectors-99999.arrow", "vectors-100000.arrow"], r"vectors-00000\.arrow: .*vectors-99999\.arrow"),
    (["vectors-00000.arrow", "vectors-00000.parquet"], r"vectors-00000\.\w+ "),
    (["vectors-00000.parquet"], r"vectors-00000\.parquet: .*`bulk`"),
])  # fmt: skip
def test_a_folder_that_is_not_of_bulk_is_refused(names: list[str], error: str, model: Path, tmp_path: Path) -> None:
    source, out = lines(tmp_path / "a.txt", ["we"]), tmp_path / "out"
    out.mkdir()
    for name in names:
        (out / name).touch()
    if names == ["vectors-00000.parquet"]:  # of another program
        parquet.write_table(pa.table({"id": [1]}), out / names[0])
    with pytest.raises(ValueError, match=error):
        run(model, source, out)
    with pytest.raises(ValueError, match=error):
        StoredVectors(out)
    assert {*content(out)} == {*names}
    for name in names:
        (out / name).unlink()
    for link in (".lock", "vectors-00000.arrow"):
        (out / link).symlink_to(source)
        with pytest.raises(ValueError, match=link):
            run(model, source, out)
        (out / link).unlink()
    assert source.read_text() == "we\n"


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can become another user")
def test_who_may_not_read_is_named(tmp_path: Path) -> None:
    """Of a folder, a shard in it and a file of texts: never that they are absent."""
    tmp_path.chmod(0o700)
    shard, source = tmp_path / "vectors-00000.arrow", lines(tmp_path / "a.txt", ["we"])
    shard.touch()
    reads = {tmp_path: StoredVectors, shard: stored.metadata_of, source: lambda path: Texts([str(path)])}
    os.seteuid(65534)
    try:
        for path, read in reads.items():
            with pytest.raises(PermissionError, match=f"{path}"):
                read(path)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("form", FORMATS)
def test_damage_is_found(form: str, model: Path, tmp_path: Path) -> None:
    """A bit of any column's numbers or letters; a shard that is not written yet."""
    rows = [{"text": text, "n": 1000 + i} for i, text in enumerate(TEXTS[:30])]
    out = tmp_path / "out"
    run(model, jsonl(tmp_path / "a.jsonl", rows), out, form=form, rows_per_shard=10)
    assert stored.check_folder(out) == (30, 3)
    path = out / f"vectors-00001.{form}"
    whole = path.read_bytes()
    vector = np.array(table_of(out)["vector"][12].as_py(), "f4").tobytes()
    for name, piece in (("text", TEXTS[14].encode()), ("vector", vector), ("n", np.int64(1013).tobytes())):
        at = whole.index(piece)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError, match=f"{path}: .*'{name}'"):
            stored.check_folder(out)
    path.write_bytes(whole)
    (out / f"vectors-00002.{form}").rename(tmp_path / "away")
    for read in (stored.check_folder, StoredVectors):
        with pytest.raises(ValueError, match=f"{out}"):
            read(out)


# what is done to four shards, x(0) to x(3), beside y, those of another model; the shard that is named; and its fault
HELD: list[tuple[Any, int, str]] = [
    (lambda x, y: shutil.copy(y(2), x(2)), 2, ".*identity"),
    (lambda x, y: shutil.copy(y(0), x(0)), 1, ".*identity"),
    (lambda x, y: shutil.copy(y(3), x(3)), 3, ".*identity"),
    (lambda x, y: shutil.copy(x(0), x(2)), 2, r".*\b0\b"),
    (lambda x, y: (x(0).rename(x(9)), x(1).rename(x(0)), x(9).rename(x(1))), 0, r".*\b1\b"),
    (lambda x, y: shutil.copy(x(1), x(4)), 4, r".*\b1\b"),
    (lambda x, y: rewritten(x(2), last=True), 3, ".*vectors-0"),
    (lambda x, y: rewritten(x(2), dim=3), 2, ".*dim 3"),
    (lambda x, y: rewritten(x(1), lambda found: found.slice(3)), 1, r".*\b10\b.*7"),
    (lambda x, y: rewritten(x(1), lambda found: found.drop_columns(["n"])), 1, "its columns are not those that its"),
    (lambda x, y: rewritten(x(1), lambda found: found.set_column(2, "n", [[0.5] * 10])), 1, ".*'n' .*vectors-0"),
    (lambda x, y: x(1).write_bytes(b""), 1, "not readable as .*; restore the file"),
    (lambda x, y: x(1).write_bytes(x(1).read_bytes()[:900]), 1, "not readable as .*; restore the file"),
    (lambda x, y: rewritten(x(3), rows="7"), 3, ".*'7'.*rows"),
    (lambda x, y: rewritten(x(3), precision="int3"), 3, ".*'int3'"),
    (lambda x, y: rewritten(x(3), metadata=b'{"rows": '), 3, ".*JSON"),
    (lambda x, y: rewritten(x(3), metadata=b"[" * 200_000), 3, ".*JSON"),
    (lambda x, y: rewritten(x(1), metadata=b"\xff{}"), 1, ".*JSON"),
    (lambda x, y: rewritten(x(1), metadata=b"[1]"), 1, ".*list"),
    (lambda x, y: rewritten(x(1), metadata=b"{}"), 1, ".*shards"),
]


@pytest.mark.parametrize("form", FORMATS)
def test_a_shard_is_held_to_its_place_and_its_run(form: str, model: Path, tmp_path: Path) -> None:
    """A search, a check and a run that goes on name the shard that is wrong, and change nothing."""
    other = encoders.write(tmp_path / "model", "bert", layer_norm_eps=1e-3)  # of the same width
    source = jsonl(tmp_path / "a.jsonl", ({"text": text, "n": i} for i, text in enumerate(TEXTS[:35])))
    options: Any = {"form": form, "rows_per_shard": 10}
    for name, used in (("whole", model), ("other", other)):
        run(used, source, tmp_path / name, **options)
    out, opened = tmp_path / "out", open_vectors(model)
    readers = StoredVectors, stored.check_folder, lambda path: job(source, path, opened, **options)
    for change, number, fault in HELD:
        shutil.copytree(tmp_path / "whole", out)
        change(*(lambda at, path=path: path / f"vectors-{at:05}.{form}" for path in (out, tmp_path / "other")))
        before = content(out)
        for read in readers:
            with pytest.raises(ValueError, match=f"^{out}/vectors-{number:05}.{form}: {fault}"):
                read(out)
        assert content(out) == before
        for at in range(number, 5):  # as the errors advise
            (out / f"vectors-{at:05}.{form}").unlink(missing_ok=True)
        if number in (0, 2, 4):
            job(source, out, opened, **options)
            assert content(out) == content(tmp_path / "whole")
        shutil.rmtree(out)


VALUES = st.lists(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3) | st.lists(st.integers(0, 3), max_size=2)
)


@example(rows=[[0, 1], [2]], other=[[0], [1, 2]], at=1)
@example(rows=[False, True], other=[False, True, False], at=1)  # bits are filled up to whole bytes
@given(rows=VALUES, other=VALUES, at=st.integers(0, 5))
def test_a_checksum_is_of_the_values(place: Path, rows: list[Any], other: list[Any], at: int) -> None:
    """The same however a column is cut and in either format; another where a value, a null or an end is another."""

    def column_of(values: list[Any], kind: type) -> Any:
        types = {bool: pa.bool_(), int: pa.int64(), str: pa.string(), list: pa.large_list(pa.int32())}
        return pa.chunked_array([[x if type(x) is kind else None for x in values]], types[kind])

    for kind in (bool, int, str, list):
        column, different = column_of(rows, kind), column_of(other, kind)
        found = stored.checksum(column)
        assert found == stored.checksum(pa.chunked_array([*column.slice(0, at).chunks, *column.slice(at).chunks],
                                                         column.type))  # fmt: skip
        parquet.write_table(pa.table({"x": column}), place / "x.parquet")
        assert found == stored.checksum(parquet.read_table(place / "x.parquet")["x"])
        assert (found == stored.checksum(different)) == (column.to_pylist() == different.to_pylist())


def test_a_run_that_goes_on_has_the_first_ranges_and_the_rows_of_a_shard(model: Path, tmp_path: Path) -> None:
    """Each shard says them."""
    texts = [None, None, *TEXTS[:28]]
    source, out = jsonl(tmp_path / "a.jsonl", ({"text": text} for text in texts)), tmp_path / "out"
    assert np.shape(run(model, source, out, precision="int8", rows_per_shard=2, skip=True)["ranges"]) == (2, 16)
    whole = content(out)
    for kept in (1, 2, 9):
        for name in sorted(whole)[kept:]:
            (out / name).unlink()
        run(model, source, out, precision="int8", skip=True)
        assert content(out) == whole
    for precision, usual in (("float32", 4096), ("uint8", 16384), ("binary", 4096)):
        said = run(model, source, tmp_path / precision, precision=precision, skip=True)
        assert said["rows_per_shard"] == usual
    with pytest.raises(ValueError):
        run(model, lines(tmp_path / "a.txt", ["we"]), tmp_path / "one", precision="uint8")
    assert not list((tmp_path / "one").iterdir())
