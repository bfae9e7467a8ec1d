"""From vectors alone: which are the model's, and which mistake others show. A port in loops makes them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import planted_folders
import pytest
from reference_files import REFERENCE
from safetensors.numpy import load_file, save_file
from vector_port import VectorPort, write

from minibert.equations.input_layer import Array
from minibert.models.open.load_encoder import load_encoder
from minibert.verify.mistakes.mistakes import MISTAKES
from minibert.verify.mistakes.wrong_formulas import to_float16
from minibert.verify.report import Report
from minibert.verify.sides.texts import TEXTS
from minibert.verify.vectors.vector_mistakes import IN_ONE_BLOCK, mistakes
from minibert.verify.vectors.vector_recipes import SAME, Maker, as_stored, misses
from minibert.verify.vectors.vector_verdict import Fit, Judge
from minibert.verify.vectors.vectors import judge

# of the shipped texts those that the small vocabulary can tell apart, and a few in its own words
TOLD = ["we lived above the clouds", "the clouds", "above the clouds we lived.", "we lived", "clouds!", "the we above",
        "THE CLOUDS", "é ü a", "e u a", "a b c d e f g h i j k l m n o p", "the clouds above we lived the clouds above",
        "a", "z y x"]  # fmt: skip

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * np.vectorize(lambda z: (1 + math.erf(z / math.sqrt(2))) / 2)(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
PLANTED: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "pooling cls": (("first token",), {"pooling cls"}),
    "pooling max": (("largest",), {"pooling max"}),
    "pooling lasttoken": (("last token",), {"pooling lasttoken"}),
    "pooling weightedmean": (("weighted",), {"pooling weightedmean"}),
    "vectors not normalized": (("vectors not normalized",), {"vectors not normalized"}),
    "prompt missing": (("prompt missing",), {"prompt missing"}),
    "prompt doubled": (("prompt doubled",), {"prompt doubled"}),
    "no special token at the beginning": (("no [CLS]",), {"no special token at the beginning"}),
    "no special token at the end": (("no [SEP]",), {"no special token at the end"}),
    "special tokens missing": (("no [CLS]", "no [SEP]"), {"special tokens missing"}),
    "special tokens left out of pooling": (("special tokens not pooled",), {"special tokens left out of pooling"}),
    "[SEP] twice": (("[SEP] twice",), {"special token at the end twice"}),
    "all twice": (("[CLS] twice", "[SEP] twice"), {"all special tokens twice"}),
    "exchanged": (("exchanged",), {"special tokens exchanged"}),
    "mean without [CLS]": (("[CLS] not pooled",), {"special token at the beginning left out of pooling"}),
    "rows of length 1": (("rows of length 1",), {"tokens normalized before pooling"}),
    "sum": (("sum", "vectors not normalized"), {"pooling sum + vectors not normalized"}),
    "two blocks": (
        ("first and last block",),
        {f"{name} averaged" for name in ("first and last block", "last two blocks", "all blocks")},
    ),  # there are two
    "blocks exchanged": (("blocks exchanged",), {"blocks 0 and 1 exchanged", "blocks in reverse"}),
    "biases": (("without biases",), {"all biases missing"}),
    "one bias": (("one bias",), {"biases of intermediate.dense missing"}),
    "first residual": (("first residual missing",), {"residual beside attention.output.dense missing"}),
    "second residual": (("second residual missing",), {"residual beside output.dense missing"}),
    "no mask": (("padding seen", "requests of 4"), {"padding seen"}),
    "padding before": (("padding before", "requests of 4"), {"padding before the text counted in positions"}),
    "padding before, no mask": (("padding before", "padding seen", "requests of 4"), {"padding seen, before the text"}),
    "one head": (("one head",), {"number of heads 1"}),
    "no scale": (("no scale",), {"no division by sqrt(head_dim)"}),
    "case kept": (("case kept",), {"case kept"}),
    "accents kept": (("accents kept",), {"accents kept", "text read as Latin-1"}),
    "both kept": (("case kept", "accents kept"), {"case and accents kept", "text not normalized"}),
    "beginning cut": (("beginning cut",), {"truncated at the beginning"}),
    "ids cut": (("ids cut",), {"special tokens truncated"}),
    "ids cut before": (("ids cut before",), {"truncated at the beginning, special tokens too"}),
    "sum of sizes": (("sum of sizes",), {"divided by the sum of absolute values"}),
    "type 1 for all tokens": (("types of 1",), {"type 1 for all tokens"}),
    "positions from 1": (("positions from 1",), {"positions from 1"}),
    "last block missing": (("last block missing",), {"last block missing"}),
    "activation": (("activation gelu_new",), {"activation gelu_new"}),
    "causal": (("causal",), {"causal mask where there is none"}),
    "cut": (("truncated to 6",), {"truncated to the first 6 numbers"}),
    "pooling and norm": (("first token", "vectors not normalized"), {"vectors not normalized + pooling cls"}),
    "pooling and tanh": (("largest", "activation gelu_new"), {"activation gelu_new + pooling max"}),
    "prompt and type": (("prompt missing", "types of 1"), {"prompt missing + type 1 for all tokens"}),
    "pooling, case": (("weighted", "case kept"), {"pooling weightedmean + case kept"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("port") / "model")


def judged(folder: Path, vectors: Array, texts: list[str] = TOLD) -> Report:
    report = Report()
    with load_encoder(folder) as encoder:
        judge(report, encoder, texts, vectors)
    return report


def names(report: Report) -> set[frozenset[str]]:
    """What was named; the order of two mistakes says nothing."""
    return {frozenset(match.split(" + ")) for match in report.matches}


def test_the_recipe_without_a_mistake_gives_what_encode_gives(folder: Path) -> None:
    with load_encoder(folder) as encoder:
        maker = Maker(encoder)
        assert misses(encoder.encode(TOLD), TOLD, maker, maker.right).max() <= SAME
        assert len({mistake.name for mistake in mistakes(maker)}) == len(mistakes(maker))


def test_vectors_of_a_right_port_are_the_model_s(folder: Path) -> None:
    report = judged(folder, VectorPort(folder)(TOLD))
    assert report.passed and not report.matches and not report.rounding
    assert report.lines[-1] == "this is the model"


@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_is_named_and_no_other(name: str, folder: Path) -> None:
    wrong, expected = PLANTED[name]
    report = judged(folder, VectorPort(folder, *wrong)(TOLD))
    assert not report.passed
    assert names(report) == {frozenset(each.split(" + ")) for each in expected}, "\n".join(report.lines)


def test_a_number_near_a_tie_may_be_rounded_to_either_side_and_no_other_may() -> None:
    # the other texts of a batch change a vector by 1e-6: of 384 numbers in float16 one is then a whole step away
    low, high = np.float16(0.1), np.nextafter(np.float16(0.1), np.float16(1))
    right = np.array([[0.5, (np.float32(low) + high) / 2, 0.3]], np.float32)
    for side in (low, high):
        stored = right.astype(np.float16)[0]
        stored[1] = side
        assert (as_stored(stored.astype(np.float32), right, to_float16) == stored).all()
    stored[2] = np.nextafter(stored[2], np.float16(1))
    assert as_stored(stored.astype(np.float32), right, to_float16)[0, 2] != stored[2]


@pytest.mark.parametrize(("dtype", "rounding"), [(np.float16, "float16")])
def test_rounded_vectors_are_the_model_s_and_the_format_is_named(dtype: type, rounding: str, folder: Path) -> None:
    report = judged(folder, VectorPort(folder)(TOLD).astype(dtype).astype(np.float32))
    assert report.passed and report.rounding == rounding and not report.matches


@pytest.mark.parametrize("decimals", [2, 3, 4, 5])
def test_vectors_as_a_text_has_them_are_the_model_s_and_their_decimals_are_named(decimals: int, folder: Path) -> None:
    def written(x: Array) -> Array:
        return np.array([[float(f"{number:.{decimals}f}") for number in row] for row in x.tolist()], np.float32)

    report = judged(folder, written(VectorPort(folder)(TOLD)))
    assert report.passed and report.rounding == f"{decimals} decimals" and not report.matches, "\n".join(report.lines)
    assert all(each["passed"] for each in report.texts)
    port = VectorPort(folder)
    port.port.tensors["encoder.layer.0.attention.self.value.bias"][3] += np.float32(max(2 * 10.0**-decimals, 1e-3))
    report = judged(folder, written(port(TOLD)))
    assert not report.passed and not report.rounding, "\n".join(report.lines)
    report = judged(folder, written(VectorPort(folder, "first token")(TOLD)))
    assert not report.passed
    assert names(report) == {frozenset({"pooling cls", f"vectors rounded to {decimals} decimals"})}


@pytest.mark.parametrize("name", ["mpnet", "dense", "last-token"])
def test_every_parameter_of_a_checkpoint_in_float16_is_explained(name: str, tmp_path: Path) -> None:
    """Tables, norms, biases, the bias of a distance, and a Dense after pooling."""
    right = planted_folders.write(name, tmp_path)
    narrow = shutil.copytree(right, tmp_path / "narrow")
    for path in narrow.rglob("*.safetensors"):
        save_file({key: to_float16(x) for key, x in load_file(path).items()}, path)
    with load_encoder(narrow) as encoder:
        report = judged(right, encoder.encode(TOLD))
    assert report.passed and report.rounding == "float16"
    assert "parameters in float16" in report.lines[-1] and "frequencies" not in report.lines[-1]


def in_steps(x: Array, axis: int) -> Array:
    """Stored as int8: 256 steps from the smallest number of each row or each column to its largest."""
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    return np.asarray(np.rint((x - low) / (high - low) * 255) * ((high - low) / 255) + low, np.float32)


@pytest.mark.parametrize("axis", [0, 1])
def test_vectors_stored_as_int8_are_on_a_grid_and_others_as_near_do_not_pass(axis: int, folder: Path) -> None:
    right = VectorPort(folder)(TOLD)
    stored = in_steps(right, axis)
    report = judged(folder, stored)
    assert report.passed and report.rounding == "int8", "\n".join(report.lines)
    report = judged(folder, right + 0.9 * (stored - right))  # as large, and on no grid
    assert not report.passed and not report.rounding
    assert report.lines[-1].startswith("not passed: the vectors are as near as ")


@pytest.mark.parametrize("size", [1e-3, 3e-3, 1e-2, 3e-2])
def test_one_value_of_a_bias_never_passes(size: float, folder: Path) -> None:
    port = VectorPort(folder)
    port.port.tensors["encoder.layer.0.attention.self.value.bias"][3] += np.float32(size)
    report = judged(folder, port(TOLD))
    assert not report.passed and not report.rounding, "\n".join(report.lines)


def test_what_is_tried_in_one_block_is_of_the_list() -> None:
    """A name that the list no longer has would be tried nowhere."""
    assert {each.name for each in MISTAKES} >= IN_ONE_BLOCK


def test_numbers_that_nothing_explains_are_given_no_name(folder: Path) -> None:
    right = VectorPort(folder)(TOLD)
    noise = np.sin(np.arange(right.size, dtype=np.float32)).reshape(right.shape)
    for unknown in (np.abs(right), right + noise):
        report = judged(folder, unknown)
        assert not report.passed and not report.matches
        first = next(i for i, line in enumerate(report.lines) if line.startswith("ruled out"))
        said = [line.split(" (text ")[0].strip() for line in report.lines[first + 1 :]]
        for name in report.ruled_out:  # of all blocks that are ruled out by one text on one line
            mistake, where, block = name.partition(" in block ")
            assert name in said or any(
                line.startswith(mistake + where) and block in line.removeprefix(mistake + where).split(", ")
                for line in said
            )
        assert len(said) < len(report.ruled_out)


def test_some_texts_alone_that_nothing_explains_are_listed(folder: Path) -> None:
    vectors = VectorPort(folder)(TOLD)
    vectors[3] *= -1
    report = judged(folder, vectors)
    assert not report.passed and not report.matches
    assert "12 of 13 vectors are the model's; not those of texts 4" in report.lines


def test_a_dense_that_is_left_out_gives_another_width_and_is_named() -> None:
    folder = REFERENCE / "sentences-dense"  # of 8 numbers it makes 6
    with load_encoder(folder) as encoder:
        rows = [encoder(**encoder.tokenize(text))[0].astype(np.float64).mean(0) for text in TOLD]
    made = np.stack([row / np.sqrt(row @ row) for row in rows]).astype(np.float32)
    report = judged(folder, made)
    assert report.matches == ["Dense left out"] and not report.passed
    report = judged(folder, made[:, ::-1].copy())  # as wide, and by no mistake of the list
    assert (
        report.matches == [] and "the vectors have 8 numbers, as a token's row has; this model's have 6" in report.lines
    )
    assert judged(folder, np.pad(made, ((0, 0), (0, 1)))).matches == ["Dense left out + zeros appended"]
    wider = np.pad(made, ((0, 0), (0, 1)), constant_values=1)
    assert judged(folder, wider).matches == ["another model's vectors"]
    for possible in (np.hstack([made, made[:, ::-1]]), np.abs(made[:, :3])):  # two poolings side by side, the first few
        report = judged(folder, possible)
        assert report.matches == [] and not report.passed, "\n".join(report.lines)


@pytest.mark.parametrize("matches", ["activation of Dense left out", "bias of Dense missing", "Dense before pooling",
                                     "weight of Dense transposed", "relu after Dense", "gelu after Dense",
                                     "sigmoid after Dense", "vectors normalized before Dense",
                                     "vectors normalized before Dense + vectors not normalized"])  # fmt: skip
def test_what_is_wrong_in_a_dense_is_named(matches: str, tmp_path: Path) -> None:
    """It maps 8 numbers to 6; for one that is transposed it is made to map 8 to 8."""
    folder, rng = tmp_path / "model", np.random.default_rng(0)
    shutil.copytree(REFERENCE / "sentences-dense", folder)
    if "transposed" in matches:
        settings = json.loads((folder / "2_Dense/config.json").read_text())
        (folder / "2_Dense/config.json").write_text(json.dumps({**settings, "out_features": 8}))
        square = {"linear.weight": rng.standard_normal((8, 8)), "linear.bias": rng.standard_normal(8)}
        save_file({key: x.astype(np.float32) for key, x in square.items()}, folder / "2_Dense/model.safetensors")
    stored = load_file(folder / "2_Dense/model.safetensors")
    weight, bias = (stored[f"linear.{name}"].astype(np.float64) for name in ("weight", "bias"))
    with load_encoder(folder) as encoder:
        rows = [encoder(**encoder.tokenize(text))[0].astype(np.float64) for text in TOLD]
    made = []
    for each in rows:
        x = each if "before pooling" in matches else each.mean(0)
        x = x / np.sqrt(x @ x) if "normalized before" in matches else x
        x = x @ (weight if "transposed" in matches else weight.T) + (0 if "bias" in matches else bias)
        word = matches.partition(" after")[0]
        x = x if "activation" in matches else ACTIVATIONS.get(word, np.tanh)(x)
        made.append(x.mean(0) if "before pooling" in matches else x)
    vectors = np.stack([x if "not norm" in matches else x / np.sqrt(x @ x) for x in made]).astype(np.float32)
    report = judged(folder, vectors)
    assert names(report) == {frozenset(matches.split(" + "))} and not report.passed, "\n".join(report.lines)


@pytest.mark.parametrize("more", ["", "Dense left out", "vectors not normalized"])
def test_pooler_output_is_named(more: str) -> None:
    folder = REFERENCE / "sentences-dense"
    stored = load_file(folder / "model.safetensors")
    weight, bias = (stored[f"pooler.dense.{name}"].astype(np.float64) for name in ("weight", "bias"))
    with load_encoder(folder) as encoder:
        rows = np.stack([encoder(**encoder.tokenize(text))[0][0].astype(np.float64) for text in TOLD])
        made = np.tanh(rows @ weight.T + bias)
        if "Dense" not in more:
            made = encoder.sentence_config.after[0](made)
    if "normalized" not in more:
        made = made / np.sqrt((made * made).sum(1, keepdims=True))
    report = judged(folder, made.astype(np.float32))
    assert names(report) == {frozenset({"pooler_output in place of pooling", more} - {""})}, "\n".join(report.lines)
    assert not report.passed


def test_vectors_that_are_all_zeros_or_nan_say_nothing_of_the_empty_text(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    (folder / "config_sentence_transformers.json").unlink()
    for spoiled in (0.0, np.nan):
        vectors = np.full_like(VectorPort(folder, "prompt missing")([*TOLD, ""]), spoiled)
        assert not any("empty" in line for line in judged(folder, vectors, [*TOLD, ""]).lines if "matches" in line)


def test_a_static_model_without_its_unknown_token_is_named() -> None:
    """As model2vec's own `encode` leaves it out; where there is nothing else in a text, its vector is zeros."""
    folder, texts = REFERENCE / "static-plain", [*TOLD, "above \u2603 the clouds", "we \u2603", "\u2603"]
    with load_encoder(folder) as encoder:
        unknown, table = encoder.sentence_tokenizer.id_of("[UNK]"), np.asarray(encoder["embedding"].weight)
        ids = [[i for i in encoder.sentence_tokenizer.pieces(text) if i != unknown] for text in texts]
        right = encoder.encode(texts)
    report = judged(folder, np.stack([table[i].sum(0) / max(1, len(i)) for i in ids]), texts)
    assert report.matches == ["unknown token left out"] and not report.passed, "\n".join(report.lines)
    assert judged(folder, right, texts).passed


