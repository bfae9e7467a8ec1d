"""The command line: what goes to stdout, what to stderr, the exit code, and TAB in bash. Mostly called, where it counts
started.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from command_line import DIM, LONGEST, SMALL_GPT2, VOCAB, WORDS, Patch, Printed, failure, numbers, ran
from fake_hub import refused, use
from limits import CHILD_SECONDS
from reference_files import REFERENCE
from safetensors.numpy import load_file, save_file

import minibert
from minibert import cli
from minibert.cli import main
from minibert.commands import explain
from minibert.show.live import LiveServer
from minibert.threads.kernels import kernel

# -- the command as a whole --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help_has_an_example(command: str, capsys: Printed) -> None:
    named = [command] if command else []
    helps = {ran(capsys, *arguments) for arguments in ([*named, "--help"], [*named, "-h"], ["help", *named])}
    ((out, err),) = helps
    assert f"\nexample:\n  minibert {command}" in out and err == "" and max(map(len, out.splitlines())) <= 80
    if not command:
        groups = ["learning", "verifying", "vectors"]
        assert re.findall("^([a-z]+):$", out, re.MULTILINE) == [*groups, "example"]
        assert sum(all(group in line for group in groups) for line in out.splitlines()) == 1
        assert re.findall(r"^  ([a-z]+) +\w", out, re.MULTILINE) == [*cli.COMMANDS, "minibert"]
        for argument in ("--version", "-V"):
            assert ran(capsys, argument)[0] == f"minibert {minibert.__version__}\n"


def test_a_command_about_a_model_takes_it_as_its_argument(folder: Path, capsys: Printed) -> None:
    ways = ([folder, "--json"], ["--json", folder], ["--json", "-m", folder], ["--model", folder, "--json"])
    assert len({ran(capsys, "info", *arguments) for arguments in ways}) == 1


def test_the_only_side_there_is_needs_no_name(tmp_path: Path, capsys: Printed) -> None:
    """With Whisper's folder, and with the folder that `extract` makes of it."""
    ran(capsys, "extract", REFERENCE / "whisper", "-o", tmp_path / "made")
    for folder in (REFERENCE / "whisper", tmp_path / "made"):
        assert "family            whisper\n" in ran(capsys, "info", folder)[0]
        assert minibert.load(folder).side == "decoder"


def test_texts_may_stand_anywhere_and_begin_with_a_dash(folder: Path, capsys: Printed) -> None:
    ways = (
        "dog man --threads 1 --pooling max --normalize", "--threads 1 dog --pooling max man --normalize",
        "--threads 1 --pooling max dog --normalize man", "--normalize --threads=1 --pooling=max -- dog man",
    )  # fmt: skip
    assert len({ran(capsys, "embed", "-m", folder, *arguments.split())[0] for arguments in ways}) == 1
    for arguments in (["-5 dog"], ["--", "-dog"], ["-7"]):
        out, _ = ran(capsys, "embed", "-m", folder, *arguments)
        assert np.array_equal(numbers(out), minibert.load(folder).embed(arguments[-1:]))


@pytest.mark.parametrize(("encoding", "letter"), [("utf-8", "雲"), ("ascii", r"\u96f2")])
def test_started_as_a_module_it_speaks_the_terminal_s_letters(encoding: str, letter: str, folder: Path) -> None:
    """A letter that the terminal lacks gets its code."""
    (folder / "vocab.txt").write_text("\n".join([*WORDS[:-1], "雲"]) + "\n", "utf-8")
    command = [sys.executable, "-m", "minibert", "explain", "--model", str(folder), "we lived 雲"]
    result = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding})
    out = result.stdout.decode()
    assert (result.returncode, result.stderr) == (0, b"") and letter in out
    assert out.startswith("5 tokens of bert -> (1, 5, 8), float32\n") and "\x1b" not in out  # a pipe is no terminal


