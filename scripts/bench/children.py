"""Processes of their own: those that are measured, and those that measure what would change this one.

    python -m bench.children FILE.FUNCTION [ARGUMENT...]

calls a function of this package with words as its arguments, and prints what it gives as a line of JSON. Where it gives
a function, the process is a contender: it has loaded its model and waits for requests, a line of JSON each. That
function gets the "case" of the request and gives a call, and by how much its time is divided. The answer is the median
seconds of the call; with "compare": FILE how far its result is from the one that another contender was told to "save".

Nothing heavy is imported here, nor by the files whose sections measure whole processes (see `process`).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from .measure import Figures, in_turn, installed, seconds_of

ROOT = Path(__file__).resolve().parent.parent.parent
THREADS = 2  # of a contender, and its cores
NEEDS = {  # what must be installed for a contender, by the first word of its name; others need nothing
    "transformers": ("torch", "transformers"),
    "sentence-transformers": ("torch", "sentence-transformers"),
    "ONNX": ("torch", "transformers", "onnx", "onnxruntime"),
    "model2vec": ("model2vec",),
}


def environment() -> dict[str, str]:
    """What children run in: this source, no network, and compiled modules kept as an installed package keeps them."""
    paths = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def there(contender: str) -> bool:
    """Whether what a contender needs is installed."""
    return all(map(installed, NEEDS.get(contender.replace(",", "").partition(" ")[0], ())))


def kernel() -> str:
    """The kernel of NumPy's BLAS; "unknown" where it does not tell. Call it in a child."""
    from minibert.threads.kernels import kernel

    return kernel().name


def at_once(work: Callable[[int], object], count: int) -> list[Thread]:
    """Start so many threads, each with its number."""
    threads = [Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def ended(threads: Iterable[Thread]) -> None:
    for thread in threads:
        thread.join()


# -- a process that is asked once ----------------------------------------------------------------------------------


def child(function: str, *arguments: object) -> Any:
    """What a function of this package gives, run in a process of its own."""
    command = [sys.executable, "-m", "bench.children", function, *map(str, arguments)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout or "null")


@contextmanager
def waiting(function: str, *arguments: object) -> Iterator[tuple[int, Any]]:
    """Start a function that prints a line of JSON and then waits: its process, and what the line says."""
    command = [sys.executable, "-m", "bench.children", function, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), cwd=ROOT, text=True, **pipes) as run:
        assert run.stdin is not None and run.stdout is not None  # pipes
        yield run.pid, json.loads(run.stdout.readline())
        run.stdin.close()  # and so it ends


def python(code: str, **given: object) -> list[str]:
    return [sys.executable, "-c", code.format(**given)]


def process(command: Sequence[str]) -> tuple[float, float]:
    """Run a process to its end: seconds and the peak of its memory in bytes.

    The trap: Linux counts the memory of the process that started it into a child's peak, so this one must be the
    smaller of the two. Raises RuntimeError where it is not, and where the child fails.
    """
    with tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        run = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment()
        )
        _, status, usage = os.wait4(run.pid, 0)
        seconds = time.perf_counter() - started
        run.returncode = os.waitstatus_to_exitcode(status)
        if run.returncode:
            errors.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed: {errors.read().decode(errors='replace')[-2000:]}")
    if usage.ru_maxrss <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
        raise RuntimeError("the measuring process is larger than the one it measures; start the section by itself")
    return seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def processes(codes: Mapping[str, Sequence[str]], rounds: int) -> tuple[Figures, Figures]:
    """Seconds and peak bytes of whole processes. The first round reads all from the disk and compiles our modules."""
    found = in_turn({name: partial(process, command) for name, command in codes.items()}, rounds, start=1)
    seconds, peaks = (Figures({name: [one[i] for one in each] for name, each in found.items()}) for i in (0, 1))
    return seconds, peaks


# -- contenders: processes that are held until they are asked ------------------------------------------------------


class Contender:
    """A process that has loaded its model, and works only while it is asked: it is stopped (SIGSTOP) between.

    The threads of ONNX Runtime go on spinning after a call, and whoever comes next would take twice as long.
    `beside`: the state of this project whose minibert it imports.
    """

    def __init__(self, function: str, *arguments: object, beside: Path = ROOT, **variables: str) -> None:
        command = [sys.executable, "-m", "bench.children", function, *map(str, arguments)]
        self._child = subprocess.Popen(
            command, env=environment() | variables, cwd=beside, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, preexec_fn=first_cores,
        )  # fmt: skip
        self._answer()

    def ask(self, *case: int, **request: str) -> float:
        assert self._child.stdin is not None  # a pipe
        self._child.send_signal(signal.SIGCONT)
        self._child.stdin.write(json.dumps({"case": case, **request}) + "\n")
        self._child.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self._child.stdout is not None  # a pipe
        line = self._child.stdout.readline()
        if not line:
            self._child.communicate()  # it has ended; this closes the pipes
            raise RuntimeError(f"a contender failed; {' '.join(map(str, self._child.args))} says why")
        self._child.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()


def first_cores() -> None:
    """Take the first cores alone, before NumPy counts them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])


@contextmanager
def contenders(function: str, names: Iterable[str], *arguments: object) -> Iterator[dict[str, Contender]]:
    """Start those contenders that can be; the function gets the name first."""
    with ExitStack() as stack:
        found = {}
        for who in names:
            if there(who):
                found[who] = stack.enter_context(Contender(function, who, *arguments))
        yield found


def hold(prepare: Callable[..., tuple[Callable[[], Any], int]]) -> None:
    print("{}", flush=True)
    for line in sys.stdin:
        import numpy as np

        request = json.loads(line)
        call, share = prepare(*request["case"])
        answer = 0.0
        if "save" in request:
            np.save(request["save"], call())
        elif "compare" in request:
            answer = float(np.abs(call() - np.load(request["compare"])).max())
        else:
            answer = seconds_of(call) / share
        print(json.dumps(answer), flush=True)


# -- memory, as Linux counts it ------------------------------------------------------------------------------------


def kibibytes(file: str, key: str, of: int | str = "self") -> int:
    """One figure of /proc/PROCESS/status or smaps_rollup, in bytes."""
    for line in Path(f"/proc/{of}", file).read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no {key} in /proc/{of}/{file}")


def mapped(file: Path | str, process: int | str = "self") -> dict[str, int]:
    """Resident and proportional bytes of a mapped file: Pss is Rss with every page divided by its users."""
    found, inside = {"Rss": 0, "Pss": 0}, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        key = line.split(None, 1)[0]
        if not key.endswith(":"):  # a line of addresses opens a mapping
            inside = line.endswith(str(file))
        elif inside and key[:-1] in found:
            found[key[:-1]] += int(line.split()[1]) * 1024
    return found


class Peak:
    """The most private memory of this process until now, looked at every five milliseconds."""

    def __init__(self) -> None:
        self.most = 0
        Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, kibibytes("status", "RssAnon"))
            time.sleep(0.005)


def main(name: str, *arguments: str) -> None:
    file, _, function = name.partition(".")
    found = getattr(import_module(f"bench.{file}"), function)(*arguments)
    if callable(found):
        hold(found)
    elif found is not None:
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
