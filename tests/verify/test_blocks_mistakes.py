"""The classic mistakes of the blocks: each is rejected by the very comparison that passes the right encoder.

Read as a list, it is what goes wrong when BERT and GPT-2 are ported.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import encoders
import loops
import loops_today
import numpy as np
import pytest

from minibert.models.encoder import Encoder
from minibert.models.load_encoder import load_encoder
from minibert.verify import blocks
from minibert.verify.blocks import IN_BLOCKS, EncoderSubject, encoder_batches
from minibert.verify.blocks_mistakes import MISTAKES
from minibert.verify.compare import OF_A_PORT, over_kinds
from minibert.verify.plain_blocks import plain_trace
from minibert.verify.report import Report
from minibert.verify.sides import File, Live, Shipped
from minibert.verify.traces import Traces, read_traces, trace, write_traces
from minibert.verify.verify import compare_with, verify

FEW = ("plain", "left_pad")  # batches that show every mistake
verify_encoder = partial(verify, encoder=True)
MISTAKE = {mistake.name: mistake for mistake in MISTAKES}
PLAIN_TOLERANCE = 3e-5  # times max(1, size), packed against padded; measured 1.2e-5, with the kernels of Haswell

# each mistake, a model in which it shows, the first intermediate that it spoils, and how much (measured, rounded down)
SHOWN: dict[str, tuple[str, str, float]] = {
    "no division by sqrt(head_dim)": ("bert", "encoder.layer.0.attention.self.scores", 0.5),
    "division by sqrt(dim)": ("bert", "encoder.layer.0.attention.self.scores", 1),
    "gelu by tanh": ("bert", "encoder.layer.0.intermediate.intermediate_act_fn", 0.00047),
    "gelu by erf": ("gpt2", "h.0.mlp.act", 0.00047),
    "mask added as 0 and 1": ("bert", "attentions.0", 0.38),
    "mask ignored": ("bert", "attentions.0", 0.48),
    "softmax over the queries": ("bert", "attentions.0", 0.81),
    "softmax over the heads": ("bert", "attentions.0", 0.89),
    "norm before instead of after": ("bert", "encoder.layer.0.attention.self.query", 1.04),
    "norm after instead of before": ("gpt2", "h.0.ln_1", 2.9),
    "residual from the normed x": ("gpt2", "h.0.attn.sum", 1.8),
    "residual from before the norm": ("bert", "encoder.layer.0.output.sum", 2.3),
    "heads split without turning the axes": ("bert", "encoder.layer.0.attention.self.scores", 6),
    "heads interleaved": ("bert", "encoder.layer.0.attention.self.scores", 5.9),
    "heads joined without turning the axes": ("bert", "encoder.layer.0.attention.self.context", 3.8),
    "square weights transposed": ("gpt2", "h.0.attn.c_proj", 5.7),
    "q k v in another order: k q v": ("gpt2", "h.0.attn.scores", 12),
    "q k v in another order: v k q": ("bert", "encoder.layer.0.attention.self.query", 3.7),
    "q k v in another order: q v k": ("bert", "encoder.layer.0.attention.self.key", 4.6),
    "q k v in another order: k v q": ("bert", "encoder.layer.0.attention.self.query", 4),
    "q k v in another order: v q k": ("gpt2", "h.0.attn.scores", 11),
    "last norm forgotten": ("gpt2", "hidden_states.2", 1.3),
    "causal mask one token too far": ("gpt2", "attentions.0", 1),
    "causal mask hides the token itself": ("gpt2", "attentions.0", 0.99),
    "causal mask forgotten": ("gpt2", "attentions.0", 0.99),
    "causal mask where there is none": ("bert", "attentions.0", 0.99),
    "scale by head_dim": ("gemma3_text", "layers.0.self_attn.scores", 0.26),
    "neighbours turned instead of halves": ("qwen3", "layers.0.self_attn.scores", 2.37),
    "queries and keys not turned": ("qwen3", "layers.0.self_attn.scores", 2.57),
    "rotation of the other layer type": ("gemma3_text", "layers.0.self_attn.scores", 0.34),
    "queries and keys not normed": ("qwen3", "layers.0.self_attn.scores", 1.2),
    "key head taken modulo": ("qwen3", "layers.0.self_attn.scores", 3.24),
    "window one token too wide": ("gemma3_text", "attentions.0", 0.77),
    "window one token too narrow": ("gemma3_text", "attentions.0", 0.97),
    "window forgotten": ("gemma3_text", "attentions.0", 0.76),
    "weight without 1 +": ("gemma3_text", "layers.0.input_layernorm", 2.9),
    "mean subtracted in RMSNorm": ("qwen3", "layers.0.input_layernorm", 0.61),
    "norm within forgotten": ("gemma3_text", "layers.0.self_attn.sum", 2.64),
    "gate and up exchanged": ("qwen3", "layers.0.mlp.act_fn", 4.25),
}


def wrong_traces(encoder: Encoder, inputs: Traces, name: str) -> Traces:
    recipe = MISTAKE[name].make(encoder.stack)
    assert recipe is not None, f"{name} cannot be made in this model"
    return {kind: plain_trace(encoder, batch, recipe) for kind, batch in inputs.items()}


def rejected(folder: Path, theirs: Traces, inputs: Traces) -> list[str]:
    """What verify rejects of somebody's traces."""
    with load_encoder(folder) as encoder:
        subject = EncoderSubject(encoder, partial(load_encoder, folder))
        with subject.exact() as exact:
            found = subject.compare(inputs, subject.traces(inputs, {}), theirs, exact.traces(inputs, {}))
    return [d.key for d in over_kinds(found) if not d.accepted(OF_A_PORT)]


