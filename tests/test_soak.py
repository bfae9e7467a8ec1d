"""Eight callers for half a minute, with texts of all lengths: nothing grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
# bytes between the 10th and the 30th second; measured from the 20th to the 60th: 6 MiB, and 22 on a busy machine, where
# they are few texts later. Forty kB kept of each text would be more
GROWTH = 48 << 20
CALLERS = 8


@pytest.mark.release
@pytest.mark.skipif(sys.platform != "linux", reason="memory, files and threads are read from /proc")
def test_half_a_minute_of_eight_callers(minilm: Path) -> None:
    command = [sys.executable, "-m", "bench.children", "memory.callers", str(minilm), "30", "10"]
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    early, late = found["early"], found["late"]
    assert found["texts"] > 100
    assert late["memory"] <= early["memory"] + GROWTH
    assert late["files"] <= early["files"]
    assert late["threads"] <= early["threads"] + CALLERS  # each may once more have been helped by a thread of its own
