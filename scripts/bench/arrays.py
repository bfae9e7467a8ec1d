"""Sections that measure calls within one process: forward, embed, growth, search."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import minibert
from minibert.bulk import job
from minibert.bulk.stored import StoredVectors
from minibert.bulk.texts import arrow
from minibert.equations.quantization import STEPS, quantized, ranges_of
from minibert.equations.sentences import normalized
from minibert.threads.cores import cores

from .children import Peak, child, kibibytes, there
from .measure import MIB, OURS, Figures, Limit, Row, Settings, timed
from .models import NARROW, full_size, narrow, real_model, short_texts

Array = Any
SHAPES = ((1, 7), (1, 512), (8, 128), (32, 128), (64, 512))
AGAINST_REFERENCE = {
    "bert": dict(zip(SHAPES, (Limit(">=", 1.5, aim=2.5), Limit(">=", 0.7, aim=1.0), Limit(">=", 0.7, aim=1.0),
                              Limit(">=", 1.3), Limit(">=", 6)), strict=True)),
    "gpt2": {**dict.fromkeys(SHAPES, Limit(">=", 0.9)), (64, 512): Limit(">=", 2)},
}  # fmt: skip
GATHER = {"bert": Limit(">=", 0.4)}


def forward(settings: Settings) -> Iterable[Row]:
    """The layer with all its checks, against the reference's module and against gathering the rows alone."""
    for model_type in ("bert", "gpt2"):
        folder = full_size(settings.models, model_type)
        module = reference(folder, model_type, cores()) if there("transformers") else None
        with minibert.load(folder) as layer:
            for shape in SHAPES:
                yield from _forward(settings, model_type, layer, module, shape)
    for shape in SHAPES:
        yield from _narrow(settings, shape)


def _forward(settings: Settings, model_type: str, layer: Any, module: Any, shape: tuple[int, int]) -> list[Row]:
    """One shape. Ids are the same in every call: their rows are in the caches, for the reference as for us."""
    table = next(iter(layer.modules.values())).weight
    ids = np.random.default_rng(0).integers(0, len(table), shape)
    copied = np.ones((*shape, layer.dim), np.float32)
    calls: dict[str, Callable[[], Any]] = {
        OURS: lambda: layer(ids),
        "threads=1": lambda: layer(ids, threads=1),
        "the rows alone, np.take": lambda: np.take(table, ids, axis=0, mode="clip"),
        "a copy of as much": copied.copy,
    }
    note, peers, context = "", {}, nullcontext()
    if module is not None:
        note, peers, context = _reference(module, ids, layer(ids))
    with context:
        times = timed(calls | peers, settings.rounds(15))
    what = f"{model_type} {shape[0]} x {shape[1]}"
    row = partial(times.row, faster=True)
    # with one thread and with all in every round; the faster one is the peer: threads that sleep are slow to wake
    peer = times.fastest(*peers, *([] if peers else ["transformers"]))
    limit = AGAINST_REFERENCE[model_type][shape]
    rows = [row(what, peer, OURS, limit=limit, note=note)]
    if shape == SHAPES[-1]:  # larger than any cache: here memory sets the limit
        take, limit = "the rows alone, np.take", GATHER.get(model_type)
        rows += [row(what, take, OURS, limit=limit), row(what, "a copy of as much", OURS)]
    if shape[0] > 1:
        rows.append(row(what, "threads=1", OURS))
    return rows


def _reference(module: Any, ids: Array, ours: Array) -> tuple[str, dict[str, Callable[[], Any]], Any]:
    """How far the reference's result is from ours, its calls, ready to be timed, and the mode they are to run in."""
    import torch

    tensor = torch.from_numpy(ids)
    with torch.inference_mode():
        theirs = module(tensor).numpy()
    far = float(np.max(np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))))

    def call(threads: int) -> Any:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return module(tensor)

    calls = {f"transformers, {n} thread{'s' * (n > 1)}": partial(call, n) for n in {1, cores()}}
    return f"results differ by {far:.1g}", calls, torch.inference_mode()


