"""Sections that ask processes of their own for memory: memory, load, weights, soak; and what those processes do.

Linux only: figures of memory are those of /proc.
"""

from __future__ import annotations

import ctypes
import gc
import json
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

import minibert

from .children import Peak, at_once, child, ended, kibibytes, mapped, there, waiting
from .measure import MIB, OURS, Figures, Limit, Row, Settings, compare, in_turn, timed
from .models import NARROW, full_size, narrow, once, real_model, short_texts
from .processes import TEXT

FEW = 4  # MiB a thread: what "a fixed few" may be


def memory(settings: Settings) -> Iterable[Row]:
    """Resident memory, as the kernel counts it, of a fresh process each time."""
    bert, half = full_size(settings.models, "bert"), narrow(settings.models, "BF16")
    cases = [(bert, 8, 1), (bert, 64, 1), (bert, 512, 1), (bert, 64, 2), (bert, 512, 2), (half, 64, 2)]
    for folder, batch, threads in cases[:2] if settings.quick else cases:
        found = _rises(settings, "forward", folder, batch, 512, threads)
        beyond = max(found["beyond"]) / MIB
        tables = "bfloat16" if folder == half else "float32"
        what = f"forward {batch} x 512, {tables}, {threads} thread{'s' if threads > 1 else ''}: rise of memory"
        row = found.row(what, "its result", "rise", unit="B", note=f"at most {beyond:.1f} MiB beyond it")
        yield replace(row, limit=f"≤ {FEW} MiB a thread beyond its result", met=beyond <= FEW * threads)
    both = Figures({OURS: _rises(settings, "forward", bert, 64, 512, 2)["rise"]})
    if there("transformers"):
        both["transformers"] = _rises(settings, "forward_reference", bert, 64, 512, 2)["rise"]
    yield both.row("forward 64 x 512, float32, 2 threads: rise of memory", "transformers", unit="B")
    if real_model().exists():  # what embed takes beyond its result must be the same for few texts and for many
        few, many = (5_000, 20_000) if settings.quick else (20_000, 100_000)
        beyond_of = {count: _rises(settings, "embed", real_model(), count)["beyond"] for count in (few, many)}
        what, limit = f"embed: memory beyond the result, {many} texts", Limit("<=", 1.25)
        yield compare(what, beyond_of[many], beyond_of[few], f"{few} texts", "B", limit=limit)
    pages = Figures({"float32": [float(child("memory.table", bert))]})
    for stored, name in NARROW.items():
        pages[name] = [float(child("memory.table", narrow(settings.models, stored)))]
        what = f"{name} file, every row read: resident pages of it"
        yield pages.row(what, "float32", name, unit="B", limit=Limit("<=", 0.52))


def _rises(settings: Settings, function: str, *arguments: object) -> Figures:
    """What a call makes memory rise by, the size of its result, and the difference; a fresh process each round."""
    found = [child(f"memory.{function}", *arguments) for _ in range(1 if settings.quick else 3)]
    rises, results = ([float(one[i]) for one in found] for i in (0, 1))
    beyond = [rise - result for rise, result in zip(rises, results, strict=True)]
    return Figures({"rise": rises, "its result": results, "beyond": beyond})


