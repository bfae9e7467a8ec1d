"""`from minibert.equations import ...` hands out every formula, and reads no file before it is asked for."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

from minibert import equations

FOLDER = Path(equations.__file__).parent
FORMULAS = [
    (path.stem, node.name)
    for path in FOLDER.glob("[a-z]*.py")
    if path.stem != "fast"
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
]


def test_every_formula_is_handed_out_and_no_name_twice() -> None:
    for file, name in FORMULAS:
        assert getattr(equations, name) is getattr(import_module(f"minibert.equations.{file}"), name)
        assert name in dir(equations)
    assert {path.stem for path in FOLDER.glob("[a-z]*.py")} == {*equations.FILES, "fast"}
    names = [name for _, name in FORMULAS]
    assert len(set(names)) == len(names) == len(dir(equations))


def test_files_are_read_in_the_order_of_their_imports() -> None:
    """A formula that a later file of the list explains would be used before it is understood."""
    table = re.findall(r"^\| \[`(\w+)\.py`\]\(\1\.py\)", (FOLDER / "README.md").read_text(encoding="utf-8"), re.M)
    assert table == list(equations.FILES)
    for i, file in enumerate(equations.FILES):
        nodes = ast.walk(ast.parse((FOLDER / f"{file}.py").read_text(encoding="utf-8")))
        used = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level}
        assert used <= {*equations.FILES[:i], "fast"}, file  # `fast` has the check of ids


def test_what_is_no_formula_is_none() -> None:
    for name in ("np", "math", "Array", "_sum", "attentoin"):
        with pytest.raises(AttributeError, match=name):
            getattr(equations, name)


def test_only_what_is_asked_for_is_read() -> None:
    code = "import sys; from minibert.equations import attention, blocks; print(sorted(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "minibert.equations.blocks" in said and "minibert.equations.rotary_scaling" not in said


EPS = {
    1e-12: {"bert_encoder", "bert_input", "bert_model", "layer_norm", "normed_parts", "post_norm_block"},
    1e-5: {"gpt2_blocks", "gpt2_model", "pre_norm_block"},
    1e-6: {"gated_block", "llama_model", "rms_norm", "rotary_attention"},
}  # fmt: skip


def test_eps_is_the_model_s_own_where_it_is_left_out() -> None:
    found: dict[float, set[str]] = {}
    for _, name in FORMULAS:
        if callable(formula := getattr(equations, name)) and (eps := signature(formula).parameters.get("eps")):
            found.setdefault(eps.default, set()).add(name)
    assert found == EPS
