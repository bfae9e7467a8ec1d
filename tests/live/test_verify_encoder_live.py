"""The reference itself, run beside the whole encoder with eager attention: a seeded model of each row, a real model."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from head_files import HEAD_CASE
from ports import verify_part

from minibert.cli import main
from minibert.equations.input_layer import Array
from minibert.models.open.load_encoder import load_encoder
from minibert.verify.judge import blocks
from minibert.verify.judge.blocks import EncoderSubject, encoder_batches
from minibert.verify.judge.compare import ERROR_SHARE, over_kinds
from minibert.verify.mistakes.mistakes import MISTAKES
from minibert.verify.mistakes.plain import plain_parts
from minibert.verify.sides.reference import Reference
from minibert.verify.sides.traces import BLOCKS, HEAD, trace
from minibert.verify.verify import verify

verify_encoder = partial(verify_part, encoder=True)
pytestmark = pytest.mark.reference

ROTARY_TOLERANCE = 4e-5  # the same where cos and sin are float32 here; measured 1.9e-5 at 300 tokens
# each head, and each way in which a model's differs: what tests/live/test_heads_live.py compares of all
HEADS = (
    "bert-masked_word-untied", "bert-masked_word-both_and_unlike", "bert-classes", "bert-next_sentence",
    "bert-next_word", "roberta-masked_word", "roberta-classes", "electra-masked_word", "electra-replaced_token",
    "distilbert-classes", "gpt2-classes", "gpt2-classes-no_pad_id", "gpt2-next_word-unprefixed",
    "modernbert-classes-mean", "modernbert-masked_word", "nomic_bert-masked_word", "gemma3_text-next_word",
    "qwen3-token_classes", "bert-answer", "llama-answer", "modernbert-answer",
)  # fmt: skip
# what the reference's encoder does not take as an argument, and verify leaves out
NOT_TAKEN = {"clip_text_model": "inputs_embeds", **dict.fromkeys(encoders.BART_LIKE, "explicit_positions")}
FORMULA_TOLERANCE = 1e-12  # both sides in float64; measured 8.4e-15


def taken(name: str, encoder: Any) -> dict[str, dict[str, Any]]:
    return {kind: batch for kind, batch in encoder_batches(encoder).items() if kind != NOT_TAKEN.get(name)}


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_every_row(name: str, tmp_path: Path) -> None:
    """Every intermediate of every kind of batch is compared, scores among them."""
    folder = encoders.write(tmp_path / name, name)
    report = verify_encoder(str(folder))
    assert report.passed, "\n".join(report.lines)
    with load_encoder(folder) as encoder:
        inputs = taken(name, encoder)
        keys = {kind: set(trace(encoder, batch)) for kind, batch in inputs.items()}
    compared = {(kind, d.key) for d in report.differences for kind in d.kinds}
    assert compared == {(kind, key) for kind, named in keys.items() for key in named}
    left = [line for line in report.lines if "not compared" in line or "left out" in line]
    assert all(line.endswith(f": {NOT_TAKEN.get(name)}") for line in left) and bool(left) == (name in NOT_TAKEN), left


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bert", {"is_decoder": True}),
        ("bert", {"hidden_act": "relu"}),
        ("roberta", {"hidden_act": "gelu_new"}),
        ("distilbert", {"activation": "silu"}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "n_inner": None}),
        ("gpt2", {"scale_attn_weights": False, "activation_function": "gelu"}),
        ("bert", {"num_attention_heads": 1}),
    ],
    ids=str,
)
def test_what_a_config_changes(name: str, changes: dict[str, object], tmp_path: Path) -> None:
    report = verify_encoder(str(encoders.write(tmp_path / name, name, **changes)))
    assert report.passed, "\n".join(report.lines)


@pytest.mark.parametrize("name", HEADS)
def test_heads(name: str) -> None:
    """The logits, and what comes before them."""
    case = HEAD_CASE[name]
    report = verify_encoder(str(case.folder))
    assert report.passed, "\n".join(report.lines)
    with case.load() as encoder:
        head = encoder.head()
    compared = {d.key for d in report.differences}
    assert {*(path for path, _ in head.works), head.path, "logits"} <= compared
    assert not [line for line in report.lines if "not compared" in line or "left out" in line]


def test_gte_s_older_model_type(tmp_path: Path) -> None:
    """transformers knows the model, but not by this name; and of the rule "ntk" it knows nothing."""
    settings = encoders.config("gte", rope_theta=20000)
    named = encoders.tensors(settings)
    for whole in (False, True):
        folder = encoders.checkpoints.write(tmp_path / "new", {**settings, "model_type": "new"}, named)
        report = verify(str(folder), encoder=whole)
        assert report.passed, report.lines
    scaled = {**settings, "rope_scaling": {"type": "ntk", "factor": 8.0}}
    with pytest.raises(ValueError, match=r"by 'ntk', which transformers does not compute.*values with against"):
        verify(str(encoders.checkpoints.write(tmp_path / "ntk", scaled, named)), encoder=True)


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_in_float64_both_compute_one_formula(name: str, tmp_path: Path) -> None:
    folder = encoders.write(tmp_path / name, name)
    with load_encoder(folder, dtype="float64") as encoder:
        reference = Reference(EncoderSubject(encoder, load_encoder), str(folder))
        reference.double()
        for batch in taken(name, encoder).values():
            ours, theirs = trace(encoder, batch), reference.trace(batch)
            keep = np.asarray(batch.get("attention_mask", np.ones(ours["hidden_states.0"].shape[:2]))) != 0
            for i in range(encoders.DEPTH + 1):
                off = np.abs(ours[f"hidden_states.{i}"] - theirs[f"hidden_states.{i}"])[keep]
                assert off.max() <= (FORMULA_TOLERANCE if encoder.stack.rotary is None else ROTARY_TOLERANCE)


def test_a_published_model(minilm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["We lived above the clouds", "naïve café, 東京 🙂", ""]
    report = verify_encoder(str(minilm), texts)
    assert report.passed, "\n".join(report.lines)
    outputs = [d for d in over_kinds(report.differences) if re.fullmatch(r"hidden_states\.\d", d.key)]
    assert len(outputs) == 7
    for d in outputs:
        assert d.error_ours <= ERROR_SHARE * d.error_theirs
    assert {d.kinds for d in report.differences if d.key == "input_ids"} == {(f"text {i}",) for i in range(1, 4)}
    assert main(["verify", "--encoder", "--model", str(minilm)]) == 0
    said = capsys.readouterr().out
    assert "eager attention, on the CPU in float32" in said
    assert len(re.findall(r"^block \d .* within rounding$", said, re.MULTILINE)) == 6


def found_out(folder: Path, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The live model's trace replaced by one with a mistake, in float32 and float64: it is seen and named."""
    (wrong,) = [m for m in MISTAKES if m.name == mistake]
    with load_encoder(folder) as narrow, load_encoder(folder, dtype="float64") as exact:
        models = [narrow]
        head = EncoderSubject(narrow, load_encoder).head

        def traced(self: Any, inputs: Any) -> dict[str, Array]:
            parts = plain_parts(models[-1], inputs, wrong, (BLOCKS, HEAD), head)
            return {key: x for part in parts for key, x in part.items()}

        monkeypatch.setattr(Reference, "trace", traced)
        monkeypatch.setattr(Reference, "double", lambda self: models.append(exact))
        report = verify_encoder(str(folder))
    assert not report.passed and report.matches == [mistake], report.lines


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("bert", "activation gelu_new"),
        ("bert", "no division by sqrt(head_dim)"),
        ("gpt2", "causal mask one token too far"),
    ],
)
def test_a_reference_that_makes_a_mistake_is_found_out(
    name: str, mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = encoders.write(tmp_path / name, name)
    found_out(folder, mistake, monkeypatch)


def test_a_real_port_s_mistake_is_named(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On real weights, where two right programs are further apart than the tolerance; of two batches, to be quick."""
    few = {
        kind: batch for kind, batch in encoder_batches(load_encoder(minilm)).items() if kind in ("plain", "left_pad")
    }
    monkeypatch.setattr(blocks, "encoder_batches", lambda encoder: few)
    found_out(minilm, "activation gelu_new", monkeypatch)