def reference(folder: Path | str, model_type: str, threads: int) -> Callable[[Any], Any]:
    """The input layer of transformers' own model, in eval mode: ids (a torch tensor) -> a torch tensor.

    Call it under `torch.inference_mode()`. GPT2Model has no module for its input layer; these are the lines of its
    forward that come before the first block.
    """
    import torch
    from transformers import BertModel, GPT2Model
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # of the blocks, which these files leave out
    torch.set_num_threads(threads)
    if model_type == "bert":
        embeddings = BertModel.from_pretrained(folder, add_pooling_layer=False).eval().embeddings
        return lambda ids: embeddings(input_ids=ids)
    model = GPT2Model.from_pretrained(folder).eval()
    return lambda ids: model.drop(model.wte(ids) + model.wpe(torch.arange(ids.shape[1]).unsqueeze(0)))


def _narrow(settings: Settings, shape: tuple[int, int]) -> list[Row]:
    folders = {"F32": full_size(settings.models, "bert")} | {key: narrow(settings.models, key) for key in NARROW}
    layers = {stored: minibert.load(folder) for stored, folder in folders.items()}
    ids = np.random.default_rng(0).integers(0, 30522, shape)
    times = timed({stored: partial(layer, ids) for stored, layer in layers.items()}, settings.rounds(15))
    what, limit = f"tables, {shape[0]} x {shape[1]}", Limit("<=", 1.5)
    return [
        times.row(f"{name} {what}", "F32", stored, against="float32 tables", limit=limit)
        for stored, name in NARROW.items()
    ]


# -- embed -------------------------------------------------------------------------------------------------------

TEXTS = 20_000
IN_THREADS, ONE_BY_ONE = "model2vec, batches in threads", "model2vec, one batch after another"


