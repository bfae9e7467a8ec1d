"""The list of mistakes: each differs from the right model and from the rest, and is named in a port that makes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import encoders
import loops
import numpy as np
import planted_mistakes
import planted_vectors
import pytest
from command_line import Patch
from head_files import HEAD_CASE
from ports import by_steps, few, first_difference, judged, numbers, opened, planted, verify_encoder

from minibert.equations.input_layer import Array
from minibert.families.parts.plan import run
from minibert.models.encoder import Encoder
from minibert.models.open.load_encoder import load_encoder
from minibert.verify import subjects
from minibert.verify import verify as verify_module
from minibert.verify.counterparts import Port
from minibert.verify.local import alike, local_mistakes
from minibert.verify.mistakes import MISTAKES
from minibert.verify.mistakes.mistake import WITH_EPS, At, Mistake, all_places, begin, with_mistake
from minibert.verify.reference import Reference
from minibert.verify.report import Comparison
from minibert.verify.shipped import Shipped
from minibert.verify.subjects import BLOCKS, HEAD, IN_BLOCKS, EncoderSubject, encoder_batches, trace
from minibert.verify.traces import as_traces
from minibert.verify.verify import compare_with, read_against

PAGE = (Path(verify_module.__file__).parent / "MISTAKES.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (?!name|---)(.+?) \| (.+) \|$", PAGE.partition("## Vectors")[0], re.M)
PLAIN_TOLERANCE = 3e-5  # times max(1, size), packed against padded; measured 1.2e-5, with the kernels of Haswell
# each mistake of blocks can be made in one of these models
MODELS = ("bert", "gpt2", "mpnet", "modernbert", "gemma3_text", "embedding_gemma2_text", "umt5", "deberta-v2")
# mistake -> a head that can have it
OF_HEADS = {
    "word table where the head has its own": "gpt2-next_word-untied", "norm not applied": "bert-masked_word",
    "activation left out": "roberta-classes", "pooler forgotten": "bert-classes", "activation gelu": "bert-classes",
    "activation gelu_new": "bert-masked_word", "bias missing": "distilbert-token_classes",
    "first token instead of the last": "gpt2-classes", "first token instead of the mean": "modernbert-classes-mean",
    "mean of the tokens instead of one": "modernbert-classes",
}  # fmt: skip
IN_BLOCKS_TOO = ("norm not applied", "activation left out", "activation gelu_new", "bias missing")
# in some model, or in the first module that they change, mistakes of one row have the same numbers: eps is small, there
# are as many heads as a head is wide, widths are odd
SAME = (
    "weight in int8, a scale for each (row|32)", "(weight|parameters.*) in float16",
    "(weight|parameters.*) in bfloat16", "variance divided by dim - 1.*", "division by (head_dim|sqrt.dim.)",
    "eps .*|variance in one pass|(rotary frequencies|angles of the rotation|cos and sin) in .*",
    "exponent of the frequencies .*|frequencies by the hidden size", "rotated the other way|cos and sin exchanged",
    "(scores of|q k v in another order:) .*|relative bias transposed",
    "activation (left out|after the second map)", "activation relu6?", "norm before the sum|residual missing",
    "bias (missing|added after .*)", "norm over the .*", "(rotation|attention) of the other layer type|theta .*",
    "window .*",
    "padding seen|mask .*|the first text's mask for all", "relative bias to a distance of .*",
)  # fmt: skip


def named(name: str) -> list[Mistake]:
    return [mistake for mistake in MISTAKES if mistake.name == name]


def blocks_of(encoder: Encoder) -> list[At]:
    return [at for at in all_places(encoder) if at.block]


def test_the_page_is_made_from_the_list() -> None:
    """`python scripts/readme/mistakes.py` makes it."""
    assert dict(ROWS) == {each.name: each.why for each in reversed(MISTAKES)}
    assert all(each.why.endswith(".") for each in MISTAKES)


def test_each_name_is_planted_by_code_that_is_not_the_list_s() -> None:
    """By modules of transformers, by loops, or by a few lines of NumPy; in vectors by sentence-transformers."""
    ports = [*planted_mistakes.PLANTED.values(), *loops.PLANTED.values()]
    planted = {name for port in ports for name in port.wrong.values()} | {*planted_mistakes.OF_LAYERS, *loops.WHOLE}
    planted |= {name for port in planted_mistakes.OF_STATES.values() for name in (*port.matches, *port.fits.values())}
    planted |= {name for name, _ in planted_vectors.PLANTED.values()}
    text, formats = (Path(__file__).with_name(f"test_{name}.py").read_text("utf-8") for name in ("local", "formats"))
    narrow = {"eps 0.001", "variance divided by dim - 1", "weights in int8"}  # by loops in test_formats
    assert [name for name in narrow if f'"{name}"' not in formats] == []
    planted |= narrow
    left = {mistake.name for mistake in MISTAKES} - planted
    assert {name for name in left if f'"{name}"' not in text and WITH_EPS not in name} == set()


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_the_steps_give_the_encoder_s_numbers(name: str, folders: dict[str, Path]) -> None:
    with load_encoder(folders[name]) as encoder:
        for kind, batch in encoder_batches(encoder).items():
            packed = trace(encoder, batch)
            padded = by_steps(encoder, batch)
            assert list(packed) == list(padded)
            keep = np.asarray(batch.get("attention_mask", np.ones(packed["hidden_states.0"].shape[:2]))) != 0
            for key in packed:
                if key.startswith("hidden_states") or (key in encoder.modules and packed[key].shape[:2] == keep.shape):
                    off = (np.abs(packed[key] - padded[key]) / np.maximum(1, np.abs(packed[key])))[keep]
                    assert off.max() <= PLAIN_TOLERANCE, (kind, key)


def first_numbers(encoder: Encoder, batch: dict[str, Array], mistake: Mistake) -> dict[str, Array]:
    """The intermediates of the first block that a mistake changes; empty if it changes no block."""
    values = {**begin(batch), "hidden_states.0": encoder.embeddings(**batch)}
    for at in blocks_of(encoder):
        wrong = with_mistake(mistake, at)
        found = dict(run(wrong or at.plan, values))
        if wrong:
            return found
    return {}


@pytest.mark.parametrize("name", MODELS)
def test_each_mistake_is_told_from_the_right_model_and_from_the_others(name: str, folders: dict[str, Path]) -> None:
    """Only mistakes in one row of `SAME` may have the same numbers."""
    with load_encoder(folders[name]) as encoder, np.errstate(all="ignore"):
        batch = few(encoder, "left_pad")["left_pad"]
        made = [(each.name, found) for each in MISTAKES if (found := first_numbers(encoder, batch, each))]
        right = by_steps(encoder, batch)
    assert len(made) >= 40
    seen: dict[bytes, str] = {}
    for mistake, found in made:
        changed = [k for k, x in found.items() if x.shape != right[k].shape or not np.allclose(x, right[k], 1e-5, 1e-5)]
        can_be_small = re.fullmatch(
            "eps .*|variance .*|theta .*|mask from the ids|.* in long texts|.* to a distance of .*"
            "|projection's factor .*",  # the norm after it divides by the size: only eps shows the factor
            mistake,
        )
        assert changed or can_be_small, f"{mistake!r} changes no number of {name}"
        if changed:
            numbers = np.round(found[changed[0]].astype(np.float64), 3).tobytes() + changed[0].encode()
            other = seen.setdefault(numbers, mistake)
            together = any(re.fullmatch(one, other) and re.fullmatch(one, mistake) for one in SAME)
            advice = f"{other!r} and {mistake!r} have the same numbers in {name}: a row of SAME may allow it"
            assert other == mistake or together, advice


def test_padding_seen_is_seen_in_the_blocks_without_a_window_too(folders: dict[str, Path]) -> None:
    with load_encoder(folders["modernbert"]) as encoder:
        (mistake,) = named("padding seen")
        assert all(with_mistake(mistake, at) for at in blocks_of(encoder))


def test_a_mask_from_the_ids_is_the_right_one_for_rows_without_ids(folder: Path) -> None:
    """So its name fits in all batches, also with inputs_embeds."""
    with load_encoder(folder) as encoder:
        (mistake,) = named("mask from the ids")
        batch = encoder_batches(encoder)["inputs_embeds"]
        found, right = first_numbers(encoder, batch, mistake), by_steps(encoder, batch)
        assert found and all(np.array_equal(x, right[key]) for key, x in found.items())


def test_the_theta_of_the_model_is_no_mistake(tmp_path: Path) -> None:
    """If its frequencies are scaled, a port may forget the scaling instead."""
    scaled = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    with load_encoder(encoders.write(tmp_path, "llama", rope_parameters=scaled)) as encoder:
        planned = blocks_of(encoder)
        tried = {each.name for each in MISTAKES if any(with_mistake(each, at) for at in planned)}
    assert "theta 10000" not in tried and {"theta 1e+06", "rotary frequencies not scaled"} <= tried


@pytest.mark.parametrize("name", loops.MODELS)
def test_a_right_port_passes(name: str, folders: dict[str, Path]) -> None:
    """Sums in another order, one token at a time: every intermediate is within the tolerance."""
    report = judged(folders[name], loops.Port(folders[name]))
    assert report.passed and report.local == [], str(report)
    assert 0 < max(d.largest for d in report.compared) <= IN_BLOCKS  # measured 5.7e-6
    assert "no difference beyond what rounding allows" in report.lines


@pytest.mark.parametrize("name", loops.WHOLE)
def test_a_mistake_in_all_blocks_of_a_port_by_loops_is_named(name: str, folders: dict[str, Path]) -> None:
    """No other mistake fits, and the difference begins at the step that makes it."""
    model, key = loops.WHOLE[name]
    report = judged(folders[model], loops.Port(folders[model], name))
    assert not report.passed and report.matches == [name], str(report)
    assert any(line.startswith(f"matches: {name}. ") for line in report.lines)
    assert first_difference(report).startswith(f"block 0, {key}, in ")
    assert {fit for each in report.local for fit in each.fits} == {name} | loops.FITS_TOO.get(name, set())
    assert all(name in each.fits for each in report.local)


def test_a_mistake_is_named_where_the_port_rounds_less_than_we_do(folder: Path, monkeypatch: Patch) -> None:
    """In real models a port's error may be smaller than ours: its size decides then, not the tolerance alone."""
    found = numbers(folder, loops.Port(folder, "activation gelu_new", np.float64))
    monkeypatch.setattr(subjects, "IN_BLOCKS", 0.0)
    monkeypatch.setattr(subjects, "ATTENTION", 0.0)
    inputs, theirs = as_traces(found, "")
    for shares in (Reference.shares, Port.shares, Shipped.shares):
        port, again, report = read_against(found), partial(load_encoder, folder), Comparison()
        port.choose(inputs, theirs, None)
        port.shares = shares
        with again() as encoder:
            compare_with(report, EncoderSubject(encoder, again), port, inputs, ())
        assert not report.passed and report.matches == ["activation gelu_new"], (shares, report.lines)


