"""The real model: half a million texts in bounded memory, and the same bytes with other numbers of threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from many_texts import WORDS, many_texts

from minibert.bulk.stored import StoredVectors

COUNT = 500_000  # their vectors are 730 MiB
PEAK = 400 << 20  # bytes; measured: PEAKS

RUN = """
import sys
from minibert.cli import main
code = main(sys.argv[1:])
with open("/proc/self/status") as status:  # getrusage counts the process that started this one, too
    print(next(line for line in status if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""


@pytest.mark.release
@pytest.mark.skipif(sys.platform != "linux", reason="a process's peak of memory is Linux's to say")
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_half_a_million_short_texts(form: str, minilm: Path, tmp_path: Path) -> None:
    random, source, out = Random(0), tmp_path / "a.txt", tmp_path / "out"
    with source.open("w", encoding="utf-8") as file:
        file.writelines(" ".join(random.choices(WORDS, k=random.randint(3, 12))) + "\n" for _ in range(COUNT))
    argv = ["bulk", source, "-o", out, "-m", minilm, "--vectors", "input", "--format", form]
    done = subprocess.run([sys.executable, "-c", RUN, *argv], stdout=subprocess.PIPE, text=True, check=True)
    assert StoredVectors(out).rows == COUNT
    shutil.rmtree(out)  # 0.8 GB
    assert int(done.stdout) << 10 < PEAK


@pytest.mark.slow
def test_other_numbers_of_threads(minilm: Path, tmp_path: Path) -> None:
    """The same bits, by whichever option the number is set, and however many threads BLAS would take."""
    source = tmp_path / "a.txt"
    source.write_text("".join(" ".join(text.split())[:200] + "\n" for text in many_texts(400)), encoding="utf-8")

    def vectors(kind: str, number: int, *options: str, **variables: str) -> bytes:
        out = tmp_path / f"{kind}{number}"
        argv = ["bulk", source, "-o", out, "-m", minilm, "--vectors", kind, "--truncate"]
        environment = {**os.environ, **variables}
        subprocess.run([sys.executable, "-m", "minibert", *argv, *options], env=environment, check=True)
        return np.concatenate([*StoredVectors(out).blocks()]).tobytes()

    for kind in ("input", "sentence"):
        ways = [{"OPENBLAS_NUM_THREADS": "1"}, {"OPENBLAS_NUM_THREADS": "2"}, {"MINIBERT_THREADS": "3"}]
        found = {vectors(kind, number, **variables) for number, variables in enumerate(ways)}
        assert found == {vectors(kind, 9, "--threads", "1")}