def test_every_mistake_is_shown() -> None:
    assert set(SHOWN) == set(MISTAKE) and len(MISTAKES) == len(MISTAKE)
    for mistake in MISTAKES:
        assert mistake.why.endswith("."), mistake.name


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_without_a_mistake_the_plain_computation_gives_the_encoder_s_numbers(
    name: str, folders: dict[str, Path]
) -> None:
    with load_encoder(folders[name]) as encoder:
        for kind, batch in encoder_batches(encoder).items():
            packed, padded = trace(encoder, batch), plain_trace(encoder, batch)
            assert list(packed) == list(padded)
            keep = np.asarray(batch.get("attention_mask", np.ones(packed["hidden_states.0"].shape[:2]))) != 0
            for key in packed:
                if key.startswith("hidden_states") or (key in encoder.modules and packed[key].shape[:2] == keep.shape):
                    off = (np.abs(packed[key] - padded[key]) / np.maximum(1, np.abs(packed[key])))[keep]
                    assert off.max() <= PLAIN_TOLERANCE, (kind, key)


PORTS = dict.fromkeys(("qwen3", "gemma3_text"), loops_today.Port)


def port_file(
    folder: Path, path: Path, wrong: str = "", kinds: tuple[str, ...] = FEW, dtype: type = np.float32
) -> Path:
    """A port's own numbers, by loops: nothing of what judges them has computed them."""
    with load_encoder(folder) as encoder:
        inputs = {kind: batch for kind, batch in encoder_batches(encoder).items() if not kinds or kind in kinds}
    port = PORTS.get(folder.name, loops.Port)(folder, wrong, dtype)
    write_traces(path, inputs, {kind: port.run(batch) for kind, batch in inputs.items()})
    return path


