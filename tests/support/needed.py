"""A test that lacks a package or a file here skips and says why, or fails in CI. And files that are no modules."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

IN_CI = os.environ.get("CI") == "true"


def missing(reason: str) -> NoReturn:
    """Skip the test with the reason, or fail it in CI."""
    if IN_CI:
        pytest.fail(f"missing in CI: {reason}", pytrace=False)
    pytest.skip(reason)


def absent(*modules: str) -> list[str]:
    return [module for module in modules if importlib.util.find_spec(module) is None]


def module_of(file: Path) -> ModuleType:
    """Import a file that lies in no package."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def need(module: str, extra: str) -> None:
    if absent(module):
        missing(f"{module} not installed; it is in the extra `{extra}`")


def need_sentence_transformers() -> None:
    need("sentence_transformers", "reference")


def opened_there(folder: Path | str, kind: str = "SentenceTransformer", **options: Any) -> Any:
    """Open a folder with sentence-transformers, by its class of this name."""
    need_sentence_transformers()
    import sentence_transformers

    return getattr(sentence_transformers, kind)(str(folder), device="cpu", **options)
