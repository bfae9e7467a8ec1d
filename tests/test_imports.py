"""Who may import whom: the layers of the package, read from its sources, and what `import minibert` loads.

The formula, the recipe and the file are three things, and this table keeps them apart: a file imports from rows above
it only, and other people's packages inside functions only, so that nobody pays for what they do not use.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "minibert"

# Row by row: files of one row do not import each other. file -> third parties allowed inside its functions
ROWS: list[dict[str, set[str]]] = [
    {"errors": set(), "frozen": set(), "whole": set()},
    {"equations": set()},
    {"attention_positions": set(), "gradients": set()},
    {"attention_schemes": set()},
    {"config": set()},
    {"tables": set()},
    {"modules": set()},
    {"steps": set()},
    {"family": set()},
    {"families": set()},
    {"tiles": set()},
    {"inputs": set()},
    {"text": {"tokenizers"}},
    {"pooling": {"tqdm"}},
    {"layer": set()},
    {"checkpoint": {"safetensors"}},
    {"hub_errors": {"huggingface_hub"}, "ranges": set()},
    {"transfer": {"huggingface_hub"}, "hub_places": {"huggingface_hub"}},
    {"remote": {"huggingface_hub"}},
    {"hub": {"huggingface_hub"}},
    {"load": set()},
    {"compare": {"safetensors"}, "live": {"torch", "transformers"}, "wrong_steps": set()},
    {"printed": set(), "mistakes": set()},
    {"verify": set(), "extract": {"safetensors"}, "explain": set(), "info": set()},
    {"analysis": set(), "plot": {"matplotlib"}},
    {"pictures": set(), "page": set()},
    {"__init__": set()},
    {"cli": {"safetensors", "matplotlib"}},
    {"__main__": set()},
]
ROW_OF = {file: row for row, files in enumerate(ROWS) for file in files}
THIRD_PARTIES = {file: allowed for files in ROWS for file, allowed in files.items()}
# Arrays go in and numbers or pictures come out: these never see a checkpoint, though its rows stand above them.
SEE_NO_CHECKPOINT = {"analysis", "plot"}
CHECKPOINT_FILES = {
    "layer",
    "checkpoint",
    "transfer",
    "remote",
    "hub",
    "load",
    "compare",
    "live",
    "printed",
    "verify",
    "extract",
    "explain",
    "info",
}


class Import(NamedTuple):
    target: str  # "minibert.tables" for a file of the package, else the top name of a package
    line: int
    inside_function: bool


def imports(node: ast.AST, inside_function: bool = False) -> Iterator[Import]:
    """Every import below this node that can run: a block under `if TYPE_CHECKING:` never does."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(_target(alias.name), child.lineno, inside_function)
        elif isinstance(child, ast.ImportFrom):
            base = "minibert" + ("." + child.module if child.module else "") if child.level else child.module
            for alias in child.names:
                whole = f"minibert.{alias.name}" if base == "minibert" and alias.name in ROW_OF else base
                yield Import(_target(whole), child.lineno, inside_function)
        elif isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in child.orelse:
                yield from imports(ast.Module([statement], []), inside_function)
        else:
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from imports(child, inside_function or function)


def _target(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "minibert" else parts[0]


def faults(file: str, source: str) -> list[str]:
    """What in this source breaks the table, one line each."""
    found = []
    for target, line, inside_function in imports(ast.parse(source)):
        where = f"{file}.py line {line}: {target}"
        if target.startswith("minibert"):
            other = target.partition(".")[2] or "__init__"
            if other not in ROW_OF:
                found.append(f"{where} is not in the table")
            elif ROW_OF[other] >= ROW_OF[file]:
                found.append(f"{where} does not stand above")
            elif file in SEE_NO_CHECKPOINT and other in CHECKPOINT_FILES:
                found.append(f"{where} knows a checkpoint")
        elif target not in sys.stdlib_module_names and target != "numpy":
            if target not in THIRD_PARTIES[file]:
                found.append(f"{where} is not one of its third parties")
            elif not inside_function:
                found.append(f"{where} is imported outside a function")
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_a_file_imports_from_the_rows_above_it(path: Path) -> None:
    assert path.parent == PACKAGE, "the package is flat: a file of a folder has no row"
    assert path.stem in ROW_OF, f"{path.name} has no row in the table; give it one, and say what it is for"
    assert faults(path.stem, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        ("tables", "from .layer import EmbeddingLayer", "minibert.layer does not stand above"),
        ("tables", "from . import load", "minibert.load does not stand above"),
        ("tables", "import minibert.load", "minibert.load does not stand above"),
        ("tables", "from minibert import FAMILIES", "minibert does not stand above"),
        ("tables", "def f():\n    from .hub import fetch", "minibert.hub does not stand above"),
        ("analysis", "from .plot import heat", "minibert.plot does not stand above"),
        ("analysis", "from .checkpoint import open_folder", "minibert.checkpoint knows a checkpoint"),
        ("layer", "from .nowhere import x", "minibert.nowhere is not in the table"),
        ("plot", "import matplotlib.pyplot as plt", "matplotlib is imported outside a function"),
        ("plot", "class A:\n    import matplotlib", "matplotlib is imported outside a function"),
        ("plot", "try:\n    import matplotlib\nexcept ImportError:\n    pass", "matplotlib is imported outside"),
        ("equations", "def f():\n    import torch", "torch is not one of its third parties"),
        ("plot", "if TYPE_CHECKING:\n    pass\nelse:\n    import matplotlib", "matplotlib is imported outside"),
        ("equations", "import scipy.special", "scipy is not one of its third parties"),
    ],
)
def test_the_reader_sees_a_fault(file: str, source: str, fault: str) -> None:
    (found,) = faults(file, source)
    assert fault in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("layer", "import json, os.path\nimport numpy as np\nfrom numpy.typing import NDArray\nfrom .errors import X"),
        ("plot", "def f():\n    import matplotlib.pyplot as plt"),
        ("plot", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from matplotlib.axes import Axes"),
        ("__main__", "from .cli import main"),
    ],
)
def test_the_reader_lets_the_rest_pass(file: str, source: str) -> None:
    assert faults(file, source) == []


LOADED_BY_MINIBERT = """
import json, sys
import numpy  # numpy's own company comes first
before = set(sys.modules)
import minibert
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def test_import_minibert_loads_numpy_and_the_standard_library_only() -> None:
    result = subprocess.run([sys.executable, "-c", LOADED_BY_MINIBERT], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    loaded = set(json.loads(result.stdout))
    assert "minibert" in loaded
    assert loaded - sys.stdlib_module_names - {"minibert", "numpy"} == set()
    assert loaded.isdisjoint({"dataclasses", "pathlib"})  # both took longer than opening a checkpoint
