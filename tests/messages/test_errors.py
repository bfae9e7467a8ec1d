"""Errors carry data, and the library names no option of a shell: the command line rewrites arguments. What is said of
folders of `bulk`, of the Hub, and of what is closed.
"""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import write, write_vocab
from command_line import Printed, failure, ran
from fake_hub import FakeHub, use
from record_files import made
from reference_files import REFERENCE
from tiny_model import FILES

import minibert
from minibert.bulk.stored import StoredVectors
from minibert.errors import HubError, Option, Text, TokenizerError, error_of, parts_of
from minibert.hub.repository import resolve

DENSE = REFERENCE / "sentences-dense"
PACKAGE = Path(minibert.__file__).parent
SHELL = re.compile(r"(?<![\w-])--[a-z]|`minibert [a-z]")
OTHER = " --local-dir FOLDER`"  # the end of another program's command line, which has no other name


def messages(source: str) -> Iterator[str]:
    """Every string in a file except docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_the_library_speaks_no_shell() -> None:
    # servers are started by their commands alone, whose options their answers name; options.py is read by both
    own = {"commands", "cli.py", "serve", "live.py", "options.py"}
    files = [path for path in PACKAGE.rglob("*.py") if not own & {*path.relative_to(PACKAGE).parts}]
    assert len(files) > 50
    found = {(path.name, text) for path in files for text in messages(path.read_text(encoding="utf-8"))}
    assert [(name, text) for name, text in found if SHELL.search(text) and OTHER not in text] == []
    assert {name for name, text in found if OTHER in text} == {"repository.py"}


def test_an_error_has_its_data(tmp_path: Path) -> None:
    layer = minibert.load(write_vocab(write(tmp_path)))
    with pytest.raises(ValueError, match=r"text 1 has 22 tokens.*or pass truncation=True") as caught:
        layer.tokenize(["we", "we " * 20])
    error = caught.value
    assert parts_of(error)[0] == Text(1) and parts_of(error)[-1] == Option("truncation", True)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and parts_of(again) == parts_of(error)


def test_a_place_is_data_too() -> None:
    inner = error_of(ValueError, Text(3, "texts"), " is bad; pass ", Option("bad_rows", "skip"))
    error = error_of(TokenizerError, *parts_of(inner), place="a.csv, row 4")
    assert str(error) == 'a.csv, row 4: texts[3] is bad; pass bad_rows="skip"'
    assert parts_of(error)[2:] == parts_of(inner)
    assert parts_of(ValueError("plain")) == ("plain",)


def test_words_in_a_name_are_left_alone(tmp_path: Path, capsys: Printed) -> None:
    """Only the data becomes an option: a folder may have the name of an argument."""
    model, there = write(tmp_path / "model"), tmp_path / "pass truncation=True"
    there.mkdir()
    assert f"{there} exists; choose another name" in failure(capsys, "extract", model, "-o", there)


def test_what_is_closed() -> None:
    encoder, layer = minibert.load_encoder(DENSE), minibert.load(DENSE)
    for opened, name in ((encoder, "encoder"), (layer, "layer")):
        opened.close()
        with pytest.raises(ValueError, match=f"^this {name} is closed; load it again"):
            opened([[5]])


def test_a_folder_of_bulk(tmp_path: Path, capsys: Printed) -> None:
    source, out = made(tmp_path / "a.txt", "we\nlived\nabove\n"), tmp_path / "out"
    bulk = "bulk", source, "-o", out, "-m", DENSE
    ran(capsys, *bulk, "--rows-per-shard", "1")
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
