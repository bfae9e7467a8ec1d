"""`minibert fill` and `minibert next`: words, probabilities and bars on stdout, and what is refused."""

from __future__ import annotations

import io
import re
import sys

import pytest
import word_models
from command_line import Printed, failure, ran

import minibert
from minibert.cli import main
from minibert.commands import answers, common
from minibert.show.text.text import columns_of


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(word_models.write(tmp_path_factory.mktemp("bert"), "bert"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(word_models.write(tmp_path_factory.mktemp("gpt2"), "gpt2"))


def test_fill_prints_each_mask(bert: str, capsys: Printed) -> None:
    texts = ["we [MASK] above", "[MASK] the [MASK]"]
    out, err = ran(capsys, "fill", "-m", bert, "-k", "3", *texts)
    lines = out.splitlines()
    assert err == ""
    assert [lines[i] for i in (0, 4, 5, 6, 10)] == [texts[0], "", texts[1], "mask 1", "mask 2"]
    with minibert.load_encoder(bert) as encoder:
        found = encoder.fill(texts, k=3)
    for start, words in zip((1, 7, 11), (found[0][0], *found[1]), strict=True):
        assert [line.split()[:2] for line in lines[start : start + 3]] == [
            [each["token_str"], f"{each['score']:.4f}"] for each in words
        ]
    assert len(lines) == 14


def test_next_prints_each_text(gpt2: str, capsys: Printed) -> None:
    lines = ran(capsys, "next", "we", "the dog", "-m", gpt2)[0].splitlines()
    assert len(lines) == 13 and [lines[i] for i in (0, 6, 7)] == ["we", "", "the dog"]
    with minibert.load_encoder(gpt2) as encoder:
        scores = [f"{each['score']:.4f}" for each in encoder.next_words("the dog")]
    assert all(re.match(r'  ".*" +0', line) for line in lines[8:])
    assert re.findall(r" (0\.\d{4})(?:  [█#]+)?$", "\n".join(lines[8:]), re.MULTILINE) == scores


def test_a_bar_is_as_long_as_its_word_is_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [("向量", 0.5), ("ab", 0.2), ("c\x1b", 0.001)]
    for encoding, stroke in (("utf-8", "█"), ("ascii", "#"), ("latin-1", "#")):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
        assert answers.bars(found) == [
            f"  向量   0.5000  {stroke * 20}", f"  ab     0.2000  {stroke * 8}", "  c\\x1b  0.0010",
        ]  # fmt: skip
    assert answers.bars(found[1:], quote='"')[0] == '  "ab"     0.2000  ########'
    monkeypatch.setattr(sys, "stdout", None)
    assert answers.bars(found)[0].endswith("#")


def test_a_text_above_its_words_is_bold_and_harmless(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    for coloured, shown in ((False, "a \\x1b[2m text"), (True, "\x1b[1ma \\x1b[2m text\x1b[0m")):
        for module in (answers, common):
            monkeypatch.setattr(module, "coloured", lambda coloured=coloured: coloured)
        answers.print_answers(["a \x1b[2m text", "we"], [["  word"], []])
        assert capsys.readouterr().out.split("\n")[:3] == [shown, "  word", ""]


def test_what_is_refused(bert: str, gpt2: str, capsys: Printed) -> None:
    """In words of a shell; what the methods themselves refuse stands in tests/messages."""
    assert "text 0 has no [MASK]; write it in the place of a word" in failure(capsys, "fill", "we", "-m", bert)
    assert "-k must be an integer >= 1, found 0" in failure(capsys, "next", "we", "-k", "0", "-m", gpt2)
    assert "no head 'next_word'; its heads are masked_word" in failure(capsys, "next", "we", "-m", bert)


def test_the_usual_model_is_one_that_can(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    named: list[str] = []

    def load(name: str, **_: object) -> None:
        named.append(name)
        raise ValueError("enough")

    monkeypatch.setattr("minibert.models.open.load_encoder.load_encoder", load)
    for command in ("fill", "next"):
        assert failure(capsys, command, "we") == "enough"
        main(["help", command])
        assert f"or {named[-1]}" in " ".join(capsys.readouterr().out.split())
    assert named == ["bert-base-uncased", "gpt2"]


def test_words_of_a_long_list_are_in_columns(bert: str, capsys: Printed) -> None:
    lines = ran(capsys, "fill", "[MASK]", "-k", "40", "-m", bert)[0].splitlines()[1:]
    assert len({columns_of(line[: line.index("0.")]) for line in lines}) == 1