def embed(settings: Settings) -> list[Row]:
    """20,000 short texts to vectors: the whole input layer against model2vec's mean of rows, and tokenizing alone."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(real_model() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts = short_texts(real_model(), TEXTS)
    with minibert.load(real_model()) as layer:
        calls: dict[str, Callable[[], Any]] = {
            OURS: lambda: layer.embed(texts, pooling="mean"),
            "threads=1": lambda: layer.embed(texts, pooling="mean", threads=1),
            "tokenizing alone": lambda: tokenizer.encode_batch_fast(texts),
        }
        if there("model2vec"):
            calls |= _model2vec(np.array(layer.word_embeddings.weight), tokenizer, texts)
        times = timed(calls, settings.rounds(9))
    tokens, what = sum(len(one.ids) for one in tokenizer.encode_batch_fast(texts)), f"embed {TEXTS} texts, mean"
    peer = times.fastest(IN_THREADS, ONE_BY_ONE)  # both settings run in every round; the faster one is the peer
    return [
        times.row(what, peer, faster=True, limit=Limit(">=", 0.7, aim=1.0),
                  note="it takes no positions, no norm, no special tokens"),
        times.row(what, "tokenizing alone", limit=Limit("<=", 1.8, aim=1.4),
                  note=f"{tokens / TEXTS:.1f} tokens a text"),
        times.row(what, "threads=1", faster=True),
    ]  # fmt: skip


def _model2vec(table: Array, tokenizer: Any, texts: list[str]) -> dict[str, Callable[[], Any]]:
    from model2vec import StaticModel

    model = StaticModel(table, tokenizer)

    def encode(several: bool) -> Any:
        before = os.environ.get("TOKENIZERS_PARALLELISM")
        try:
            return model.encode(texts, use_multiprocessing=several)
        finally:  # it switches the tokenizer's own threads off, for everyone in the process and for good
            os.environ.pop("TOKENIZERS_PARALLELISM", None)
            if before is not None:
                os.environ["TOKENIZERS_PARALLELISM"] = before

    return {IN_THREADS: lambda: encode(True), ONE_BY_ONE: lambda: encode(False)}


# -- growth ------------------------------------------------------------------------------------------------------


def growth(settings: Settings) -> Iterable[Row]:
    """Time a token of bert-base's layer from 2^10 to 2^20 tokens, in sequences of 512."""
    largest = 16 if settings.quick else 20
    while largest > 10 and 2 * 2**largest * 768 * 4 > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"):
        largest -= 1
    powers = range(10, largest + 1, 2)
    with minibert.load(full_size(settings.models, "bert")) as layer:
        ids = np.random.default_rng(0).integers(0, 30522, (2**largest // 512, 512))
        batches = {f"at 2^{power}": 2**power // 512 for power in powers}
        times = timed({name: partial(layer, ids[:batch]) for name, batch in batches.items()}, settings.rounds(5))
    each = Figures({name: [seconds / batches[name] / 512 for seconds in times[name]] for name in times})
    slowest, fastest = ([pick(found) for found in zip(*each.values(), strict=True)] for pick in (max, min))
    both = Figures({OURS: slowest, "the fastest size": fastest})
    what, note = "time a token, the slowest size of a round", f"2^10 to 2^{largest} tokens"
    yield both.row(what, "the fastest size", limit=Limit("<=", 2), note=note)
    for name in list(each)[1:]:
        yield each.row(f"time a token {name}", "at 2^10", name)


# -- search ------------------------------------------------------------------------------------------------------

ROWS, DIM, SHARD = 1_000_000, 384, 16_384
PRODUCT = "vectors @ queries.T"
OWN = Limit("<=", 250, "MiB")
MEASURED = (
    ("arrow", "float32"), ("arrow", "float16"), ("arrow", "int8"), ("arrow", "ubinary"), ("parquet", "float32"),
)  # fmt: skip


def search(settings: Settings) -> Iterable[Row]:
    """Ten best rows of a million made-up vectors in a folder as `bulk` writes it, for one question and for 16 at once.

    The peer is the product with the same million in one array in memory, with nothing sorted. A folder stays mapped
    between searches; the first search of a process maps it, which takes as long as comparing, and does not count.
    Memory is what belongs to the searching process alone (RssAnon), so the mapped files do not count.
    """
    vectors = np.empty((ROWS // 10 if settings.quick else ROWS, DIM), np.float32)
    generator = np.random.default_rng(0)
    for start in range(0, len(vectors), SHARD):
        some = vectors[start : start + SHARD]
        some[:] = normalized(generator.standard_normal(some.shape, np.float32))
    for form, precision in MEASURED:
        what = f"{form}, {precision}"
        folder = settings.models / f"search-{len(vectors)}-{form}-{precision}"
        if not folder.exists():
            _write(folder, vectors, form, precision)
        stored, plain = StoredVectors(folder), what == "arrow, float32"  # this has a limit; a look is enough at others
        for number in (1, 16) if plain else (16,):
            queries = _questions(number)
            calls = {OURS: partial(stored.search, queries, 10), PRODUCT: partial(np.matmul, vectors, queries.T)}
            times = timed(calls, settings.rounds(7 if plain else 3))
            asked = f"{number} question{'s' * (number > 1)}, {len(vectors):,} vectors, {what}"
            yield times.row(asked, PRODUCT, limit=Limit("<=", 1.5) if plain else None)
        before, most = child("arrays.search_memory", folder)
        own = most - before
        yield Row(
            f"its own memory, 16 questions, {what}", f"{own / MIB:.1f} MiB", limit=str(OWN), met=OWN.met(own / MIB),
            note=f"and {before / MIB:.1f} MiB of Python, NumPy and minibert", figures=(own, before),
        )  # fmt: skip


def _questions(number: int) -> Array:
    return normalized(np.random.default_rng(1).standard_normal((number, DIM)).astype(np.float32))


def _write(folder: Path, vectors: Array, form: str, precision: str) -> None:
    """Write a folder as a run of `bulk` leaves it."""
    ranges = ranges_of(vectors[:SHARD]) if precision in STEPS else None
    said: dict[str, Any] = {
        "model_path": "", "model_sha256": {}, "commit": None, "cut": 0, "skipped": 0, "left_out": [],
        "text_column": "text", "id_column": None, "columns": {"id": "int64", "text": "string"},
        "result": "dense", "dim": DIM, "precision": precision, "similarity": "cosine", "normalized": True,
        "ranges": None if ranges is None else ranges.tolist(),
    }  # fmt: skip
    with job.locked(folder) as check:
        for number, start in enumerate(range(0, len(vectors), SHARD)):
            some = quantized(vectors[start : start + SHARD], precision, ranges)
            ids, end = range(start, start + len(some)), start + len(some)
            table = arrow().table({"id": ids, "text": [""] * len(some), "vector": job.column_of(some)})
            counts = {"shards": number + 1, "read": end, "rows": end, "at": end - 1, "last": end == len(vectors)}
            job.write_shard(folder / f"vectors-{number:05}.{form}", table, {**said, **counts}, check)


def search_memory(folder: str) -> tuple[int, int]:
    """In a process of its own: what belongs to it before, and at most while it searches."""
    stored, queries, before = StoredVectors(Path(folder)), _questions(16), kibibytes("status", "RssAnon")
    peak = Peak()
    numbers, _ = stored.search(queries, 10)
    stored.ids(numbers.ravel().tolist())
    return before, peak.most
