"""Read a page of HTML strictly; a browser would forgive errors. And the numbers that it holds."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array

EMPTY = {"br", "img", "input", "link", "meta"}  # elements without an end


class Reader(HTMLParser):
    """Reads a page strictly: every element is closed in its turn, no id occurs twice."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # the innermost open element, and a text in it
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attributes}) == len(attributes)
        self.elements.append((tag, dict(attributes)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", text))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag: str) -> str:
        return "".join(text for name, text in self.texts if name == tag)


def unpacked(numbers: str, *shape: int, kind: str = "f4") -> Array:
    return np.frombuffer(base64.b64decode(numbers), f"<{kind}").reshape(shape or -1)


def read(html: str) -> Reader:
    assert not re.search(r"<!--\w+-->", html), "a mark of the frame was left"
    reader = Reader(html)
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for _, attributes in reader.elements:
        assert attributes.get("aria-labelledby", ids[0]) in ids
    return reader


def data_of_script(html: str, name: str) -> dict[str, Any]:
    """The data of the page's script element of this id; the page is read strictly."""
    read(html)
    (text,) = re.findall(rf'<script type="application/json" id="{name}">(.*?)</script>', html, re.DOTALL)
    data: dict[str, Any] = json.loads(text)
    return data
