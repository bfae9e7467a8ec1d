"""The limits of one fetch: how many bytes may come, and by when.

Every answer passes the hooks of the client's session, redirects and the client's own requests too; those of threads
without a watch pass freely. A refusal is raised there, before its body is read. No body is read further than what
was requested or announced. Each QUIET seconds have to bring SLOWEST bytes or the end: the slowest modem brings a
hundred times as much, a server that sends a byte now and then is given up.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from minibert.errors import HubError

from .errors import Address, client_errors, explain, number, refusal, wrong_answer

T = TypeVar("T")

SLOWEST = 500  # bytes that are progress
LARGEST = 1 << 27  # bytes of an answer, or of a file that holds no tensors; tokenizer.json reaches 40 MB

_here = threading.local()  # .watch: the one over this thread


class Watch:
    """The limits of one fetch: how many bytes, and until when the next ones must come.

    address, commit: what it is about. patience, quiet: seconds, before the first answer and after it.
    """

    def __init__(self, address: Address, commit: str | None, patience: float, quiet: float) -> None:
        self.address, self.commit = address, commit
        self.most = LARGEST  # bytes of the next body
        self.answered = False
        self.seconds = patience
        self.deadline = math.inf  # where no request is under way
        self._quiet, self._gained, self._given_up = quiet, 0, False

    def over(self, call: Callable[[], T]) -> T:
        """Run `call`; raise TimeoutError when the deadline has passed.

        It runs in a thread, because neither resolving a host's name nor trying its addresses one by one obeys a
        timeout. A thread that is given up ends at its next sign of life, and does not keep the process alive.
        """
        outcome: Future[T] = Future()

        def run() -> None:
            _here.watch = self
            try:
                outcome.set_result(call())
            except BaseException as error:  # noqa: BLE001 - not swallowed: the caller gets it
                outcome.set_exception(error)

        hook_session()  # takes seconds on a slow machine: import time must not count as waiting
        self.deadline = time.monotonic() + self.seconds
        threading.Thread(target=run, daemon=True, name="minibert-hub").start()
        while not outcome.done():
            left = min(self.deadline - time.monotonic(), self.seconds)
            if left <= 0:
                self._given_up = True
                raise TimeoutError
            with contextlib.suppress(FutureTimeout):
                outcome.exception(timeout=left)
        return outcome.result()

    def asks(self) -> None:
        """A request goes out."""
        self._brings(SLOWEST if self.answered else 0)

    def answers(self, response: Any) -> None:
        """Judge the head of an answer, and bound its body."""
        self.answered, self.seconds = True, self._quiet
        self._brings(SLOWEST)
        headers = response.headers
        if response.is_error:
            raise refusal(response, self.address)
        if self.commit is not None and headers.get("X-Repo-Commit", self.commit) != self.commit:
            raise wrong_answer(self.address, f"commit {self.commit}", f"X-Repo-Commit: {headers['X-Repo-Commit']}")
        if headers.get("Content-Encoding", "identity") != "identity":  # a kilobyte may become a gigabyte
            raise wrong_answer(self.address, "bytes as they are", f"Content-Encoding: {headers['Content-Encoding']}")
        if response.request.method == "HEAD":  # the client begins a whole file, and names it by its ETag
            tag = headers.get("X-Linked-Etag", headers.get("ETag", ""))
            if re.search(r"[/\\]|\.\.", tag):
                raise wrong_answer(self.address, "an ETag that can name a file", f"ETag: {tag}")
            own = None if response.is_redirect else headers.get("Content-Length")
            size = number(headers.get("X-Linked-Size", own))
            self.most = size if size and str(self.address.file).endswith(".safetensors") else LARGEST
        response.iter_raw = self._bounded(response.iter_raw, self.most)  # all that reads a body calls it

    def _bounded(self, read: Callable[..., Iterator[bytes]], most: int) -> Callable[..., Iterator[bytes]]:
        def iter_raw(*arguments: Any, **options: Any) -> Iterator[bytes]:
            left = most
            try:
                for piece in read(*arguments, **options):
                    self._brings(len(piece))
                    left -= len(piece)
                    if left < 0:
                        raise wrong_answer(self.address, f"{most} bytes", "more of them")
                    yield piece
            except client_errors() as error:  # as ours: the client would try again by itself, and say so
                raise explain(error, self.address) from None
            finally:
                self.deadline = math.inf  # until the next request

        return iter_raw

    def _brings(self, count: int) -> None:
        if self._given_up:
            raise HubError("this fetch was given up")
        self._gained += count
        if self._gained >= SLOWEST:
            self.deadline, self._gained = time.monotonic() + self.seconds, 0


def hook_session() -> None:
    """Let every request and answer of the client's session pass by the watch over its thread, if there is one."""
    from huggingface_hub import get_session

    hooks = (session := get_session()).event_hooks
    if _answers not in hooks["response"]:
        session.event_hooks = {"request": [*hooks["request"], _asks], "response": [*hooks["response"], _answers]}


def _asks(request: Any) -> None:
    if (watch := getattr(_here, "watch", None)) is not None:
        watch.asks()


def _answers(response: Any) -> None:
    if (watch := getattr(_here, "watch", None)) is not None:
        watch.answers(response)
