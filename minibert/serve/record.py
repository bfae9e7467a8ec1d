"""What the server did: a line for each request, and numbers for Prometheus, which all workers add to."""

from __future__ import annotations

import json
import logging
import mmap
import sys
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

import numpy as np

from .worker import Job

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
ACCESS = logging.getLogger("minibert.serve")
BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)  # seconds, of the histogram
TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of Prometheus' text form
LONGEST = 200  # letters of a path in a line
GONE = 499  # the client has closed the connection
STATUSES = sorted([GONE, *HTTPStatus])
COMPUTED = ("texts", "tokens", "truncated")
INSIDE = ("inside",)  # requests that are accepted and not yet answered


class Record:
    """Counts requests, and what was computed for them; one line of the log for each request.

    Each worker has a row of numbers that it alone writes, in memory that a fork shares; what is told are the sums. One
    that takes the place of another goes on in its row.

    paths   those of the server; any other counts as "other"
    models  the names of its models
    """

    def __init__(self, paths: Iterable[str], models: Iterable[str], workers: int = 1) -> None:
        self.paths, self.models = sorted({*paths, "other"}), sorted(models)
        keys = [
            *(("requests", path, status) for path in self.paths for status in STATUSES),
            *(("seconds", path) for path in self.paths),
            *(("within", path, bound) for path in self.paths for bound in BOUNDS),
            *((what, name) for what in COMPUTED for name in self.models),
            INSIDE,
        ]
        self.columns = {key: i for i, key in enumerate(keys)}
        shared = mmap.mmap(-1, workers * len(keys) * 8)
        self.rows = np.frombuffer(shared).reshape(workers, len(keys))
        self.own = self.rows[0]

    def begin(self, worker: int) -> None:
        """Write into this worker's row from now on; nothing is inside yet."""
        self.own = self.rows[worker]
        self.own[self.columns[INSIDE]] = 0

    def add(self, *key: Any, number: float = 1) -> None:
        """Add to one of this worker's numbers."""
        self.own[self.columns[key]] += number

    def total(self, *key: Any) -> Any:
        """Give the sum of one number over all workers."""
        found = self.rows[:, self.columns[key]].sum()
        return float(found) if key[0] == "seconds" else int(found)

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
                self._note(scope, status, time.perf_counter() - start)

        return noting

    def done(self, scope: Any, name: str, job: Job) -> None:
        """Note what was computed for a request."""
        numbers = dict(zip(COMPUTED, (len(job.items), job.tokens, len(job.truncated)), strict=True))
        scope["minibert"] = {"model": name, **numbers}
        for what, number in numbers.items():
            self.add(what, name, number=number)

    def _note(self, scope: Any, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self.paths else "other"
        self.add("requests", path, status)
        self.add("seconds", path, number=seconds)
        for bound in BOUNDS:
            self.add("within", path, bound, number=seconds <= bound)
        level = logging.DEBUG if path == "/health" else logging.INFO
        if ACCESS.isEnabledFor(level):
            said = {
                "client": (scope.get("client") or [""])[0],
                "method": scope["method"],
                "path": scope["raw_path"].decode("ascii", "backslashreplace")[:LONGEST],
                "status": status,
                "ms": round(seconds * 1000, 1),
                **scope.get("minibert", {}),
            }
            ACCESS.log(level, " ".join(f"{name}={value}" for name, value in said.items()), extra={"said": said})

    def metrics(self) -> str:
        """Give the numbers of all workers in Prometheus' text form."""
        lines = ["# TYPE minibert_requests_total counter"]
        counts = {path: [self.total("requests", path, status) for status in STATUSES] for path in self.paths}
        asked = [path for path in self.paths if any(counts[path])]
        for path in asked:
            each = zip(STATUSES, counts[path], strict=True)
            lines += [f'minibert_requests_total{{path="{path}",status="{int(status)}"}} {n}' for status, n in each if n]
        lines.append("# TYPE minibert_request_seconds histogram")
        for path in asked:
            within = {str(bound): self.total("within", path, bound) for bound in BOUNDS} | {"+Inf": sum(counts[path])}
            for bound, count in within.items():
                lines.append(f'minibert_request_seconds_bucket{{path="{path}",le="{bound}"}} {count}')
            lines.append(f'minibert_request_seconds_sum{{path="{path}"}} {self.total("seconds", path):.6f}')
            lines.append(f'minibert_request_seconds_count{{path="{path}"}} {sum(counts[path])}')
        for what in COMPUTED:
            lines.append(f"# TYPE minibert_{what}_total counter")
            for name in self.models:
                lines.append(f"minibert_{what}_total{{model={_quoted(name)}}} {self.total(what, name)}")
        inside = ["# TYPE minibert_requests_inside gauge", f"minibert_requests_inside {self.total(*INSIDE)}", ""]
        return "\n".join([*lines, *inside])


def _quoted(name: str) -> str:
    r"""Write a label as Prometheus reads it.

    >>> print(_quoted('a "b" \\ c'))
    "a \"b\" \\ c"
    """
    inside = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{inside}"'


class AsJson(logging.Formatter):
    """A line of JSON for each record."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = {"time": f"{moment}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        return json.dumps(head | getattr(record, "said", {"message": record.getMessage()}))


def start_logging(level: str, form: str) -> None:
    """Write the lines of this server to stderr, and with the form json those of uvicorn like them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(AsJson() if form == "json" else logging.Formatter("%(asctime)s %(message)s"))
    loggers = [ACCESS, *([logging.getLogger("uvicorn")] if form == "json" else [])]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    ACCESS.setLevel(level.upper())
