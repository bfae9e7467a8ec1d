"""Measure memory in separate processes, and what these processes do."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import numpy as np

import minibert

from .children import CORES, child, take_cores, waiting
from .measure import MIB, Row, Settings, compare, most
from .models import MINILM, folder_of, real_model

FEW = 4  # MiB a thread: the limit of an input layer's memory beyond its result
WORKERS = 4
# how workers load their model
ALONE, MAPPED, FORKED = "each loads the model", "each loads it with mmap=True", "forked after it was loaded"


def kibibytes(file: str, key: str, of: int | str = "self") -> int:
    """Return one figure of /proc/PROCESS/status or smaps_rollup, in bytes."""
    for line in Path(f"/proc/{of}", file).read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no {key} in /proc/{of}/{file}")


class Peak:
    """The most private memory of this process until now, read every five milliseconds."""

    def __init__(self) -> None:
        self.most = 0
        Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, kibibytes("status", "RssAnon"))
            time.sleep(0.005)


# -- the input layer's calls ---------------------------------------------------------------------------------------


def forward(settings: Settings) -> Iterator[Row]:
    """Measure the memory of an input layer's call beyond its result, each time in a new process."""
    for batch, threads in ((8, 1), (64, 1), (64, 2)):
        rise, result = map(float, child("memory.rise", batch, threads))
        what = f"input layer, {batch} x 256, threads={threads}: rise of memory"
        note = f"{(rise - result) / MIB:.1f} MiB beyond it"
        yield compare(what, [rise], [result], "its result", most(result / MIB + FEW * threads, "MiB"), "B", note)


def rise(batch: str, threads: str) -> tuple[int, int]:
    """Return how far memory rises during a call, and the size of its result."""
    layer = minibert.load(real_model())
    rows = layer.word_embeddings.table.shape[0]
    for start in range(0, rows, 512):  # every row of the table is in memory
        layer(np.arange(start, min(start + 512, rows)), threads=int(threads))
    ids = np.random.default_rng(0).integers(0, rows, (int(batch), 256))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory goes back to the system: else this call seems to need less
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = kibibytes("status", "VmRSS")
    result = layer(ids, threads=int(threads))
    return kibibytes("status", "VmHWM") - before, result.nbytes


# -- workers of one model ------------------------------------------------------------------------------------------


def workers(settings: Settings) -> Iterator[Row]:
    """Measure the memory of four processes that have each encoded a text; shared pages count once (Pss)."""
    sums = {}
    for way in (ALONE, MAPPED, FORKED):
        with ExitStack() as stack:
            ways = [way] * (1 if way == FORKED else WORKERS)
            started = [stack.enter_context(waiting("memory.worker", way)) for way in ways]
            children = Path(f"/proc/{started[0]}/task/{started[0]}/children").read_text().split()
            sums[way] = [float(sum(kibibytes("smaps_rollup", "Pss", each) for each in (*started, *children)))]
    for way in (MAPPED, FORKED):
        yield compare(f"four workers, {way}", sums[way], sums[ALONE], ALONE, unit="B")


def worker(way: str) -> None:
    """Load, encode and wait. Forked workers are children of this process and end with it."""
    encoder = minibert.load_encoder(real_model(), mmap=True if way == MAPPED else None)
    if way == FORKED:
        for _ in range(WORKERS):
            reading, writing = os.pipe()
            if not os.fork():
                encoder.encode("We lived above the clouds")
                os.write(writing, b".")
                sys.stdin.read()
                os._exit(0)
            os.read(reading, 1)
    encoder.encode("We lived above the clouds")
    print(flush=True)
    sys.stdin.read()


# -- narrow weights, and the disk ----------------------------------------------------------------------------------


def narrow(settings: Settings) -> Iterator[Row]:
    """Measure the private memory of a process (RssAnon), from its start to its end, without the mapped file."""
    folder = folder_of(settings.models, "narrow")
    found = {low: child("memory.private", folder, low) for low in ("yes", "")}
    ours, other = ([float(found[low][0])] for low in ("yes", ""))
    same = "the same bits" if found["yes"][1] == found[""][1] else "**other bits**"
    yield compare("low_memory=True: peak of private memory", ours, other, "converted", unit="B", note=same)


def private(folder: str, low: str) -> tuple[int, int]:
    """Return the peak of private memory, and a checksum of the result."""
    take_cores(CORES)
    peak = Peak()
    ids = np.random.default_rng(0).integers(1000, 30000, (8, 32))
    result = minibert.load_encoder(folder, low_memory=bool(low))(ids)
    return peak.most, zlib.crc32(result.tobytes())


def disk(settings: Settings) -> Iterator[Row]:
    folders = folder_of(settings.models, "static"), real_model()
    ours, other = ([float(sum(p.stat().st_size for p in each.iterdir() if p.is_file()))] for each in folders)
    note = "of the disk, not of memory"
    yield compare("a static model's folder on the disk", ours, other, MINILM, unit="B", note=note)
