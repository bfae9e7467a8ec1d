"""`minibert explain --live` as a process: its address, its page, and how it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Printed
from served import SECONDS, Address

from minibert.cli import main
from minibert.commands import explain

SMALL_GPT2 = str(Path(__file__).parents[2] / "scripts" / "study" / "gpt2-words")


def test_it_says_where_the_page_is_and_ctrl_c_ends_it() -> None:
    command = [sys.executable, "-m", "minibert", "explain", "--live", "--no-browser", "-m", SMALL_GPT2, "beautifu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.fullmatch(r"minibert: http://127\.0\.0\.1:(\d+)(/\?token=[\w-]{20,})  Ctrl-C ends it\n", line)
            assert found, line
            page = Address(int(found[1])).ask(found[2])
            assert page.status == 200 and b"beautifu" in page.body
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert (out, err) == ("", "") and process.returncode in (0, 130)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--live", "--html", "x.html"], "leave out --html"),
        (["--live", "--block", "1"], "leave out --block"),
        (["we lived", "--port", "80"], "add --live"),
        (["--live", "-m", SMALL_GPT2, "a" * 40], "16"),
        (["--live", "-m", SMALL_GPT2, "--port", "70000"], "from 0 to 65535"),
    ],
)
def test_what_does_not_go_together_is_said(arguments: list[str], says: str, capsys: Printed) -> None:
    assert main(["explain", *arguments]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("given", "opens"), [({}, False), ({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "w"}, True),
                                              ({"DISPLAY": ":0", "SSH_CONNECTION": "1 2 3 4"}, False)])  # fmt: skip
def test_a_browser_opens_only_where_one_can(
    given: dict[str, str], opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert explain.has_browser() == opens