@pytest.mark.parametrize(("variable", "typed", "asked"), [
    ("", [], "bert-base-uncased"), ("org/tiny", [], "org/tiny"), ("org/tiny", ["-m", "org/a"], "org/a"),
])  # fmt: skip
def test_which_model_is_asked_for(
    variable: str, typed: list[str], asked: str, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    """An empty variable names none; only an error about the default says that no model was named."""
    use(monkeypatch, refused(), tmp_path)
    monkeypatch.setenv("MINIBERT_MODEL", variable)
    message, default = failure(capsys, "info", *typed), "no model was named, and the default, bert-base-uncased, cannot"
    assert (default in message) == (variable == "") and asked in message
    assert ("--model or MINIBERT_MODEL" in message) == (variable == "")  # the Hub's own ways out: tests/messages


INTERRUPTED_IMPORT = """
import runpy, sys
class Finder:
    def find_spec(self, name, *rest):
        if name == {name!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["info", "./nowhere"]
runpy.run_module("minibert", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("name", ["argparse", "numpy", "minibert.commands.common", "minibert.models.open.load"])
def test_ctrl_c_while_something_is_imported_is_quiet(name: str) -> None:
    result = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT.format(name=name)], capture_output=True)
    assert (result.returncode, result.stdout, result.stderr) == (cli.INTERRUPTED, b"", b"")


EMBED = [sys.executable, "-m", "minibert", "embed", "--model"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_stdout_is_said(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run([*EMBED, str(folder), "we"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (1, "minibert: error: stdout: No space left on device\n")


def test_a_reader_that_leaves_is_no_error(folder: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([*EMBED, str(folder), *["we"] * 3000], stdout=pipe, stderr=pipe) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == cli.READER_GONE


@pytest.mark.parametrize(("error", "code", "message"), [
    (KeyboardInterrupt(), cli.INTERRUPTED, ""), (KeyError("width"), 1, "minibert: error: KeyError: 'width'\n"),
    (ValueError(), 1, "minibert: error: ValueError\n"), (MemoryError(), 1, "minibert: error: MemoryError\n"),
])  # fmt: skip
def test_no_traceback(error: BaseException, code: int, message: str, monkeypatch: Patch, capsys: Printed) -> None:
    monkeypatch.setattr("minibert.models.open.load.open_model", mock.Mock(side_effect=error))
    assert main(["info"]) == code
    assert capsys.readouterr() == ("", message)


# -- explain and info --------------------------------------------------------------------------------------------


def test_explain_prints_the_page(folder: Path, capsys: Printed) -> None:
    from minibert.show.explain import explain

    layer, command = minibert.load(folder), ("explain", "--model", folder)
    lines = explain(layer, "the dog", "bites man")
    assert ran(capsys, *command, "the dog", "--pair", "bites man") == ("\n".join([*lines, ""]), "")
    lines = explain(layer, "we " * 20, truncation=True)
    assert ran(capsys, *command, "we " * 20, "--truncate")[0] == "\n".join([*lines, ""])


@pytest.mark.parametrize(("terminal", "environment", "coloured"), [
    (True, {"TERM": "xterm"}, True), (True, {"TERM": "dumb"}, False), (False, {"TERM": "xterm"}, False),
    (True, {"TERM": "xterm", "NO_COLOR": "1"}, False), (True, {"TERM": "xterm", "NO_COLOR": ""}, True),  # as if not set
])  # fmt: skip
def test_colour_on_a_terminal_only(
    terminal: bool, environment: dict[str, str], coloured: bool, folder: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    for command in ("explain", "nearest"):
        assert ("\x1b[1m" in ran(capsys, command, "--model", folder, "we")[0]) == coloured
    assert "\x1b" not in ran(capsys, "explain", "--help")[0]


def test_info_of_a_real_model(minilm: Path, capsys: Printed) -> None:
    out, err = ran(capsys, "info", "--model", minilm)
    modules, facts = out.split("\n\n")
    assert modules == repr(minibert.load(minilm))
    assert facts.splitlines()[:9] == [
        "family            bert",
        "vocabulary        30,522 rows",
        "width             384 numbers a token",
        "longest sequence  512 tokens",
        "positions here    added, learned; every token counts, from row 0",
        "in attention      none",
        "numbers           stored as F32, computed in float32",
        # (30522 + 512 + 2 + 1 + 1) * 384 * 4 bytes
        "on disk           47.7 MB in 5 tensors, of 90.9 MB in 1 file",
        "tokenizer         WordPiece, 30,522 tokens",
    ]
    always = "always" if kernel().always else "with same_bits=True" + " (tried)" * (kernel().same is None)
    assert facts.splitlines()[-1] == f"same bits         {always}; BLAS kernel {kernel().name}"
    assert err == ""
    # an identity is copied whole
    assert max(len(line) for line in out.splitlines() if not line.startswith("identity")) <= 80


def test_info_of_a_tiny_model(folder: Path, capsys: Printed) -> None:
    narrow = {name: array.astype(np.float16) for name, array in load_file(folder / "model.safetensors").items()}
    save_file(narrow, folder / "model.safetensors")
    (folder / "vocab.txt").unlink()
    out, _ = ran(capsys, "info", "--model", folder)
    rows, vectors = VOCAB + LONGEST + 2, 2
    assert f"  {(rows + vectors) * DIM * 2} bytes in 5 tensors, of " in out
    assert "stored as F16, computed in float32\n" in out and "tokenizer         none: " in out


def test_plot_writes_a_picture(folder: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    from matplotlib import pyplot as plt

    path = tmp_path / "sum.svg"
    plot = "plot", "sum", "--model", folder, "--text", "the dog", "-o", path
    plt.switch_backend("svg")  # as if a user had chosen another one
    assert ran(capsys, *plot) == ("", f"minibert: wrote {path}\n")
    assert "<svg" in path.read_text("utf-8") and plt.get_backend() == "agg", "it opens no window"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "plot needs matplotlib: pip install 'matplotlib>=3.9'" in failure(capsys, *plot)


# -- explain --live -----------------------------------------------------------------------------------------------


def test_a_model_without_a_head_is_named(minilm: Path, capsys: Printed, monkeypatch: Patch) -> None:
    monkeypatch.setattr(LiveServer, "serve_forever", lambda self: None)
    for folder, told in ((minilm, True), (SMALL_GPT2, False)):
        assert main(["explain", "--live", "--no-browser", "-m", str(folder)]) == 0
        assert ("no head, so the page has no prediction; -m names another" in capsys.readouterr().err) == told


@pytest.mark.parametrize(("given", "opens"), [({}, False), ({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "w"}, True),
                                              ({"DISPLAY": ":0", "SSH_CONNECTION": "1 2 3 4"}, False)])  # fmt: skip
def test_a_browser_opens_only_where_one_can(given: dict[str, str], opens: bool, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    with mock.patch.dict(os.environ, given, clear=True):
        assert explain.has_browser() == opens


PAGE = Path(__file__).parents[2] / "scripts/site/pages/api/commands.md"
(LINE,) = re.findall("^eval .*", PAGE.read_text("utf-8"), re.MULTILINE)
# bash calls the function that `complete` names, with these variables, and takes what it puts into COMPREPLY
TAB = f"""
{LINE}
COMP_LINE=$1 COMP_POINT=${{#1}} COMP_TYPE=9
$(complete -p minibert | sed 's/.*-F \\([^ ]*\\).*/\\1/') minibert
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="bash's completion is of POSIX")
@pytest.mark.parametrize(("line", "words"), [
    ("minibert sea", ["search"]), ("minibert e", ["embed", "encode", "explain", "extract"]),
    ("minibert help sim", ["similar"]), ("minibert encode --prec", ["--precision"]),
    ("minibert encode we --precision ", ["binary", "float16", "float32", "int8", "ubinary", "uint8"]),
    ("minibert plot rot", ["rotary"]), ("minibert rank we --file lin", ["lines.txt"]), ("minibert fly --prec", [""]),
])  # fmt: skip
def test_tab(line: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "lines.txt").touch()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    bash, environment = ["bash", "--norc", "-c", TAB, "bash", line], {**os.environ, "PATH": path}
    result = subprocess.run(bash, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=CHILD_SECONDS)
    assert (sorted(word.strip() for word in result.stdout.splitlines()), result.stderr) == (words, "")
