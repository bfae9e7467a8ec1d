"""Vectors alone: the model's pass, and wrong ones show their setting or mistake. A port in loops computes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import planted_vectors
import pytest
from command_line import Patch
from ports import rewritten
from reference_files import REFERENCE
from safetensors.numpy import load_file
from vector_port import VectorPort

import minibert
from minibert.equations.input_layer import Array
from minibert.models.open.load_encoder import load_encoder
from minibert.verify import vectors as verdict
from minibert.verify.mistakes.wrong_modules import ROUNDINGS
from minibert.verify.report import Comparison
from minibert.verify.shipped import TEXTS
from minibert.verify.variants import Make, Variant, Variants
from minibert.verify.vectors import SAME, STRAY, distances, judge

# texts with different ids in the small vocabulary
TOLD = ["we lived above the clouds", "the clouds", "above the clouds we lived.", "we lived", "clouds!", "the we above",
        "THE CLOUDS", "é ü a", "e u a", "a b c d e f g h i j k l m n o p", "the clouds above we lived the clouds above",
        "a", "z y x"]  # fmt: skip
PLANTED = (
    "pooling cls", "pooling max", "pooling lasttoken", "pooling weightedmean", "special tokens left out of pooling",
    "first special token left out of pooling", "vectors not normalized", "truncated to the first 6 numbers",
    "last block missing", "prompt missing", "prompt doubled", "special tokens left out", "first special token left out",
    "last special token left out", "truncated at the beginning", "special tokens truncated", "case kept",
    "accents kept", "case and accents kept", "padding pooled", "padding seen", "padding seen and pooled",
    "type 1 for all tokens", "positions from 1", "activation gelu_new", "causal mask where there is none",
)  # fmt: skip
BOTH = {
    "special tokens left out": ("first special token left out", "last special token left out"),
    "case and accents kept": ("case kept", "accents kept"),
    "padding seen and pooled": ("padding seen", "padding pooled"),
}
ALSO = {"accents kept": {"text read as Latin-1"}}


@pytest.fixture(scope="module")
def encoder(sentences: Path) -> Iterator[minibert.Encoder]:
    with load_encoder(sentences) as opened:
        yield opened


@pytest.fixture(scope="module")
def right(sentences: Path) -> Array:
    return VectorPort(sentences)(TOLD)


@pytest.fixture(scope="module")
def own(encoder: minibert.Encoder) -> Array:
    return np.asarray(encoder.encode(TOLD))


@pytest.fixture
def variants(encoder: minibert.Encoder) -> Variants:
    return Variants(encoder, encoder.sentence_config.prompt(), TOLD, encoder.sentence_config.dim)


def judged(encoder: minibert.Encoder, vectors: Array, texts: list[str] = TOLD, **options: Any) -> Comparison:
    report = Comparison()
    judge(report, encoder, texts, vectors, **options)
    return report


def test_vectors_of_a_right_port_are_the_model_s(encoder: minibert.Encoder, right: Array) -> None:
    report = judged(encoder, right)
    assert report.passed and not report.matches and not report.rounding
    assert report.lines == ["13 of 13 vectors are the model's"]


@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_is_named_and_no_other(name: str, encoder: minibert.Encoder, own: Array, sentences: Path) -> None:
    vectors = VectorPort(sentences, *BOTH.get(name, (name,)))(TOLD)
    report = judged(encoder, vectors)
    assert not report.passed
    assert set(report.matches) == {name} | ALSO.get(name, set()), str(report)
    assert name not in report.ruled_out and len(report.ruled_out) >= 50
    count = np.sum(distances(vectors, own) <= SAME)
    assert report.lines[0].startswith(f"{count} of 13 vectors are the model's")


def test_the_page_has_the_name_of_every_setting() -> None:
    """N and X in it differ from model to model."""
    page = (Path(verdict.__file__).parent / "MISTAKES.md").read_text(encoding="utf-8").partition("## Vectors")[2]
    rows = [re.escape(name) for name in re.findall(r"^\| (?!name|---)(.+?) \| .+ \|$", page, re.M)]
    patterns = [re.compile(re.sub(r"\bX\b", "(?s:.+)", re.sub(r"\bN\b", "[0-9]+", row))) for row in rows]
    made = set[str]()
    for name in ("dense", "last-token", "prompts", "modules", "cls", "flags"):
        with load_encoder(REFERENCE / f"sentences-{name}") as opened:
            own = opened.sentence_config
            for before in {"", own.prompt(), *own.prompts.values()}:
                for width in (4, own.dim):
                    variants = Variants(opened, before, ["a", "b c"], width)
                    made |= {variant.name for variant in (*variants.settings(), *variants.padding())}
    assert [each for each in made if not any(row.fullmatch(each) for row in patterns)] == []
    assert [row for row in patterns if not any(map(row.fullmatch, made))] == []


def test_every_variant_has_a_name_a_remedy_and_the_model_s_own_settings_are_none(
    encoder: minibert.Encoder, variants: Variants, own: Array
) -> None:
    found = [*variants.settings(), *variants.padding(), *variants.mistakes(), *variants.mistakes(formats=True)]
    assert all(variant.name and variant.remedy.strip() for variant in found)
    assert len({variant.name for variant in found}) >= 70
    for variant in found:
        with suppress(TypeError):  # this model has no place for it
            variant.make(TOLD)
    assert np.array_equal(np.asarray(encoder.encode(TOLD)), own), "a variant has changed the model itself"


# -- formats -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["float16", "bfloat16", "2 decimals", "3 decimals", "5 decimals"])
def test_stored_numbers_are_the_model_s_and_the_format_is_named(
    form: str, encoder: minibert.Encoder, sentences: Path, right: Array
) -> None:
    def stored(x: Array) -> Array:
        return ROUNDINGS[form](x) if form in ROUNDINGS else np.float32(np.round(np.float64(x), int(form[0])))

    report = judged(encoder, stored(right))
    assert report.passed and report.rounding == form and not report.matches, str(report)
    assert all(each["passed"] for each in report.texts)
    assert report.lines == [f"13 of 13 vectors are the model's in {form}"]
    report = judged(encoder, stored(VectorPort(sentences, "pooling cls")(TOLD)))
    assert not report.passed and report.matches == ["pooling cls"]


@pytest.mark.parametrize("name", ["mpnet", "dense", "last-token"])
def test_every_parameter_of_a_checkpoint_in_float16_is_explained(name: str, tmp_path: Path) -> None:
    """Tables, norms, biases, the bias of a distance, and a Dense after pooling."""
    folder = planted_vectors.write(name, tmp_path)
    with load_encoder(rewritten(folder, tmp_path / "narrow", lambda _, x: ROUNDINGS["float16"](x))) as encoder:
        vectors = np.asarray(encoder.encode(TOLD))
    with load_encoder(folder) as encoder:
        report = judged(encoder, vectors)
    assert report.passed and report.rounding == "float16", str(report)


def test_vectors_of_our_own_computation_in_a_format_pass_and_a_mistake_of_that_size_does_not(
    encoder: minibert.Encoder, variants: Variants, own: Array
) -> None:
    """ALIKE: the difference has the direction of the format's difference."""
    made = variants.computed_in(ROUNDINGS["float16"])(TOLD)
    other = np.random.default_rng(0).standard_normal(own.shape) * np.abs(made - own)
    honest = judged(encoder, np.float32(made + 0.5 * other))
    assert honest.passed and honest.rounding == "float16" and "hides a mistake" in honest.lines[-1], honest.lines
    for wrong in (own + other, made + 4 * (made - own), made + 5 * other):
        report = judged(encoder, np.float32(wrong))
        assert not report.passed and not report.matches, str(report)


@pytest.mark.parametrize("name", ["pooling cls", "prompt missing", "activation gelu_new"])
def test_a_mistake_in_float16_is_named_and_does_not_pass(
    name: str, encoder: minibert.Encoder, variants: Variants, own: Array
) -> None:
    every = (*variants.settings(), *variants.padding(), *variants.mistakes())
    (variant,) = [each for each in every if each.name == name]
    narrow = variants.computed_in(ROUNDINGS["float16"])(TOLD) - own
    report = judged(encoder, np.float32(variant.make(TOLD) + narrow))
    assert not report.passed and report.matches == [name], str(report)


@pytest.mark.parametrize("size", [1e-3, 3e-3, 1e-2, 3e-2])
def test_one_value_of_a_bias_never_passes(size: float, encoder: minibert.Encoder, sentences: Path) -> None:
    port = VectorPort(sentences)
    port.port.tensors["encoder.layer.0.attention.self.value.bias"][3] += np.float32(size)
    report = judged(encoder, port(TOLD))
    assert not report.passed and not report.rounding and not report.matches, str(report)
    assert judged(encoder, port(TOLD), tolerance=0.5).passed


# -- what no variant explains ------------------------------------------------------------------------------------


def test_numbers_that_nothing_explains_are_given_no_name(encoder: minibert.Encoder, right: Array) -> None:
    noise = np.sin(np.arange(right.size, dtype=np.float32)).reshape(right.shape)
    for unknown in (np.abs(right), right + noise):
        report = judged(encoder, unknown)
        assert not report.passed and not report.matches and len(report.ruled_out) >= 70
        assert f"none of {len(report.ruled_out)} settings and mistakes gives all of these" in report.lines[1]
        assert len(report.lines) <= 20


