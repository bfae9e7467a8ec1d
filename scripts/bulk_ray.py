#!/usr/bin/env python3
"""Parquet in, the same rows with a vector each out, on one machine or many.

    python scripts/bulk_ray.py ./questions ./vectors --concurrency 8 \\
        --model sentence-transformers/all-MiniLM-L6-v2

Ray Data reads, calls `encode` in N workers, and writes. INPUT, OUTPUT
and a model's folder must be paths that every machine sees, as on a network
disk, and every machine needs minibert, pyarrow and Ray: `pip install '.[ray]'`
in a clone. Without --address (and RAY_ADDRESS) Ray is started on this machine, for this job alone.

OUTPUT appears only when everything is done: until then the shards are in a folder beside it. All columns of INPUT stay,
and `vector` is added, a list of float32 of fixed size. The order of rows may change: keep a column that identifies
them. If a worker dies, Ray replaces it and computes its shard again. On one machine `minibert bulk` needs no Ray, and
can resume after it was killed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import minibert
from minibert.bulk.job import ROWS_PER_SHARD
from minibert.bulk.texts import VECTOR, arrow
from minibert.commands.common import add_prompts

if TYPE_CHECKING:
    import pyarrow as pa

# advice in an error, as an argument of a function -> the option to type here; Ray keeps only the text of a worker's
# error
IN_SHELL = {"local_files_only=True": "--local-files-only"}


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("bulk_ray.py", description=__doc__, formatter_class=raw)
    parser.add_argument("input", type=Path, metavar="INPUT", help="a Parquet file, or a folder of *.parquet")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="a folder that is not there, or empty")
    parser.add_argument("-m", "--model", required=True, metavar="M", help="a folder, or a name on the Hub")
    parser.add_argument(
        "--concurrency", type=int, required=True, metavar="N",
        help="how many workers, each on one core; the cluster needs one core more, for reading and writing",
    )  # fmt: skip
    parser.add_argument("--address", metavar="A", help="of a Ray cluster that runs (default: RAY_ADDRESS, or none)")
    parser.add_argument("--text-column", default="text", metavar="NAME", help="the column of the texts (default: text)")
    parser.add_argument(
        "--rows-per-shard", type=int, default=ROWS_PER_SHARD, metavar="N",
        help="at most so many rows in a file of OUTPUT; a worker that dies loses as many (default: %(default)s)",
    )  # fmt: skip
    add_prompts(parser)
    parser.add_argument("--revision", metavar="R", help="a branch, tag or commit on the Hub")
    parser.add_argument("--local-files-only", action="store_true", help="use what is cached, ask no Hub")
    arguments = parser.parse_args(argv)
    for option in ("concurrency", "rows_per_shard"):
        if getattr(arguments, option) < 1:
            parser.error(f"--{option.replace('_', '-')} must be 1 or more, found {getattr(arguments, option)}")
    return arguments


def rows_of(source: Path, text_column: str) -> int:
    """Count the rows by the files' footers, and refuse files that cannot become vectors before anything starts."""
    pa = arrow()
    from pyarrow import parquet

    files = [source]
    if source.is_dir():  # the files that Ray will read
        inside = sorted(path for path in source.rglob("*") if str(path.relative_to(source))[0] not in "._")
        files = [path for path in inside if path.suffix.lower() == ".parquet" and path.is_file()]
    elif source.is_file() and source.suffix.lower() != ".parquet":
        raise ValueError(f"{source}: the file must end in .parquet, or Ray passes over it; give it another name")
    if not files:
        raise ValueError(f"{source}: expected a folder with *.parquet, found none of them")
    rows, first = 0, None
    for path in files:
        try:
            with parquet.ParquetFile(path) as file:
                rows, schema = rows + file.metadata.num_rows, file.schema_arrow.remove_metadata()
        except pa.ArrowInvalid as error:
            raise ValueError(f"{path}: not readable as Parquet ({error}); is it whole?") from None
        first = first or schema
        if schema != first:  # Ray would drop columns of one of the two files, or convert its numbers
            raise ValueError(f"{path}: expected the columns of {files[0]}:\n{first}\nfound others:\n{schema}")
    if first.names.count(text_column) != 1:
        found = ", ".join(map(repr, first.names))
        raise ValueError(f"{files[0]}: expected a column {text_column!r}; it has {found}; name it with --text-column")
    kind = first.field(text_column).type
    if str(kind.value_type if pa.types.is_dictionary(kind) else kind) not in ("string", "large_string", "string_view"):
        raise ValueError(f"{files[0]}: column {text_column!r} must hold texts, found {kind}; convert it")
    if VECTOR in first.names:
        raise ValueError(f"{files[0]}: there is a column {VECTOR!r} already; rename it")
    if not rows:
        raise ValueError(f"{source}: expected rows, found none")
    return rows


def refuse_used(output: Path, source: Path) -> None:
    if output.is_dir() and any(output.iterdir()):
        raise ValueError(f"{output}: the folder is not empty; choose a new one")
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output}: expected a folder, or nothing, found a file; choose a new folder")
    if source in output.parents:
        raise ValueError(f"{output}: lies in {source}, which is to be read; choose a folder outside")


