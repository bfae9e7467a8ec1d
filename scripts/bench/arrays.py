"""Sections that measure calls within one process: forward, embed, growth."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

import minibert
from minibert.threads.cores import cores

from .measure import Limit, Row, Settings, absent, compare, installed, interleaved, unmeasured
from .models import BULK_TEXTS, NARROW, full_size, has_reference, narrow, real_model, reference, short_texts

Array = Any
SHAPES = ((1, 7), (1, 512), (8, 128), (32, 128), (64, 512))
AGAINST_REFERENCE = {
    "bert": dict(zip(SHAPES, (Limit(">=", 1.5, aim=2.5), Limit(">=", 0.7, aim=1.0), Limit(">=", 0.7, aim=1.0),
                              Limit(">=", 1.3), Limit(">=", 6)), strict=True)),
    "gpt2": {**dict.fromkeys(SHAPES, Limit(">=", 0.9)), (64, 512): Limit(">=", 2)},
}  # fmt: skip
GATHER = {"bert": Limit(">=", 0.4)}
NARROW_TIME = Limit("<=", 1.5)


def forward(settings: Settings) -> list[Row]:
    """The layer with all its checks, against the reference's module and against gathering the rows alone."""
    rows: list[Row] = []
    for model_type in ("bert", "gpt2"):
        folder = full_size(settings.models, model_type)
        module = reference(folder, model_type, cores()) if has_reference() else None
        with minibert.load(folder) as layer:
            for shape in SHAPES:
                rows += _forward(settings, model_type, layer, module, shape)
    for shape in SHAPES:
        rows += _narrow(settings, shape)
    return rows


def _forward(settings: Settings, model_type: str, layer: Any, module: Any, shape: tuple[int, int]) -> list[Row]:
    """One shape. Ids are the same in every call: their rows are in the caches, for the reference as for us."""
    table = next(iter(layer.modules.values())).weight
    ids = np.random.default_rng(0).integers(0, len(table), shape)
    out, copied = np.empty((*shape, layer.dim), np.float32), np.ones((*shape, layer.dim), np.float32)
    calls: dict[str, Callable[[], Any]] = {
        "layer": lambda: layer(ids),
        "layer, out=": lambda: layer(ids, out=out),
        "one thread": lambda: layer(ids, out=out, threads=1),
        "rows": lambda: np.take(table, ids, axis=0, mode="clip"),
        "rows, out=": lambda: np.take(table, ids, axis=0, out=out, mode="clip"),
        "copy": lambda: np.copyto(out, copied),
    }
    note, peers, context = "", {}, nullcontext()
    if module is not None:
        note, peers, context = _reference(module, ids, layer(ids))
    with context:
        times = interleaved(calls | peers, settings.rounds(15))
    what = f"{model_type} {shape[0]} x {shape[1]}"
    limit = AGAINST_REFERENCE[model_type][shape]
    # with one thread and with all in every round; the faster one is the peer: threads that sleep are slow to wake
    against = min(peers, key=lambda name: np.median(times[name]), default="")
    rows = []
    for end in ("", ", out="):
        if module is None:
            rows.append(absent(what + end, "transformers", limit))
        else:
            rows.append(compare(what + end, times["layer" + end], times[against], against, faster=True,
                                limit=limit, note=note))  # fmt: skip
    if shape == SHAPES[-1]:  # larger than any cache: here memory sets the limit
        rows += [
            compare(what + end, times["layer" + end], times["rows" + end], "the rows alone, np.take", faster=True,
                    limit=GATHER.get(model_type))
            for end in ("", ", out=")
        ]  # fmt: skip
        rows.append(compare(f"{what}, out=", times["layer, out="], times["copy"], "a copy of as much", faster=True))
    if shape[0] > 1:
        rows.append(compare(f"{what}, out=", times["layer, out="], times["one thread"], "threads=1", faster=True))
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


