"""Sections bulk and halves: files of many texts to folders of vectors; and what a billion texts would take.

Speeds are taken in turn between processes that are held while another works. Memory is what the kernel counts of a
whole run of the command, sampled while it works.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import minibert
from minibert.bulk import job
from minibert.bulk.texts import Texts
from minibert.models.open.load_encoder import open_vectors

from .children import ROOT, THREADS, child, contenders, environment, kibibytes
from .contenders import torch_encode
from .measure import MIB, Figures, Limit, Row, Settings, compare, in_turn
from .models import real_model, short_texts

OURS = "minibert bulk"
NUMBER, SHORT = 2_000, 100_000  # texts
EVERY = 0.1  # seconds between two looks at a run's memory
DAY = 86_400

# the limit of our speed beside each peer
PEERS: dict[str, Limit | None] = {"encode in memory": Limit(">=", 0.9), "sentence-transformers": None}


def bulk(settings: Settings) -> Iterable[Row]:
    """JSON lines of 5 to 40 words to Arrow, on two threads; MiniLM."""
    with tempfile.TemporaryDirectory() as scratch:
        texts = Path(scratch, "texts.jsonl")
        child("bulk.write_texts", texts, NUMBER, 5, 40)
        yield from _speeds(settings, texts)
        yield from _memory(settings, Path(scratch))
    for who, (requests, sent) in child("bulk.asks").items():
        yield Row(f"what 100 workers ask of the Hub, {who}", f"{100 * requests:,} requests",
                  note=f"{100 * sent / 1e9:.1f} GB; each {requests} requests, {sent / 1e6:.1f} MB")  # fmt: skip


def halves(settings: Settings) -> Iterable[Row]:
    """8,000 texts of 5 to 40 words, whole runs: two processes with one core and half of the texts each, beside one."""
    number = 2_000 if settings.quick else 8_000
    with tempfile.TemporaryDirectory() as scratch:
        texts = Path(scratch, "texts.jsonl")
        child("bulk.write_texts", texts, number, 5, 40)
        yield _two_processes(texts, number, Path(scratch))


def _speeds(settings: Settings, texts: Path) -> Iterable[Row]:
    what = f"vectors of {NUMBER:,} texts"
    with contenders("bulk.contender", (OURS, *PEERS), texts) as made:
        times = Figures(in_turn({who: each.ask for who, each in made.items()}, settings.rounds(5)))
    seconds = statistics.median(times[OURS])
    for who, limit in PEERS.items():
        yield times.row(what, who, OURS, faster=True, limit=limit, note=f"{NUMBER / seconds:,.0f} rows/s")
    days = seconds / NUMBER * 1e9 * THREADS / DAY
    yield Row("a billion vectors at this rate", f"{days:,.1f} days of one core", note="the rate above, times 1e9")


# -- whole runs of the command -----------------------------------------------------------------------------------


class Run:
    """One run of the command on some cores: seconds, and its resident memory while it worked."""

    def __init__(self, texts: Path, folder: Path, cores: Sequence[int]) -> None:
        command = [sys.executable, "-m", "minibert", "bulk", str(texts), "-o", str(folder)]
        self.started = time.perf_counter()
        self.memory: list[float] = []
        self.process = subprocess.Popen(
            [*command, "--model", str(real_model())], env=environment() | {"OMP_NUM_THREADS": str(len(cores))},
            cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip

    def look(self) -> bool:
        """Note how much memory it has, and say whether it still works."""
        if self.process.poll() is None:
            try:
                self.memory.append(float(kibibytes("status", "VmRSS", self.process.pid)))
            except ValueError:  # it has just ended
                return False
        return self.process.poll() is None


def _wait(*runs: Run) -> float:
    """Wait for all of them; seconds from the first one's start to the last one's end."""
    while [run for run in runs if run.look()]:
        time.sleep(EVERY)
    seconds = time.perf_counter() - runs[0].started
    for run in runs:
        errors = run.process.communicate()[1]
        if run.process.returncode:
            raise RuntimeError(f"a run failed: {errors[-2000:]}")
    return seconds


def _two_processes(texts: Path, number: int, scratch: Path) -> Row:
    """The same texts by one process with two cores, and by two with one core each and half of the texts."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    lines = texts.read_text().splitlines(keepends=True)
    halves = [scratch / f"half-{part}.jsonl" for part in range(2)]
    for part, half in enumerate(halves):
        half.write_text("".join(lines[part * number // 2 : (part + 1) * number // 2]))
    folders, most = (scratch / f"out-{i}" for i in count()), 0.0

    def two() -> float:
        nonlocal most
        pair = [Run(half, next(folders), [core]) for half, core in zip(halves, cores, strict=False)]
        seconds = _wait(*pair)
        most = max(pair[0].memory)
        return seconds

    against = "one process, two cores"
    takes = {against: lambda: _wait(Run(texts, next(folders), cores)), OURS: two}
    times = Figures(in_turn(takes, 3, start=1))
    rate = number / statistics.median(times[OURS])
    note = f"two processes: {rate:,.0f} rows/s; each {most / MIB:.0f} MiB, the model's pages shared"
    return times.row(f"vectors of {number:,} texts, whole runs", against, OURS, faster=True, note=note)


def _memory(settings: Settings, scratch: Path) -> list[Row]:
    """Many short texts: does memory grow with them?"""
    number, texts = 20_000 if settings.quick else SHORT, scratch / "short.jsonl"
    child("bulk.write_texts", texts, number, 1, 4)
    run = Run(texts, scratch / "short", sorted(os.sched_getaffinity(0))[:2])
    seconds = _wait(run)
    quarter, what = len(run.memory) // 4, f"vectors of {number:,} short texts: peak memory"
    early, late = max(run.memory[quarter : 2 * quarter]), max(run.memory[3 * quarter :])
    return [
        compare(what, [max(run.memory)], [500 * MIB], "allowed", "B", limit=Limit("<=", 500, "MiB"),
                note=f"{number / seconds:,.0f} rows/s"),
        compare("its memory in the last quarter", [late], [early], "in the second quarter", "B",
                limit=Limit("<=", 1.1)),
    ]  # fmt: skip


# -- what processes of their own do --------------------------------------------------------------------------------


def write_texts(file: str, number: str, fewest: str, most: str) -> None:
    """Write seeded texts as JSON lines with ids."""
    made = short_texts(real_model(), int(number), int(fewest), int(most))
    with Path(file).open("w", encoding="utf-8") as out:
        out.writelines(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(made))


def contender(who: str, file: str) -> Callable[[], tuple[Callable[[], Any], int]]:
    model = str(real_model())
    with Path(file).open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    call = {
        OURS: lambda: ours(file),
        "encode in memory": lambda: partial(minibert.load_encoder(model).encode, texts),
        "sentence-transformers": lambda: partial(torch_encode(model), texts),
    }[who]()
    return lambda: (call, 1)


def ours(file: str) -> Callable[[], Any]:
    """From a file to a folder of shards, as the command does it, each time into a new folder; the model stays open."""
    model = open_vectors(str(real_model()))
    folders = (Path(f"{file}-{number}") for number in count())  # the section removes them all
    return lambda: job.bulk(Texts([file]), next(folders), model, {})


def asks() -> dict[str, tuple[int, int]]:
    """Count the requests and bytes of workers that open a model by its name, on a server of this machine."""
    from fake_hub import FakeHub

    files = {str(path.relative_to(real_model())): path for path in real_model().rglob("*") if path.is_file()}
    found = {}
    with FakeHub() as hub, tempfile.TemporaryDirectory() as home:
        commit = hub.add("org/model", files).commit
        os.environ |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": home, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        cases = {
            "each with an empty cache": commit,
            "the model in their machines' caches, a branch named": None,
            "the model in their machines' caches, its commit named": commit,
        }
        for who, revision in cases.items():
            hub.forget()
            minibert.load_encoder("org/model", revision=revision).encode(["a text"])
            found[who] = len(hub.requests), sum(request.sent for request in hub.requests)
    return found
