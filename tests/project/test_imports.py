"""Which wing imports which, read from the package's sources, and what `import minibert` loads.

The formula, the recipe and the file are three things, and this table keeps them apart: a wing imports from the wings
below it only, and third parties inside functions only, so that a user does not pay for what is not used.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import checkpoints
import pytest

import minibert

PACKAGE = Path(minibert.__file__).parent

# wing -> the third parties allowed inside its functions; wings of one line stand side by side, the lowest comes first
WINGS: list[dict[str, set[str]]] = [
    {"errors": set(), "threads": {"threadpoolctl"}},
    {"equations": set(), "http_guard": set()},
    {"files": {"safetensors", "tokenizers"}},
    {"families": set(), "hub": {"huggingface_hub"}},
    {"models": {"safetensors", "tqdm"}},
    {"bulk": {"pyarrow", "filelock"}},
    {
        "show": {"matplotlib"},
        "verify": {"safetensors", "torch", "transformers", "onnx", "onnxruntime", "google"},
        "serve": {"starlette", "uvicorn", "prometheus_client"},
    },
    {"commands": {"safetensors", "matplotlib", "uvicorn"}},
    {"__init__": set()},
    {"cli": {"argcomplete"}},
    {"__main__": set()},
]
HEIGHT = {wing: height for height, wings in enumerate(WINGS) for wing in wings}
THIRD_PARTIES = {wing: allowed for wings in WINGS for wing, allowed in wings.items()}
FRONT_DOOR = {"__init__", "__main__", "cli", "errors", "http_guard"}
# arrays go in, numbers or pictures come out: these never see a checkpoint, though the wings that do lie below theirs
SEE_NO_CHECKPOINT = {"show/plot"}
NO_CHECKPOINT = ("minibert.equations", "minibert.errors", "minibert.files.writing")


class Import(NamedTuple):
    target: str  # "minibert.files.tables" for a file of the package, else the top name of another package
    line: int
    inside_function: bool
    typing: bool  # under `if TYPE_CHECKING:`, which never runs: a reader follows it all the same


def imports(node: ast.AST, file: str, inside_function: bool = False, typing: bool = False) -> Iterator[Import]:
    """Every import below this node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(_target(alias.name), child.lineno, inside_function, typing)
        elif isinstance(child, ast.ImportFrom):
            here = ["minibert", *file.split("/")][: -child.level] if child.level else []
            base = ".".join([*here, *([child.module] if child.module else [])])
            for alias in child.names:
                # `from minibert.show import plot` is a file, `from minibert.show.plot import heat` a name in it
                is_file = base.split(".")[0] == "minibert" and _is_file(f"{base}.{alias.name}")
                target = _target(f"{base}.{alias.name}" if is_file else base)
                yield Import(target, child.lineno, inside_function, typing)
        elif isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from imports(ast.Module(child.body, []), file, inside_function, True)
            yield from imports(ast.Module(child.orelse, []), file, inside_function, typing)
        else:
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from imports(child, file, inside_function or function, typing)


@cache
def read(file: str, source: str) -> list[Import]:
    """Every import of a source, read once."""
    return list(imports(ast.parse(source), file))


@cache
def _is_file(name: str) -> bool:
    parts = name.split(".")[1:]
    return (PACKAGE.joinpath(*parts)).is_dir() or PACKAGE.joinpath(*parts).with_suffix(".py").is_file()


def _target(name: str) -> str:
    return name if name.split(".")[0] == "minibert" else name.split(".")[0]


def faults(file: str, source: str) -> list[str]:
    """What in this source breaks the table, one line each. `file` is "wing/name", or a file of the front door."""
    found = []
    wing = file.split("/")[0]
    for target, line, inside_function, typing in read(file, source):
        where = f"{file}.py line {line}: {target}"
        if target.startswith("minibert"):
            other = [*target.split("."), "__init__"][1]
            if other not in HEIGHT:
                found.append(f"{where} is not in the table")
            elif HEIGHT[other] > HEIGHT[wing] or (HEIGHT[other] == HEIGHT[wing] and other != wing):
                found.append(f"{where} does not lie below")
            elif file in SEE_NO_CHECKPOINT and not target.startswith(NO_CHECKPOINT):
                found.append(f"{where} knows a checkpoint")
        elif target not in sys.stdlib_module_names and target != "numpy":
            if target not in THIRD_PARTIES[wing] and not (typing and target == "typing_extensions"):
                found.append(f"{where} is not one of its third parties")
            elif not (inside_function or typing):
                found.append(f"{where} is imported outside a function")
    return found


