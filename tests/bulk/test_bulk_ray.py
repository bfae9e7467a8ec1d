"""scripts/bulk_ray.py on a real Ray of one machine and two workers: every row once, with the numbers of one process.
And what any engine of many machines needs: threads that are kept to, and bounded memory. What is sent to a worker, and
that it opens it again: tests/models/test_encoder.py, test_layer.py, tests/hub.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from checkpoints import VOCAB, numbers
from command_line import Patch, Printed
from fake_hub import commit_of, hub_of
from limits import CHILD_SECONDS, until
from many_texts import WORDS
from needed import module_of
from numpy.typing import NDArray
from pyarrow import parquet
from reference_files import REFERENCE
from static_folders import static_folder

import minibert
from minibert.bulk.job import bulk
from minibert.bulk.stored import FORMATS, StoredVectors
from minibert.bulk.texts import Texts
from minibert.models.open.load_encoder import open_vectors
from minibert.threads.pool import prefetch

SCRIPT = Path(__file__).parents[2] / "scripts" / "bulk_ray.py"
script = module_of(SCRIPT)
TINY = REFERENCE / "sentences-dense"
FILES, ROWS, SHARD = 10, 200, 60  # rows of a file, and at most of a shard
NEIGHBOURS = 1e-6  # of a vector's length: its numbers change with the texts beside it; measured: 2.2e-7
STORE = 80_000_000  # bytes; Ray takes no less


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of three cores, on 127.0.0.1."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        import ray

        ray.init("local", num_cpus=3, include_dashboard=False, object_store_memory=STORE, log_to_driver=False)
        address = ray.get_runtime_context().gcs_address
        assert address.startswith("127.0.0.1:")
        yield address
        ray.shutdown()


def table(start: int, stop: int) -> Any:
    """Rows of all kinds of columns, each made of its number alone."""
    ids = range(start, stop)
    return pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "text": [" ".join(WORDS[(i * i + k) % len(WORDS)] for k in range(i % 20)) for i in ids],
            "tags": [["tag"] * (i % 3) for i in ids],
            "score": pa.array([None if i % 2 else i for i in ids], pa.int16()),
            "when": pa.array([datetime.fromtimestamp(i, timezone.utc) for i in ids], pa.timestamp("us", "UTC")),
            "kind": pa.array([f"kind {i % 4}" for i in ids]).dictionary_encode(),
        }
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("input")
    (folder / "more").mkdir()
    for i in range(FILES):  # wherever they lie
        name = {8: "8.PARQUET", 9: "more/9.parquet"}.get(i, f"{i}.parquet")
        parquet.write_table(table(i * ROWS, (i + 1) * ROWS), folder / name)
    (folder / "notes.txt").write_text("no rows")
    (folder / "_left.parquet").write_bytes(b"of another program")
    return folder


def begin(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    environment = {**os.environ, "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(STORE)}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def run(*arguments: object) -> tuple[int, str]:
    """Run the script: its exit code, and the last line that it says itself, since Ray's own may come after it."""
    job = begin(*arguments)
    said = job.communicate(timeout=CHILD_SECONDS)[1]
    own = [line for line in said.splitlines() if line.startswith("bulk_ray.py: ")]
    return job.returncode, own[-1] if own else said


def check(output: Path, source: Path, encoder: minibert.Encoder) -> None:
    """Every row of the input once, all its columns as they were, and the vectors of one process."""
    wanted = table(0, FILES * ROWS)
    found = parquet.read_table(output).sort_by("id")
    assert found["id"].to_pylist() == wanted["id"].to_pylist()  # none is lost, none is there twice
    assert found.drop_columns(["vector"]).schema.remove_metadata() == wanted.schema.remove_metadata()
    assert found.drop_columns(["vector"]).to_pylist() == wanted.to_pylist()
    compare(np.stack(found["vector"].to_numpy()), encoder, wanted["text"].to_pylist())
    assert all(parquet.read_metadata(path).num_rows <= SHARD for path in output.iterdir())


def compare(found: NDArray[Any], encoder: minibert.Encoder, texts: list[str]) -> None:
    want = encoder.encode(texts)
    assert found.dtype == np.float32
    assert np.max(np.abs(found - want) / np.linalg.norm(want, axis=1, keepdims=True)) < NEIGHBOURS


@pytest.mark.ray
def test_vectors_are_those_of_one_process(source: Path, minilm: Path, tmp_path: Path) -> None:
    """On a Ray that the script itself starts; DuckDB and Polars read what it wrote."""
    output = tmp_path / "made" / "vectors"
    settings = ("--model", minilm, "--concurrency", 2, "--rows-per-shard", SHARD)
    code, last = run(source, output, *settings, "--address", "local")
    assert (code, last) == (0, f"bulk_ray.py: wrote {output}: 2,000 rows with vectors of {minilm}")
    check(output, source, minibert.load_encoder(minilm))
    assert [path.name for path in output.parent.iterdir()] == ["vectors"]
    shape = "SELECT typeof(vector), len(vector), count(*), sum(id) FROM"
    rows = duckdb.sql(f"{shape} '{output}/*.parquet' GROUP BY 1, 2").fetchall()
    assert rows == [("FLOAT[]", 384, FILES * ROWS, sum(range(FILES * ROWS)))]
    assert pl.read_parquet(f"{output}/*.parquet").schema["vector"] == pl.Array(pl.Float32, 384)


