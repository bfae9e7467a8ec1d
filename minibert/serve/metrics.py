"""What the server did: a line of the log for each request, and numbers for Prometheus."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .requests import Refusal
from .worker import Job

LEVELS = ("debug", "info", "warning", "error")
ACCESS = logging.getLogger("minibert.serve")
BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)  # seconds, of the histogram
GONE = 499  # the client has closed the connection
COMPUTED = ("texts", "tokens", "truncated")
LONGEST = 200  # letters of a path in a line


class Record:
    """Counts requests, and what was computed for them; one line of the log for each request.

    paths: those of the server; any other counts as "other".
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        self.counts: Counts | None = None

    def open(self) -> None:
        """Begin to count, if prometheus-client is installed: in the process that answers."""
        if self.counts is None and find_spec("prometheus_client"):
            self.counts = Counts(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))

    def watched(self, app: Callable[..., Any]) -> Callable[..., Any]:
        """Give an application of ASGI whose requests are noted."""

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            start, status = time.perf_counter(), GONE

            async def sending(event: Any) -> None:
                nonlocal status
                status = event.get("status", status)
                await send(event)

            try:
                await app(scope, receive, sending)
            finally:
                if scope["type"] == "http":
                    self._note(scope, status, time.perf_counter() - start)

        return noting

    def inside(self, number: int) -> None:
        """Note that a request was accepted (1), or answered (-1)."""
        if self.counts:
            self.counts.inside.inc(number)

    def done(self, scope: Any, name: str, job: Job) -> None:
        """Note what was computed for a request."""
        numbers = dict(zip(COMPUTED, (len(job.items), job.tokens, len(job.truncated)), strict=True))
        scope["minibert"] = {"model": name, **numbers}
        if self.counts:
            for what, number in numbers.items():
                self.counts.computed[what].labels(name).inc(number)

    def _note(self, scope: Any, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self.paths else "other"
        if self.counts:
            self.counts.requests.labels(path, str(status)).inc()
            self.counts.seconds.labels(path).observe(seconds)
        said = {
            "client": (scope.get("client") or [""])[0],
            "method": scope["method"],
            "path": scope["raw_path"].decode("ascii", "backslashreplace")[:LONGEST],
            "status": status,
            "ms": round(seconds * 1000, 1),
            **scope.get("minibert", {}),
        }
        level = logging.DEBUG if path == "/health" else logging.INFO
        ACCESS.log(level, " ".join(f"{name}={value}" for name, value in said.items()))

    def metrics(self) -> bytes:
        """Give the numbers in Prometheus' text form, of all workers if they share a folder. Raises Refusal."""
        if self.counts is None:
            raise Refusal(501, "metrics need the package prometheus-client: pip install 'minibert-numpy[metrics]'")
        return self.counts.text()

    def close(self) -> None:
        """Let go of the folder."""
        if self.counts:
            self.counts.close()


class Counts:
    """Numbers of prometheus-client. `shared`: the folder in which several workers keep theirs.

    Each worker holds a lock of the folder. Who finds no other there removes the files: at the start those of a run that
    was killed, at the end those of this one.
    """

    def __init__(self, shared: str | None) -> None:
        self.shared = shared
        if shared is not None:
            import fcntl

            Path(shared).mkdir(parents=True, exist_ok=True)
            self.lock = os.open(shared, os.O_RDONLY)
            self._remove_alone()
            fcntl.flock(self.lock, fcntl.LOCK_SH)
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = registry = CollectorRegistry()
        self.requests = Counter("minibert_requests", "Requests", ["path", "status"], registry=registry)
        self.seconds = Histogram("minibert_request_seconds", "Time", ["path"], buckets=BOUNDS, registry=registry)
        self.inside = Gauge(
            "minibert_requests_inside", "Not yet answered", multiprocess_mode="livesum", registry=registry
        )
        self.computed = {
            what: Counter(f"minibert_{what}", f"Of each model: {what}", ["model"], registry=registry)
            for what in COMPUTED
        }

    def text(self) -> bytes:
        """Give the numbers in Prometheus' text form."""
        from prometheus_client import CollectorRegistry, generate_latest, multiprocess

        registry = self.registry
        if self.shared is not None:
            for process in {int(file.stem.rpartition("_")[2]) for file in Path(self.shared).glob("gauge_live*.db")}:
                try:
                    os.kill(process, 0)
                except ProcessLookupError:
                    multiprocess.mark_process_dead(process, self.shared)
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry, self.shared)
        return bytes(generate_latest(registry))

    def close(self) -> None:
        """Remove the files, if no other worker is left."""
        if self.shared is not None:
            self._remove_alone()

    def _remove_alone(self) -> None:
        import fcntl

        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        for file in Path(self.shared or "").glob("*.db"):
            file.unlink()


def start_logging(level: str) -> None:
    """Write the lines of this server to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    ACCESS.handlers, ACCESS.propagate = [handler], False
    ACCESS.setLevel(level.upper())
