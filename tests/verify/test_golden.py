"""The golden files for ports: they are what the script makes, and their pages tell the truth."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import planted_vectors
import pytest
from command_line import Patch
from encoder_files import CASE
from needed import module_of
from reference_files import REFERENCE, recipe, with_mistake
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import minibert
from minibert.verify.report import compare
from minibert.verify.shipped import TEXTS
from minibert.verify.subjects import encoder_batches, trace
from minibert.verify.traces import read_traces
from minibert.verify.vectors import read_vectors
from minibert.verify.verify import verify

SCRIPT = module_of(REFERENCE.parent.parent / "scripts" / "reference" / "golden.py")
GOLDEN = REFERENCE / "golden.safetensors"
INPUTS, TRACES = read_traces(GOLDEN)
PAGE = (REFERENCE / "GOLDEN.md").read_text(encoding="utf-8")
MINIBERT = f"[{sys.executable!r}, '-m', 'minibert'"
TOLERANCE = 2e-6  # after the norm; measured with the page's own code: 2.5e-7


def same_bytes(arrays: dict[str, Any], others: dict[str, Any]) -> bool:
    return {name: x.tobytes() for name, x in arrays.items()} == {name: x.tobytes() for name, x in others.items()}


def test_the_file_is_what_the_script_makes(tmp_path: Path) -> None:
    shutil.copytree(REFERENCE / "bert", tmp_path / "bert")
    SCRIPT.write_golden(tmp_path)
    assert same_bytes(load_file(tmp_path / SCRIPT.NAME), load_file(GOLDEN)) and GOLDEN.stat().st_size < 50_000


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the release's archive, unpacked."""
    made = tmp_path_factory.mktemp("archive")
    for copy in ("first", "second"):
        (made / copy).mkdir()
        SCRIPT.write_archive(made / copy / "minibert-golden.zip", made / f"scratch-{copy}")
    first, second = (made / copy / "minibert-golden.zip" for copy in ("first", "second"))
    assert first.read_bytes() == second.read_bytes() and first.stat().st_size < 3_000_000
    with zipfile.ZipFile(first) as file:
        file.extractall(made)
    return made / "minibert-golden"


