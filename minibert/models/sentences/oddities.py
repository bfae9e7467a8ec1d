"""Oddities of published folders: what older or other programs write in the place of today's keys and values.

Each is one row of a table, applied where the file is read: all else in this package knows today's words alone. The next
oddity is a row, and a row of `tests/models/test_sentence_folders.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .folder import FolderFiles

TRANSFORMER = "Transformer"
Settings = dict[str, Any]
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # several are laid side by side in this order


class Oddity(NamedTuple):
    """One oddity of a kind of settings: a module's kind, TRANSFORMER, or the name of the folder's own file."""

    name: str
    of: str
    mend: Callable[[Settings, FolderFiles], Settings]  # the settings, and their files for errors -> today's settings


def _older_width(settings: Settings, files: FolderFiles) -> Settings:
    """Give the width of a pooling under its key of today, unless that is there too."""
    rest = {key: value for key, value in settings.items() if key != "word_embedding_dimension"}
    return {"embedding_dimension": settings["word_embedding_dimension"], **rest} if len(rest) < len(settings) else rest


def _pooling_by_flags(settings: Settings, files: FolderFiles) -> Settings:
    """Give the poolings whose flags are set as a list."""
    flagged = [mode for flag, mode in POOLING_FLAGS.items() if files.flag(settings, flag, False)]
    rest = {key: value for key, value in settings.items() if key not in POOLING_FLAGS}
    return {"pooling_mode": flagged, **rest} if flagged else rest


ODDITIES = (
    Oddity("a flag for each pooling", "Pooling", _pooling_by_flags),
    Oddity("the older key of a pooling's width", "Pooling", _older_width),
)


def mended(of: str, files: FolderFiles, name: str) -> Settings:
    """Read a file of settings as if it had been written today."""
    settings = files.object(name)
    for oddity in ODDITIES:
        if oddity.of == of:
            settings = oddity.mend(settings, files)
    return settings