def peak_beyond(call: Callable[[], Any]) -> tuple[int, int]:
    """How far memory rises during a call, and the size of what it gives."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # what earlier calls freed goes back to the system,
        libc.malloc_trim(0)  # or this one would seem to need less
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = kibibytes("status", "VmRSS")
    result = call()
    return kibibytes("status", "VmHWM") - before, result.nbytes


def layer_read(folder: str) -> Any:
    """Open a layer and bring every row of its word table into memory, a few at a time."""
    layer = minibert.load(folder)
    rows = layer.word_embeddings.table.shape[0]
    for start in range(0, rows, 512):
        layer(np.arange(start, min(start + 512, rows)), threads=1)
    return layer


def ids_of(rows: int, batch: str, seq: str) -> Any:
    return np.random.default_rng(0).integers(0, rows, (int(batch), int(seq)))


def forward(folder: str, batch: str, seq: str, threads: str) -> tuple[int, int]:
    layer = layer_read(folder)
    ids = ids_of(layer.word_embeddings.table.shape[0], batch, seq)
    layer(ids[:2], threads=int(threads))  # the pool's threads are there, with their stacks
    return peak_beyond(lambda: layer(ids, threads=int(threads)))


def forward_reference(folder: str, batch: str, seq: str, threads: str) -> tuple[int, int]:
    import torch

    from .arrays import reference

    embeddings = reference(folder, "bert", int(threads))
    ids = torch.from_numpy(ids_of(30522, batch, seq))
    with torch.inference_mode():
        embeddings(torch.arange(30522)[: 30522 // 512 * 512].reshape(-1, 512)[:8])
        return peak_beyond(lambda: embeddings(ids).numpy())


def embed(folder: str, count: str) -> tuple[int, int]:
    layer, texts = layer_read(folder), short_texts(folder, int(count))
    layer.embed(texts[:100])
    return peak_beyond(lambda: layer.embed(texts))


def table(folder: str) -> int:
    layer = layer_read(folder)
    found = mapped(Path(folder, "model.safetensors"))["Rss"]
    layer.close()
    return found


# -- load --------------------------------------------------------------------------------------------------------

COPY, OPEN = "safetensors load_file", "safetensors safe_open"


def load(settings: Settings) -> list[Row]:
    """A bert-base-sized file, all imports done, the file in the system's cache; then two processes with it."""
    folder = full_size(settings.models, "bert")
    file = str(folder / "model.safetensors")

    def accept() -> None:
        with safe_open(file, framework="np") as opened:
            opened.keys()

    calls = {OURS: lambda: minibert.load(folder).close(), COPY: partial(load_file, file), OPEN: accept}
    times = timed(calls, settings.rounds(15))
    private, pages = Figures(), Figures({"resident in each": [], OURS: []})
    for reader in (OURS, COPY):
        with ExitStack() as stack:
            pair = [stack.enter_context(waiting("memory.read", folder, reader)) for _ in range(2)]
            private[reader] = [float(found) for _, found in pair]
            for pid, _ in pair if reader == OURS else ():
                found = mapped(file, pid)
                pages["resident in each"].append(found["Rss"])
                pages[OURS].append(found["Pss"])
    return [
        times.row("load", COPY, faster=True, limit=Limit("<=", 5, "ms"), note="load_file copies every tensor"),
        times.row("load", OPEN, note="reads the header alone; our load begins with it"),
        private.row("private memory, every row of the table read", COPY, unit="B", limit=Limit("<=", 5, "MiB"),
                    note="load_file's is a copy for each process"),
        pages.row("two processes: resident pages of the file, shared out", "resident in each", unit="B",
                  limit=Limit("<=", 0.55), note="0.5: each page is in memory once, for both"),
    ]  # fmt: skip


def read(folder: str, reader: str) -> None:
    """Load a folder, read every row of its table and wait: another process looks at this one meanwhile."""
    minibert.load(folder).close()  # imports
    before = kibibytes("smaps_rollup", "Anonymous")
    if reader == OURS:
        layer = minibert.load(folder)
        held = layer.word_embeddings.weight
    else:
        held = load_file(Path(folder, "model.safetensors"))["embeddings.word_embeddings.weight"]
    held[:, 0].sum()
    print(json.dumps(kibibytes("smaps_rollup", "Anonymous") - before), flush=True)
    sys.stdin.read()


# -- weights -----------------------------------------------------------------------------------------------------


def weights(settings: Settings) -> Iterable[Row]:
    """A model of Qwen3-Embedding-0.6B's sizes, its weights converted and mapped: a fresh process for each, in turn.

    Memory is what belongs to the process alone (RssAnon, looked at every five milliseconds), from its start to its end:
    Python, the libraries, the tokenizer and every array, but not the pages of the mapped file.
    """
    folder = once(settings.models / "qwen3-0.6b", "write_qwen3")
    ways = {way: partial(child, "memory.narrow_weights", folder, way) for way in (OURS, "converted")}
    found = in_turn(ways, settings.rounds(3))
    of = {
        key: Figures({way: [float(one[key]) for one in each] for way, each in found.items()}) for key in found[OURS][0]
    }
    for key, what in (("peak", "load, one text, 32 texts"), ("peak_words", "and the next word of a text")):
        yield of[key].row(f"peak of private memory, {what}", "converted", unit="B", limit=Limit("<=", 477, "MiB"))
    for key, what in {
        "load": "load", "one": "one text of six words", "many": "32 texts of 4 to 31 words",
        "word": "the next word of a text",
    }.items():  # fmt: skip
        yield of[key].row(what, "converted")
    same = len({bits for each in of["bits"].values() for bits in each}) == 1
    yield Row("vectors of both ways", "the same bits" if same else "**other bits**", met=same)


