"""No writer of the command line touches a file of the model that it works with, opened or not."""

from __future__ import annotations

import shutil
from pathlib import Path

import command_line
import pytest
from checkpoints import write_index
from command_line import Printed
from reference_files import REFERENCE
from safetensors.numpy import load_file, save_file

from minibert.cli import main

WRITERS = command_line.WRITERS | {
    "encode": (["encode", "we", "-o"], ".npy"),
    "embed the rows": (["embed", "we", "--pooling", "none", "-o"], ".safetensors"),
    "verify the encoder": (["verify", "--encoder", "--save"], ".safetensors"),
}
EMBEDDINGS = "model-00001-of-00003.safetensors"


def shards(folder: Path) -> None:
    """Put the tensors into three files: the input layer, the blocks, and what nothing here reads."""
    named = load_file(folder / "model.safetensors")
    weight_map = {name: EMBEDDINGS if name.startswith("embeddings.") else "blocks.safetensors" for name in named}
    for file in set(weight_map.values()):
        save_file({name: named[name] for name in named if weight_map[name] == file}, folder / file)
    save_file({"pooler.dense.weight": named["embeddings.LayerNorm.weight"]}, folder / "rest.safetensors")
    write_index(folder, weight_map | {"pooler.dense.weight": "rest.safetensors"})
    (folder / "model.safetensors").unlink()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in several files, with a dense layer in a subfolder."""
    folder = tmp_path_factory.mktemp("own") / "model"
    shutil.copytree(REFERENCE / "sentences-dense", folder)
    shards(folder)
    return folder


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", WRITERS)
def test_no_file_of_a_model_is_written_over(name: str, model: Path, tmp_path: Path, capsys: Printed) -> None:
    arguments, ending = WRITERS[name]
    before, link = files(model), tmp_path / f"link{ending}"
    weights = {"rest.safetensors", "blocks.safetensors", EMBEDDINGS, "2_Dense/model.safetensors"}
    read = {"config.json", "model.safetensors.index.json"}
    if name == "encode":
        read |= {"modules.json", "1_Pooling/config.json", "2_Dense/config.json", "tokenizer.json"}
    for file in sorted(weights | read):
        assert model / file in before
        spellings = [link] if ending != ".safetensors" else [link, model / "1_Pooling" / ".." / file]
        link.symlink_to(model / file)
        for path in spellings:
            if path.suffix == ending:
                assert main([*arguments, str(path), "-m", str(model)]) == (2 if "verify" in arguments else 1), file
                assert "of the model that is read here, and would be lost" in capsys.readouterr().err, file
        link.unlink()
        assert files(model) == before and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["embed", "embed the rows", "verify"])
def test_what_was_written_into_the_model_s_folder_before_is_no_part_of_it(name: str, model: Path) -> None:
    arguments, ending = WRITERS[name]
    before, beside = files(model), model / f"mine{ending}"
    try:
        for _ in range(2):
            assert main([*arguments, str(beside), "-m", str(model)]) == 0
        assert set(files(model)) - set(before) == {beside}
    finally:
        beside.unlink(missing_ok=True)