@pytest.mark.parametrize("name", ["bert", "gpt2", *PORTS])
def test_a_right_port_passes(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Sums in another order, one token at a time: every intermediate of every batch is within the tolerance."""
    kinds = FEW if name in PORTS else ()
    report = verify_encoder(
        str(folders[name]), against=port_file(folders[name], tmp_path / "p.safetensors", kinds=kinds)
    )
    assert report.passed, "\n".join(report.lines)
    assert 0 < max(d.largest for d in report.differences) <= IN_BLOCKS  # measured 5.7e-6
    assert "no difference beyond what rounding allows" in report.lines


@pytest.mark.parametrize("name", SHOWN)
def test_verify_names_the_mistake(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """It alone fits, and where the difference begins and how large it is there are what they are."""
    (model, key, least), folder = SHOWN[name], folders[SHOWN[name][0]]
    report = verify_encoder(str(folder), against=port_file(folder, tmp_path / "port.safetensors", name))
    assert not report.passed and report.matches == [name], (model, report.lines)
    assert f"matches: {name}. {MISTAKE[name].why}" in report.lines
    (first,) = [line for line in report.lines if line.startswith("first difference: ")]
    where = "after the blocks" if name.startswith("last") else "block 0"
    assert first.startswith(f"first difference: {where}, {key}, in ")
    assert max(d.largest for d in report.differences if d.key == key) >= least


@pytest.mark.parametrize("which", ["first", "second"])
def test_a_mistake_at_one_of_two_residuals_is_not_the_mistake_at_both(
    which: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    path = port_file(folders["gpt2"], tmp_path / "port.safetensors", f"{which} residual from the normed x")
    report = verify_encoder(str(folders["gpt2"]), against=path)
    assert not report.passed and report.matches == []


def test_a_mistake_is_named_where_the_port_rounds_less_than_we_do(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real models the tolerance alone names nothing: there the port's error is weighed, which may be smaller."""
    path = port_file(folders["bert"], tmp_path / "port.safetensors", "gelu by tanh", dtype=np.float64)
    monkeypatch.setattr(blocks, "IN_BLOCKS", 0.0)
    monkeypatch.setattr(blocks, "ATTENTION", 0.0)
    inputs, theirs = read_traces(path)
    for shares in (Live.shares, File.shares, Shipped.shares):
        side, again, report = File(path, inputs, theirs, None), partial(load_encoder, folders["bert"]), Report()
        side.shares = shares
        with again() as encoder:
            compare_with(report, EncoderSubject(encoder, again), side, inputs, ())
        assert not report.passed and report.matches == ["gelu by tanh"], (shares, report.lines)


# rows whose blocks are BERT's under other names are looked at where slow tests run
AS_BERT = ("xlm-roberta", "camembert", "ernie", "electra")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in AS_BERT)) for name in encoders.CONFIGS]
)
def test_generated_batches_show_every_mistake(name: str, folders: dict[str, Path]) -> None:
    with load_encoder(folders[name]) as encoder:
        inputs = encoder_batches(encoder)
        possible = [mistake.name for mistake in MISTAKES if mistake.make(encoder.stack) is not None]
        wrong = {mistake: wrong_traces(encoder, inputs, mistake) for mistake in possible}
    assert len(possible) >= 19
    for mistake, theirs in wrong.items():
        assert rejected(folders[name], theirs, inputs), mistake


NOT_IN_OLDER_MODELS = list(SHOWN)[list(SHOWN).index("scale by head_dim") :]


def test_a_mistake_that_cannot_be_made_is_not_tried(tmp_path: Path) -> None:
    """With one head there is nothing to split; GPT-2 without a scale has nothing to forget."""
    one = encoders.write(tmp_path / "one", "bert", num_attention_heads=1)
    with load_encoder(one) as encoder:
        unmade = {mistake.name for mistake in MISTAKES if mistake.make(encoder.stack) is None}
    assert unmade == {
        "division by sqrt(dim)", "gelu by erf", "softmax over the heads", "norm after instead of before",
        "residual from the normed x", "heads split without turning the axes", "heads interleaved",
        "heads joined without turning the axes", "last norm forgotten", "causal mask one token too far",
        "causal mask hides the token itself", "causal mask forgotten", *NOT_IN_OLDER_MODELS,
    }  # fmt: skip
    plain = encoders.write(tmp_path / "plain", "gpt2", scale_attn_weights=False, activation_function="relu")
    with load_encoder(plain) as encoder:
        unmade = {mistake.name for mistake in MISTAKES if mistake.make(encoder.stack) is None}
    assert unmade == {
        "no division by sqrt(head_dim)", "division by sqrt(dim)", "gelu by tanh", "gelu by erf",
        "norm before instead of after", "residual from before the norm", "causal mask where there is none",
        *NOT_IN_OLDER_MODELS,
    }  # fmt: skip


def test_two_mistakes_at_once_fit_none(folders: dict[str, Path], tmp_path: Path) -> None:
    with load_encoder(folders["bert"]) as encoder:
        inputs = encoder_batches(encoder)
        scaled = MISTAKE["division by sqrt(dim)"].make(encoder.stack)
        softmaxed = MISTAKE["softmax over the queries"].make(encoder.stack)
        assert scaled is not None and softmaxed is not None
        both = scaled._replace(softmax=softmaxed.softmax)
        wrong = {kind: plain_trace(encoder, batch, both) for kind, batch in inputs.items()}
        write_traces(tmp_path / "port.safetensors", inputs, wrong)
    report = verify_encoder(str(folders["bert"]), against=tmp_path / "port.safetensors")
    assert not report.passed and report.matches == []
    assert "none of the 19 classic mistakes that this model allows fits" in report.lines
