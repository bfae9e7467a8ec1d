"""The golden file for ports: it is what the script makes, and its page tells the truth."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import planted_vectors
import pytest
from reference_files import REFERENCE, with_mistake
from safetensors import safe_open
from safetensors.numpy import load_file

import minibert
from minibert.verify.judge.blocks import encoder_batches
from minibert.verify.judge.compare import compare
from minibert.verify.judge.input_layer import tolerances
from minibert.verify.sides.traces import read_traces, trace
from minibert.verify.verify import verify

GOLDEN = REFERENCE / "golden.safetensors"
PAGE = (REFERENCE / "GOLDEN.md").read_text(encoding="utf-8")
TOLERANCE = 2e-6  # after the norm; measured with the page's own code: 2.5e-7


def test_the_file_is_what_the_script_makes(tmp_path: Path) -> None:
    script = REFERENCE.parent.parent / "scripts" / "reference" / "golden.py"
    spec = importlib.util.spec_from_file_location("golden", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shutil.copytree(REFERENCE / "bert", tmp_path / "bert")
    module.write_golden(tmp_path)
    made, kept = load_file(tmp_path / module.NAME), load_file(GOLDEN)
    assert made.keys() == kept.keys()
    assert all(made[name].tobytes() == kept[name].tobytes() for name in made)
    assert GOLDEN.stat().st_size < 50_000


def test_it_is_a_checkpoint_and_its_traces_are_the_layer_s(tmp_path: Path) -> None:
    with safe_open(str(GOLDEN), framework="np") as file:
        config = file.metadata()["config"]
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    shutil.copy(GOLDEN, tmp_path / "model.safetensors")
    inputs, theirs = read_traces(GOLDEN)
    assert json.loads(config)["model_type"] == "bert" and len(inputs) == 10
    with minibert.load(tmp_path) as layer:
        ours = {kind: trace(layer, batch) for kind, batch in inputs.items()}
        found = compare(ours, theirs, {}, tolerances(layer))
    assert len(found) == sum(map(len, theirs.values())) and all(d.passes for d in found)


def test_verify_reads_it() -> None:
    assert verify(str(REFERENCE / "bert"), against=GOLDEN).passed


def test_the_page_names_what_is_there() -> None:
    inputs, traces = read_traces(GOLDEN)
    names = set(load_file(GOLDEN))
    page = PAGE.replace("\\|", "|")
    for kind in inputs:
        assert f"`{kind}`" in page or f"`{kind}|" in page, kind
    shown = [name for name in re.findall(r"`([^`\n]+)`", page) if "|" in name and "<" not in name]
    assert len(shown) >= 7
    assert set(shown) <= names
    for name, shape in re.findall(r"^\| `(embeddings\S+)` \| \(([\d, ]+)\)", page, re.MULTILINE):
        assert load_file(GOLDEN)[name].shape == tuple(int(size) for size in shape.split(","))
    assert {key for named in traces.values() for key in named} >= {"position_ids", "sum"}


def page_code() -> Any:
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def bert_input" in code]
    space: dict[str, Any] = {"np": np}
    exec(compile(block, "GOLDEN.md", "exec"), space)
    return space["bert_input"]


@pytest.mark.parametrize("kind", sorted(read_traces(GOLDEN)[0]))
def test_the_page_s_own_code_passes(kind: str) -> None:
    inputs, traces = read_traces(GOLDEN)
    output = page_code()(load_file(GOLDEN), inputs[kind])
    want = traces[kind]["embeddings.LayerNorm"]
    assert output.dtype == np.float32
    assert np.max(np.abs(output - want) / np.maximum(1, np.abs(want))) <= TOLERANCE


def test_the_page_s_figures_of_mistakes() -> None:
    """By 3 %, by 1e-3, by 0.5: what is said of step 7 is measured."""
    inputs, theirs = read_traces(GOLDEN)
    with minibert.load(REFERENCE / "bert") as layer:
        for name, low, high in (
            ("variance divided by dim - 1", 0.02, 0.1),
            ("eps 1e-05", 5e-4, 5e-3),
            ("weight and bias ignored", 0.3, 1.0),
        ):
            ours = {"golden_plain": with_mistake(layer, name, inputs["golden_plain"])}
            found = compare(ours, theirs, {}, dict.fromkeys(ours["golden_plain"], TOLERANCE))
            (norm,) = [d for d in found if d.key == "embeddings.LayerNorm"]
            assert low <= norm.largest <= high, (name, norm.largest)


def test_the_table_of_vectors_has_every_planted_mistake() -> None:
    """What the slow tests plant is what the page says is named."""
    table = PAGE[PAGE.index("| planted | named |", PAGE.index("## Vectors alone")) :].partition("\n\n")[0]
    rows = [f"| {name} | {named} |" for name, (named, _) in planted_vectors.PLANTED.items()]
    assert sorted(table.splitlines()[2:]) == sorted(rows)
    assert f"| with a mistake | {len(rows)} | {len(rows)} | 0 |" in PAGE


@pytest.mark.parametrize(("name", "last"), [("gpt2", "ln_f"), ("llama", "norm"), ("modernbert", "final_norm")])
def test_the_last_hidden_state_is_the_normed_one(name: str, last: str, tmp_path: Path) -> None:
    """What the page says, and that rows of wte for types are there where types are passed."""
    assert f"`{last}`" in PAGE and "`wte (types)`" in PAGE
    with minibert.load_encoder(encoders.write(tmp_path / name, name)) as encoder:
        batches = encoder_batches(encoder)
        found = trace(encoder, batches["plain"])
        assert np.array_equal(found[f"hidden_states.{encoders.DEPTH}"], found[last])
        assert "wte (types)" not in found
        assert ("wte (types)" in trace(encoder, batches.get("types", batches["plain"]))) == (name == "gpt2")


def test_the_recipe_for_ci_keeps_the_verdict_of_a_wrong_port() -> None:
    """A step after one that failed runs only where it says so."""
    (recipe,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (after,) = re.findall(r"--json > (verdict\.json)\n(.*)", recipe, re.DOTALL)
    assert after[0] in after[1] and re.search(r"- uses: actions/upload-artifact@v\d+\n +if: always\(\)\n", after[1])