def test_one_text_that_a_wrong_model_rounds_more_hides_no_name(folder: Path) -> None:
    vectors = VectorPort(folder, "last block missing")(TOLD)
    vectors[5] *= np.float32(1 + 5e-5)
    report = judged(folder, vectors)
    assert report.matches == ["last block missing"]
    assert report.lines[-1].startswith("matches: last block missing. ")
    vectors[6:8] *= np.float32(1 + 5e-5)  # of more texts than one in ten it is a narrower format
    assert "in float16" in "\n".join(judged(folder, vectors).lines[-3:])


@pytest.mark.parametrize(
    ("left", "chosen"),
    [
        # one mistake is preferred to none if it leaves less than 0.8 of the distance (ALONE)
        (([1e-3], [0.78e-3]), [(1, 0)]),
        (([1e-3], [0.82e-3]), [(0, 0)]),
        # two mistakes, to one and to none, if they leave less than half (PAIR)
        (([1], [1e-3], [0.48e-3]), [(2, 0)]),
        (([1], [1e-3], [0.52e-3]), [(1, 0)]),
        (([1e-3], [1], [0.48e-3]), [(2, 0)]),
        (([1e-3], [1], [0.52e-3]), [(0, 0)]),
        # what leaves about as little fits as well (AS_NEAR)
        (([1], [1e-3, 1.04e-3, 1.06e-3]), [(1, 0), (1, 1)]),
    ],
)
def test_more_mistakes_are_chosen_where_they_leave_less(
    left: tuple[list[float], ...], chosen: list[tuple[int, int]], folder: Path
) -> None:
    tiers = [[Fit((), np.full(3, size)) for size in sizes] for sizes in left]
    with load_encoder(folder) as encoder:
        judging = Judge(Maker(encoder), TOLD, encoder.encode(TOLD))
    judging.scales = {"int8": 1e-2}
    found = judging._chosen(tiers)
    assert [id(each) for each in found] == [id(tiers[tier][i]) for tier, i in chosen]


