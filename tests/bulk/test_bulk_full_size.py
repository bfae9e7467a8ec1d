"""The real model: a million texts in bounded memory, and what other numbers of threads change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from many_texts import WORDS, many_texts
from numpy.typing import NDArray

COUNT = 1_000_000
PEAK = 500 << 20  # bytes; measured: 182 MiB for Parquet, 103 MiB for npy
THREADS = 1e-6  # of a vector's length, by other threads of BLAS; measured: 1.8e-7, and 2.8e-7 with another kernel

RUN = """
import sys
from minibert.cli import main
code = main(sys.argv[1:])
with open("/proc/self/status") as status:  # getrusage counts the process that started this one, too
    print(next(line for line in status if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a process's peak of memory is Linux's to say")
@pytest.mark.parametrize("form", ["parquet", "npy"])
def test_a_million_short_texts(form: str, minilm: Path, tmp_path: Path) -> None:
    random, source, out = Random(0), tmp_path / "a.txt", tmp_path / "out"
    with source.open("w", encoding="utf-8") as file:
        file.writelines(" ".join(random.choices(WORDS, k=random.randint(3, 12))) + "\n" for _ in range(COUNT))
    argv = ["bulk", source, "-o", out, "-m", minilm, "--vectors", "input", "--format", form]
    done = subprocess.run([sys.executable, "-c", RUN, *argv], stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads((out / "meta.json").read_text("utf-8"))["rows"] == COUNT
    shutil.rmtree(out)  # 1.5 GB
    assert int(done.stdout) << 10 < PEAK


@pytest.mark.slow
def test_other_numbers_of_threads(minilm: Path, tmp_path: Path) -> None:
    """Within the bound for sentence vectors; those of the input layer, which asks no BLAS, have the same bits."""
    source = tmp_path / "a.txt"
    source.write_text("".join(" ".join(text.split())[:200] + "\n" for text in many_texts(400)), encoding="utf-8")

    def vectors(kind: str, threads: int) -> NDArray[np.float32]:
        out = tmp_path / f"{kind}{threads}"
        argv = ["bulk", source, "-o", out, "-m", minilm, "--vectors", kind, "--format", "npy", "--truncate"]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
        subprocess.run([sys.executable, "-m", "minibert", *argv], env=environment, check=True)
        found: NDArray[np.float32] = np.load(out / "vectors-00000.npy")
        return found

    assert np.array_equal(vectors("input", 1), vectors("input", 2))
    one, two = vectors("sentence", 1), vectors("sentence", 2)
    assert np.max(np.abs(one - two) / np.linalg.norm(one, axis=1, keepdims=True)) <= THREADS
