"""Start processes: the measured ones, and those whose measuring would change this process.

    python -m bench.children FILE.FUNCTION [ARGUMENT...]

calls a function of this package with texts as its arguments, and prints its result as a line of JSON. If the
result is a function, the process is a contender: it has loaded its model and waits for requests, a line of JSON each.
The function gets the "case" of the request, and returns a call and the number by which the call's time is divided. The
answer is the median seconds of the call. With "compare": FILE it is the largest difference from the result that another
contender was asked to "save", or null if the two cannot be compared.

Nothing heavy is imported here (see `process`).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from .machine import ROOT, installed
from .measure import in_turn, seconds_of

CORES = 2  # cores for each contender
NEEDS = {  # the first word of a contender's name -> the packages that it needs
    "transformers": ("torch", "transformers"),
    "sentence-transformers": ("torch", "sentence-transformers"),
    "ONNX": ("torch", "transformers", "onnx", "onnxruntime"),
    "model2vec": ("model2vec",),
}


def environment() -> dict[str, str]:
    """Return the environment of children: this source, no network, compiled modules kept as after an installation."""
    paths = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def there(contender: str) -> bool:
    """Return whether the packages of a contender are installed."""
    return all(map(installed, NEEDS.get(contender.replace(",", "").partition(" ")[0], ())))


def kernel() -> str:
    """Return the kernel of NumPy's BLAS, or "unknown". Call it in a child."""
    from minibert.threads.kernels import kernel

    return kernel().name


def at_once(work: Callable[[int], object], count: int) -> list[Thread]:
    """Start `count` threads, each with its number."""
    threads = [Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def ended(threads: Iterable[Thread]) -> None:
    for thread in threads:
        thread.join()


def take_cores(cores: int) -> None:
    """Restrict this process to the first cores, before NumPy counts them."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def begin(cores: int) -> None:
    """Prepare a child before its program: restrict it to the first cores, and let it end with its parent."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    take_cores(cores)


# -- processes for one request -------------------------------------------------------------------------------------


def command(function: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "bench.children", function, *map(str, arguments)]


def child(function: str, *arguments: object) -> Any:
    """Return the result of a function of this package, computed in a new process."""
    run = command(function, *arguments)
    done = subprocess.run(run, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(run)} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout or "null")


@contextmanager
def waiting(function: str, *arguments: object) -> Iterator[int]:
    """Start a function that prints a line and then waits until its stdin ends; return its process."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command(function, *arguments), env=environment(), cwd=ROOT, text=True, **pipes) as run:
        assert run.stdin is not None and run.stdout is not None  # pipes
        if not run.stdout.readline():
            raise RuntimeError(f"{' '.join(command(function, *arguments))} failed")
        yield run.pid
        run.stdin.close()  # its end ends the process


@contextmanager
def server(*options: object) -> Iterator[tuple[str, int]]:
    """Start `minibert serve`; return its port and the number of its process."""
    run = [sys.executable, "-m", "minibert", "serve", *map(str, options), "--port", "0"]
    given: dict[str, Any] = {"stderr": subprocess.PIPE, "env": environment(), "preexec_fn": partial(begin, CORES)}
    with subprocess.Popen(run, text=True, **given) as process, ExitStack() as stack:
        stack.callback(process.terminate)
        assert process.stderr is not None  # a pipe
        yield process.stderr.readline().partition("127.0.0.1:")[2].partition("/")[0], process.pid


def process(code: str) -> tuple[float, float]:
    """Run Python code in a process to its end; return its seconds and its peak memory in bytes.

    Linux counts the memory of the starting process into a child's peak, so this process must be smaller than the
    child. Raises RuntimeError if it is larger, or if the child fails.
    """
    with tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        run = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            env=environment(), preexec_fn=partial(begin, CORES),
        )  # fmt: skip
        _, status, usage = os.wait4(run.pid, 0)
        seconds = time.perf_counter() - started
        run.returncode = os.waitstatus_to_exitcode(status)
        if run.returncode:
            errors.seek(0)
            raise RuntimeError(f"{code} failed: {errors.read().decode(errors='replace')[-2000:]}")
    if usage.ru_maxrss <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
        raise RuntimeError("the measuring process is larger than the one it measures; start the section by itself")
    return seconds, usage.ru_maxrss * 1024


def processes(codes: Mapping[str, str], rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the seconds and the peak bytes of whole processes.

    The first of several rounds does not count: it reads all from the disk and compiles our modules.
    """
    found = in_turn({name: partial(process, code) for name, code in codes.items()}, rounds, start=int(rounds > 1))
    seconds, peaks = ({name: [one[i] for one in each] for name, each in found.items()} for i in (0, 1))
    return seconds, peaks


# -- contenders: processes that wait for requests -----------------------------------------------------------------


class Contender:
    """A process that has loaded its model and computes only during a request: between requests it is stopped (SIGSTOP).

    The threads of ONNX Runtime go on spinning after a call, and the next contender would take twice as long. Its
    own children are stopped with it. `beside`: the folder of this project from which minibert is imported.
    """

    def __init__(self, function: str, *arguments: object, cores: int = CORES, beside: Path = ROOT) -> None:
        self._child = subprocess.Popen(
            command(function, *arguments), env=environment(), cwd=beside, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, preexec_fn=partial(begin, cores), start_new_session=True,
        )  # fmt: skip
        self._answer()

    def ask(self, *case: int, **request: str) -> Any:
        assert self._child.stdin is not None  # a pipe
        os.killpg(self._child.pid, signal.SIGCONT)
        self._child.stdin.write(json.dumps({"case": case, **request}) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._child.stdout is not None  # a pipe
        line = self._child.stdout.readline()
        if not line:
            self._child.communicate()  # it has ended; this closes the pipes
            raise RuntimeError(f"a contender failed; {' '.join(map(str, self._child.args))} names the reason")
        os.killpg(self._child.pid, signal.SIGSTOP)
        return json.loads(line)

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):  # it has failed
            os.killpg(self._child.pid, signal.SIGCONT)
        self._child.communicate()  # closes stdin: it ends by itself, and its own children's time counts as ours


@contextmanager
def two_busy() -> Iterator[None]:
    """Run two other processes that use all the time they get."""
    with ExitStack() as stack:
        for _ in range(2):
            run = [sys.executable, "-c", "while True: pass"]
            each = stack.enter_context(subprocess.Popen(run, preexec_fn=partial(begin, CORES)))
            stack.callback(each.kill)
        yield


def hold(prepare: Callable[..., tuple[Callable[[], Any], float]]) -> None:
    print("{}", flush=True)
    for line in sys.stdin:
        import numpy as np

        request = json.loads(line)
        call, share = prepare(*request["case"])
        answer = None
        if "save" in request:
            np.save(request["save"], call(), allow_pickle=True)
        elif "compare" in request:
            found, other = call(), np.load(request["compare"], allow_pickle=True)
            if np.shape(found) == other.shape and other.shape:
                answer = float(np.abs(found - other).max())
        else:
            answer = seconds_of(call) / share
        print(json.dumps(answer), flush=True)


def main(name: str, *arguments: str) -> None:
    file, _, function = name.partition(".")
    found = getattr(import_module(f"bench.{file}"), function)(*arguments)
    if callable(found):
        hold(found)
    elif found is not None:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
