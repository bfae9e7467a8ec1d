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
from checkpoints import VOCAB, numbers
from many_texts import WORDS, many_texts
from static_folders import static_folder

from minibert.bulk.stored import FORMATS, StoredVectors

COUNT = 500_000  # their vectors are 730 MiB
MORE = 1.25  # as a share; measured: 1.12 of four times as many

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
@pytest.mark.parametrize("form", FORMATS)
def test_half_a_million_short_texts(form: str, tmp_path: Path) -> None:
    """For ten times as many texts, the peak of memory is still a few shards; a static model makes the test fast."""
    random, peaks, model = Random(0), list[int](), static_folder(tmp_path / "model", embeddings=numbers(VOCAB, 384))
    for count in (COUNT // 10, COUNT):
        source, out = tmp_path / "a.txt", tmp_path / "out"
        with source.open("w", encoding="utf-8") as file:
            file.writelines(" ".join(random.choices(WORDS, k=random.randint(3, 12))) + "\n" for _ in range(count))
        argv = ["bulk", source, "-o", out, "-m", model, "--format", form]
        done = subprocess.run([sys.executable, "-c", RUN, *argv], stdout=subprocess.PIPE, text=True, check=True)
        assert StoredVectors(out).rows == count
        shutil.rmtree(out)  # 0.8 GB
        peaks.append(int(done.stdout))
    assert peaks[1] < MORE * peaks[0]


@pytest.mark.slow
def test_other_numbers_of_threads(minilm: Path, tmp_path: Path) -> None:
    """The same bits, by whichever option the number is set, and however many threads BLAS would take."""
    source = tmp_path / "a.txt"
    source.write_text("".join(" ".join(text.split())[:200] + "\n" for text in many_texts(400)), encoding="utf-8")

    def vectors(number: int, *options: str, **variables: str) -> bytes:
        out = tmp_path / str(number)
        argv = ["bulk", source, "-o", out, "-m", minilm]
        environment = {**os.environ, **variables}
        subprocess.run([sys.executable, "-m", "minibert", *argv, *options], env=environment, check=True)
        return np.concatenate([*StoredVectors(out).blocks()]).tobytes()

    ways = [{"OPENBLAS_NUM_THREADS": "1"}, {"OPENBLAS_NUM_THREADS": "2"}, {"MINIBERT_THREADS": "3"}]
    found = {vectors(number, **variables) for number, variables in enumerate(ways)}
    assert found == {vectors(9, "--threads", "1")}
