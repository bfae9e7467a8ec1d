"""Small files: a path, and JSON that holds an object."""

from __future__ import annotations

import json
import os
from typing import Any

FileName = str | os.PathLike[str]


def read_object(path: FileName, advice: str = "fetch it again") -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises ValueError that names the file and gives advice."""
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read().decode("utf-8"))
        if not isinstance(data, dict):
            raise ValueError(f"expected an object, found {type(data).__name__}")
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{path}: not readable as JSON ({error}); {advice}") from None
    return data
