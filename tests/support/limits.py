"""The one limit of a child process: a busy machine may take long, a hang is seen all the same. And waiting for it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

CHILD_SECONDS = 600


def until(true: Callable[[], object], process: subprocess.Popen[Any] | None = None) -> None:
    """Look again and again until it is true; a file that is gone is looked for again. A process must live so long."""
    end = time.monotonic() + CHILD_SECONDS
    while time.monotonic() < end:
        with suppress(OSError):
            if true():
                return
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)
    pytest.fail("it has not come so far")