def _narrow(settings: Settings, shape: tuple[int, int]) -> list[Row]:
    folders = {"F32": full_size(settings.models, "bert")} | {key: narrow(settings.models, key) for key in NARROW}
    layers = {stored: minibert.load(folder) for stored, folder in folders.items()}
    ids = np.random.default_rng(0).integers(0, 30522, shape)
    out = np.empty((*shape, layers["F32"].dim), np.float32)
    calls = {stored: lambda layer=layer: layer(ids, out=out) for stored, layer in layers.items()}
    times = interleaved(calls, settings.rounds(15))
    return [
        compare(f"{name} tables, {shape[0]} x {shape[1]}, out=", times[stored], times["F32"], "float32 tables",
                limit=NARROW_TIME)
        for stored, name in NARROW.items()
    ]  # fmt: skip


# -- embed -------------------------------------------------------------------------------------------------------


def embed(settings: Settings) -> list[Row]:
    """20,000 short texts to vectors: the whole input layer against model2vec's mean of rows, and tokenizing alone."""
    what, folder = f"embed {BULK_TEXTS} texts, mean", real_model()
    limits = Limit(">=", 0.7, aim=1.0), Limit("<=", 1.8, aim=1.4)
    if folder is None:
        return [
            unmeasured(what, "all-MiniLM-L6-v2 is not installed; scripts/demo installs it", limit) for limit in limits
        ]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts = short_texts(tokenizer, BULK_TEXTS)
    with minibert.load(folder) as layer:
        calls: dict[str, Callable[[], Any]] = {
            "ours": lambda: layer.embed(texts, pooling="mean"),
            "one thread": lambda: layer.embed(texts, pooling="mean", threads=1),
            "tokenizing": lambda: tokenizer.encode_batch_fast(texts),
        }
        if installed("model2vec"):
            calls |= _model2vec(np.array(layer.word_embeddings.weight), tokenizer, texts)
        times = interleaved(calls, settings.rounds(9))
    tokens = sum(len(one.ids) for one in tokenizer.encode_batch_fast(texts))
    note = f"{tokens / BULK_TEXTS:.1f} tokens a text"
    rows = []
    if not installed("model2vec"):
        rows.append(absent(what, "model2vec", limits[0]))
    else:
        # both of its settings run in every round; the one that is faster on this machine is the peer
        setting = min(("batches in threads", "one batch after another"), key=lambda name: np.median(times[name]))
        rows.append(compare(what, times["ours"], times[setting], f"model2vec, {setting}", faster=True,
                            limit=limits[0], note="it takes no positions, no norm, no special tokens"))  # fmt: skip
    rows.append(compare(what, times["ours"], times["tokenizing"], "tokenizing alone", limit=limits[1], note=note))
    rows.append(compare(what, times["ours"], times["one thread"], "threads=1", faster=True))
    return rows


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

    return {"batches in threads": lambda: encode(True), "one batch after another": lambda: encode(False)}


# -- growth ------------------------------------------------------------------------------------------------------


def growth(settings: Settings) -> list[Row]:
    """Time a token of bert-base's layer from 2^10 to 2^20 tokens, in sequences of 512."""
    largest = 16 if settings.quick else 20
    while largest > 10 and 2 * 2**largest * 768 * 4 > _available():
        largest -= 1
    limit = Limit("<=", 2)
    rows: list[Row] = []
    with minibert.load(full_size(settings.models, "bert")) as layer:
        out = np.zeros((2**largest // 512, 512, layer.dim), np.float32)
        ids = np.random.default_rng(0).integers(0, 30522, out.shape[:2])
        for target in (out, None):
            calls = {power: _call(layer, ids, target, 2**power // 512) for power in range(10, largest + 1, 2)}
            times = interleaved(calls, settings.rounds(5))
            each = {power: [seconds / 2**power for seconds in taken] for power, taken in times.items()}
            slowest, fastest = ([pick(found) for found in zip(*each.values(), strict=True)] for pick in (max, min))
            end = "" if target is None else ", out="
            rows.append(
                compare(f"time a token, the slowest size of a round{end}", slowest, fastest, "the fastest size",
                        limit=limit, note=f"2^10 to 2^{largest} tokens")
            )  # fmt: skip
            rows += [
                compare(f"time a token at 2^{power}{end}", each[power], each[10], "at 2^10")
                for power in each if power > 10
            ]  # fmt: skip
    return rows


def _call(layer: Any, ids: Array, out: Array | None, batch: int) -> Callable[[], Any]:
    return lambda: layer(ids[:batch], out=None if out is None else out[:batch])


def _available() -> int:
    """Memory that can be had, in bytes; all of it where the system does not say."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
