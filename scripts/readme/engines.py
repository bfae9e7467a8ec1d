#!/usr/bin/env python3
"""Vectors in any engine that calls a function on batches of rows; each recipe is tried, and compared with one process.

    encoder = minibert.load_encoder("sentence-transformers/all-MiniLM-L6-v2")
    dataset = datasets.load_dataset("parquet", data_files="questions/*.parquet", split="train")
    dataset = dataset.map(lambda batch: {"vector": encoder.encode(batch["text"])}, batched=True, num_proc=2)

    python scripts/readme/engines.py MODEL        tries each engine that is installed, and prints a table

An engine must send the encoder to its workers and call a function on batches. (The pickle has under 4 kB: the name, for
the Hub with its commit, and the options; each worker opens the model.) You must limit BLAS to one thread in each
worker, OPENBLAS_NUM_THREADS=1, or the workers compete for the cores. A model's folder must have the same path
everywhere.

Tried with: datasets 5.2.0, polars 2.1.0 (threads of one process), dask 2026.8.0, daft 0.7.26, pyspark 4.3.0 (Java 17,
and in the workers' Python minibert, pandas and pyarrow), each on one machine. For Ray see scripts/bulk_ray.py.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported, here and in each worker
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import numpy as np

import minibert

TEXTS = [f"text {i}, one of many {'long ' * (i % 7)}texts" for i in range(40)]
# per number: a sentence's last bits change with its batch, and engines choose batches differently; measured: 1.0e-7
CLOSE = 1e-6


def datasets(encoder: minibert.Encoder, texts: list[str], dim: int) -> Any:
    from datasets import Dataset

    rows = Dataset.from_dict({"text": texts})
    return rows.map(lambda batch: {"vector": encoder.encode(batch["text"])}, batched=True, num_proc=2)["vector"]


def polars(encoder: minibert.Encoder, texts: list[str], dim: int) -> Any:
    import polars as pl

    kind = pl.Array(pl.Float32, dim)
    vectors = lambda column: pl.Series(encoder.encode(column), dtype=kind)  # noqa: E731
    frame = pl.LazyFrame({"text": texts}).with_columns(vector=pl.col("text").map_batches(vectors, return_dtype=kind))
    return frame.collect()["vector"].to_numpy()


def dask(encoder: minibert.Encoder, texts: list[str], dim: int) -> Any:
    from dask import bag

    parts = bag.from_sequence(texts, npartitions=4).map_partitions(lambda part: encoder.encode(list(part)))
    return parts.compute(scheduler="processes", num_workers=2)


def daft(encoder: minibert.Encoder, texts: list[str], dim: int) -> Any:
    import daft

    @daft.func.batch(return_dtype=daft.DataType.fixed_size_list(daft.DataType.float32(), dim))
    def vectors(column: daft.Series) -> Any:
        return list(encoder.encode(column.to_pylist()))

    return daft.from_pydict({"text": texts}).with_column("vector", vectors(daft.col("text"))).to_pydict()["vector"]


def pyspark(encoder: minibert.Encoder, texts: list[str], dim: int) -> Any:
    from pyspark.sql import SparkSession

    def vectors(batches: Any) -> Any:
        for frame in batches:
            yield frame.assign(vector=list(encoder.encode(frame["text"])))

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    frame = spark.createDataFrame([(text,) for text in texts], "text string")
    return [row.vector for row in frame.mapInPandas(vectors, "text string, vector array<float>").collect()]


ENGINES: dict[str, Callable[[minibert.Encoder, list[str], int], Any]] = {
    "datasets": datasets, "polars": polars, "dask": dask, "daft": daft, "pyspark": pyspark,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, or a name on the Hub")
    parser.add_argument("engines", nargs="*", help=f"of {', '.join(ENGINES)} (default: those that are installed)")
    arguments = parser.parse_args()
    encoder = minibert.load_encoder(arguments.model)
    want = encoder.encode(TEXTS)
    worst = 0.0
    print("| engine | version | largest difference |\n| --- | --- | --- |")
    for name in arguments.engines or [name for name in ENGINES if importlib.util.find_spec(name)]:
        found = np.array([np.asarray(vector) for vector in ENGINES[name](encoder, TEXTS, want.shape[1])], np.float32)
        off = float(np.abs(found - want).max())
        worst = max(worst, off)
        print(f"| {name} | {importlib.metadata.version(name)} | {off:.1e} |", flush=True)
    return int(worst > CLOSE)


if __name__ == "__main__":
    sys.exit(main())
