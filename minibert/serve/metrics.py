"""The server writes a line of the log for each request, and counts for Prometheus."""

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
LONGEST = 200  # letters of a path in a line


class Record:
    """Counts requests, and what was computed for them; one line of the log for each request.

    Several workers count in one folder, if PROMETHEUS_MULTIPROC_DIR names it. Each holds a lock of it. Who finds no
    other there removes the files: at the start those of a run that was killed, at the end those of this one.

    paths: those of the server; any other counts as "other".
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths, self.folder = frozenset(paths), os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        self.counts: dict[str, Any] = {}  # empty without prometheus-client
        self.lock: int | None = None

    def open(self) -> None:
        """Begin to count, in the process that answers."""
        if self.counts or not find_spec("prometheus_client"):
            return
        if self.folder:
            import fcntl

            Path(self.folder).mkdir(parents=True, exist_ok=True)
            self.lock = os.open(self.folder, os.O_RDONLY)
            self.close()
            fcntl.flock(self.lock, fcntl.LOCK_SH)
        from prometheus_client import CollectorRegistry, Counter, Histogram

        own: dict[str, Any] = {"registry": CollectorRegistry()}
        for name in ("texts", "tokens", "truncated"):
            self.counts[name] = Counter(f"minibert_{name}", f"{name} of each model", ["model"], **own)
        self.counts["requests"] = Counter("minibert_requests", "requests", ["path", "status"], **own)
        seconds = "time until the answer"
        self.counts["seconds"] = Histogram("minibert_request_seconds", seconds, ["path"], buckets=BOUNDS, **own)
        self.registry = own["registry"]
        if self.folder:
            self.registry = CollectorRegistry()
            self.registry.register(self)

    def close(self) -> None:
        """Remove the files of a folder where no other worker counts."""
        if self.lock is not None:
            import fcntl

            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            for file in Path(self.folder or "").glob("*.db"):
                file.unlink()

    def text(self) -> bytes:
        """Give the numbers in Prometheus' text form, of all workers that share a folder. Raises Refusal."""
        if not self.counts:
            raise Refusal(501, "metrics need the package prometheus-client: pip install 'prometheus-client>=0.21'")
        from prometheus_client import generate_latest

        return bytes(generate_latest(self.registry))

    def collect(self) -> Iterable[Any]:
        """Add the numbers in the files of all workers, as prometheus-client asks of a collector.

        A file that another worker has just made is empty for a moment.
        """
        from prometheus_client.multiprocess import MultiProcessCollector

        files = [str(file) for file in Path(self.folder or "").glob("*.db") if file.stat().st_size]
        return MultiProcessCollector.merge(files)  # type: ignore[no-any-return]

    def done(self, scope: Any, name: str, job: Job) -> None:
        """Note what was computed for a request."""
        numbers = {"texts": len(job.items), "tokens": job.tokens, "truncated": len(job.truncated)}
        scope["minibert"] = {"model": name, **numbers}
        for what, number in numbers.items() if self.counts else ():
            self.counts[what].labels(name).inc(number)

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

    def _note(self, scope: Any, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self.paths else "other"
        if self.counts:
            self.counts["requests"].labels(path, str(status)).inc()
            self.counts["seconds"].labels(path).observe(seconds)
        raw = scope["raw_path"].decode("ascii", "backslashreplace")[:LONGEST]
        said = dict(client=(scope.get("client") or [""])[0], method=scope["method"], path=raw, status=status)
        said |= dict(ms=round(seconds * 1000, 1), **scope.get("minibert", {}))
        level = logging.DEBUG if path == "/health" else logging.INFO
        ACCESS.log(level, " ".join(f"{name}={value}" for name, value in said.items()))


def start_logging(level: str) -> None:
    """Write the lines of this server to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    ACCESS.handlers, ACCESS.propagate = [handler], False
    ACCESS.setLevel(level.upper())
