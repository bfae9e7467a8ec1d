"""Reads a folder of `bulk`: vectors block by block, the rows' ids, and their texts if the input still exists."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.quantization import BITS, PRECISIONS, dequantized, hamming, quantized
from minibert.equations.sentences import MAXSIMS, SIMILARITIES, dot
from minibert.errors import Option, error_of
from minibert.files.reading import read_object
from minibert.models.open.vectors import KINDS
from minibert.models.sentences.comparing import Given, Vectors, token_vectors_of
from minibert.models.sentences.search import BLOCK, search
from minibert.models.sentences.token_vectors import TokenVectors, by_tokens, changed

from .job import CHUNK, lines_of
from .manifest import BAD, MEND, META, Shard, check_complete, check_sizes, read_shards
from .parquet import read_columns, read_vectors
from .records import Records

TEXTS = 512  # whose token vectors are compared at once
MAPS = 256  # shards that stay mapped between searches, four million rows: mapping takes longer than comparing


class StoredVectors:
    """A complete folder of `bulk`: `StoredVectors("./vectors").search(encoder.encode_query(text), k=5)`.

    path, meta      the folder, and what its meta.json says
    rows, dim       how many vectors, and the numbers of one before quantization
    precision       how a number is stored: see `equations.quantization`
    late            whether a row has a vector for each token: then queries are lists of (tokens, dim)
    measure         the score's name: see `search`

    Vectors are mapped (.npy) or read in blocks (Parquet), never loaded whole: a search of a million .npy vectors of 384
    float32 numbers needs 14 MiB, and takes 1.05 to 1.1 times a bare matrix product (Parquet 12 times; int8 4 times;
    `scripts/bench search`). The first search of a process maps the files, which takes longer. Only the files' sizes are
    checked here; `check_folder` compares their sums.

    Raises ValueError for a folder that `bulk` has not made or not finished, that holds no row, or whose files have
    changed; OSError; ImportError for Parquet without pyarrow. All name the file.
    """

    def __init__(self, path: str | os.PathLike[str], similarity: str | None = None) -> None:
        """`similarity`: a name in `SIMILARITIES`, in place of what the model's folder says; or in `MAXSIMS`."""
        self.path = Path(path)
        self.meta = _meta(self.path)
        self.late = self.meta.get("similarity") in MAXSIMS
        if similarity is not None:
            if (similarity in MAXSIMS) is not self.late:
                known = ", ".join(MAXSIMS if self.late else SIMILARITIES)
                raise error_of(
                    ValueError,
                    Option("similarity_fn_name"),
                    f" of {self.path} must be one of {known}, found {similarity!r}",
                )
            self.meta["similarity"] = similarity
        self.shards = _shards(self.path, self.meta)
        self.precision: str = self.meta["precision"]
        self._maps: dict[str, Array] = {}
        self._ends = np.cumsum([shard.rows for shard in self.shards])
        self.rows, self.dim = int(self._ends[-1]), int(self.meta["dim"])
        if similarity is not None and self.precision in BITS:
            raise error_of(ValueError, Option("similarity_fn_name"), f" is without effect on {self.precision} vectors")
        self.measure = "minus the number of bits that differ" if self.precision in BITS else self.meta["similarity"]

    def search(self, queries: Given, k: int = 10) -> tuple[Array, Array]:
        """Give for each query the numbers and scores of the k best rows: (n, dim) float32 -> (n, k) twice.

        Of equal scores the first row comes first; fewer than k where there are no more rows. A score is the model's
        similarity of the query and the stored vector as float32 (for vectors of length 1, the dot product). With binary
        and ubinary it is minus the number of bits that differ.

        Raises ValueError for a k below 1, and for queries of another width.
        """
        wanted = token_vectors_of(queries, "queries") if self.late else np.atleast_2d(np.asarray(queries))
        width = wanted.shape[1] if isinstance(wanted, np.ndarray) else wanted.width if len(wanted) else self.dim
        if width != self.dim:
            raise ValueError(f"{self.path} has vectors of {self.dim} numbers, found queries of {width}")
        if self.precision in BITS and isinstance(wanted, np.ndarray):
            wanted = quantized(wanted, self.precision)
        return search(wanted, self.blocks(), k, self.compare)

    def compare(self, queries: Any, block: Any) -> Array:
        """Give the scores of a block of stored vectors: (n, dim), (m, dim) -> (n, m)."""
        if self.precision in BITS:
            return hamming(queries, block)
        if self.precision != "float32":
            block = changed(block, lambda rows: dequantized(rows, self.precision, self.meta.get("ranges")))
        name = self.meta["similarity"]
        if self.late:
            return by_tokens(name, queries, block)
        if name == "dot" or (name == "cosine" and self.meta["normalized"]):
            return np.ascontiguousarray(dot(block, queries).T)  # of many by few, BLAS is faster in this order
        return SIMILARITIES[name](queries, block)

    def blocks(self) -> Iterator[Vectors]:
        """Give all stored vectors, some thousand at a time: (m, dim), for `BITS` (m, ceil(dim / 8))."""
        width = -(-self.dim // 8) if self.precision in BITS else self.dim
        kind = np.dtype(PRECISIONS[self.precision])
        for shard in (shard for shard in self.shards if shard.rows):
            done, name = 0, _named(shard, "vectors-")
            for block in self._read(name, shard):
                rows = block.rows if isinstance(block, TokenVectors) else block
                if rows.dtype != kind or rows.ndim != 2 or rows.shape[1] != width:
                    raise ValueError(
                        f"{self.path / name}: expected vectors of {width} {kind}, found {rows.dtype} of shape "
                        f"{rows.shape}; {MEND}"
                    )
                done += len(block)
                yield block
            if done != shard.rows:
                raise ValueError(f"{self.path / name}: expected {shard.rows:,} vectors, found {done:,}; {MEND}")

    def _read(self, name: str, shard: Shard) -> Iterator[Array | TokenVectors]:
        if name.endswith(".parquet"):
            yield from read_vectors(str(self.path / name), TEXTS if self.late else BLOCK, self.late)
            return
        found = self._mapped(name)
        if self.late:
            offsets = self._mapped(name := _named(shard, "offsets-"))
            right = offsets.shape == (shard.rows + 1,) and offsets.dtype == np.int64
            if not right or offsets[0] != 0 or offsets[-1] != len(found) or (np.diff(offsets) < 0).any():
                raise ValueError(f"{self.path / name}: expected offsets of {shard.rows:,} texts; {MEND}")
            every = TokenVectors(found, offsets)
            yield from (every[start : start + TEXTS] for start in range(0, shard.rows, TEXTS))
            return
        yield from (found[start : start + BLOCK] for start in range(0, len(found), BLOCK))

    def _mapped(self, name: str) -> Array:
        found = self._maps.get(name)
        if found is None:
            try:
                found = np.lib.format.open_memmap(self.path / name, mode="r")
            except OSError:
                raise  # which names the file
            except Exception as error:  # noqa: BLE001  a damaged header is a TokenError, SyntaxError or OverflowError
                raise ValueError(f"{self.path / name}: not readable as .npy ({error}); {MEND}") from None
            if len(self._maps) < MAPS:
                self._maps[name] = found
        return found

    def ids(self, numbers: Iterable[int]) -> dict[int, int | str]:
        """Give the ids of rows by their numbers, counted from 0 through all shards."""
        found: dict[int, int | str] = {}
        for at, rows in self._by_shard(numbers).items():
            ids, before = self._ids(self.shards[at]), self._before(at)
            found.update((row, ids[row - before]) for row in rows)
        return found

    def _by_shard(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for row in sorted(set(numbers)):
            found.setdefault(int(np.searchsorted(self._ends, row, side="right")), []).append(row)
        return found

    def _before(self, at: int) -> int:
        return int(self._ends[at]) - self.shards[at].rows

    def _ids(self, shard: Shard) -> list[int | str]:
        if any(name.endswith(".parquet") for name in shard.files):
            name = _named(shard, "vectors-")
            ids: Any = read_columns(str(self.path / name), lambda names: ["id"])["id"]
        else:
            name = _named(shard, "ids-")
            try:
                ids = json.loads((self.path / name).read_bytes())
            except (ValueError, RecursionError):
                ids = None
        if not isinstance(ids, list) or len(ids) != shard.rows:
            raise ValueError(f"{self.path / name}: expected {shard.rows:,} ids; {MEND}")
        return ids

    # -- texts ---------------------------------------------------------------------------------------------------

    @cached_property
    def no_texts(self) -> str:
        """Why the texts cannot be read again; "" if they can, as far as is known."""
        for path, file in zip(self.meta["source"]["paths"], self.meta["input"], strict=True):
            if path is None:
                return "the texts came from stdin and were not stored"
            if not Path(path).is_file():
                return f"{path} is not there any more"
            if Path(path).stat().st_size != file["bytes"]:
                return f"{path} has changed since"
        return ""

    def texts(self, numbers: Collection[int]) -> dict[int, str]:
        """Read the texts of rows again, by their numbers; none if the input is gone or has changed: see `no_texts`.

        The input is read up to the last of these rows. Each shard's part that has one of them is compared with what was
        read when the vectors were made.
        """
        wanted, found = self._by_shard(numbers), dict[int, str]()
        if self.no_texts or not wanted:
            return {}
        source = self.meta["source"]
        try:
            records = Records(source["paths"], self.meta["text_column"], self.meta["id_column"], source["format"])
            rows, bad = iter(records), self._bad_rows()
            for at, shard in enumerate(self.shards[: max(wanted) + 1]):
                left_out = set(islice(bad, shard.read - shard.rows))
                if at not in wanted:
                    records.pass_over(shard.read)
                    continue
                row, left, lines = self._before(at), shard.read, hashlib.sha256()
                while chunk := list(islice(rows, min(left, CHUNK))):
                    left -= len(chunk)
                    lines.update(lines_of(chunk))
                    good = [record for record in chunk if (Path(record.file).name, record.row) not in left_out]
                    texts = {row + i: record.text or "" for i, record in enumerate(good)}
                    found.update((number, texts[number]) for number in wanted[at] if number in texts)
                    row += len(good)
                if lines.hexdigest() != shard.input_sha256:
                    raise ValueError(f"{' or '.join(source['paths'])} has changed since")
                if row != self._ends[at]:
                    raise ValueError(f"{self.path / BAD} is not what was written")
        except (ValueError, KeyError, TypeError, OSError, ImportError) as error:
            self.no_texts = str(error)
            return {}
        return found

    def _bad_rows(self) -> Iterator[tuple[str, int]]:
        """Give the rows without a vector, in the order in which they were read."""
        if not self.shards[-1].bad_bytes:
            return
        with open(self.path / BAD, encoding="utf-8") as file:
            for line in file:
                bad = json.loads(line)
                yield Path(bad["file"]).name, bad["row"]


def _meta(path: Path) -> dict[str, Any]:
    if not (path / META).is_file():
        missing = f"there is no {META} in it" if path.is_dir() else "there is no such folder"
        raise ValueError(f"{path}: {missing}; name a folder that bulk wrote")
    return read_object(path / META, ValueError, MEND)


def _shards(path: Path, meta: dict[str, Any]) -> list[Shard]:
    """Read and check the shards, also those that had only bad rows."""
    shards, _ = read_shards(path)
    check_complete(path, meta, shards)
    if meta.get("vectors") not in KINDS:
        raise ValueError(
            f"{path}: expected one vector for each text ({' or '.join(KINDS)}), found vectors "
            f"{meta.get('vectors')!r}; write others with bulk"
        )
    expected = {"similarity": (*SIMILARITIES, *MAXSIMS), "normalized": (True, False), "precision": tuple(PRECISIONS)}
    wrong = [name for name, values in expected.items() if meta.get(name) not in values]
    kinds = {"source": dict, "sha256": dict, "input": list, "dim": int}
    wrong += [name for name, kind in kinds.items() if not isinstance(meta.get(name), kind)]
    wrong += sorted({"model", "commit", "text_column", "id_column"} - meta.keys())
    if not wrong:  # each input has a path or came from stdin
        source, paths = meta["source"], meta["source"].get("paths")
        named = isinstance(paths, list) and all(path is None or isinstance(path, str) for path in paths)
        sizes = all(isinstance(each, dict) and "bytes" in each for each in meta["input"])
        known = isinstance(source.get("model"), str) and "format" in source
        wrong = [] if named and sizes and known and len(paths) == len(meta["input"]) else ["source"]
    if wrong:
        raise ValueError(f"{path / META}: it has no {wrong[0]!r}, so another version wrote it; run bulk again")
    if not any(shard.rows for shard in shards):
        raise ValueError(f"{path}: it holds no vectors, since its input had no good row")
    check_sizes(path, shards)
    return shards


def _named(shard: Shard, start: str) -> str:
    return next(name for name in shard.files if name.startswith(start))
