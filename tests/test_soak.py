"""Eight callers for half a minute, with texts of all lengths: nothing grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# bytes between the 10th and the 30th second; measured from the 20th to the 60th: 6 MiB, and 22 on a busy machine, where
# they are few texts later. Forty kB kept of each text would be more
GROWTH = 48 << 20
CALLERS = 8
SOAK = """
import json, random, sys, threading, time
from pathlib import Path
import minibert

folder, callers = sys.argv[1], int(sys.argv[2])
encoder = minibert.load_encoder(folder)
words = [word for word in Path(folder, "vocab.txt").read_text("utf-8").split() if word.isascii() and word.isalpha()]
began, counts, errors = time.monotonic(), [0] * callers, []

def caller(number):
    chosen = random.Random(number)
    while time.monotonic() < began + 30 and not errors:
        length = chosen.choice((chosen.randrange(10), chosen.randrange(60), chosen.randrange(400)))
        texts = [" ".join(chosen.choices(words, k=length)) for _ in range(chosen.choice((1, 1, 1, 8, 40)))]
        try:
            assert encoder.encode(texts).shape == (len(texts), encoder.get_embedding_dimension())
        except BaseException as error:
            errors.append(error)
        counts[number] += len(texts)

def held():
    private = next(line for line in open("/proc/self/smaps_rollup") if line.startswith("Anonymous:"))
    return int(private.split()[1]) * 1024, *(len(list(Path("/proc/self", name).iterdir())) for name in ("fd", "task"))

threads = [threading.Thread(target=caller, args=(number,)) for number in range(callers)]
for thread in threads:
    thread.start()
time.sleep(10)
memory, files, tasks = held()
early = memory, files, tasks - sum(thread.is_alive() for thread in threads)
for thread in threads:
    thread.join()
if errors:
    raise errors[0]
print(json.dumps([sum(counts), early, held()]))
"""


@pytest.mark.release
@pytest.mark.skipif(sys.platform != "linux", reason="memory, files and threads are read from /proc")
def test_half_a_minute_of_eight_callers(minilm: Path) -> None:
    command = [sys.executable, "-c", SOAK, str(minilm), str(CALLERS)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    texts, (memory, files, threads), (late_memory, late_files, late_threads) = json.loads(done.stdout)
    assert texts > 100
    assert late_memory <= memory + GROWTH
    assert late_files <= files
    assert late_threads <= threads + CALLERS  # each may once more have been helped by a thread of its own
