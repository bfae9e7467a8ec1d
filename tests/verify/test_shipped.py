"""The values that ship with the package: a checkpoint is known by its numbers, and by nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoints import change_json
from command_line import Patch, Printed, failure, ran
from fake_hub import FakeHub, use
from reference_files import BY_NAME
from safetensors.numpy import load_file, save_file

import minibert
from minibert.cli import main
from minibert.verify import shipped
from minibert.verify.verify import verify

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MOST_BYTES = 300_000
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
AFTER_NORM = 1e-6  # |difference| / max(1, |value|), measured with three BLAS kernels: 2.4e-7


@pytest.fixture(scope="module")
def tables(minilm: Path) -> dict[str, Any]:
    """The input layer's five tensors."""
    named = load_file(minilm / "model.safetensors")
    return {name: array for name, array in named.items() if name.startswith("embeddings.") and "_ids" not in name}


def write(folder: Path, minilm: Path, tensors: dict[str, Any] | Path, **config: Any) -> Path:
    """Write a folder with these tensors, or another folder's, and the checkpoint's own config and tokenizer."""
    folder.mkdir()
    for name in ("config.json", *TOKENIZER):
        if (minilm / name).exists():
            shutil.copyfile(minilm / name, folder / name)
    change_json(folder / "config.json", **config)
    if isinstance(tensors, Path):
        (folder / "model.safetensors").symlink_to(tensors / "model.safetensors")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def copied(minilm: Path, tables: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The input layer alone, in another folder and under a head model's older names."""
    older = {"weight": "gamma", "bias": "beta"}
    named = {f"bert.{name}": array for name, array in tables.items() if "LayerNorm" not in name}
    named |= {f"bert.embeddings.LayerNorm.{old}": tables[f"embeddings.LayerNorm.{new}"] for new, old in older.items()}
    return write(tmp_path_factory.mktemp("another") / "my-own-bert", minilm, named)


def test_what_ships_is_small_and_says_what_it_is() -> None:
    about = shipped._about()
    assert shipped.FILE.stat().st_size < MOST_BYTES and about["model"] == MODEL == shipped.MODEL
    assert set(about["versions"]) == {"python", "numpy", "torch", "transformers", "tokenizers", "safetensors"}
    assert len(about["parameters"]) == 5 + 6 * 16  # the input layer's, and those of each block


def test_a_folder_is_compared_without_torch_and_without_the_hub(minilm: Path, capsys: Printed) -> None:
    out, _ = ran(capsys, "verify", "--model", minilm)
    assert "transformers 5.24.0 on torch 2.13.0" in out and MODEL in out
    *_, ids, last = out.splitlines()
    assert ids == "ids of 3 texts: the reference's"
    equal = "position_ids 0, word_embeddings 0, token_type_embeddings 0, position_embeddings 0, sum 0, LayerNorm "
    assert last.startswith(f"passed; largest differences: {equal}")
    assert 0 <= float(last.rpartition(" ")[2]) <= AFTER_NORM


def test_every_kind_has_every_intermediate_and_the_second_type(minilm: Path) -> None:
    with minibert.load(minilm) as layer:
        found = shipped.find(layer)
        assert found is not None
        assert len(found.texts) == len(found.inputs) == len(found.traces) == 3
        assert all(set(named) >= set(layer.trace([[101]])) for named in found.traces.values())
    assert {1} < set(found.inputs["text 2"]["token_type_ids"].ravel().tolist())
    assert 100 in found.inputs["text 3"]["input_ids"]  # [UNK]


def test_the_same_numbers_are_known_under_another_name_and_wider_and_not_rounded(
    minilm: Path, copied: Path, tables: dict[str, Any], tmp_path: Path
) -> None:
    report = verify(str(copied))
    assert report.passed and any(MODEL in line for line in report.lines)
    for dtype, known in ((np.float64, True), (np.float16, False)):
        stored = {name: array.astype(dtype) for name, array in tables.items()}
        with minibert.load(write(tmp_path / np.dtype(dtype).name, minilm, stored)) as layer:
            assert (shipped.find(layer) is not None) == known


@pytest.mark.parametrize(
    "name",
    [*(f"{kind}_embeddings.weight" for kind in ("word", "position", "token_type")), "LayerNorm.gamma",
     "LayerNorm.beta"],
)  # fmt: skip
def test_one_bit_makes_it_another_checkpoint(name: str, copied: Path, capsys: Printed) -> None:
    with minibert.load(copied, mmap=False) as layer:
        assert shipped.find(layer) is not None
        (last,) = [tensor.stop - 4 for tensor in layer.tensors if tensor.name == f"bert.embeddings.{name}"]

    def flip() -> None:
        """The last bit of the tensor's last number."""
        with open(copied / "model.safetensors", "r+b") as file:
            file.seek(last)
            byte = file.read(1)[0]
            file.seek(last)
            file.write(bytes([byte ^ 1]))

    flip()
    try:
        with minibert.load(copied) as layer:
            assert shipped.find(layer) is None
        said = failure(capsys, "verify", "--model", copied)  # nothing could be compared
        assert f"and it does not have the weights of {MODEL}" in said
    finally:
        flip()


def test_a_part_of_the_numbers_or_one_bit_of_a_block_is_another_model(minilm: Path) -> None:
    """A MiniLM of fewer blocks has right numbers only; one that was trained further may have the same input layer."""
    with minibert.load_encoder(minilm) as encoder:
        every, path = {**encoder.modules}, "encoder.layer.5.output.LayerNorm"
        norm: Any = every[path]
        parts = "encoder.layer.5.", "encoder.layer.0.output.dense", "embeddings.token_type"
        others = {part: {key: x for key, x in every.items() if not key.startswith(part)} for part in parts}
        bias = norm.bias.copy()
        bias[-1] = np.nextafter(bias[-1], np.float32(9))
        others["one bit"] = every | {path: type(norm)(norm.weight, bias, norm.eps)}
        models: dict[str, Any] = {what: SimpleNamespace(modules=modules) for what, modules in others.items()}
        assert [what for what, model in models.items() if shipped.find(model)] == []
        assert shipped.find(encoder) is not None and shipped.find(encoder.embeddings) is not None


def test_a_name_on_the_hub_is_found_too_and_a_sibling_costs_no_table(
    minilm: Path, copied: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    tensors = load_file(copied / "model.safetensors")
    tensors["bert.embeddings.LayerNorm.beta"][0] += 1
    sibling = write(tmp_path / "sibling", minilm, tensors)
    with FakeHub() as hub:
        for name, folder in ((MODEL, copied), ("org/sibling", sibling)):
            hub.add(name, {path.name: path for path in folder.iterdir()})
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        assert ran(capsys, "verify", MODEL)[0].splitlines()[-1].startswith("passed; largest differences: ")
        hub.forget()
        assert "and it does not have the weights of" in failure(capsys, "verify", "org/sibling")
        assert sum(request.sent for request in hub.asked("sibling/.*safetensors")) < 100_000  # the tables have 47 MB


def test_nothing_is_read_where_a_size_differs(monkeypatch: Patch) -> None:
    monkeypatch.setattr(shipped, "sha256_of", lambda array: pytest.fail("read"))
    for name in ("bert", "roberta", "gpt2", "t5-encoder", "electra"):
        with BY_NAME[name].layer() as layer:
            assert shipped.find(layer) is None


def test_a_wrong_eps_in_the_config_differs(minilm: Path, copied: Path, tmp_path: Path, capsys: Printed) -> None:
    """The numbers are the checkpoint's, so what else is wrong is found."""
    folder = write(tmp_path / "eps", minilm, copied, layer_norm_eps=1e-5)
    assert main(["verify", "--model", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "embeddings.LayerNorm differs in text 1, text 2, text 3" in out and "passed" not in out


def test_another_tokenizer_is_found_by_its_ids(minilm: Path, copied: Path, tmp_path: Path, capsys: Printed) -> None:
    folder = write(tmp_path / "cased", minilm, copied)
    change_json(folder / "tokenizer_config.json", do_lower_case=False)
    assert main(["verify", "--model", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "'We lived above the clouds' gives input_ids [101, " in out and "passed" not in out
    assert "expected [101, 2057, 2973, 2682, 1996, 8044, 102]" in out
    for name in TOKENIZER:
        (folder / name).unlink(missing_ok=True)
    assert any(line.startswith("ids of 3 texts not compared: ") for line in verify(str(folder)).lines)