def narrow_weights(folder: str, way: str) -> dict[str, float]:
    """A whole model of narrow weights: how much private memory it takes, and how long."""
    peak, generator = Peak(), np.random.default_rng(1)
    words = generator.choice(list(ascii_lowercase), (32, 32, 4))  # each of about three tokens
    lengths = [6, *generator.integers(4, 32, 31)]
    texts = [" ".join("".join(word) for word in text[:length]) for text, length in zip(words, lengths, strict=True)]

    def fastest(call: Callable[[], Any], calls: int = 1) -> tuple[Any, float]:
        """What a call gives, and the seconds of the fastest."""
        taken = []
        for _ in range(calls):
            begun = time.perf_counter()
            found = call()
            taken.append(time.perf_counter() - begun)
        return found, min(taken)

    encoder, load = fastest(lambda: minibert.load_encoder(folder, low_memory=way == OURS))
    _, one = fastest(lambda: encoder.encode(texts[0]), calls=5)
    vectors, many = fastest(lambda: encoder.encode(texts))
    found = {"peak": peak.most, "load": load, "one": one, "many": many, "bits": zlib.crc32(vectors.tobytes())}
    _, word = fastest(lambda: encoder.next_words(texts[0]), calls=2)
    return {**found, "word": word, "peak_words": peak.most}


# -- soak --------------------------------------------------------------------------------------------------------

CALLERS, WORDS, MOST = 8, 400, 40


def soak(settings: Settings) -> list[Row]:
    """Memory, open files and threads of a process in which eight threads encode texts of all lengths."""
    seconds, begins = (60, 20) if settings.quick else (600, 60)  # and those until memory is looked at first
    found = child("memory.callers", real_model(), seconds, begins)
    first, last = found["early"], found["late"]
    memory = Figures({OURS: [last["memory"]], f"after {begins} s": [first["memory"]]})
    return [
        memory.row(
            f"{CALLERS} callers for {seconds // 60} min: memory at the end", f"after {begins} s", unit="B",
            limit=Limit("<=", 1.05),
            note=f"{found['texts']} texts; open files {first['files']}, then {last['files']}; threads "
            f"{first['threads']}, then {last['threads']}",
        )
    ]  # fmt: skip


def callers(folder: str, seconds: str, begins: str) -> dict[str, Any]:
    """Let eight callers encode until the time is over: what there is early and late. Linux only."""
    encoder, vocabulary = minibert.load_encoder(folder), Path(folder, "vocab.txt")
    words = vocabulary.read_text(encoding="utf-8").split() if vocabulary.is_file() else []
    words = [word for word in words if word.isascii() and word.isalpha()] or TEXT.split()
    end, counts, errors = time.monotonic() + float(seconds), [0] * CALLERS, list[BaseException]()

    def caller(number: int) -> None:
        chosen = random.Random(number)
        while time.monotonic() < end and not errors:
            length = chosen.choice((chosen.randrange(10), chosen.randrange(60), chosen.randrange(WORDS)))
            texts = [" ".join(chosen.choices(words, k=length)) for _ in range(chosen.choice((1, 1, 1, 8, MOST)))]
            try:
                vectors = encoder.encode(texts[0] if len(texts) == 1 else texts)
            except BaseException as error:  # noqa: BLE001  shown below
                errors.append(error)
                return
            assert vectors.shape[-1] == encoder.get_embedding_dimension()
            counts[number] += len(texts)

    threads = at_once(caller, CALLERS)
    time.sleep(float(begins))
    early = own_figures()
    early["threads"] -= sum(thread.is_alive() for thread in threads)
    ended(threads)
    late = own_figures()
    if errors:
        raise errors[0]
    return {"texts": sum(counts), "early": early, "late": late}


def own_figures() -> dict[str, int]:
    """Bytes that are this process's own, open files, threads."""
    return {
        "memory": kibibytes("smaps_rollup", "Anonymous"),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }
