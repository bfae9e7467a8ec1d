"""Two texts on one page: the second one's weights are its trace's, and the cosines those of both traces."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from checkpoints import same_bits
from drawn import cosine
from strict_html import data_of_script, read

import minibert
from minibert.cli import main
from minibert.show.page.page import page

RIVER, MONEY = "The bank of the river was muddy", "The bank raised its rates </b>"


def data_of(html: str, shapes: dict[str, tuple[tuple[int, ...], str]]) -> dict[str, Any]:
    data = data_of_script(html, "besidedata")
    for name, (shape, kind) in shapes.items():
        data[name] = np.frombuffer(base64.b64decode(data[name]), kind).reshape(shape)
    return data


def test_the_cosines_are_of_both_traces(minilm: Path) -> None:
    encoder = encoders.computed_once(minibert.load_encoder(minilm))
    html = page(encoder, RIVER, beside=MONEY)
    assert [text for tag, text in read(html).texts if tag == "b"][-1] == MONEY, "a text is never markup"
    first, second = (encoder.trace(**encoder.tokenize(text)) for text in (RIVER, MONEY))
    n, m = (trace["hidden_states.0"].shape[1] for trace in (first, second))
    assert n != m
    data = data_of(html, {"attention": ((6, 12, m, m), "<f4"), "cosines": ((7, n, m), "<f4")})
    assert data["tokens"] == encoder.tokens(encoder.tokenize(MONEY)["input_ids"][0])
    for i in range(6):
        assert same_bits(np.ascontiguousarray(data["attention"][i]), np.ascontiguousarray(second[f"attentions.{i}"][0]))
    for i in range(7):
        states = first[f"hidden_states.{i}"][0], second[f"hidden_states.{i}"][0]
        expected = [[cosine(x, y) for y in states[1]] for x in states[0]]
        assert np.abs(data["cosines"][i] - expected).max() < 1e-6, "float32"
    assert data["cosines"][0, 2, 2] == pytest.approx(1) and data["cosines"][6, 2, 2] < 0.9, "the two banks part"
    assert re.findall(r'value="(\d)" checked', html) == ["2"], "the longest word that both have"
    assert re.findall(r'value="(\d)" checked', page(encoder, RIVER, beside="no common word")) == ["1"]


def test_what_cannot_be_compared_is_said(minilm: Path, tmp_path: Path) -> None:
    encoder = minibert.load_encoder(minilm)
    with pytest.raises(ValueError, match="here are none; give a whole model and a text with tokens"):
        page(encoder.embeddings, RIVER, beside=MONEY)
    with pytest.raises(ValueError, match=r"would have 6\d MB, .*they have 9 and 402 tokens; give shorter ones"):
        page(encoder, RIVER, beside="rates " * 400)
    gpt2 = minibert.load_encoder(encoders.write_gpt2(tmp_path / "gpt2"))
    with pytest.raises(ValueError, match="the text beside has no tokens"):
        page(gpt2, "he was", beside="")
    with pytest.raises(ValueError, match="here are none"):
        page(gpt2, "", beside="he was")
    with pytest.raises(ValueError, match="the longest sequence is"):
        page(gpt2, "he was", beside="he was " * 100)
    assert "besidedata" in page(gpt2, "he was", truncation=True, beside="he was " * 100)


def test_the_command_compares_two_texts(minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "page.html"
    command = ["explain", RIVER, "--beside", MONEY, "--model", str(minilm)]
    assert main([*command, "--html", str(target)]) == 0
    assert "besidedata" in target.read_text("utf-8")
    capsys.readouterr()
    assert main(command) == 1
    assert "--beside compares two texts on a page; add --html page.html" in capsys.readouterr().err
