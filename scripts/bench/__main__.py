#!/usr/bin/env python3
"""minibert side by side with the libraries that people would use instead, and with what no program can beat.

    python scripts/bench                     every section, one after another
    python scripts/bench forward --quick     one of cold, forward, embed, memory, load, growth, encoder,
                                             families, sentences, bits, parts, cores, soak, serve, served,
                                             traffic, bulk, halves, weights, search, static, live; three rounds
    python scripts/bench sentences --kernels own Haswell    with one kernel of BLAS, then with another
    python scripts/bench --json FILE         the figures as JSON too

Prints a Markdown table for each section. Every figure is a ratio of two things that are measured in turn in the same
run. Each round gives one ratio; the table has their median and their middle half. On a machine with other work a single
time means little. A ratio suffers less, but it suffers too: the line under a table says how much other work there was.
A limit that is not met is reported; the exit code is 0 all the same.

What is measured, and how it was chosen
    sizes         bert-base-uncased (30522 x 768) and gpt2 (50257 x 768), made up by tests/support/seeded.py, with the
                  input layer alone in the file; float32 by default. Texts and tokenizer: all-MiniLM-L6-v2
    transformers  BertModel's own `embeddings`, GPT2Model's `wte`, `wpe` and `drop`: in eval mode, under
                  torch.inference_mode(), ids already a tensor. With one thread and with as many as there are cores in
                  every round, the faster one is the peer: on a virtual machine a sleeping thread is slow to wake.
                  Not torch.compile: it needs a compiler, and seconds for each new shape.
                  Cold: the classes themselves instead of the Auto classes, no pooling layer, no network
    model2vec     StaticModel over the very same table and tokenizer; encode() in its default setting (from 10,000
                  texts on, batches in threads) and with use_multiprocessing=False (the tokenizer's own threads):
                  both in every round, the faster one is the peer. Its switch TOKENIZERS_PARALLELISM is set back
                  after each call, or it would slow everything else in the process
    encoder       whole models, MiniLM's real weights and bert-base's sizes made up, on two cores, each contender in a
                  process of its own that is held while another works. transformers: AutoModel, eval mode,
                  inference_mode, with sdpa and with eager attention: the faster one is the peer. ONNX Runtime: its
                  float32 export by torch.onnx, two threads, all graph optimizations
    families      model types in MiniLM's size, made up by transformers, with its own class as the peer, likewise
    sentences     texts of 5 to 40 words to MiniLM's vectors, likewise. sentence-transformers: encode as it is called by
                  default. ONNX Runtime: texts sorted by length, batches of 32, the mean and the norm by NumPy. Of
                  repeated texts: 30 or 90 in a hundred are equal to an earlier one
    bits          MiniLM, load_encoder(same_bits=True) beside the usual: a text of each length from 5 to 32 tokens, the
                  texts of `sentences`. With --beside FOLDER (a git worktree) the minibert of that folder too. One text
                  as it is called, which may leave BLAS its threads, beside threads=1: with nothing else running, beside
                  the two busy processes of `cores`, and from its eight callers
    parts         1, 16 and 600 texts of 5 to 40 words, on one thread: how long the matrix products take, scores,
                  softmax, norms, the activation, and what is between them
    cores         MiniLM, the same texts. "Products alone": those of the call, with the same shapes, and nothing in
                  between. Callers: threads of one process that each encode nine texts one by one.
                  Busy: two processes that count on the same two cores
    soak          eight callers with texts of 0 to 400 words, one to forty a call, for ten minutes, or for one
    serve         eight clients of `minibert serve`, a thread each in one process, beside eight threads of one process
                  that call `encode`: a text at a time, the same texts, ten seconds each in turn, a minute in all.
                  Server and clients share the two cores
    served        1, 8 and 64 clients, a thread each in one process, of the same application of starlette: with
                  minibert, and with sentence-transformers' `encode` in its place for the same steps of waiting texts.
                  A text for each request, ten seconds in turn; the server that is not at work is stopped
    traffic       200 callers of `minibert serve` for ten minutes: vectors, rerank, sparse vectors, requests that are
                  refused, slow clients, silent ones and such that leave; who gets 503 comes again after a second, as
                  OpenAI's client does. Every answer is compared with what `encode` and `predict` give. Memory is what
                  the process has for itself (Pss_Anon)
    bulk          from JSON lines on the disk to shards on the disk, MiniLM; each contender in a process of its own. In
                  memory: `encode` of the same texts in a list. Memory: a whole run, looked at ten times a second.
                  Requests: counted by a server of this machine that answers as the Hub does
    halves        one process with two cores beside two with one core and half of the texts each: whole runs of `bulk`,
                  start included
    weights       a whole model of Qwen3-Embedding-0.6B's sizes in bfloat16, made up: load_encoder(low_memory=True)
                  beside the same with its weights converted
    search        a million made-up vectors of 384 numbers in a folder as `bulk` writes it, the ten best rows of each
                  question; beside `vectors @ queries.T` over the same million in one array in memory
    static        MiniLM, and the static model that `minibert distill` makes of it: texts of 5 to 40 words to vectors.
                  model2vec: encode() of the same folder, in its default setting and with use_multiprocessing=False; the
                  faster one is the peer. One thread: RAYON_NUM_THREADS=1 and MINIBERT_THREADS=1, so model2vec's own
                  threads are left out
    live          the server of `minibert explain --live`, asked over HTTP from this process, each time about another
                  text; one call of the model on the same ids beside it. What a browser draws is not in it
    safetensors   safetensors.numpy.load_file of the whole file, which is in the system's cache
    limits        a process that does nothing but `import numpy`; np.take(table, ids, axis=0, mode="clip"), the
                  fastest way to gather rows; a copy of as much memory; encode_batch_fast of the tokenizers library for
                  all texts at once, its ids not even read

Needs the extra `bench` for the peers, and scripts/demo for the texts; the row of what is absent says so.
If several sections are asked for, each is a process of its own and inherits no threads or memory from another.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # its files are the package `bench`

from bench.children import child
from bench.kernels import FLAGS, OWN, cannot, hold_to
from bench.measure import OtherWork, Row, Settings, installed, machine, markdown
from bench.models import real_model

SECTIONS = {  # each is a function of a file and gives rows; what it needs
    "cold": ("processes", ()),
    "forward": ("arrays", ()),
    "embed": ("arrays", ("MiniLM",)),
    "memory": ("memory", ("Linux",)),
    "load": ("memory", ("Linux",)),
    "growth": ("arrays", ()),
    "encoder": ("turns", ("MiniLM",)),
    "families": ("families", ("transformers",)),
    "sentences": ("turns", ("MiniLM",)),
    "bits": ("bits", ("MiniLM", "Linux")),
    "parts": ("parts", ("MiniLM",)),
    "cores": ("turns", ("MiniLM", "Linux")),
    "soak": ("memory", ("MiniLM", "Linux")),
    "serve": ("serve", ("MiniLM", "Linux", "server")),
    "served": ("traffic", ("MiniLM", "Linux", "server")),
    "traffic": ("traffic", ("MiniLM", "Linux", "server")),
    "bulk": ("bulk", ("MiniLM", "Linux")),
    "halves": ("bulk", ("MiniLM", "Linux")),
    "weights": ("memory", ("Linux",)),
    "search": ("arrays", ("Linux",)),
    "static": ("static", ("MiniLM",)),
    "live": ("live", ("MiniLM", "server")),
}
THERE = {
    "Linux": (sys.platform == "linux", "needs Linux"),
    "MiniLM": ((real_model() / "model.safetensors").is_file(), "needs all-MiniLM-L6-v2; scripts/demo installs it"),
    "transformers": (installed("transformers"), "needs transformers; the extra `bench` brings it"),
    "server": (installed("starlette") and installed("uvicorn"), "needs the extra `serve`"),
}


def measure(section: str, settings: Settings) -> list[Row]:
    file, needs = SECTIONS[section]
    missing = [why for there, why in map(THERE.get, needs) if not there]
    if missing:
        return [Row(section, note=f"not measured: {', '.join(missing)}")]
    # arrays.py loads numpy: not into a process that measures how little others need
    return list(getattr(import_module(f"bench.{file}"), section)(settings))


def measured(section: str, settings: Settings) -> dict[str, Any]:
    """Measure a section here, print its table and give its figures."""
    where = machine(child("children.kernel"))  # before a library changes a variable
    other = OtherWork()
    rows = measure(section, settings)
    where["other_work"] = other.share()
    print(markdown(section, rows, where), flush=True)
    return {"section": section, "machine": where, "rows": [asdict(row) for row in rows]}


def elsewhere(section: str, settings: Settings, scratch: str) -> dict[str, Any]:
    """The same in a process of its own, which inherits nothing from another section."""
    file = Path(scratch, "rows.json")
    command = [sys.executable, str(Path(__file__).parent), section, "--json", str(file)]
    command += ["--models", str(settings.models)] + ["--quick"] * settings.quick
    command += ["--beside", str(settings.beside)] if settings.beside else []
    subprocess.run(command, check=True)
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found[0]


def with_kernel(kernel: str, sections: Iterable[str], settings: Settings, scratch: str) -> Iterator[dict[str, Any]]:
    """The same of some sections, with one kernel of BLAS."""
    hold_to(kernel)
    found = child("children.kernel")
    if kernel not in (OWN, found):
        raise SystemExit(f"--kernels {kernel}: NumPy's BLAS here has {found} all the same; leave this kernel out")
    for section in sections:
        yield elsewhere(section, settings, scratch)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("section", nargs="?", choices=SECTIONS, help="without it, every section")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--quick", action="store_true", help="three rounds, smaller sizes: a look, not a result")
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="keep the made-up checkpoints here (2 GB)")
    parser.add_argument("--kernels", nargs="+", choices=FLAGS, help=(
        f"of NumPy's BLAS, one after another, with no other variable that changes timings; {OWN}: the processor's own. "
        "Without this option, as the variables are"
    ))  # fmt: skip
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="in bits: a git worktree of an older state")
    arguments = parser.parse_args()
    beside = arguments.beside and arguments.beside.resolve()
    for why in filter(None, map(cannot, arguments.kernels or ())):
        parser.error(f"--kernels: {why}")
    if beside and not (beside / "minibert" / "__init__.py").is_file():
        parser.error(f"--beside: expected a folder of this project, found no minibert/__init__.py in {beside}")
    with tempfile.TemporaryDirectory() as scratch:
        settings = Settings((arguments.models or Path(scratch)).resolve(), arguments.quick, beside)
        sections = [arguments.section] if arguments.section else list(SECTIONS)
        if arguments.kernels:
            found = [each for kernel in arguments.kernels for each in with_kernel(kernel, sections, settings, scratch)]
        elif arguments.section:
            found = [measured(arguments.section, settings)]
        else:
            found = [elsewhere(section, settings, scratch) for section in sections]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