@pytest.mark.parametrize(("times", "near"), [(2.8, True), (3.2, False)])
def test_longer_texts_may_round_more_than_the_plain_ones(times: float, near: bool, folder: Path) -> None:
    """LOOSE: a long text as many times further away than the plain ones."""
    vectors = VectorPort(folder)(TOLD) * np.float32(1 + 1e-4)
    vectors[9] *= np.float32(1 + (times - 1) * 1e-4)
    said = "\n".join(judged(folder, vectors).lines)
    assert ("not passed: the vectors are as near as float16 rounds" in said) == near
    assert ("mistakes fits all texts, alone or in pairs" in said) != near


@pytest.mark.parametrize(("apart", "matches"), [(0.9e-4, ["last block missing"]), (1.1e-4, [])])
def test_one_text_may_be_further_away_and_no_further_than_that(apart: float, matches: list[str], folder: Path) -> None:
    """STRAY: a model with a mistake may round more."""
    vectors = VectorPort(folder, "last block missing")(TOLD)
    vectors[9] *= np.float32(1 + apart)
    assert judged(folder, vectors).matches == matches


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("centred over the batch", lambda x: x - x.mean(0)),
        ("normalized over the batch", lambda x: (x - x.mean(0)) / x.std(0)),
        ("each dimension divided by its length over the batch", lambda x: x / np.linalg.norm(x, axis=0)),
        ("zeros appended", lambda x: np.pad(x, ((0, 0), (0, 9)))),
        ("truncated to the first 7 numbers + zeros appended", lambda x: x * (np.arange(x.shape[1]) < 7)),
    ],
)
def test_what_is_done_to_all_vectors_together_is_named(name: str, change: Any, folder: Path) -> None:
    report = judged(folder, np.asarray(change(VectorPort(folder)(TOLD)), np.float32))
    assert report.matches == [name] and not report.passed, "\n".join(report.lines)


