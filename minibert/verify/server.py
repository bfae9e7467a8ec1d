"""Vectors from a server that answers OpenAI's `/v1/embeddings`: nothing but that one address is asked."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Sequence
from time import monotonic
from typing import Any, NoReturn

import numpy as np

from minibert.equations.input_layer import Array

from .vector_files import as_vectors

AT_ONCE = 8  # texts in a request: several, since padding goes wrong only beside a longer text
TIMEOUT = 120  # seconds without a byte
LONGEST = 600  # seconds for one answer
LARGEST = 1 << 28  # bytes of an answer
REFUSED = (400, 413, 422)  # of the text, and not of the whole request
MEANT = {
    401: "the key is missing or wrong; name the environment's variable that has it",
    403: "this key may not use the model",
    404: "is it the right address, and does the server call the model so?",
    429: "too many requests, or no credit left; try again later",
}


class Refusal(Exception):  # noqa: N818  never leaves this file
    """The server refuses these texts."""


class Server:
    """One address. Raises ValueError for an address that is none, and for a key that the environment does not have."""

    def __init__(self, url: str, model: str, key_name: str | None = None) -> None:
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(url)
            host = parts.hostname
        except ValueError:
            parts, host = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(f"the address must begin with http:// or https:// and a host, found {url!r}")
        if parts.username is not None or parts.password is not None:
            raise ValueError("the address has a name or a password; put a key into an environment variable instead")
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
        body = {"model": self.model, "input": texts, "encoding_format": "float"}
        answer = self._post(json.dumps(body).encode())
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list) or len(data) != len(texts):
            shown = f"{len(data)} of them" if isinstance(data, list) else self._without_key(f"{answer!r:.400}")[:120]
            raise ValueError(f"{self.url}: expected 'data' with {len(texts)} vectors, found {shown}")
        try:
            order = [each.get("index", i) for i, each in enumerate(data)]
            if sorted(order) != list(range(len(texts))):
                raise ValueError(f"'index' counts {order}")
            made = [_numbers(each["embedding"]) for each in data]
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
            shown = self._without_key(f"{error!r}")[:120]
            raise ValueError(f"{self.url}: an answer is not as OpenAI's: {shown}") from None
        return [made[order.index(i)] for i in range(len(texts))]

    def _post(self, body: bytes) -> Any:
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import HTTPRedirectHandler, Request, build_opener

        class Stay(HTTPRedirectHandler):  # a key is for this address alone
            def redirect_request(self, *_: Any) -> None:
                return None

        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = Request(self._asked, body, headers, method="POST")
        try:
            with build_opener(Stay()).open(request, timeout=TIMEOUT) as reply:
                found = self._read(reply)
        except HTTPError as error:
            self._refuse(error)
        except (URLError, HTTPException, OSError) as error:
            reason = self._without_key(str(getattr(error, "reason", error)))
            raise ConnectionError(f"{self.url} does not answer: {reason}") from None
        try:
            return json.loads(found)
        except (ValueError, RecursionError):
            shown = self._without_key(found[:80].decode("utf-8", "replace"))
            raise ValueError(f"{self.url}: expected JSON, found {shown!r}; is it the right address?") from None

    def _read(self, reply: Any) -> bytes:
        """Read an answer. Raises ValueError for one that is too large or takes too long, however slowly it comes."""
        began, pieces, size = monotonic(), [], 0
        while piece := reply.read1(1 << 16):
            pieces.append(piece)
            size += len(piece)
            if size > LARGEST:
                raise ValueError(f"{self.url}: an answer has more than {LARGEST:,} bytes")
            if monotonic() - began > LONGEST:
                raise ValueError(f"{self.url}: an answer takes more than {LONGEST} seconds")
        return b"".join(pieces)

    def _refuse(self, error: Any) -> NoReturn:
        """Say what an HTTP error means; what the server says of it may repeat the key."""
        from http.client import HTTPException

        try:
            said = self._without_key(error.read(4096).decode("utf-8", "replace").strip())[:300]
        except (OSError, ValueError, HTTPException):
            said = ""
        if error.code in REFUSED:
            raise Refusal(f"HTTP {error.code}: {said}") from None
        meant = MEANT.get(error.code, "the server failed" if error.code >= 500 else "")
        status = self._without_key(f"HTTP {error.code} {error.reason}")
        shown = ": ".join(part for part in (status, meant, said) if part)
        raise ValueError(f"{self.url} answers {shown}") from None

    def _without_key(self, text: str) -> str:
        return text.replace(self.key, "***") if self.key else text


def _numbers(embedding: Any) -> Array:
    """Read one vector: a list of numbers, or base64 of float32, little-endian."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4").astype(np.float64)
    found = np.array(embedding, np.float64)
    if found.ndim != 1 or not found.size:
        raise ValueError(f"a vector of shape {found.shape}")
    return found
