"""A folder of vectors that is not continued: of others, of other settings, damaged, or held by another run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shard_folders import BAD, FORMS, SETTINGS, add, begin, files, opened, refused

from minibert.bulk.manifest import as_json, check_folder, read_shards
from minibert.bulk.shards import ShardFolder

# -- what is not continued ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_other_settings(name: str, path: Path) -> None:
    begin(path)
    now = {**SETTINGS, name: "other"}
    was = json.dumps(SETTINGS[name]).replace("[", r"\[")
    refused(path, f'was made with {name} {was}, now it is "other"; choose another folder', settings=now)
    refused(path, "was made with more null, now it is 1", settings={**SETTINGS, "more": 1})
    assert len(opened(path)) == 2


def test_nothing_was_made_with_other_settings(path: Path) -> None:
    """A first try with a wrong column, say, leaves no folder that refuses the right one."""
    begin(path, 0)
    assert opened(path, settings={**SETTINGS, "vectors": "other"}) == []
    assert json.loads((path / "meta.json").read_text("utf-8")) == {**SETTINGS, "vectors": "other", "complete": False}
    # another program's, maybe
    refused(path, "was made with more null", settings={**SETTINGS, "vectors": "other", "more": 1})
    (path / "vectors-00000.parquet").write_bytes(b"whose line is lost")
    refused(path, 'was made with vectors "other"')
    (path / "vectors-00000.parquet").unlink()
    with ShardFolder(path, "parquet").opened(SETTINGS) as folder:
        add(folder, 0, rows=0, bad=[{"file": "a", "row": 1, "problem": "none"}])  # without a file
    refused(path, 'was made with vectors "input"', settings={**SETTINGS, "vectors": "other"})


def test_a_whole_folder_without_a_row_keeps_its_settings(path: Path) -> None:
    with ShardFolder(path, "parquet").opened(SETTINGS) as folder:
        folder.finish()
    refused(path, 'was made with model "m"', settings={**SETTINGS, "model": "n"})


def test_a_folder_of_others(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")
    refused(path, r"the folder holds 'thesis\.txt' and no meta\.json, so `bulk` has not made it; choose a new")
    assert [file.name for file in path.iterdir()] == ["thesis.txt"]  # not even a lock
    (path / "meta.json").write_text('{"title": "thesis"}')
    refused(path, 'was made with model null, now it is "m"')


def test_a_path_that_is_a_file(path: Path) -> None:
    path.write_text("text")
    refused(path, "vectors is a file; name a folder", NotADirectoryError)
    refused(path / "below", "Not a directory", NotADirectoryError)
    assert path.read_text() == "text"


DAMAGE: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("meta.json", lambda old: b"", r"meta\.json: not readable as JSON \(.*\); put it back, or begin again in another"),
    ("meta.json", lambda old: old[:20], r"meta\.json: not readable as JSON"),
    ("meta.json", lambda old: b"[1]", r"meta\.json: .*expected an object, found list"),
    ("meta.json", lambda old: b"\xff", r"meta\.json: not readable as JSON"),
    ("shards.jsonl", lambda old: b"x\n" + old, r"shards\.jsonl: a line is not one of `bulk`, found b'x'; put"),
    ("shards.jsonl", lambda old: b"[1]\n", "is not one of"),
    ("shards.jsonl", lambda old: b"{}\n", "is not one of"),
    ("shards.jsonl", lambda old: b"[" * 100_000 + b"\n", "is not one of"),
    ("vectors-00001.parquet", lambda old: old[:-1], r"vectors-00001\.parquet: expected a file of [\d,]+ bytes, found"),
    ("bad_rows.jsonl", lambda old: old[:-1], r"bad_rows\.jsonl: expected at least \d+ bytes, found \d+; put it back"),
]


@pytest.mark.parametrize(("name", "change", "error"), DAMAGE)
def test_a_damaged_file(name: str, change: Callable[[bytes], bytes], error: str, path: Path) -> None:
    begin(path)
    old = (path / name).read_bytes()
    assert change(old) != old
    (path / name).write_bytes(change(old))
    refused(path, error)


@pytest.mark.parametrize("change", [
    *({name: wrong} for name in ("read", "rows", "cut", "bad_bytes") for wrong in (-1, None, "0")),
    {"files": 3}, {"files": {"vectors-00000.parquet": {"bytes": 1}}},
    {"files": {"../../vectors-00000.parquet": {"bytes": 1, "sha256": ""}}},
])  # fmt: skip
def test_a_wrong_line_whose_sum_is_right(change: dict[str, Any], path: Path) -> None:
    begin(path)
    shard = read_shards(path)[0][0]._replace(**change).sealed("")
    (path / "shards.jsonl").write_bytes(as_json(shard._asdict()))
    refused(path, "is not one of")


# -- links ---------------------------------------------------------------------------------------------------------


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="links and modes of POSIX")


@POSIX
@pytest.mark.parametrize("name", ["meta.json", "shards.jsonl", "bad_rows.jsonl", ".lock"])
@pytest.mark.parametrize("kind", ["link", "to nothing", "in a circle", "pipe", "folder"])
def test_no_link_is_followed_and_no_other_kind_of_file_opened(name: str, kind: str, path: Path, tmp_path: Path) -> None:
    """It leads to a file of another program, which would be added to, cut off or emptied."""
    begin(path)
    theirs = tmp_path / "theirs"
    theirs.write_bytes((path / name).read_bytes() + b'{"theirs": ')
    (path / name).unlink()
    if kind in ("pipe", "folder"):
        {"pipe": os.mkfifo, "folder": os.mkdir}[kind](path / name)
    else:
        (path / name).symlink_to({"link": theirs, "to nothing": tmp_path / "none"}.get(kind, path / name))
    before = theirs.read_bytes()
    for settings in (SETTINGS, {**SETTINGS, "model": "other"}):
        with pytest.raises(ValueError, match=rf"{name}: expected a file of this job, found a link, a folder or a pipe"):
            opened(path, settings=settings)
    assert theirs.read_bytes() == before and not (tmp_path / "none").exists()


@POSIX
@pytest.mark.parametrize("name", ["shards.jsonl", "bad_rows.jsonl"])
def test_a_link_that_comes_meanwhile_is_not_followed(name: str, path: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    with ShardFolder(path, "npy").opened(SETTINGS) as folder:
        (path / name).symlink_to(theirs)
        with pytest.raises(ValueError, match=f"{name}: expected a file of this job"):
            add(folder, 0, bad=BAD)
    assert theirs.read_bytes() == b"theirs"


@POSIX
def test_links_under_the_names_of_shards_and_scratch_are_replaced(path: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    begin(path, 1)
    for name in ("vectors-00001.parquet", "vectors-00002.parquet", ".meta.json.0123456789abcdef"):
        (path / name).symlink_to(theirs)
    with ShardFolder(path, "parquet").opened(SETTINGS) as folder:
        add(folder, 1)
        folder.finish()
    assert theirs.read_bytes() == b"theirs" and not any(file.is_symlink() for file in path.iterdir())
    assert check_folder(path)["shards"] == 2


# -- damage that changes no size ---------------------------------------------------------------------------------------


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("complete", [False, True])
def test_a_bit_of_any_file(form: str, complete: bool, path: Path) -> None:
    with ShardFolder(path, form).opened(SETTINGS) as folder:
        for number in range(3):
            add(folder, number, bad=BAD if number != 1 else None)
        if complete:
            folder.finish()
    if complete:
        assert check_folder(path) == {"rows": 9, "skipped": 2, "cut": 3, "shards": 3}
    names = {name for shard in folder.shards for name in shard.files} | {"shards.jsonl", "bad_rows.jsonl"}
    for name in sorted(names):
        before = (path / name).read_bytes()
        for at in range(0, len(before) - 1, max(1, len(before) // 9)):  # the last byte of a line is where it ends
            (path / name).write_bytes(flipped(before, at))
            refused(path, rf"{name}: (damaged|a line is not one of)", form=form)
            with pytest.raises(ValueError, match=rf"{name}: (damaged|a line is not one of)"):
                check_folder(path)
        (path / name).write_bytes(before)
    assert len(opened(path, form)) == 3


def test_lines_of_shards_that_are_lost_or_in_another_order(path: Path) -> None:
    begin(path, 3)
    first, second, third = (path / "shards.jsonl").read_bytes().splitlines(keepends=True)
    for lines in ([second, third], [first, third], [second, first, third], [first, second, second, third]):
        (path / "shards.jsonl").write_bytes(b"".join(lines))
        refused(path, r"shards\.jsonl: a line is not one of `bulk`")
    (path / "shards.jsonl").write_bytes(first + second)  # as a killed run leaves it
    assert len(opened(path)) == 2


def test_a_shard_that_is_damaged_while_the_run_goes_on(path: Path) -> None:
    begin(path, 1)
    with ShardFolder(path, "parquet").opened(SETTINGS) as folder:
        add(folder, 1, bad=BAD)
        file = path / "vectors-00001.parquet"
        file.write_bytes(flipped(file.read_bytes(), 8))
        with pytest.raises(ValueError, match=r"vectors-00001\.parquet: damaged, its sha256 is not that of what was"):
            folder.finish()
    assert json.loads((path / "meta.json").read_text("utf-8"))["complete"] is False


def test_a_folder_is_checked_without_a_change(path: Path) -> None:
    begin(path, 2)
    (path / "vectors-00002.parquet").write_bytes(b"of a killed run")
    with pytest.raises(ValueError, match="vectors: not complete; what is there is whole, and the same command goes on"):
        check_folder(path)
    with ShardFolder(path, "parquet").opened(SETTINGS) as folder:
        folder.finish()
    (path / ".lock").unlink()
    before = files(path)
    assert check_folder(path) == {"rows": 6, "skipped": 1, "cut": 1, "shards": 2} and files(path) == before
    assert not (path / ".lock").exists()
    (path / "vectors-00002.parquet").write_bytes(b"added")
    with pytest.raises(ValueError, match=r"vectors-00002\.parquet: shards\.jsonl does not know it; take it away"):
        check_folder(path)
    (path / "vectors-00002.parquet").unlink()
    for name in ("shards.jsonl", "bad_rows.jsonl"):
        (path / name).write_bytes(before[name] + b"x")
        with pytest.raises(ValueError, match=rf"{name}: expected {len(before[name]):,} bytes, found"):
            check_folder(path)
        (path / name).write_bytes(before[name])
    (path / "meta.json").write_bytes(before["meta.json"].replace(b'"cut": 1', b'"cut": 2'))
    with pytest.raises(ValueError, match="shards are missing of those that"):
        check_folder(path)
    with pytest.raises(ValueError, match="not readable as JSON"):
        check_folder(path.parent)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_is_gone(form: str, path: Path) -> None:
    begin(path, form=form)
    for file in sorted(path.glob("*-00000.*")):
        kept = file.read_bytes()
        file.unlink()
        refused(path, rf"{file.name}: expected a file of [\d,]+ bytes, found none; put it back", form=form)
        file.write_bytes(kept)
    with ShardFolder(path, form).opened(SETTINGS) as folder:
        folder.finish()
    (path / "shards.jsonl").unlink()
    refused(path, r"shards\.jsonl: shards are missing of those that meta\.json counts; put it back", form=form)


@contextlib.contextmanager
def without_root() -> Iterator[None]:
    """Root may write everywhere: become another user."""
    import filelock  # noqa: F401  while it can be read

    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@POSIX
@pytest.mark.parametrize("made", [False, True])
def test_a_read_only_folder(made: bool) -> None:
    path = Path(tempfile.mkdtemp())  # not below pytest's folder, which other users may not read
    try:
        if made:
            begin(path)
            (path / ".lock").unlink()
        path.chmod(0o555)
        with without_root(), pytest.raises(PermissionError, match=str(path)):
            opened(path)
    finally:
        path.chmod(0o700)
        shutil.rmtree(path)


# -- two at the same time ------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from minibert.bulk.shards import ShardFolder
with ShardFolder(Path(sys.argv[1]), "npy").opened({}):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_run_at_a_time_and_a_killed_one_holds_nothing(path: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=pipe, stdout=pipe, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "held\n"
            refused(
                path, "another run is writing into this folder; wait for it, or choose another", form="npy", settings={}
            )
        finally:
            other.kill()
    assert (path / ".lock").exists() and opened(path, "npy", {}) == []


def test_an_error_lets_go_of_the_folder(path: Path) -> None:
    begin(path)
    with pytest.raises(ZeroDivisionError), ShardFolder(path, "parquet").opened(SETTINGS):
        1 / 0  # noqa: B018
    assert len(opened(path)) == 2