def encoder_of(arguments: argparse.Namespace) -> minibert.Encoder:
    """Open the model once here: errors come before anything starts, and all workers load the same commit."""
    named = {"revision": arguments.revision, "local_files_only": arguments.local_files_only}
    encoder = minibert.load_encoder(arguments.model, **named)
    encoder.encode([], prompt_name=arguments.prompt_name, prompt=arguments.prompt)  # raises for a prompt it lacks
    return encoder


def start(address: str | None, workers: int) -> None:
    """Join a cluster, or start Ray here. Raises ValueError if the workers would leave no core to read and write."""
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    here: dict[str, Any] = {}
    if address == "local":
        here = dict(num_cpus=workers + 1, include_dashboard=False)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # without a cluster Ray listens only on 127.0.0.1, under any host name
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(f"this needs Ray Data ({error}): pip install 'ray[data]>=2.60'") from None
    ray.init(address, **here)
    cores = ray.cluster_resources().get("CPU", 0)
    if cores < workers + 1:  # Ray would wait forever for a core to read on, and the workers for their input
        needs = f"--concurrency {workers} needs {workers + 1} cores, one of them to read and write"
        raise ValueError(f"{needs}; this cluster has {cores:g} now")


def write(source: Path, folder: Path, encoder: minibert.Encoder, arguments: argparse.Namespace) -> None:
    """The job itself. Each worker gets the encoder as its name and options, and opens it there."""
    import ray

    texts, prompts = arguments.text_column, {"prompt_name": arguments.prompt_name, "prompt": arguments.prompt}

    class Worker:
        """One actor. Tables stay Arrow's: NumPy would change null, nested and other columns."""

        def __init__(self) -> None:
            # tokenizers would start a thread for each of the machine's cores in each of its workers
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

        def __call__(self, table: pa.Table) -> pa.Table:
            import pyarrow as pa

            try:
                vectors = encoder.encode(table[texts], **prompts)
            except (TypeError, ValueError) as error:
                first = table.slice(0, 1).drop_columns([texts]).to_pylist()[0]
                raise ValueError(f"{error}; counted from the row with {first}") from None
            # Ray would turn an array into its own tensor type, which no other program reads
            rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
            return table.append_column(VECTOR, rows)

    ray.data.DataContext.get_current().enable_progress_bars = sys.stderr.isatty()
    # a folder, not a list of its files: for a list Ray 2.60 imports on several threads at once, and fails
    rows = ray.data.read_parquet(str(source)).repartition(target_num_rows_per_block=arguments.rows_per_shard)
    # With one core each Ray sets OMP_NUM_THREADS=1, and OpenBLAS obeys. Measured with two workers on two cores: two
    # threads each cost 1.6 to 2.3 times the processor's time
    workers = ray.data.ActorPoolStrategy(size=arguments.concurrency)
    made = rows.map_batches(Worker, batch_size=None, batch_format="pyarrow", compute=workers, num_cpus=1)
    made.write_parquet(str(folder))


def finish(folder: Path, output: Path, rows: int) -> None:
    """Rename the folder to OUTPUT after a check that every row is in it."""
    from pyarrow import parquet

    found = sum(parquet.read_metadata(path).num_rows for path in folder.glob("*.parquet"))
    if found != rows:
        asked = "do all machines see this folder, and has the input changed meanwhile?"
        raise ValueError(f"{folder}: expected {rows:,} rows, found {found:,}; {asked}")
    if output.exists():
        output.rmdir()  # it is empty: checked before
    folder.rename(output)


def run(arguments: argparse.Namespace) -> None:
    source, output = arguments.input.absolute(), arguments.output.absolute()
    refuse_used(output, source)
    rows = rows_of(source, arguments.text_column)
    encoder = encoder_of(arguments)
    folder = output.with_name(f"{output.name}.unfinished-{token_hex(4)}")
    start(arguments.address, arguments.concurrency)
    try:
        folder.mkdir(parents=True)
        write(source, folder, encoder, arguments)
    except BaseException:
        remove(folder)
        raise
    finish(folder, output, rows)
    print(f"bulk_ray.py: wrote {output}: {rows:,} rows with vectors of {arguments.model}", file=sys.stderr)


def remove(folder: Path) -> None:
    """Remove an unfinished folder; it is renamed first, so that a worker cannot write to it any more."""
    gone = folder.with_name(f"{folder.name}.gone")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def in_words(error: Exception) -> str:
    """Ray keeps only the text of a worker's error, as the first of several tracebacks."""
    text = str(error)
    if type(error).__module__.startswith("ray."):
        text = text.partition("\n\nThe above exception was the direct cause")[0].rstrip().rpartition("\n")[2]
    for advice, typed in IN_SHELL.items():
        text = text.replace(advice, typed)
    return text


def main(argv: list[str] | None = None) -> int:
    arguments = arguments_of(argv)
    try:
        run(arguments)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001  a person at a terminal is told what is wrong, not where in the code
        print(f"bulk_ray.py: error: {in_words(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
