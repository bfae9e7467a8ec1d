"""Small files: a path, and JSON that holds an object; and which files of models this process has opened."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from typing import Any

from minibert.errors import CheckpointError

FileName = str | os.PathLike[str]

BLOCK = 1 << 20  # bytes that are hashed at once
_MODEL_FILES: dict[tuple[int, int], str] = {}  # device and number of a file -> its path when it was opened


def note_model_file(path: FileName) -> None:
    """Remember a file that a model is made of: `writing` never writes over it. A missing file is ignored."""
    with suppress(OSError, ValueError):
        found = os.stat(path)
        _MODEL_FILES[found.st_dev, found.st_ino] = os.path.abspath(path)


def model_file(path: FileName) -> str | None:
    """Give the name under which a model's file was opened here, whatever `path` calls it; None for any other file."""
    try:
        found = os.stat(path)
        opened = _MODEL_FILES.get((found.st_dev, found.st_ino))
        # a number is used again once its file is gone
        return opened if opened is not None and os.path.samestat(os.stat(opened), found) else None
    except OSError:
        return None


def sha256_of(path: FileName) -> str:
    """Give the sha256 of a file."""
    import hashlib  # brings OpenSSL: 3 MiB that most processes do without

    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def existing(path: FileName) -> bool:
    """Whether a file is there. What stands under its name and is no file is an error, and not an absent file.

    Raises CheckpointError for a folder, a pipe, a link to nothing or to itself, and a file that may not be looked at.
    """
    mode = mode_of(path)
    if not mode:
        if not os.path.lexists(path):
            return False
        raise CheckpointError(f"{path} is a link to nothing or to itself; fetch the file again")
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no file"
        raise CheckpointError(f"{path} is {kind}, but a file is expected under this name; remove it, or fetch the file")
    return True


def mode_of(path: FileName) -> int:
    """Give the mode of what a path leads to, 0 where nothing is there.

    Raises CheckpointError where this user may not read it.
    """
    try:
        mode = os.stat(path).st_mode
    except PermissionError:
        raise CheckpointError(may_not_read(os.path.dirname(path))) from None
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return 0
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise CheckpointError(may_not_read(path))
    return mode


def may_not_read(path: FileName) -> str:
    """Say that this user has no right to read a path, and who can mend it."""
    user = f"user {os.geteuid()}" if hasattr(os, "geteuid") else "this user"
    return f"{user} may not read {path}; its owner can allow it (chmod, chown)"


def read_object(
    path: FileName | None, kind: type[Exception] = CheckpointError, advice: str = "fetch it again"
) -> dict[str, Any]:
    """Read a JSON file that holds an object; {} without a path. Raises `kind`, which names the file."""
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read().decode("utf-8-sig"))  # an editor may have put a byte order mark there
        if not isinstance(data, dict):
            raise ValueError(f"expected an object, found {type(data).__name__}")
    except (ValueError, RecursionError, OSError) as error:
        raise kind(f"{path}: not readable as JSON ({error}); {advice}") from None
    return data