FILES = {path.relative_to(PACKAGE).with_suffix("").as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_each_wing_imports_from_the_wings_below_it() -> None:
    at_the_door = {file for file in FILES if "/" not in file}
    assert at_the_door == FRONT_DOOR, "of which wing is a file at the front door?"
    assert {file.split("/")[0] for file in FILES} == set(HEIGHT), "each wing has a line in the table"
    assert [fault for file, path in FILES.items() for fault in faults(file, path.read_text("utf-8"))] == []


def test_inside_a_wing_no_circle() -> None:
    edges: dict[str, set[str]] = {}
    for file, path in FILES.items():
        name = ".".join(["minibert", *file.split("/")])
        found = {item.target for item in read(file, path.read_text("utf-8"))} - {name}
        edges[name] = {target for target in found if target.startswith("minibert.")}
    TopologicalSorter(edges).prepare()  # CycleError names the files of a circle


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        ("files/tables", "from minibert.models.open import load", "minibert.models.open.load does not lie below"),
        ("files/tables", "from ..models.open import load", "minibert.models.open.load does not lie below"),
        ("files/tables", "import minibert.models.open.load", "minibert.models.open.load does not lie below"),
        ("files/tables", "from minibert import FAMILIES", "minibert does not lie below"),
        ("files/tables", "def f():\n    from minibert.hub import remote", "minibert.hub.remote does not lie below"),
        ("files/tables", "if TYPE_CHECKING:\n    from minibert.models.open import load", "load does not lie below"),
        ("families/rows", "from minibert.hub import remote", "minibert.hub.remote does not lie below"),
        ("models/run/blocks", "from ...show import plot", "minibert.show.plot does not lie below"),
        ("show/plot", "from .explain import x", "minibert.show.explain knows a checkpoint"),
        ("show/plot", "from minibert.files.checkpoint import open_folder", "checkpoint knows a checkpoint"),
        ("models/input_layer", "from minibert.nowhere import x", "minibert.nowhere is not in the table"),
        ("show/plot", "class A:\n    import matplotlib", "matplotlib is imported outside a function"),
        ("show/plot", "try:\n    import matplotlib\nexcept ImportError:\n    pass", "matplotlib is imported outside"),
        ("show/plot", "if TYPE_CHECKING:\n    pass\nelse:\n    import matplotlib", "matplotlib is imported outside"),
        ("equations/input_layer", "def f():\n    import torch", "torch is not one of its third parties"),
        ("equations/fast", "if TYPE_CHECKING:\n    import torch", "torch is not one of its third parties"),
        ("models/input_layer", "import json, os.path\nimport numpy as np\nfrom .tiles import y", None),
        ("show/plot", "def f():\n    import matplotlib.pyplot as plt", None),
        ("show/plot", "if TYPE_CHECKING:\n    from matplotlib.axes import Axes", None),
        ("cli", "from . import __version__", None),
    ],
)
def test_the_reader_sees_a_fault_and_lets_the_rest_pass(file: str, source: str, fault: str | None) -> None:
    found = faults(file, source)
    assert (len(found) == 1 and fault in found[0]) if fault else found == []


def loaded(code: str, *arguments: str, before: str = "sys") -> set[str]:
    """Name the modules that code imports in a new process, beyond those that came before it."""
    code = f"import {before}\nbefore = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    return set(result.stdout.split())


def test_the_list_of_commands_loads_none_of_them() -> None:
    code = "from minibert.cli import main\nwith contextlib.redirect_stdout(io.StringIO()):\n    main(['--help'])"
    found = loaded(code, before="sys, io, contextlib")
    ours = {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}
    assert ours == {"minibert", "minibert.cli"} and "argparse" not in found


# without minibert/__init__, which hands out names of several wings and so imports them
ONE_FILE = f"""
sys.modules["minibert"] = package = types.ModuleType("minibert")
package.__path__ = [{str(PACKAGE)!r}]
import minibert.families.parts.config
"""


def test_importing_one_file_does_not_import_its_wing() -> None:
    wing, parts = "minibert.families", "minibert.families.parts"
    found = {name for name in loaded(ONE_FILE, before="sys, types") if name.startswith("minibert.")}
    assert found == {"minibert.errors", wing, parts, f"{parts}.config"}


def test_import_minibert_loads_numpy_and_the_standard_library_only() -> None:
    found = {name.partition(".")[0] for name in loaded("import minibert", before="sys, numpy")}
    assert "minibert" in found
    assert found - sys.stdlib_module_names - {"minibert", "numpy"} == set()
    assert found.isdisjoint({"dataclasses", "pathlib"})  # both took longer than opening a checkpoint


ONE_SENTENCE = """
import minibert, minibert.threads.computing
minibert.threads.computing.running = lambda: 1  # all cores are free
minibert.load_encoder(sys.argv[1]).encode("a text")
"""
# each cost milliseconds or megabytes of a process that embeds one sentence
NOT_FOR_ONE_SENTENCE = {
    "_hashlib", "dataclasses", "huggingface_hub", "pathlib", "pickle", "ssl", "threadpoolctl", "tqdm",
}  # fmt: skip


def test_one_sentence_loads_only_what_it_needs(minilm: Path) -> None:
    assert loaded(ONE_SENTENCE, str(minilm), before="sys, numpy, tokenizers") & NOT_FOR_ONE_SENTENCE == set()


def test_explain_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    folder = checkpoints.write_wordpiece(checkpoints.write(tmp_path))
    code = "from minibert.cli import main\nwith contextlib.redirect_stdout(io.StringIO()):\n"
    code += "    main(['explain', 'we', '-m', sys.argv[1]])"
    found = loaded(code, str(folder), before="sys, io, contextlib")
    heavy = {f"minibert.{name}" for name in ("show.plot", "show.pictures", "commands.encode")}
    heavy |= {"minibert.hub.repository", "huggingface_hub", "matplotlib", "torch", "transformers", "tqdm", "asyncio"}
    assert not heavy & {*found, *(name.partition(".")[0] for name in found)}
    assert {"tokenizers", "safetensors", "minibert.show.explain"} <= found
