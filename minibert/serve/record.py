"""What the server did: a line for each request, and numbers for Prometheus."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from .worker import Job

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
ACCESS = logging.getLogger("minibert.serve")
BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)  # seconds, of the histogram
TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of Prometheus' text form
LONGEST = 200  # letters of a path in a line


class Record:
    """Counts requests, and what was computed for them; one line of the log for each request."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # path, status
        self.seconds: defaultdict[str, float] = defaultdict(float)  # of a path, all together
        self.within: Counter[tuple[str, float]] = Counter()  # path and bound: requests that took no longer
        self.computed: Counter[tuple[str, str]] = Counter()  # what, and the model's name

    def watched(self, app: Callable[..., Any], paths: set[str]) -> Callable[..., Any]:
        """Give an application of ASGI whose requests are noted; a path that is not in `paths` counts as "other"."""

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            start, status = time.perf_counter(), 499  # the client has left

            async def sending(event: Any) -> None:
                nonlocal status
                status = event.get("status", status)
                await send(event)

            try:
                await app(scope, receive, sending)
            finally:
                self._note(scope, status, time.perf_counter() - start, paths)

        return noting

    def done(self, scope: Any, name: str, job: Job) -> None:
        """Note what was computed for a request."""
        numbers = {"texts": len(job.items), "tokens": job.tokens, "truncated": len(job.truncated)}
        scope["minibert"] = {"model": name, **numbers}
        for what, number in numbers.items():
            self.computed[what, name] += number

    def _note(self, scope: Any, status: int, seconds: float, paths: set[str]) -> None:
        path = scope["path"] if scope["path"] in paths else "other"
        self.requests[path, status] += 1
        self.seconds[path] += seconds
        for bound in BOUNDS:
            self.within[path, bound] += seconds <= bound
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

    def metrics(self, inside: int) -> str:
        """Give the numbers in Prometheus' text form. `inside`: how many requests are accepted and not yet answered."""
        lines = ["# TYPE minibert_requests_total counter"]
        for (path, status), count in sorted(self.requests.items()):
            lines.append(f'minibert_requests_total{{path="{path}",status="{status}"}} {count}')
        lines.append("# TYPE minibert_request_seconds histogram")
        for path in sorted(self.seconds):
            total = sum(count for (own, _), count in self.requests.items() if own == path)
            counts = {**{str(bound): self.within[path, bound] for bound in BOUNDS}, "+Inf": total}
            for bound, count in counts.items():
                lines.append(f'minibert_request_seconds_bucket{{path="{path}",le="{bound}"}} {count}')
            lines.append(f'minibert_request_seconds_sum{{path="{path}"}} {self.seconds[path]:.6f}')
            lines.append(f'minibert_request_seconds_count{{path="{path}"}} {total}')
        for what in ("texts", "tokens", "truncated"):
            lines.append(f"# TYPE minibert_{what}_total counter")
            for (own, name), count in sorted(self.computed.items()):
                if own == what:
                    lines.append(f"minibert_{what}_total{{model={_quoted(name)}}} {count}")
        return "\n".join([*lines, "# TYPE minibert_requests_inside gauge", f"minibert_requests_inside {inside}", ""])


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
