"""What the child processes do; each measurement of memory gets a process of its own: `python -m bench.child NAME ...`.

Prints one line of JSON. Linux only: everything is read from /proc.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep
from typing import Any

import numpy as np

import minibert


def kibibytes(file: str, key: str) -> int:
    """One figure of /proc/self/status or smaps_rollup, in bytes."""
    for line in Path("/proc/self", file).read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no {key} in /proc/self/{file}")


def mapped(path: Path, process: int | str = "self") -> dict[str, int]:
    """Resident and proportional bytes of a mapped file: Pss is Rss with every page divided by its users."""
    found, inside = {"Rss": 0, "Pss": 0}, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        key = line.split(None, 1)[0]
        if not key.endswith(":"):  # a line of addresses opens a mapping
            inside = line.endswith(str(path))
        elif inside and key[:-1] in found:
            found[key[:-1]] += int(line.split()[1]) * 1024
    return found


def peak_beyond(call: Callable[[], Any]) -> dict[str, int]:
    """How far memory rises during a call, and the size of what it gives."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # what earlier calls freed goes back to the system,
        libc.malloc_trim(0)  # or this one would seem to need less
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = kibibytes("status", "VmRSS")
    result = call()
    return {"rise": kibibytes("status", "VmHWM") - before, "result": result.nbytes}


def ids_of(rows: int, batch: int, seq: int) -> Any:
    return np.random.default_rng(0).integers(0, rows, (batch, seq))


def read_table(layer: Any) -> None:
    """Bring every row of the word table into memory, a few at a time."""
    rows = layer.word_embeddings.table.shape[0]
    for start in range(0, rows, 512):
        layer(np.arange(start, min(start + 512, rows)), threads=1)


def forward(folder: str, batch: str, seq: str, threads: str) -> dict[str, int]:
    layer = minibert.load(folder)
    read_table(layer)
    ids = ids_of(layer.word_embeddings.table.shape[0], int(batch), int(seq))
    layer(ids[:2], threads=int(threads))  # the pool's threads are there, with their stacks
    return peak_beyond(lambda: layer(ids, threads=int(threads)))


def forward_reference(folder: str, batch: str, seq: str, threads: str) -> dict[str, int]:
    import torch

    from .models import reference

    embeddings = reference(Path(folder), "bert", int(threads))
    ids = torch.from_numpy(ids_of(30522, int(batch), int(seq)))
    with torch.inference_mode():
        embeddings(torch.arange(30522)[: 30522 // 512 * 512].reshape(-1, 512)[:8])
        return peak_beyond(lambda: embeddings(ids).numpy())


def embed(folder: str, count: str) -> dict[str, int]:
    from tokenizers import Tokenizer

    from .models import short_texts

    layer = minibert.load(folder)
    texts = short_texts(Tokenizer.from_file(str(Path(folder, "tokenizer.json"))), int(count))
    read_table(layer)
    layer.embed(texts[:100])
    return peak_beyond(lambda: layer.embed(texts))


def table(folder: str) -> dict[str, int]:
    layer = minibert.load(folder)
    read_table(layer)
    return mapped(Path(folder, "model.safetensors"))


def load(folder: str, reader: str) -> dict[str, int]:
    """Load a folder, read every row of its table and wait: the parent looks at this process meanwhile."""
    from safetensors.numpy import load_file

    minibert.load(folder).close()  # imports
    before = kibibytes("smaps_rollup", "Anonymous")
    if reader == "minibert":
        layer = minibert.load(folder)
        held = layer.word_embeddings.weight
    else:
        held = load_file(Path(folder, "model.safetensors"))["embeddings.word_embeddings.weight"]
    held[:, 0].sum()
    print(json.dumps({"private": kibibytes("smaps_rollup", "Anonymous") - before}), flush=True)
    sys.stdin.read()
    return {}


class Peak:
    """The most private memory of this process until now, looked at every five milliseconds."""

    def __init__(self) -> None:
        self.most = 0
        Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, kibibytes("status", "RssAnon"))
            sleep(0.005)


def narrow_weights(folder: str, way: str) -> dict[str, Any]:
    """A whole model of narrow weights: how much private memory it takes, and how long."""
    from .weights import sample_texts

    peak, texts = Peak(), sample_texts()

    def timed(call: Callable[[], Any], calls: int = 1) -> tuple[Any, float]:
        """What a call gives, and the seconds of the fastest."""
        taken = []
        for _ in range(calls):
            begun = perf_counter()
            found = call()
            taken.append(perf_counter() - begun)
        return found, min(taken)

    encoder, load = timed(lambda: minibert.load_encoder(folder, low_memory=way == "low_memory"))
    _, one = timed(lambda: encoder.encode(texts[0]), calls=5)
    vectors, many = timed(lambda: encoder.encode(texts))
    found = {"peak": peak.most, "load": load, "one": one, "many": many, "bits": zlib.crc32(vectors.tobytes())}
    _, word = timed(lambda: encoder.next_words(texts[0]), calls=2)
    return {**found, "word": word, "peak_words": peak.most}


CHILDREN = {do.__name__: do for do in (forward, forward_reference, embed, table, load, narrow_weights)}

if __name__ == "__main__":
    print(json.dumps(CHILDREN[sys.argv[1]](*sys.argv[2:])))