def workers() -> set[int]:
    """The processes of this cluster's actors: children of a child of this one."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may just have ended
            title = (path / "cmdline").read_bytes()
            ours = parent(parent(path.name)) == str(os.getpid())
            if ours and title.startswith(b"ray::MapWorker(MapBatches(Worker))"):
                found.add(int(path.name))
    return found


def parent(process: str) -> str:
    return Path("/proc", process, "status").read_text().partition("PPid:")[2].split()[0]


@pytest.mark.ray
def test_a_worker_is_killed_and_each_row_is_there_once(
    address: str, source: Path, minilm: Path, tmp_path: Path
) -> None:
    output, before = tmp_path / "vectors", workers()
    settings = ("--concurrency", 2, "--address", address, "--rows-per-shard", SHARD)
    job = begin(source, output, "--model", minilm, *settings)
    try:
        shards = lambda: list(tmp_path.glob("vectors.unfinished-*/*.parquet"))  # noqa: E731
        until(lambda: len(shards()) > 1, job)
        until(lambda: len(workers() - before) == 2, job)
        first = workers() - before
        for worker in first:  # it stays in the middle, however fast the job and slow the test
            os.kill(worker, signal.SIGSTOP)
        victim, other = sorted(first)
        os.kill(victim, signal.SIGKILL)
        until(lambda: victim not in workers(), job)
        assert len(shards()) < FILES * ROWS / SHARD
        assert not output.exists()
        until(lambda: len(workers() - before - first) == 1, job)
        os.kill(other, signal.SIGCONT)
        said = job.communicate(timeout=CHILD_SECONDS)[1]
    finally:
        for worker in workers() - before:  # one that is stopped would not end
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)
        job.kill()
        job.communicate()
    assert job.returncode == 0, said
    check(output, source, minibert.load_encoder(minilm))
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


@pytest.mark.ray
def test_a_row_without_a_text_ends_the_job_and_leaves_nothing(address: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    texts = ["we"] * 100
    for i, bad in enumerate([[], [70]]):
        column = [None if row in bad else text for row, text in enumerate(texts)]
        ids = [f"row {100 * i + row}" for row in range(100)]
        parquet.write_table(pa.table({"name": ids, "body": pa.array(column)}), tmp_path / "input" / f"{i}.parquet")
    settings = ("--concurrency", 2, "--address", address, "--text-column", "body", "--rows-per-shard", 50)
    code, last = run(tmp_path / "input", tmp_path / "vectors", "--model", TINY, *settings)
    # the shards are of 50 rows: 150 + 20 = 170
    missing = "found NoneType, a missing value; leave the row out, or pass ''"
    message = f"texts[20] must be a str, {missing}; counted from the row with {{'name': 'row 150'}}"
    assert (code, last) == (1, f"bulk_ray.py: error: ValueError: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["input"]


@pytest.mark.ray
def test_one_file_and_the_whole_cluster(address: str, source: Path, tmp_path: Path) -> None:
    arguments = (source / "0.parquet", tmp_path / "vectors", "--model", TINY, "--address", address)
    (tmp_path / "vectors").mkdir()  # an empty folder is as good as none
    code, last = run(*arguments, "--concurrency", 3)
    assert code == 1
    assert last.endswith("--concurrency 3 needs 4 cores, one of them to read and write; this cluster has 3 now")
    assert not any((tmp_path / "vectors").iterdir())
    assert run(*arguments, "--concurrency", 1)[0] == 0
    found = parquet.read_table(tmp_path / "vectors")
    compare(np.stack(found["vector"].to_numpy()), minibert.load_encoder(TINY), found["text"].to_pylist())
    assert sorted(found["id"].to_pylist()) == list(range(ROWS))


# -- what needs no Ray ---------------------------------------------------------------------------------------------


def another(source: Path, name: str = "other.parquet", **columns: Any) -> None:
    shutil.rmtree(source)
    source.mkdir()
    parquet.write_table(pa.table(columns), source / name)


WRONG: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "used": (lambda source, output: (output / "a").mkdir(parents=True), "vectors: the folder is not empty; choose a"),
    "file": (lambda source, output: output.write_text("a"), "vectors: expected a folder, or nothing, found a file"),
    "gone": (lambda source, output: shutil.rmtree(source), "No such file or directory"),
    "no rows": (lambda source, output: another(source, text=[""][:0]), "column 'text' must hold texts, found null"),
    "no parquet": (
        lambda source, output: another(source, "a.txt", text=["a"]),
        r"input: expected .* \*.parquet, found",
    ),
    "no column": (lambda source, output: another(source, body=["a"]), "expected a column 'text'; it has 'body'; name"),
    "numbers": (lambda source, output: another(source, text=[1]), "column 'text' must hold texts, found int64"),
    "vectors": (lambda source, output: another(source, text=["a"], vector=[1]), "a column 'vector' already; rename"),
    "unequal": (
        lambda source, output: parquet.write_table(pa.table({"text": [b"a"]}), source / "other.parquet"),
        "expected the columns of .*0.parquet:\n",
    ),
    "damaged": (lambda source, output: (source / "x.parquet").write_text("a"), "x.parquet: not readable as Parquet"),
    "blocks": (
        lambda source, output: shutil.copytree(REFERENCE / "convbert", output.with_name("model"), dirs_exist_ok=True),
        "but no blocks; .*; minibert.load loads the",
    ),
    "inside": (lambda source, output: (source, source / "vectors"), "lies in"),
    "no ending": (
        lambda source, output: ((source / "0.parquet").rename(output.with_name("rows")), output),
        "rows: the file must end in .parquet",
    ),
    "no model": (lambda source, output: output.with_name("model").joinpath("config.json").unlink(), "no config.json"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_done_is_refused_before_anything_starts(
    source: Path, tmp_path: Path, capsys: Printed, monkeypatch: Patch, change: Any, message: str
) -> None:
    shutil.copytree(source, tmp_path / "input")
    shutil.copytree(TINY, tmp_path / "model")
    output = tmp_path / "vectors"
    given = change(tmp_path / "input", output)
    given = given if isinstance(given, tuple) else (tmp_path / "input", output)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(script, "start", lambda *_: pytest.fail("Ray was started"))
    arguments = [*given, "--model", tmp_path / "model", "--concurrency", 1]
    assert script.main(list(map(str, arguments))) == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(capsys.readouterr().err)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_lacks_rows_never_gets_the_output_s_name(tmp_path: Path) -> None:
    (tmp_path / "unfinished").mkdir()
    parquet.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "unfinished" / "0.parquet")
    with pytest.raises(ValueError, match=r"\b3 .* 2\b"):
        script.finish(tmp_path / "unfinished", tmp_path / "vectors", 3)
    assert not (tmp_path / "vectors").exists()
    script.finish(tmp_path / "unfinished", tmp_path / "vectors", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


def test_without_ray_it_says_what_to_install(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"2.60"):
        script.start("127.0.0.1:1", 1)


def test_all_workers_get_the_commit_that_the_branch_had_at_the_start(tmp_path: Path, monkeypatch: Patch) -> None:
    arguments = script.arguments_of(["in", "out", "--model", "someone/tiny", "--concurrency", "1"])
    with hub_of(monkeypatch, tmp_path / "home", "someone/tiny", TINY):
        assert commit_of("someone/tiny").encode() in pickle.dumps(script.encoder_of(arguments))


@pytest.mark.parametrize(("count", "ahead"), [(1, False), (2, True)])
def test_with_one_thread_nothing_is_tokenized_on_another(count: int, ahead: bool, tmp_path: Path) -> None:
    """`threads` decides, not the number of cores: with a process for each core, each has one thread."""
    texts = ["we"] * 2049  # more than one chunk
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    asked = mock.Mock(side_effect=prefetch)
    with mock.patch("minibert.models.run.pipeline.prefetch", asked), mock.patch("minibert.bulk.job.prefetch", asked):
        minibert.load_encoder(TINY, threads=count).encode(texts)
        opened = open_vectors(TINY, threads=count)
        with opened.model:
            bulk(Texts([str(tmp_path / "texts.txt")]), tmp_path / "out", opened, {})
    assert [call.args[1] for call in asked.call_args_list] == [ahead] * 3


MANY = 500_000  # their vectors are 730 MiB
MORE = 1.25  # as a share; measured: 1.12 of four times as many

RUN = """
import sys
from minibert.cli import main
code = main(sys.argv[1:])
with open("/proc/self/status") as status:  # getrusage counts the process that started this one, too
    print(next(line for line in status if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""


@pytest.mark.release
@pytest.mark.skipif(sys.platform != "linux", reason="a process's peak of memory is Linux's to say")
@pytest.mark.parametrize("form", FORMATS)
def test_half_a_million_short_texts(form: str, tmp_path: Path) -> None:
    """For ten times as many texts, the peak of memory is still a few shards; a static model makes the test fast."""
    random, peaks, model = Random(0), list[int](), static_folder(tmp_path / "model", embeddings=numbers(VOCAB, 384))
    for count in (MANY // 10, MANY):
        source, out = tmp_path / "a.txt", tmp_path / "out"
        with source.open("w", encoding="utf-8") as file:
            file.writelines(" ".join(random.choices(WORDS, k=random.randint(3, 12))) + "\n" for _ in range(count))
        argv = ["bulk", source, "-o", out, "-m", model, "--format", form]
        done = subprocess.run([sys.executable, "-c", RUN, *argv], stdout=subprocess.PIPE, text=True, check=True)
        assert StoredVectors(out).rows == count
        shutil.rmtree(out)  # 0.8 GB
        peaks.append(int(done.stdout))
    assert peaks[1] < MORE * peaks[0]
