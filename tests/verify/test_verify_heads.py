"""`minibert verify --encoder` at a head: the values it compares, and the place of a difference."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Printed, ran
from encoder_files import CASE, copied
from head_files import HEAD_CASE, HEAD_CASES, HeadCase
from ports import arrays, by_steps, few, first_difference, saved_of, verify_encoder
from safetensors.numpy import load_file

from minibert.models.open.load_encoder import load_encoder
from minibert.verify.mistakes import MISTAKES
from minibert.verify.subjects import HEAD, EncoderSubject

MASKED, CLASSES = HEAD_CASE["bert-masked_word"], HEAD_CASE["bert-classes"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own.safetensors"


@pytest.mark.parametrize("case", {case.head: case for case in HEAD_CASES}.values(), ids=str)  # one of each head
def test_what_save_writes_against_accepts(case: HeadCase, own: Path) -> None:
    arrays = saved_of(case.folder, own)
    assert "plain|logits" in arrays
    assert verify_encoder(case.folder, arrays).passed


@pytest.mark.parametrize(
    ("name", "key"),
    [("bert-masked_word", "logits"), ("bert-masked_word", "cls.predictions.transform.LayerNorm"),
     ("bert-classes", "logits"), ("bert-classes", "pooler.activation"), ("gpt2-classes", "logits"),
     ("electra-replaced_token", "logits")],
)  # fmt: skip
def test_the_place_of_a_difference_is_the_head(name: str, key: str, own: Path) -> None:
    case = HEAD_CASE[name]
    arrays = saved_of(case.folder, own)
    arrays[f"types|{key}" if f"types|{key}" in arrays else f"plain|{key}"][0, 0] += 1e-3
    report = verify_encoder(case.folder, arrays)
    assert not report.passed and report.matches == []
    assert first_difference(report).startswith(f"head {case.head}, {key}, in ")


def test_logits_at_padding_are_not_compared(own: Path) -> None:
    arrays = saved_of(MASKED.folder, own)
    padding = arrays["right_pad|inputs|attention_mask"] == 0
    for changed, passes in ((padding, True), (~padding, False)):
        (x := arrays["right_pad|logits"].copy())[changed] = 7
        assert verify_encoder(MASKED.folder, arrays | {"right_pad|logits": x}).passed == passes


def test_logits_alone_are_compared_and_named() -> None:
    """A head's mistake fits, though nothing else is compared; with another one beside it none does."""
    with load_encoder(MASKED.folder) as encoder:
        (mistake,) = [each for each in MISTAKES if each.name == "norm not applied"]
        head, inputs = EncoderSubject(encoder, partial(load_encoder, MASKED.folder)).head, few(encoder, "plain")
        traces = {"plain": by_steps(encoder, inputs["plain"], mistake, (HEAD,), head)}
    for further, names in ((0, ["norm not applied"]), (1, [])):
        traces["plain"]["logits"] = traces["plain"]["logits"] + np.float32(further)
        report = verify_encoder(MASKED.folder, arrays(inputs, traces), only=["logits"])
        assert not report.passed and report.matches == names


def test_batches_whose_token_is_padding_have_no_logits(own: Path) -> None:
    pairs = [name.split("|", 1) for name in saved_of(CLASSES.folder, own)]
    kinds = {kind for kind, _ in pairs} - {kind for kind, key in pairs if key == "logits"}
    assert kinds == {"left_pad", "pads_inside_mask"}


@pytest.mark.parametrize(
    ("case", "config", "said"),
    [
        (MASKED, {"architectures": ["BertForMultipleChoice"]}, "logits not compared: .* multiple choice is not"),
        (HEAD_CASE["bert-masked_word-pretraining"], {"architectures": None}, "logits not compared: .* several heads"),
        # a port of GPT-2's blocks has no logits, though the table for them is there
        (HEAD_CASE["gpt2-next_word-unprefixed"], {"architectures": ["GPT2Model"]}, ""),
    ],
    ids=str,
)
def test_where_and_why_logits_are_not_compared(
    case: HeadCase, config: dict[str, Any], said: str, own: Path, tmp_path: Path
) -> None:
    report = verify_encoder(copied(case, tmp_path / "model", **config), save=own)
    assert report.passed and re.match(said, report.lines[1])
    assert not [name for name in load_file(own) if name.endswith("logits")]


def test_without_a_head_nothing_is_said_of_logits(own: Path, capsys: Printed) -> None:
    out, _ = ran(capsys, "verify", "--encoder", "--model", CASE["bert-base"].folder, "--save", own)
    assert "logits" not in out
