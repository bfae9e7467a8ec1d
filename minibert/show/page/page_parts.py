"""Both parts of the page of `explain --html` use these pieces: templates, numbers, formulas; and its largest size."""

from __future__ import annotations

import base64
import inspect
import json
import re
from collections.abc import Callable, Container
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array

LARGEST = 10_000_000  # bytes of a page
BYTES = 4 / 3  # of base64 for one byte


def packed(numbers: Array) -> str:
    """Pack numbers as little-endian bytes in base64."""
    return base64.b64encode(np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")).tobytes()).decode()


def as_json(data: Any) -> str:
    """Write data for a script element. "</" or "<!--" would end or change the script: no "<" is left."""
    return json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")


def filled(template: str, **parts: str) -> str:
    """Fill a template of this folder in one pass, so that no filled-in text is taken for a placeholder."""
    frame = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return re.sub(r"<!--(\w+)-->", lambda mark: parts[mark[1]], frame)


def filled_part(name: str, **parts: str) -> dict[str, str]:
    """Give a part of the page: its elements, under its name, and its script; each has a file of this name."""
    script = f"<script>\n{filled(f'page_{name}.js')}</script>"
    return {name: filled(f"page_{name}.html", **parts), "script": script}


def listed(used: Container[object], *files: ModuleType) -> str:
    """List the used functions of some files, in the files' order, as HTML items."""
    own = (f for file in files for f in vars(file).values() if getattr(f, "__module__", None) == file.__name__)
    functions = (f for f in own if inspect.isfunction(f) and f in used)
    return "\n".join(f"<li><h3><code>{f.__name__}</code></h3>{_docstring(f)}</li>" for f in functions)


def _docstring(function: Callable[..., Any]) -> str:
    """Write the first sentence of a docstring and its indented formulas as HTML."""
    first, *others = (inspect.getdoc(function) or "").split("\n\n")
    formulas = [inspect.cleandoc("\n" + other) for other in others if other.startswith("    ")]
    words = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(" ".join(first.split()), quote=False))
    return f"<p>{words}</p>" + "".join(f"<pre>{escape(formula, quote=False)}</pre>" for formula in formulas)