@pytest.mark.parametrize(
    ("name", "cut"),
    [("letters", lambda text: text[:256]), ("words", lambda text: " ".join(text.split(" ")[:100]))],
)
def test_a_text_that_is_cut_before_there_are_tokens_is_named(name: str, cut: Any, folder: Path) -> None:
    """Words too long for the vocabulary, and those without a letter, make few tokens."""
    texts = [*TOLD, "x" * 250 + " the clouds we lived", "\a " * 100 + "the clouds"]
    report = judged(folder, VectorPort(folder)([cut(text) for text in texts]), texts)
    assert report.matches == [f"text cut at {dict(letters=256, words=100)[name]} {name}"], "\n".join(report.lines)


def test_a_mean_over_the_padded_length_is_named_where_no_norm_takes_it_away(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    (folder / "modules.json").write_text(json.dumps(json.loads((folder / "modules.json").read_text())[:2]))
    port = VectorPort(folder, "vectors not normalized")
    counts = np.array([len(port.ids(text)) for text in TOLD], np.float32)
    assert judged(folder, port(TOLD)).passed
    assert judged(folder, port(TOLD) * counts[:, None] / 16).matches == ["mean divided by the padded length"]


def test_vectors_normalized_one_by_one_are_not_said_to_be_divided_together(tmp_path: Path) -> None:
    """The length of all together, divided by and then normalized, leaves nothing of the division."""
    folder = write(tmp_path / "model")
    (folder / "modules.json").write_text(json.dumps(json.loads((folder / "modules.json").read_text())[:2]))
    assert judged(folder, VectorPort(folder)(TOLD)).matches == ["vectors normalized"]


@pytest.mark.parametrize("spoiled", [0.0, np.nan])
def test_an_empty_text_that_a_port_does_not_compute_is_named_beside_the_rest(spoiled: float, tmp_path: Path) -> None:
    """No other text may be zeros: that is a vector as any other, and a wrong one."""
    folder = write(tmp_path / "model")
    (folder / "config_sentence_transformers.json").unlink()  # without a prompt, which is no empty text
    texts, name = [*TOLD, ""], f"the empty text as {'NaN' if spoiled else 'zeros'}"
    for wrong, names in (([], [name]), (["first token"], [f"pooling cls + {name}"])):
        vectors = VectorPort(folder, "prompt missing", *wrong)(texts)
        vectors[-1] = spoiled
        report = judged(folder, vectors, texts)
        assert report.matches == names and not report.passed and not report.texts[-1]["passed"]
        vectors[-2] = spoiled
        assert name not in judged(folder, vectors, texts).matches


def test_one_text_with_two_vectors_is_random(folder: Path) -> None:
    """Both are nearer to the right one than to another text's; two that are not show another thing."""
    texts = ["we lived above the clouds", *TOLD]
    right, noise = VectorPort(folder)(texts), np.random.default_rng(0)
    vectors = right + 0.03 * noise.standard_normal(right.shape).astype(np.float32)
    report = judged(folder, vectors, texts)
    assert report.matches == ["random"] and any("texts 1 and 2 are one" in line for line in report.lines)
    assert any("without noise" in line and "dropout off" in line for line in report.lines), "noise is not dropout"
    vectors[1] = vectors[0]
    assert judged(folder, vectors, texts).matches == []
    vectors[1] = right[-1]
    assert judged(folder, vectors, texts).matches == []


def test_vectors_in_another_order_are_seen(folder: Path) -> None:
    report = judged(folder, VectorPort(folder)(TOLD)[::-1].copy())
    assert report.matches == ["another order"] and not report.passed


@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
def test_numbers_that_are_none_never_pass(spoiled: float, folder: Path) -> None:
    vectors = VectorPort(folder)(TOLD)
    vectors[0, 0] = spoiled
    report = judged(folder, vectors)
    assert report.matches == ["NaN or infinity"] and not report.passed
    assert report.texts[0] == {"text": TOLD[0], "distance": None, "passed": False} and report.texts[1]["passed"]
    assert "this is the model, but for this:" in report.lines
    vectors[:] = spoiled
    assert judged(folder, vectors).matches == ["NaN or infinity"]


def test_a_few_vectors_without_numbers_do_not_hide_the_mistake_of_the_others(folder: Path) -> None:
    vectors = VectorPort(folder, "first token")(TOLD)
    vectors[2, 1], vectors[5] = np.inf, np.nan
    report = judged(folder, vectors)
    assert report.matches == ["pooling cls + NaN or infinity"] and not report.passed
    assert any("in the vectors of texts 3, 6." in line for line in report.lines)


def test_the_texts_have_reasons_and_one_stands_twice() -> None:
    """Side by side, so that a server has both in one request."""
    texts = [each.text for each in TEXTS]
    assert len(set(texts)) == len(texts) - 1 >= 60 and texts[0] == texts[1]
    assert all(each.why for each in TEXTS)