def test_one_short_text_with_the_model_s_vector_rules_most_variants_out(
    encoder: minibert.Encoder, right: Array, monkeypatch: Patch
) -> None:
    """If only a long text differs, most variants need not be computed for it, nor any format: that would take long."""
    computed, which_texts = verdict.Search._computed, list[list[int]]()

    def counted(self: verdict.Search, make: Make, which: list[int]) -> Array:
        which_texts.append(which)
        return computed(self, make, which)

    monkeypatch.setattr(verdict.Search, "_computed", counted)
    longest = max(range(len(TOLD)), key=lambda i: len(TOLD[i]))
    other = with_row(longest, -1)(right)
    report = judged(encoder, other)
    assert not report.passed and not report.matches
    assert 0 < which_texts.count([longest]) < len(report.ruled_out) / 2
    assert all(len(which) == 1 for which in which_texts)


def test_a_variant_must_hold_for_all_texts_and_some_text_in_ten_may_be_a_little_off(
    encoder: minibert.Encoder, sentences: Path
) -> None:
    vectors = VectorPort(sentences, "last block missing")(TOLD)
    for which, off, lines in (([9], 0.9 * STRAY, 1), ([9], 1.1 * STRAY, 0), ([9, 10], 0.9 * STRAY, 0), ([9], 1, 0)):
        other = vectors.copy()
        other[which] *= np.float32(1 + off)  # long texts: the four shortest do not show it
        said = judged(encoder, other).lines
        assert sum(line.startswith("matches: last block missing. Pool") for line in said) == lines
    assert judged(encoder, other).matches == []


def with_row(i: int, factor: float) -> Callable[[Array], Array]:
    return lambda right: np.where((np.arange(len(right)) == i)[:, None], right * np.float32(factor), right)


@pytest.mark.parametrize(
    ("spoil", "right_ones", "matches", "said"),
    [
        (with_row(3, -1), 12, [], "'we lived'"),
        (with_row(2, np.nan), 12, ["NaN or infinity"], "in texts 3."),
        (with_row(2, np.inf), 12, ["NaN or infinity"], "in texts 3."),
        (lambda right: right[::-1], 1, ["texts in another order"], "1 is of text 13"),
        (lambda right: np.hstack([right, right[:, :1]]), 0, [], "the vectors have 17 numbers, this model's 16"),
    ],
)
def test_vectors_are_counted_and_those_that_differ_listed(
    spoil: Callable[[Array], Array], right_ones: int, matches: list[str], said: str, encoder: minibert.Encoder,
    right: Array,
) -> None:  # fmt: skip
    report = judged(encoder, np.float32(spoil(right)))
    assert not report.passed and report.matches == matches and said in str(report), report.lines
    assert report.lines[0].startswith(f"{right_ones} of 13 vectors are the model's; not those of texts ")
    assert sum(each["passed"] for each in report.texts) == right_ones
    if right_ones == 12:
        (wrong,) = [i for i, each in enumerate(report.texts) if not each["passed"]]
        assert (wrong, report.texts[wrong]["distance"]) == ((2, None) if matches else (3, pytest.approx(2)))


