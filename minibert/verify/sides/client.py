"""Vectors from a server that answers OpenAI's `/v1/embeddings`: nothing but that one address is asked."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from itertools import islice
from threading import Thread
from typing import Any, NoReturn

import numpy as np

from minibert.equations.input_layer import Array

from .vector_files import as_vectors

AT_ONCE = 8  # texts in a request: several, since padding goes wrong only beside a longer text
QUIET = 120  # seconds without a byte
LONGEST = 600  # seconds from a request to the end of its answer
LARGEST = 1 << 23  # bytes of an answer
AROUND = 1 << 16  # bytes of an answer without its vectors, and of what a server says of an error
WIDEST, LARGEST_VECTOR = 1 << 15, 1 << 20  # numbers of a vector, and bytes of their JSON
VECTOR = re.compile(rb'"embedding"\s*:\s*(\[[^][{}]*\]|"[^"]*")')
SECRET = 8  # letters: shorter values of a query, as a version's, are none
REFUSED = (400, 413, 422)  # of the text, and not of the whole request
MEANT = {
    401: "the key is missing or wrong; name the environment's variable that has it",
    403: "this key may not use the model",
    404: "is it the right address, and does the server call the model so?",
    429: "too many requests, or no credit left; try again later",
}


class Refusal(Exception):  # noqa: N818  never leaves this file
    """The server refuses these texts."""


class Client:
    """Asks one address. Raises ValueError for one that is none, and for a key that the environment does not have."""

    def __init__(self, url: str, model: str, key_name: str | None = None) -> None:
        from urllib.parse import unquote_plus, urlsplit

        shown = url.partition("?")[0].rpartition("@")[2]
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            parts, host = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(f"the address must be as http://host:8000 or https://host, found {shown!r}")
        if parts.username is not None or parts.password is not None:
            raise ValueError("the address has a name or a password; put a key into an environment variable instead")
        if not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError(f"the address must be of ASCII without spaces (é is %C3%A9), found {shown!r}")
        path = parts.path.rstrip("/")
        if not path.endswith("/embeddings"):
            path += "/embeddings" if path.endswith("/v1") else "/v1/embeddings"
        self._asked, self.model = parts._replace(path=path, fragment="").geturl(), model
        self.url = parts._replace(path=path, query="", fragment="").geturl()  # as it is shown: a query may have a key
        self.key = None if key_name is None else os.environ.get(key_name, "").strip()
        if key_name is not None and not self.key:
            raise ValueError(f"the environment has no {key_name}, which should hold the server's key")
        if self.key and not (self.key.isascii() and self.key.isprintable()):
            raise ValueError(f"{key_name} has characters that no key has: it must be one line of ASCII")
        values = [pair.partition("=")[2] or pair for pair in parts.query.split("&")]
        known = {value for value in (*values, *map(unquote_plus, values)) if len(value) >= SECRET}
        self._secrets = sorted({*known, self.key} if self.key else known, key=len, reverse=True)

    def vectors(self, texts: Sequence[str]) -> tuple[list[int], Array]:
        """Ask for vectors: which texts have one, and these (n, dim). A text that the server refuses has none.

        Raises ValueError for an answer that is not as OpenAI's, OSError where there is none.
        """
        found: dict[int, Any] = {}
        for start in range(0, len(texts), AT_ONCE):
            numbers = list(range(start, min(start + AT_ONCE, len(texts))))
            try:
                found |= zip(numbers, self._ask([texts[i] for i in numbers]), strict=True)
            except Refusal:
                for i in numbers:  # some servers take no empty text, others none that is too long
                    try:
                        found[i] = self._ask([texts[i]])[0]
                    except Refusal as again:
                        refusal = again
                if not found:
                    raise ValueError(f"{self.url}: {refusal}") from None
        widths = {len(vector) for vector in found.values()}
        if len(widths) != 1:
            raise ValueError(f"{self.url}: expected vectors of one width, found {sorted(widths)}")
        return list(found), as_vectors(np.stack(list(found.values())), self.url)

    def _ask(self, texts: list[str]) -> list[Array]:
        asked = {"model": self.model, "input": texts, "encoding_format": "float"}
        content = self._answer(json.dumps(asked).encode())
        data, places = self._data(content, len(texts))
        try:
            order = [each.get("index", i) for i, each in enumerate(data)]
            if sorted(order) != list(range(len(texts))):
                raise ValueError(f"'index' counts {order}")
            if [each["embedding"] for each in data] != list(range(len(places))):
                raise ValueError("an 'embedding' is no list of numbers")
            made = [_numbers(content[first:end]) for first, end in places]
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{self.url}: an answer is not as OpenAI's: {self._shown(repr(error).encode())}") from None
        return [made[order.index(i)] for i in range(len(texts))]

    def _data(self, content: bytearray, count: int) -> tuple[list[Any], list[tuple[int, int]]]:
        """Read 'data' with numbers in place of its vectors, and where each of these is written.

        Python's lists and numbers take many times the memory of their JSON: no more than one vector is read at a time.
        """
        places = [found.span(1) for found in islice(VECTOR.finditer(content), count)]
        numbers = iter(range(count))
        around = VECTOR.sub(lambda _: b'"embedding":%d' % next(numbers), content, count)
        shown = repr(self._shown(content))
        try:
            answer = json.loads(around) if len(around) <= AROUND else None
        except (ValueError, RecursionError):
            raise ValueError(f"{self.url}: expected JSON, found {shown}; is it the right address?") from None
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list) or len(data) != count:
            found = f"{len(data)} of them" if isinstance(data, list) else shown
            raise ValueError(f"{self.url}: expected 'data' with {count} vectors, found {found}")
        return data, places

    def _answer(self, asked: bytes) -> bytearray:
        """Send a request and read its answer, within a time, at whatever point the server is slow.

        It runs in a thread, since each wait of its own bounds one byte. A thread that is given up does not keep the
        process alive.
        """
        outcome: Future[bytearray] = Future()

        def run() -> None:
            try:
                outcome.set_result(self._post(asked))
            except BaseException as error:  # noqa: BLE001 - not swallowed: the caller gets it
                outcome.set_exception(error)

        Thread(target=run, daemon=True).start()
        try:
            return outcome.result(LONGEST)
        except FutureTimeout:
            raise ValueError(f"{self.url}: an answer takes more than {LONGEST} seconds") from None

    def _post(self, asked: bytes) -> bytearray:
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import HTTPRedirectHandler, Request, build_opener

        class Stay(HTTPRedirectHandler):  # a key is for this address alone
            def redirect_request(self, *_: Any) -> None:
                return None

        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = Request(self._asked, asked, headers, method="POST")
        try:
            with build_opener(Stay()).open(request, timeout=QUIET) as reply:
                return self._read(reply, LARGEST)
        except HTTPError as error:
            self._refuse(error)
        except (HTTPException, OSError, UnicodeError) as error:  # a name that no host can have is a UnicodeError
            reason = self._shown(str(getattr(error, "reason", error)).encode())
            raise ConnectionError(f"{self.url} does not answer: {reason}") from None

    def _read(self, reply: Any, most: int) -> bytearray:
        """Read to the end. Raises ValueError for more than `most` bytes."""
        found = bytearray()
        while piece := reply.read1(1 << 16):
            found += piece
            if len(found) > most:
                raise ValueError(f"{self.url}: an answer has more than {most:,} bytes")
        return found

    def _refuse(self, error: Any) -> NoReturn:
        """Say what an HTTP error means; what the server says of it may repeat the key."""
        from http.client import HTTPException

        try:
            with error:
                said = self._shown(self._read(error, AROUND), 300).strip()
        except (OSError, ValueError, HTTPException):
            said = ""
        if error.code in REFUSED:
            raise Refusal(f"HTTP {error.code}: {said}") from None
        meant = MEANT.get(error.code, "the server failed" if error.code >= 500 else "")
        status = self._shown(f"HTTP {error.code} {error.reason}".encode())
        shown = ": ".join(part for part in (status, meant, said) if part)
        raise ValueError(f"{self.url} answers {shown}") from None

    def _shown(self, said: bytes | bytearray, most: int = 120) -> str:
        """Show the beginning of what a server says, all of it, without the key and what else is secret."""
        for secret in self._secrets:
            said = said.replace(secret.encode(), b"***")
        return said[:most].decode("utf-8", "replace")


def _numbers(written: bytes | bytearray) -> Array:
    """Read one vector: a list of numbers, or base64 of float32, little-endian."""
    if len(written) > LARGEST_VECTOR or written.count(b",") >= WIDEST:
        raise ValueError(f"a vector of {len(written):,} bytes")
    embedding = json.loads(written)
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4").astype(np.float64)
    found = np.array(embedding, np.float64)
    if found.ndim != 1 or not found.size:
        raise ValueError(f"a vector of shape {found.shape}")
    return found
