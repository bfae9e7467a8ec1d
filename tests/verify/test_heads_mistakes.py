"""`minibert verify --encoder` at a head: what it compares, where it finds a difference, and which mistake it names."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_files import CASE, copied
from head_files import HEAD_CASE, HEAD_CASES, HeadCase
from safetensors.numpy import load_file, save_file

from minibert.cli import main
from minibert.equations.input_layer import Array
from minibert.models.load_encoder import load_encoder
from minibert.verify.blocks import EncoderSubject, encoder_batches
from minibert.verify.heads_mistakes import HEAD_MISTAKES
from minibert.verify.plain_blocks import Choices
from minibert.verify.traces import write_traces
from minibert.verify.verify import verify

MISTAKE = {mistake.name: mistake for mistake in HEAD_MISTAKES}
# each mistake on a head that can have it, and others that give the same numbers there
MADE = {
    "word table where the head has its own": ("gpt2-next_word-untied", set()),
    "word table times its factor": ("gemma3_text-next_word", set()),
    "head's norm forgotten": ("bert-masked_word", set()),
    "head's norm before its activation": ("bert-masked_word", set()),
    "head's activation forgotten": ("roberta-classes", set()),
    "pooler forgotten": ("bert-classes", set()),
    "tanh for gelu": ("electra-classes", set()),
    "gelu for tanh": ("bert-classes", {"the blocks' activation in the head"}),
    "head's gelu by tanh": ("bert-masked_word", set()),
    "head's gelu by erf": ("bert-masked_word-gelu_new", set()),
    "the blocks' activation in the head": ("roberta-masked_word", set()),
    "head's bias forgotten": ("distilbert-token_classes", set()),
    "first token instead of the last": ("gpt2-classes", set()),
    "last token instead of the first": ("bert-classes", set()),
    "first token instead of the mean": ("modernbert-classes-mean", set()),
    "mean of the tokens instead of one": ("modernbert-classes", set()),
}  # fmt: skip
MASKED = HEAD_CASE["bert-masked_word"]

verify_encoder = partial(verify, encoder=True)


def saved(case: HeadCase, path: Path) -> dict[str, Array]:
    """What verify saves: every intermediate of every batch."""
    assert verify_encoder(str(case.folder), save=path).passed
    return dict(load_file(path))


def with_mistake(case: HeadCase, name: str, path: Path) -> Path:
    """What a port with this mistake would have saved."""
    with load_encoder(case.folder) as encoder:
        inputs = encoder_batches(encoder)
        assert MISTAKE[name].make(encoder) is not None
        wrong = EncoderSubject(encoder, partial(load_encoder, case.folder), None, MISTAKE[name].make)
        traces = {}
        for kind, batch in inputs.items():
            try:
                traces[kind] = wrong.trace(batch)
            except ValueError:  # the token that it takes is padding
                continue
        write_traces(path, {kind: inputs[kind] for kind in traces}, traces)
    return path


def test_every_mistake_is_made_here() -> None:
    assert list(MADE) == [mistake.name for mistake in HEAD_MISTAKES]
    assert len({mistake.why for mistake in HEAD_MISTAKES}) >= len(HEAD_MISTAKES) - 2


@pytest.mark.parametrize("name", MADE)
def test_a_mistake_is_named(name: str, tmp_path: Path) -> None:
    case, same = HEAD_CASE[MADE[name][0]], MADE[name][1]
    report = verify_encoder(str(case.folder), against=with_mistake(case, name, tmp_path / "port.safetensors"))
    assert not report.passed and set(report.matches) == {name} | same, report.lines
    (line,) = [line for line in report.lines if line.startswith("first difference: ")]
    assert line.startswith(f"first difference: head {case.head}, ")
    assert report.local and {each.place for each in report.local} == {f"head {case.head}"}  # the blocks are right
    assert all(name in each.fits for each in report.local), report.local


def test_a_head_behind_wrong_blocks_is_right(tmp_path: Path) -> None:
    """It is judged on the port's own last hidden state."""
    with MASKED.load() as encoder:
        wrong = EncoderSubject(encoder, MASKED.load, Choices(scale=lambda own: 1.0))
        inputs = {kind: batch for kind, batch in encoder_batches(encoder).items() if kind in ("plain", "left_pad")}
        write_traces(tmp_path / "port.safetensors", inputs, {kind: wrong.trace(x) for kind, x in inputs.items()})
    report = verify_encoder(str(MASKED.folder), against=tmp_path / "port.safetensors")
    assert not report.accepted["logits"]
    assert {each.key.rpartition(".")[2] for each in report.local} == {"scores"}, report.local


@pytest.mark.parametrize("case", {case.head: case for case in HEAD_CASES}.values(), ids=str)  # one of each head
def test_what_save_writes_against_accepts(case: HeadCase, tmp_path: Path) -> None:
    arrays = saved(case, tmp_path / "own.safetensors")
    assert "plain|logits" in arrays
    assert verify_encoder(str(case.folder), against=tmp_path / "own.safetensors").passed


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
    save_file(arrays, tmp_path / "port.safetensors")
    report = verify_encoder(str(case.folder), against=tmp_path / "port.safetensors")
    assert not report.passed and report.matches == []
    (line,) = [line for line in report.lines if line.startswith("first difference: ")]
    assert line.startswith(f"first difference: head {case.head}, {key}, in ")


def test_logits_at_padding_are_not_compared(tmp_path: Path) -> None:
    arrays = saved(MASKED, tmp_path / "own.safetensors")
    padding = arrays["right_pad|inputs|attention_mask"] == 0
    for changed, passes in ((padding, True), (~padding, False)):
        x = arrays["right_pad|logits"].copy()
        x[changed] = 7
        save_file(arrays | {"right_pad|logits": x}, tmp_path / "port.safetensors")
        assert verify_encoder(str(MASKED.folder), against=tmp_path / "port.safetensors").passed == passes


def test_logits_alone_are_compared_and_named(tmp_path: Path) -> None:
    """No block's mistake fits, though nothing of a block is compared."""
    path = with_mistake(MASKED, "head's norm forgotten", tmp_path / "port.safetensors")
    report = verify_encoder(str(MASKED.folder), against=path, only=["logits"])
    assert not report.passed and report.matches == ["head's norm forgotten"]


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
        (MASKED, {"architectures": ["BertForQuestionAnswering"]}, "logits not compared: .* question answering is not"),
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


def test_without_a_head_nothing_is_said_of_logits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["verify", "--encoder", "--model", str(CASE["bert-base"].folder)]
    assert main([*command, "--save", str(tmp_path / "own.safetensors")]) == 0
    assert "logits" not in capsys.readouterr().out


def test_two_mistakes_at_once_fit_none(tmp_path: Path) -> None:
    arrays = dict(load_file(with_mistake(MASKED, "head's norm forgotten", tmp_path / "port.safetensors")))
    arrays |= {name: x + np.float32(1) for name, x in arrays.items() if name.endswith("logits")}
    save_file(arrays, tmp_path / "port.safetensors")
    report = verify_encoder(str(MASKED.folder), against=tmp_path / "port.safetensors", only=["logits"])
    assert not report.passed and report.matches == []