def test_the_archive_has_a_folder_for_each_row_and_its_page(archive: Path) -> None:
    page = (archive / "README.md").read_text("utf-8")
    assert page == SCRIPT.PAGE.read_text("utf-8")
    rows = [(row.case, row.architecture) for row in SCRIPT.ROWS]
    assert re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE) == rows
    names = {path.relative_to(archive).as_posix() for path in archive.rglob("*") if path.is_file()}
    files = ("config.json", "model.safetensors", "golden.safetensors")
    assert names == {"README.md", *(f"{case}/{file}" for case, _ in rows for file in files)}
    kinds = {name.removeprefix("golden_") for case, _ in rows for name in read_traces(archive / case / SCRIPT.NAME)[0]}
    (listed,) = re.findall(r"^Batches, not all in every file: (.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    assert kinds == set(re.findall(r"`(\w+)`", listed))
    for name in ("about", "config", "order", "versions"):
        assert f"`{name}`" in page


@pytest.mark.parametrize("row", SCRIPT.ROWS, ids=lambda row: row.case)
def test_a_golden_file_is_a_checkpoint_and_what_transformers_computes(archive: Path, row: Any) -> None:
    """Every intermediate from the first hidden state on is the stored one, none is missing, and verify passes."""
    folder, case = archive / row.case, CASE[row.case]
    golden = load_file(folder / SCRIPT.NAME)
    with safe_open(str(folder / SCRIPT.NAME), framework="np") as file:
        about = json.loads(file.metadata()["about"])
    assert about["config"] == json.loads((folder / "config.json").read_text("utf-8"))
    assert about["config"]["architectures"] == [row.architecture] and about["versions"]["transformers"]
    weights = load_file(folder / "model.safetensors")
    assert same_bytes({name: array for name, array in golden.items() if "|" not in name}, weights)
    inputs, traces = read_traces(folder / SCRIPT.NAME)
    assert {key for named in traces.values() for key in named} == {*about["order"]}
    for kind, named in case.read[1].items():
        stored = traces[f"golden_{kind}"]
        assert all(stored[key].tobytes() == array.tobytes() for key, array in named.items())
        assert {*about["order"][about["order"].index("hidden_states.0") :]} == named.keys()
        assert inputs[f"golden_{kind}"].keys() == case.read[0][kind].keys()
    found = verify(str(folder), encoder=True, against=folder / SCRIPT.NAME)
    assert found.passed and sum(len(d.kinds) for d in found.compared) == sum(map(len, traces.values()))


def test_it_is_a_checkpoint_and_its_traces_are_the_layer_s(tmp_path: Path) -> None:
    with safe_open(str(GOLDEN), framework="np") as file:
        config = file.metadata()["config"]
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    shutil.copy(GOLDEN, tmp_path / "model.safetensors")
    assert json.loads(config)["model_type"] == "bert" and len(INPUTS) == 10
    found = verify(str(tmp_path), against=GOLDEN)
    assert found.passed and sum(len(d.kinds) for d in found.compared) == sum(map(len, TRACES.values()))


def test_the_page_names_what_is_there() -> None:
    golden, page = load_file(GOLDEN), PAGE.replace("\\|", "|")
    for kind in INPUTS:
        assert f"`{kind}`" in page or f"`{kind}|" in page, kind
    shown = [name for name in re.findall(r"`([^`\n]+)`", page) if "|" in name and "<" not in name]
    assert len(shown) >= 7 and set(shown) <= set(golden)
    for name, shape in re.findall(r"^\| `(embeddings\S+)` \| \(([\d, ]+)\)", page, re.MULTILINE):
        assert golden[name].shape == tuple(int(size) for size in shape.split(","))
    assert {key for named in TRACES.values() for key in named} >= {"position_ids", "sum"}


@pytest.mark.parametrize("kind", sorted(INPUTS))
def test_the_page_s_own_code_passes(kind: str) -> None:
    space: dict[str, Any] = {"np": np}
    exec(compile(recipe("def bert_input"), "GOLDEN.md", "exec"), space)
    output, want = space["bert_input"](load_file(GOLDEN), INPUTS[kind]), TRACES[kind]["embeddings.LayerNorm"]
    assert output.dtype == np.float32
    assert np.max(np.abs(output - want) / np.maximum(1, np.abs(want))) <= TOLERANCE


def test_the_page_s_figures_of_mistakes() -> None:
    """By 3 %, by 1e-3, by 0.5: what is said of step 7 is measured."""
    with minibert.load(REFERENCE / "bert") as layer:
        for name, low, high in (("variance divided by dim - 1", 0.02, 0.1), ("eps 1e-05", 5e-4, 5e-3),
                                ("weight and bias ignored", 0.3, 1.0)):  # fmt: skip
            ours = {"golden_plain": with_mistake(layer, name, INPUTS["golden_plain"])}
            found = compare(ours, TRACES, {}, dict.fromkeys(ours["golden_plain"], TOLERANCE))
            (norm,) = [d for d in found if d.key == "embeddings.LayerNorm"]
            assert low <= norm.largest <= high, (name, norm.largest)


def test_the_table_of_vectors_has_every_planted_mistake() -> None:
    """What the slow tests plant is what the page says is named."""
    table = PAGE[PAGE.index("| planted | named |", PAGE.index("## Vectors alone")) :].partition("\n\n")[0]
    rows = [f"| {name} | {named} |" for name, (named, _) in planted_vectors.PLANTED.items()]
    assert sorted(table.splitlines()[2:]) == sorted(rows)
    assert f"| with a mistake | {len(rows)} | {len(rows)} | 0 |" in PAGE


def test_what_llama_cpp_and_candle_write_is_read_by_the_page_s_recipes(tmp_path: Path, monkeypatch: Patch) -> None:
    """The files hold what a right port computes, under the names of the page: Rust is not run, its names are read."""
    folder = encoders.write(tmp_path / "model", "bert")
    names = {"Qcur": "self.query", "Kcur": "self.key", "Vcur": "self.value", "kqv_out": "self.context"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dump").mkdir()
    ids = np.array([[2, 5, 7, 3]])
    with minibert.load_encoder(folder) as encoder:
        traced = trace(encoder, {"input_ids": ids})
    dumps = {"inp_norm": "hidden_states.0", "result_embd": "hidden_states.2"}
    dumps |= {f"{name}-{i}": f"encoder.layer.{i}.attention.{key}" for name, key in names.items() for i in range(2)}
    for name, key in dumps.items():
        traced[key].astype("<f4").tofile(f"dump/{name}.f32")
    (rust,) = re.findall(r"```rust\n(.*?)```", PAGE, re.DOTALL)
    given, first, later = re.findall(r'insert\((?:format!\()?"(.+?)"', rust)
    states = [first, later.format(1), later.format(2)]
    files = {"dumped.npz": [*dumps.values()], "candle.safetensors": [name.removeprefix("mine|") for name in states]}
    for sign in (1, -1):
        (sign * traced["hidden_states.2"]).astype("<f4").tofile("dump/result_embd.f32")
        exec(compile(recipe("result_embd"), "GOLDEN.md", "exec"), {})
        values = {name: sign * traced[name.removeprefix("mine|")] for name in states}
        save_file({given: ids.astype(np.uint32), **values}, "candle.safetensors")
        for file, only in files.items():
            found = verify(str(folder), encoder=True, against=Path(file), only=only)
            assert found.passed == (sign > 0) and {d.key for d in found.compared} == {*only}


def test_the_page_s_five_lines_ask_a_server_for_its_vectors(tmp_path: Path, monkeypatch: Patch) -> None:
    asked = list[dict[str, Any]]()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            rows = [{"index": i, "embedding": [float(i), 0.5]} for i, _ in enumerate(asked[0]["input"])]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": rows}).encode())

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.chdir(tmp_path)
    with HTTPServer(("127.0.0.1", 0), Answers) as server, ThreadPoolExecutor(1) as pool:
        answered = pool.submit(server.handle_request)
        code = recipe("urllib.request").replace("8080", str(server.server_port)).replace('["minibert"', MINIBERT)
        exec(compile(code, "GOLDEN.md", "exec"), {})
        answered.result()
    assert asked[0]["input"] == [each.text for each in TEXTS]
    found, texts = read_vectors(tmp_path / "vectors.npy")
    assert found.shape == (len(TEXTS), 2) and found[-1].tolist() == [len(TEXTS) - 1, 0.5] and texts is None


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