def test_one_text_with_two_vectors_is_random(encoder: minibert.Encoder, sentences: Path) -> None:
    texts = ["we lived above the clouds", *TOLD]
    vectors = VectorPort(sentences)(texts)
    vectors += 0.03 * np.random.default_rng(0).standard_normal(vectors.shape).astype(np.float32)
    assert [line for line in judged(encoder, vectors, texts).lines if line.startswith("texts 1 and 2 are one")]
    vectors[1] = vectors[0]
    assert not [line for line in judged(encoder, vectors, texts).lines if "are one" in line]


def test_a_text_that_a_variant_leaves_without_a_token_does_not_rule_it_out(
    encoder: minibert.Encoder, sentences: Path
) -> None:
    """An empty text without a prompt has special tokens alone."""
    name = "special tokens left out of pooling"
    vectors = VectorPort(sentences, "prompt missing", name)(TOLD)
    vectors = np.concatenate([vectors, np.full((1, vectors.shape[1]), 0.25, np.float32)])
    assert judged(encoder, vectors, [*TOLD, ""], prompt="").matches == [name]


def test_numbers_of_any_size_give_a_verdict_and_no_warning(encoder: minibert.Encoder, right: Array) -> None:
    """A warning ends a test."""
    for vectors in (right.astype(float) * 1e300, right.astype(float) * 1e-300, np.zeros_like(right)):
        assert not judged(encoder, vectors).passed


# -- modules after pooling ---------------------------------------------------------------------------------------


def test_a_dense_left_out_or_without_its_parts_is_named() -> None:
    """The Dense maps 8 numbers to 6."""
    folder = REFERENCE / "sentences-dense"
    stored = load_file(folder / "2_Dense/model.safetensors")
    weight, bias = (stored[f"linear.{name}"].astype(np.float64) for name in ("weight", "bias"))
    with load_encoder(folder) as encoder:
        rows = np.stack([encoder(**encoder.tokenize(text))[0].astype(np.float64).mean(0) for text in TOLD])
        for name, made in {
            "Dense left out": rows,
            "activation of Dense left out": rows @ weight.T + bias,
            "bias of Dense left out": np.tanh(rows @ weight.T),
        }.items():
            unit = made / np.linalg.norm(made, axis=1, keepdims=True)
            report = judged(encoder, unit.astype(np.float32))
            assert report.matches == [name] and not report.passed, str(report)
        assert judged(encoder, np.float32(np.tanh(rows @ weight.T + bias))).matches == ["vectors not normalized"]


@pytest.mark.parametrize("letters", [256, 500])
def test_a_text_that_is_cut_before_there_are_tokens_is_named(
    letters: int, encoder: minibert.Encoder, sentences: Path
) -> None:
    """Words that are too long for the vocabulary have few tokens."""
    texts = [*TOLD, f"{'x' * 250} the clouds we lived", f"{'x' * 490} clouds the"]
    vectors = VectorPort(sentences)([text[:letters] for text in texts])
    report = judged(encoder, vectors, texts)
    assert report.matches == [f"text cut at {letters} letters"], str(report)


def test_one_variant_that_raises_is_passed_over(encoder: minibert.Encoder, right: Array, monkeypatch: Patch) -> None:
    def fails(texts: list[str]) -> Array:
        raise ValueError("no room for these tokens")

    negated = Variant("negated", "Give the other sign.", lambda texts: -np.asarray(encoder.encode(texts)))
    monkeypatch.setattr(verdict.Variants, "settings", lambda self: iter([Variant("fails", "", fails), negated]))
    assert judged(encoder, -right).matches == ["negated"]


def test_the_texts_have_reasons_and_one_stands_twice() -> None:
    """The two stand side by side, so that a server gets both in one request."""
    texts = [each.text for each in TEXTS]
    assert len(set(texts)) == len(texts) - 1 >= 60 and texts[0] == texts[1]
    assert all(each.why for each in TEXTS)
