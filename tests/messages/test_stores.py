"""What is said of files that are missing or damaged, of folders of `bulk`, of the Hub, and of what is closed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import BERT, tensors, write, write_index
from command_line import Printed, failure
from fake_hub import FakeHub, use
from record_files import made
from reference_files import REFERENCE
from tiny_model import FILES

import minibert
from minibert.bulk.stored import StoredVectors
from minibert.cli import main
from minibert.errors import CheckpointError, HubError, TokenizerError
from minibert.hub.repository import resolve

DENSE = REFERENCE / "sentences-dense"


def damaged(name: str, content: bytes | None) -> Callable[[Path], object]:
    """Load a model after one of its files is written over, or removed."""

    def load(folder: Path) -> object:
        path = shutil.copytree(DENSE, folder / "model") / name
        path.write_bytes(content) if content is not None else path.unlink()
        return minibert.load_encoder(folder / "model").encode("we")

    return load


def without_a_shard(folder: Path) -> object:
    write_index(write(folder), dict.fromkeys(tensors(BERT), "one.safetensors"))
    (folder / "model.safetensors").unlink()
    return minibert.load(folder)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
FILES_SAY: list[tuple[type[Exception], str, Callable[[Path], object]]] = [
    (CheckpointError, "is damaged, incomplete or of another format: fetch it again", damaged("model.safetensors", b"")),
    (CheckpointError, "is a Git LFS pointer, .*; run git lfs pull", damaged("model.safetensors", POINTER)),
    (CheckpointError, "has no one.safetensors, which .* lists; fetch the missing shard", without_a_shard),
    (CheckpointError, "not readable as JSON .*; fetch it again", damaged("config.json", b"{")),
    (CheckpointError, "Pooling has no config.json, .*; fetch the folder", damaged("1_Pooling/config.json", None)),
    (TokenizerError, "unreadable tokenizer file .*fetch it again", damaged("tokenizer.json", b"{}")),
    (TokenizerError, "has no tokenizer: expected tokenizer.json", damaged("tokenizer.json", None)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "call"), FILES_SAY)
def test_files_of_a_model(kind: type[Exception], message: str, call: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(kind, match=message):
        call(tmp_path)


def test_what_is_closed() -> None:
    encoder, layer = minibert.load_encoder(DENSE), minibert.load(DENSE)
    encoder.close()
    layer.close()
    with pytest.raises(ValueError, match=r"^this encoder is closed; load it again"):
        encoder([[5]])
    with pytest.raises(ValueError, match=r"^this layer is closed; load it again"):
        layer([[5]])


def test_a_folder_of_bulk(tmp_path: Path, capsys: Printed) -> None:
    source, out = made(tmp_path / "a.txt", "we\nlived\nabove\n"), tmp_path / "out"
    bulk = "bulk", source, "-o", out, "-m", DENSE
    assert main([*map(str, bulk), "--rows-per-shard", "1"]) == 0
    mend = "restore the file, or delete it and all later shards and run `bulk` again as before"
    said = failure(capsys, *bulk, "--precision", "int8")
    assert said.endswith("; choose another folder, or use the setting it was made with")
    assert "--input-format names one of parquet, jsonl, csv, lines" in failure(
        capsys, "bulk", DENSE / "config.json", *bulk[2:]
    )
    second, third = out / "vectors-00001.arrow", out / "vectors-00002.arrow"
    third.rename(tmp_path / "kept")
    assert "; run `bulk` again as before to continue after" in failure(capsys, "search", out, "we")
    (tmp_path / "kept").rename(third)
    whole = second.read_bytes()
    for content in (whole[:9], whole.replace(b"lived", b"livid")):
        second.write_bytes(content)
        assert failure(capsys, "bulk", "-o", out, "--check").endswith(mend)
    second.unlink()
    assert failure(capsys, "search", out, "we").endswith(mend)
    (out / "notes.txt").touch()
    assert failure(capsys, *bulk).endswith("so `bulk` has not made it; name another folder")
    with pytest.raises(ValueError, match="there is no such folder; name a folder that bulk wrote"):
        StoredVectors(tmp_path / "none")


def test_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = ("check the spelling (a folder is written ./org/tiny)", "accept its conditions there", "`hf auth login`",
            "HF_HUB_OFFLINE=1", "name a mirror in HF_ENDPOINT", "`minibert extract`")  # fmt: skip
    with FakeHub() as hub:
        hub.add("org/tiny", {name: FILES[name] for name in FILES if name != "config.json"})
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        with pytest.raises(HubError, match="it is not in the cache, and you asked for local files only") as error:
            resolve("org/tiny", local_files_only=True)
        assert [way for way in ways if way not in str(error.value)] == []
        hub.repositories["org/tiny"].private = True
        with pytest.raises(HubError, match="org/tiny at main: RepositoryNotFound"):
            resolve("org/tiny")
    use(monkeypatch, "https://user:geheim@hub.invalid", tmp_path / "home")
    with pytest.raises(HubError, match="HF_ENDPOINT holds a name or a password; write only the address"):
        resolve("org/tiny")