def test_a_mistake_that_cannot_be_made_is_not_tried(tmp_path: Path) -> None:
    """With one head there is nothing to split; GPT-2 without a scale has nothing to forget."""

    def made(name: str, **settings: Any) -> set[str]:
        with load_encoder(encoders.write(tmp_path / name, name, **settings)) as encoder:
            at = blocks_of(encoder)
            return {each.name for each in MISTAKES if any(with_mistake(each, place) for place in at)}

    one = made("bert", num_attention_heads=1)
    assert not one & {
        "division by sqrt(dim)", "activation gelu", "softmax over the heads", "norm after instead of before",
        "residual from the normed x", "heads split without transposing", "queries and keys not rotated",
        "heads joined without transposing", "last norm not applied", "causal mask forgotten", "window forgotten",
        "mean subtracted in RMSNorm", "gate and up exchanged", "scale by head_dim", "pooler forgotten",
        "padding seen", "norm before the sum not applied", "relative bias missing",
        "key head taken modulo",
    }  # fmt: skip
    plain = made("gpt2", scale_attn_weights=False, activation_function="relu")
    assert not plain & {
        "no division by sqrt(head_dim)", "division by sqrt(dim)", "scale by head_dim", "activation relu",
        "norm before instead of after", "residual from before the norm", "causal mask where there is none",
    }  # fmt: skip


