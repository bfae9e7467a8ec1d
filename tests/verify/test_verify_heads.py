"""`minibert verify --encoder` at a head: the values it compares, and the place of a difference."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ports
import pytest
from command_line import Printed
from encoder_files import CASE, copied
from head_files import HEAD_CASE, HEAD_CASES, HeadCase
from ports import by_steps, verify_part
from safetensors.numpy import load_file

from minibert.cli import main
from minibert.equations.input_layer import Array
from minibert.models.open.load_encoder import load_encoder
from minibert.verify.mistakes import MISTAKES
from minibert.verify.subjects import HEAD, EncoderSubject, encoder_batches

MASKED = HEAD_CASE["bert-masked_word"]

verify_encoder = partial(verify_part, encoder=True)


def saved(case: HeadCase, path: Path) -> dict[str, Array]:
    """The keys that verify saves: every intermediate of every batch."""
    assert verify_encoder(str(case.folder), save=path).passed
    return dict(load_file(path))


@pytest.mark.parametrize("case", {case.head: case for case in HEAD_CASES}.values(), ids=str)  # one of each head
def test_what_save_writes_against_accepts(case: HeadCase, tmp_path: Path) -> None:
    arrays = saved(case, tmp_path / "own.safetensors")
    assert "plain|logits" in arrays
    assert verify_encoder(case.folder, arrays).passed


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("bert-masked_word", "logits"),
        ("bert-masked_word", "cls.predictions.transform.LayerNorm"),
        ("bert-classes", "logits"),
        ("bert-classes", "pooler.activation"),
        ("gpt2-classes", "logits"),
        ("electra-replaced_token", "logits"),
    ],
)
def test_the_place_of_a_difference_is_the_head(name: str, key: str, tmp_path: Path) -> None:
    case = HEAD_CASE[name]
    arrays = saved(case, tmp_path / "own.safetensors")
    arrays[f"types|{key}" if f"types|{key}" in arrays else f"plain|{key}"][0, 0] += 1e-3
    report = verify_encoder(case.folder, arrays)
    assert not report.passed and report.matches == []
    (line,) = [line for line in report.lines if line.startswith("first difference: ")]
    assert line.startswith(f"first difference: head {case.head}, {key}, in ")


def test_logits_at_padding_are_not_compared(tmp_path: Path) -> None:
    arrays = saved(MASKED, tmp_path / "own.safetensors")
    padding = arrays["right_pad|inputs|attention_mask"] == 0
    for changed, passes in ((padding, True), (~padding, False)):
        x = arrays["right_pad|logits"].copy()
        x[changed] = 7
        assert verify_encoder(MASKED.folder, arrays | {"right_pad|logits": x}).passed == passes


def test_logits_alone_are_compared_and_named() -> None:
    """A head's mistake fits, though nothing else is compared; with another one beside it none does."""
    with load_encoder(MASKED.folder) as encoder:
        (mistake,) = [each for each in MISTAKES if each.name == "norm not applied"]
        head = EncoderSubject(encoder, partial(load_encoder, MASKED.folder)).head
        inputs = {"plain": encoder_batches(encoder)["plain"]}
        traces = {"plain": by_steps(encoder, inputs["plain"], mistake, (HEAD,), head)}
    for further, names in ((0, ["norm not applied"]), (1, [])):
        traces["plain"]["logits"] = traces["plain"]["logits"] + np.float32(further)
        report = verify_encoder(MASKED.folder, ports.arrays(inputs, traces), only=["logits"])
        assert not report.passed and report.matches == names


def test_batches_whose_token_is_padding_have_no_logits(tmp_path: Path) -> None:
    arrays = saved(HEAD_CASE["bert-classes"], tmp_path / "own.safetensors")
    kinds = {name.split("|")[0] for name in arrays}
    assert kinds - {name.split("|")[0] for name in arrays if name.endswith("|logits")} == {
        "left_pad",
        "pads_inside_mask",
    }


@pytest.mark.parametrize(
    ("case", "config", "said"),
    [
        (MASKED, {"architectures": ["BertForMultipleChoice"]}, "logits not compared: .* multiple choice is not"),
        (HEAD_CASE["bert-masked_word-pretraining"], {"architectures": None}, "logits not compared: .* several heads"),
    ],
    ids=str,
)
def test_why_logits_are_not_compared(case: HeadCase, config: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = copied(case, tmp_path / "model", **config)
    report = verify_encoder(str(folder), save=tmp_path / "own.safetensors")
    assert re.match(said, report.lines[1])
    assert not [name for name in load_file(tmp_path / "own.safetensors") if name.endswith("logits")]


def test_a_base_model_s_word_table_is_no_head(tmp_path: Path) -> None:
    """A port of GPT-2's blocks has no logits, though the table for them is there."""
    folder = copied(HEAD_CASE["gpt2-next_word-unprefixed"], tmp_path / "model", architectures=["GPT2Model"])
    assert verify_encoder(str(folder), save=tmp_path / "own.safetensors").passed
    assert not [name for name in load_file(tmp_path / "own.safetensors") if name.endswith("logits")]


def test_without_a_head_nothing_is_said_of_logits(tmp_path: Path, capsys: Printed) -> None:
    command = ["verify", "--encoder", "--model", str(CASE["bert-base"].folder)]
    assert main([*command, "--save", str(tmp_path / "own.safetensors")]) == 0
    assert "logits" not in capsys.readouterr().out
