"""The section soak, also `python -m bench.soak FOLDER SECONDS FIRST`: eight callers for a long time, and what grows.

Prints one line of JSON: memory, open files and threads besides the callers, after the FIRST seconds and at the end.
Linux only.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from .measure import ROOT, Limit, Row, Settings, compare, environment, unmeasured
from .models import real_model

CALLERS, WORDS, TEXTS = 8, 400, 40
LONG, SHORT = (600, 60), (60, 20)  # seconds, and those until memory is looked at first


def soak(settings: Settings) -> list[Row]:
    """Memory, open files and threads of a process in which eight threads encode texts of all lengths."""
    model = real_model()
    if model is None or sys.platform != "linux":
        return [unmeasured("MiniLM", "needs Linux and all-MiniLM-L6-v2; scripts/demo installs it")]
    seconds, begins = SHORT if settings.quick else LONG
    command = [sys.executable, "-m", "bench.soak", str(model), str(seconds), str(begins)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    first, last = found["early"], found["late"]
    what = f"{CALLERS} callers for {seconds // 60} min"
    note = (
        f"{found['texts']} texts; open files {first['files']}, then {last['files']}; threads {first['threads']}, then "
    )
    memory = [last["memory"]], [first["memory"]]
    limit = Limit("<=", 1.05)
    row = compare(
        f"{what}: memory at the end", *memory, f"after {begins} s", "B", limit=limit, note=note + f"{last['threads']}"
    )
    return [row]


def run(folder: str, seconds: float, begins: float) -> dict[str, Any]:
    """Let eight callers encode until the time is over."""
    import minibert

    encoder = minibert.load_encoder(folder)
    words = Path(folder, "vocab.txt").read_text(encoding="utf-8").split() if Path(folder, "vocab.txt").is_file() else []
    words = [word for word in words if word.isascii() and word.isalpha()] or ["we", "lived", "above", "the", "clouds"]
    end, counts, errors = time.monotonic() + seconds, [0] * CALLERS, list[BaseException]()

    def caller(number: int) -> None:
        chosen = random.Random(number)
        while time.monotonic() < end and not errors:
            length = chosen.choice((chosen.randrange(10), chosen.randrange(60), chosen.randrange(WORDS)))
            texts = [" ".join(chosen.choices(words, k=length)) for _ in range(chosen.choice((1, 1, 1, 8, TEXTS)))]
            try:
                vectors = encoder.encode(texts[0] if len(texts) == 1 else texts)
            except BaseException as error:  # noqa: BLE001  shown below
                errors.append(error)
                return
            assert vectors.shape[-1] == encoder.get_embedding_dimension()
            counts[number] += len(texts)

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    time.sleep(begins)
    early = figures()
    early["threads"] -= sum(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    late = figures()
    if errors:
        raise errors[0]
    return {"texts": sum(counts), "early": early, "late": late}


def figures() -> dict[str, int]:
    """Bytes that are this process's own, open files, threads."""
    from .child import kibibytes

    return {
        "memory": kibibytes("smaps_rollup", "Anonymous"),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))))