def test_two_mistakes_at_once_are_named_module_by_module(folder: Path) -> None:
    (one,), (other,) = (named(name) for name in ("division by sqrt(dim)", "softmax over the queries"))
    both = Mistake("", "", lambda at: [*one.wrong(at), *other.wrong(at)])
    report = verify_encoder(folder, planted(folder, both))
    assert not report.passed and report.matches == []
    assert "no single mistake explains the whole model; module by module:" in report.lines


# -- heads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "everywhere"), [*((name, False) for name in OF_HEADS), *((name, True) for name in IN_BLOCKS_TOO)]
)
def test_a_mistake_of_a_head_is_named(name: str, everywhere: bool) -> None:
    """With the mistake in the head alone, and in the blocks too if it is in `IN_BLOCKS_TOO`."""
    case = HEAD_CASE[OF_HEADS[name]]
    with opened(case.folder) as (subject, _):
        *_, at_head = all_places(subject.encoder, subject.head)
        (mistake,) = [each for each in named(name) if with_mistake(each, at_head)]
        assert any(with_mistake(mistake, at) for at in blocks_of(subject.encoder)) == (name in IN_BLOCKS_TOO)
    parts = (BLOCKS, HEAD) if everywhere else (HEAD,)
    report = verify_encoder(case.folder, planted(case.folder, mistake, "plain", parts=parts))
    assert not report.passed and report.matches == [name], report.lines
    assert first_difference(report).startswith(f"{'block 0' if everywhere else f'head {case.head}'}, ")
    assert everywhere or {each.place for each in report.local} == {f"head {case.head}"}  # the blocks are right
    assert report.local and all(name in each.fits for each in report.local), report.local


def test_a_head_behind_wrong_blocks_is_right() -> None:
    """A head is compared on the port's last hidden state."""
    folder, (wrong,) = HEAD_CASE["bert-masked_word"].folder, named("no division by sqrt(head_dim)")
    report = verify_encoder(folder, planted(folder, wrong, parts=(BLOCKS,)))
    assert not report.accepted["logits"]
    assert {each.key.rpartition(".")[2] for each in report.local} == {"scores"}, report.local


# -- guards, from both sides -------------------------------------------------------------------------------------


def fits(folder: Path, key: str, change: Callable[[Array, Array], Array], name: str = "") -> list[list[str]]:
    """The mistakes that local checks find if one intermediate is `change` of the wrong numbers and the right ones."""
    with opened(folder, "plain") as (subject, inputs):
        right, wrong = (by_steps(subject.encoder, inputs["plain"], *named(each)[:1]) for each in ("", name))
        theirs = {"plain": right | {key: change(wrong[key], right[key]).astype(np.float32)}}
        return [each.fits for each in local_mistakes(subject, inputs, theirs).modules if each.key == key]


def test_a_mistake_shows_where_a_file_has_less(folders: dict[str, Path]) -> None:
    """A file has no attention weights of a long text: a window shows in the context, in that batch alone."""
    with opened(folders["mistral"], "one_token", "plain") as (subject, inputs):
        theirs = {kind: by_steps(subject.encoder, x, *named("window forgotten")) for kind, x in inputs.items()}
        theirs["plain"] = {key: x for key, x in theirs["plain"].items() if key not in subject.pairs}
        found = local_mistakes(subject, inputs, theirs).modules
    assert [each.key for each in found] == [f"layers.{i}.self_attn.context" for i in (0, 1)]
    assert all("window forgotten" in each.fits for each in found)


QUERY, ACT, NORM = (f"encoder.layer.0.{path}" for path in (
    "attention.self.query", "intermediate.intermediate_act_fn", "output.LayerNorm"))  # fmt: skip


def signs(x: Array) -> Array:
    return np.random.default_rng(3).choice([-1.0, 1.0], x.shape)


# planted numbers do not depend on the constants: each test fails if its constant is multiplied or divided by 10


@pytest.mark.parametrize(("off", "found"), [(0.8e-6, 0), (1.3e-6, 1)])  # NORM_ALONE
def test_a_norm_alone_is_held_to_its_own_tolerance(off: float, found: int, tmp_path: Path) -> None:
    """The numbers are small: our rounding is so little that a port's error counts."""
    tensors = encoders.tensors(settings := encoders.config("bert"))
    for part in ("weight", "bias"):
        tensors[f"{NORM}.{part}"] *= np.float32(0.01)
    encoders.checkpoints.write(tmp_path, settings, tensors)
    assert len(fits(tmp_path, NORM, lambda x, _: x + off * signs(x))) == found


@pytest.mark.parametrize(("left", "fit"), [(0.045, ["activation gelu_new"]), (0.055, [])])  # LEFT
def test_a_mistake_leaves_at_most_a_share_of_the_difference(left: float, fit: list[str], folder: Path) -> None:
    def change(wrong: Array, right: Array) -> Array:
        size = np.sqrt(np.mean((wrong - right) ** 2)) / np.sqrt(1 + left**2)
        return np.asarray(wrong + left * size * signs(wrong))

    assert fits(folder, ACT, change, "activation gelu_new") == [fit]


@pytest.mark.parametrize(("off", "fit"), [(0.9e-4, ["bias missing"]), (1.1e-4, [])])  # ROUNDED
def test_a_mistake_leaves_at_most_some_tolerances(off: float, fit: list[str], folder: Path) -> None:
    def change(wrong: Array, right: Array) -> Array:
        (made := wrong.copy()).flat[3] += off * max(1, abs(wrong.flat[3]))
        return np.asarray(made)

    assert fits(folder, QUERY, change, "bias missing") == [fit]


@pytest.mark.parametrize(("times", "named"), [(9, ["a", "b"]), (11, ["a"])])  # ALIKE
def test_what_leaves_about_as_little_is_named_too(times: float, named: list[str]) -> None:
    assert alike({"a": 1.0, "b": times}, 1e-3) == named
    assert alike({"a": 1e-9, "b": times * 1e-3}, 1e-3) == named
