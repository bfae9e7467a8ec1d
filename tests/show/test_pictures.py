"""The pictures, read back from the Axes: the arrays of a layer that each shows; and of each function that draws, the
data, the labels, the colour bars. No pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from unittest import mock

import encoders
import matplotlib.pyplot as plt
import numpy as np
import pytest
from command_line import STUDY, Printed, ran
from drawn import normal
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from reference_files import BY_NAME

import minibert
from minibert.equations.input_layer import Array, sinusoidal_positions
from minibert.equations.similarity import cosine_similarity
from minibert.models.encoder import Encoder
from minibert.models.patching import patching_map
from minibert.show import plot
from minibert.show.attention import PARTS, shares_of, terms_of
from minibert.show.pictures import PICTURES, picture, position_table

WORDS, BYTES = " ".join(f"w{i}" for i in (5, 9, 7, 3, 5)), "he was here"


@pytest.mark.parametrize(
    ("name", "first"), [("bert", 0), ("roberta", 2), ("opt", 2), ("gpt2", 0), ("marian-encoder", 0), ("mpnet", 2)]
)
def test_the_position_table_begins_where_texts_do(name: str, first: int, tmp_path: Path) -> None:
    """Its row 0 is added to the first token of a text."""
    layer = BY_NAME[name].with_words(tmp_path)
    table, trace = position_table(layer), layer.trace([[5, 9, 7]])
    received = next(rows for name, rows in trace.items() if "position" in name or "wpe" in name if rows.ndim == 3)
    assert np.array_equal(table[:3], received[0])
    assert len(table) == layer.max_length


def test_rows_lie_over_a_word_and_table_and_similarity_are_of_the_positions(minilm: Path, tmp_path: Path) -> None:
    layer, text = minibert.load(minilm), "dog bites man"
    table = layer.position_embeddings.weight
    lines = picture("rows", layer, text).axes[0].lines
    word = layer.word_embeddings(layer.tokenize("dog")["input_ids"][0, 1])
    assert len(lines) == 2 and "dog" in lines[0].get_label() and "position 0" in lines[1].get_label()
    assert np.array_equal(lines[0].get_ydata(), word) and np.array_equal(lines[1].get_ydata(), table[0])
    for kind, values in (("table", table), ("similarity", cosine_similarity(table))):
        assert np.array_equal(drawn(picture(kind, layer).axes[0]), values)
    for kind, (token, expected) in product(("rows", "sum"), {3: "man", None: "dog", 4: "[SEP]"}.items()):
        ax = picture(kind, layer, text, token).axes[0]
        assert expected in (ax.get_title(loc="left") or ax.lines[0].get_label()), kind
    with pytest.raises(ValueError):  # rows of another width than the words
        picture("rows", BY_NAME["opt-project"].with_words(tmp_path), "w5")


@pytest.mark.parametrize("kind", sorted(name for name, each in PICTURES.items() if not each.needs_blocks))
def test_every_picture_names_its_model(kind: str, tmp_path: Path) -> None:
    case = {"relative-bias": "mpnet", "rotary": "modernbert"}.get(kind, "gpt2")
    layer = BY_NAME[case].with_words(tmp_path)
    named = [picture(kind, layer, WORDS, model=model).get_suptitle() for model in ("org/$x$", None)]
    assert named == [f"org/$x$ ({layer.family.model_type})", layer.family.model_type]


ADDENDS = {
    "bert": ["word_embeddings", "token_type_embeddings", "position_embeddings"],
    "gpt2": ["wte", "wpe"],
    "marian-encoder": ["scaled", "embed_positions"],
    "opt-project": ["project_in", "embed_positions"],
    "deberta-v2": ["embed_proj"],
}


@pytest.mark.parametrize("name", ADDENDS)
def test_the_addends_drawn_are_those_of_the_sum(name: str, tmp_path: Path) -> None:
    layer = BY_NAME[name].with_words(tmp_path)
    with mock.patch.object(plot, "sum_steps", wraps=plot.sum_steps) as drawing:
        picture("sum", layer, WORDS, token=2)
    (addends, normed), trace = drawing.call_args.args, layer.trace(**layer.tokenize(WORDS))
    assert list(addends) == ADDENDS[name]
    np.testing.assert_allclose(np.sum(list(addends.values()), axis=0), trace["sum"][0, 2], atol=1e-7)  # 6e-8 measured
    norms = [rows for name, rows in trace.items() if "orm" in name]
    assert (normed is None) == (norms == [])
    if normed is not None:
        assert np.array_equal(normed, norms[0][0, 2])


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return encoders.computed_once(minibert.load_encoder(encoders.write_gpt2(tmp_path_factory.mktemp("gpt2"))))


def drawn(ax: Axes) -> np.ma.MaskedArray:
    (image,) = ax.images
    return np.ma.asarray(image.get_array())


def texts_of(labels: Iterable[Text]) -> list[str]:
    return [label.get_text() for label in labels]


def test_gpt2_s_triangle_shows_and_one_of_block_and_head_means_0_for_the_other(gpt2: Encoder) -> None:
    batch = gpt2.tokenize(BYTES)
    trace = gpt2.trace(**batch)
    ax = picture("attention", gpt2, BYTES, block=1, head=2).axes[0]
    image, seq = drawn(ax), trace["attentions.1"].shape[-1]
    assert np.array_equal(image.mask, ~np.tri(seq, dtype=bool))
    assert np.array_equal(image.filled(0), trace["attentions.1"][0, 2])
    assert texts_of(ax.get_xticklabels()) == gpt2.tokens(batch["input_ids"][0])
    for block, head in ((1, 2), (None, 3), (1, None)):
        title = picture("attention", gpt2, BYTES, block=block, head=head).axes[0].get_title("left")
        assert title == f"block {block or 0}, head {head or 0}"
    every = picture("attention", gpt2, BYTES, model="org/x")
    assert every.get_suptitle() == "org/x (gpt2)"
    assert np.array_equal(drawn(every.axes[0]).filled(0)[seq + 1 : 2 * seq + 1, -seq:], trace["attentions.1"][0, 3])


def test_terms_are_in_percent_and_each_line_names_its_parts(gpt2: Encoder) -> None:
    shares = 100 * shares_of(gpt2, terms_of(gpt2, gpt2.tokenize(BYTES)))
    ax = picture("terms", gpt2, BYTES).axes[0]
    assert np.array_equal(drawn(ax).filled(np.nan), shares.reshape(9, -1)) and np.allclose(shares.sum(axis=(0, 1)), 100)
    lines = texts_of(ax.get_yticklabels())
    assert lines == [f"{query} with {key}" for query in PARTS for key in PARTS]
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written == {(h, i): str(round(share)) for (i, h), share in np.ndenumerate(shares.reshape(9, -1))}


def test_plot_attention_says_what_else_it_draws(tmp_path: Path, capsys: Printed) -> None:
    folder, path, drawings = encoders.write_gpt2(tmp_path / "gpt2"), tmp_path / "attention.svg", set[bytes]()
    for choice, said in (
        ("", "these are all heads, without the tokens' names; --block N --head N draws one head with them"),
        ("--block 1", "this is block 1, head 0; --block and --head choose another"), ("--block 1 --head 2", ""),
    ):  # fmt: skip
        err = ran(capsys, "plot", "attention", "-m", folder, "--text", BYTES, "-o", path, *choice.split())[1]
        assert err == (f"minibert: {said}\n" if said else "") + f"minibert: wrote {path}\n"
        drawings.add(path.read_bytes())
    assert len(drawings) == 3


def test_plot_patching_draws_the_map() -> None:
    for name, *texts in (("bert-words", "questi[MASK]n", "questa[MASK]n"), ("gpt2-words", "wonderfu", "wonderou")):
        encoder = minibert.load_encoder(STUDY / name)
        found, figure = patching_map(encoder, *texts), picture("patching", encoder, texts[0], other=texts[1])
        ax = figure.axes[0]
        assert np.array_equal(drawn(ax), found.shares) and ax.images[0].get_clim() == (-1, 1)
        written = [float(text.get_text()) for text in ax.texts]
        assert written == found.shares.round(2).ravel().tolist()
        names = [encoder.tokens(ids) for ids in found.ids]
        labels = texts_of(ax.get_xticklabels())
        assert labels == [one if one == two else f"{one} | {two}" for one, two in zip(*names, strict=True)]
        rows, blocks = texts_of(ax.get_yticklabels()), len(encoder.stack.blocks)
        assert rows == [*(f"before block {i}" for i in range(blocks)), "after the last"]
        assert ax.images[0].colorbar.ax.get_ylabel() == "share of the prediction restored"
        title = f"at token {found.token}: probability {np.exp(found.clean):.3g}, in the other text "
        assert title in ax.get_title("left") and encoder.tokens([found.label])[0] in ax.get_title("left")


def test_plot_pairs_draws_the_sum(minilm: Path) -> None:
    text, other = "Rates rise.", "Loans cost more money."
    encoder = minibert.load_encoder(minilm)
    split, figure = encoder.similarity_pairs(text, other), picture("pairs", encoder, text, other=other)
    ax = figure.axes[0]
    # each encodes the texts, and with some kernels a text's last bits depend on BLAS's threads: 2e-8 measured
    np.testing.assert_allclose(drawn(ax), split.pairs, rtol=0, atol=1e-6)
    assert texts_of(ax.get_yticklabels()) == split.tokens
    assert texts_of(ax.get_xticklabels()) == split.others
    assert figure.get_supxlabel() == f"cosine {split.pairs.sum():.4f}, the sum over all pairs"


def weights(*shape: int) -> Array:
    numbers = np.abs(normal(*shape))
    return np.asarray(numbers / numbers.sum(axis=-1, keepdims=True))


TOEPLITZ = normal(3, 11)[:, np.arange(6) - np.arange(6)[:, None] + 5]
# every function that draws into one Axes, with arrays that suit it
SINGLE: dict[str, Callable[[Axes | None], Axes]] = {
    "position_rows": lambda ax: plot.position_rows(normal(4, 8), normal(8), [3], ax and [ax])[0],
    "similarity_matrix": lambda ax: plot.similarity_matrix(np.eye(4), ax),
    "table_image": lambda ax: plot.table_image(normal(4, 6), ax),
    "sum_steps": lambda ax: plot.sum_steps({"word": normal(8), "position": normal(8, seed=4)}, normal(8, seed=5), ax),
    "relative_bias": lambda ax: plot.relative_bias(TOEPLITZ, ax),
    "rotary": lambda ax: plot.rotary(normal(4, 3), ax),
    "attention_grid": lambda ax: plot.attention_grid(weights(3, 3), ["a", "b", "c"], ax),
    "attention_heads": lambda ax: plot.attention_heads(weights(2, 3, 4, 4), ax),
    "token_pairs": lambda ax: plot.token_pairs(normal(2, 3), ["a", "b"], ["c", "d", "e"], ax),
}


@pytest.mark.parametrize("name", SINGLE)
def test_an_axes_passed_is_drawn_into_and_without_one_there_is_a_figure(name: str) -> None:
    ax = Figure().subplots()
    assert SINGLE[name](ax) is ax
    assert ax.has_data()
    assert ax.get_xlabel()
    assert ax.get_ylabel() or name == "sum_steps", "only the sum names its lines instead of its axis"
    assert plt.get_fignums() == [], "pyplot must not learn of a figure it did not make"
    assert bool(ax.images) == any(other.get_label() == "<colorbar>" for other in ax.figure.axes)
    if ax.images:
        assert ax.images[0].colorbar.ax.get_ylabel(), "a colour bar that does not say what it measures"
    own = SINGLE[name](None)  # then pyplot opens one figure
    assert [own.figure] == [plt.figure(number) for number in plt.get_fignums()]


@pytest.mark.parametrize(("draw", "said"), [
    (lambda: plot.position_rows(normal(3, 4), positions=[0, -1]), r"positions\[1\].* -1"),
    (lambda: plot.position_rows(normal(3, 4), positions=[0, 1], axes=[Figure().subplots()]), "zip"),
    *((lambda shape=shape: plot.table_image(normal(*shape)), "expected a matrix") for shape in ((4,), (2, 3, 4))),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], object], said: str) -> None:
    with pytest.raises((IndexError, ValueError), match=said):
        draw()


def test_position_rows_lie_over_the_token_row_on_one_scale() -> None:
    table, token_row = normal(30, 8), normal(8, seed=4)
    axes = plot.position_rows(table, token_row, positions=[0, 7, 29], token="$_{")
    assert len(axes) == 3
    for ax, position in zip(axes, (0, 7, 29), strict=True):
        below, above = ax.lines
        assert np.array_equal(below.get_ydata(), token_row) and np.array_equal(above.get_ydata(), table[position])
        assert texts_of(ax.get_legend().get_texts()) == ["token $_{", f"position {position}"]
    axes[0].figure.draw_without_rendering()  # a dollar sign is no formula
    assert len({ax.get_ylim() for ax in axes}) == 1
    assert plot.position_rows(np.zeros((2, 4)), positions=[0])[0].get_ylim() == (-1, 1), "rows of zeros have a scale"


def test_position_rows_choose_round_positions() -> None:
    of_300 = (0, 1, 2, 10, 60, 120, 180, 240)
    for length, positions in ((512, (0, 1, 2, 10, 100, 200, 300, 400, 500)), (300, of_300), (2, (0, 1))):
        axes = plot.position_rows(sinusoidal_positions(length, 4))
        assert [ax.get_legend().get_texts()[0].get_text() for ax in axes] == [f"position {p}" for p in positions]


def test_spikes_do_not_flatten_the_rows_and_are_told() -> None:
    table, token_row = 0.1 * normal(3, 400), 0.1 * normal(400, seed=4)
    table[0, 5], token_row[5] = -100.0, 2.0
    axes = plot.position_rows(table, token_row, positions=[0, 1], token="we")
    assert axes[0].get_ylim()[1] < 0.5 and axes[0].lines[1].get_ydata()[5] == -100
    for ax, position in zip(axes, ("0, to -1e+02", "1"), strict=True):
        assert texts_of(ax.get_legend().get_texts()) == ["token we, to 2", f"position {position}"]


def test_a_row_can_be_drawn_with_the_sum_and_in_several_lines() -> None:
    table, token_row = normal(4, 8), normal(8, seed=4)
    (ax,) = plot.position_rows(table, token_row, [3], token="we", sums=True)
    assert np.array_equal(ax.lines[2].get_ydata(), table[3] + token_row)
    assert texts_of(ax.get_legend().get_texts()) == ["token we", "position 3", "sum"]
    halves = {"sine": slice(0, None, 2), "cosine": slice(1, None, 2)}
    (ax,) = plot.position_rows(table, positions=[2], lines=halves)
    for line, start, name in zip(ax.lines, (0, 1), halves, strict=True):
        assert np.array_equal(line.get_xdata(), np.arange(start, 8, 2))
        assert np.array_equal(line.get_ydata(), table[2, start::2])
        assert line.get_label() == f"position 2, {name}"


def test_an_image_shows_every_number() -> None:
    numbers, x, names = normal(64, 64), weights(3, 3), ["a", "$b", "c"]
    grid = plot.attention_grid(x, names)
    for ax, image, limits in (
        (plot.similarity_matrix(numbers), numbers, (-1, 1)), (plot.rotary(numbers), np.cos(numbers), (-1, 1)),
        (grid, x, (0, x.max())),
    ):  # fmt: skip
        assert np.array_equal(drawn(ax), image) and ax.images[0].get_clim() == limits
        assert (ax.images[0].cmap.name == plot.SIGNED) == (limits[0] < 0)
        assert ax.get_ylim()[0] > ax.get_ylim()[1], "row 0 is on top"
    assert texts_of(grid.get_xticklabels()) == texts_of(grid.get_yticklabels()) == names
    many = plot.attention_grid(weights(60, 60), ["token"] * 60)
    assert "token" not in texts_of(many.get_xticklabels())


def test_pairs_of_tokens_stand_between_their_sums() -> None:
    pairs, tokens, others = normal(2, 3), ["a", "$b"], ["c", "d", "e"]
    ax = plot.token_pairs(pairs, tokens, others, of="cosine")
    above, right = ax.child_axes
    assert np.array_equal(drawn(ax), pairs) and ax.images[0].colorbar.ax.get_ylabel() == "adds to the cosine"
    assert texts_of(ax.get_yticklabels()) == tokens and texts_of(ax.get_xticklabels()) == others
    assert [bar.get_height() for bar in above.patches] == pairs.sum(axis=0).tolist()
    assert [bar.get_width() for bar in right.patches] == pairs.sum(axis=1).tolist()
    assert above.get_ylim() == right.get_xlim() and above.get_xlim() == ax.get_xlim()
    assert right.get_ylim() == ax.get_ylim() and ax.get_ylim()[0] > ax.get_ylim()[1], "row 0 is on top"
    many = plot.token_pairs(normal(60, 2), ["token"] * 60, ["other"] * 2)
    assert "token" not in texts_of(many.get_yticklabels()) and texts_of(many.get_xticklabels()) == ["other"] * 2


def test_arrows_of_a_colour_bar_and_names_of_a_square() -> None:
    for factor, extend in ((3, "both"), (1 + 1e-7, "neither")):
        assert plot.similarity_matrix(factor * np.eye(3)).images[0].colorbar.extend == extend
    labels = ["[CLS]", "$5$", "_"]
    named = plot.similarity_matrix(np.eye(3), labels=labels, of="token")
    assert texts_of(named.get_yticklabels()) == texts_of(named.get_xticklabels()) == labels
    assert not any(text.get_parse_math() for text in [*named.get_xticklabels(), *named.get_yticklabels()])
    even, spiked = sinusoidal_positions(40, 16), normal(40, 16)
    spiked[0, 0], reach = 100.0, np.abs(even).max()  # beyond the colours of a table
    for table, extend in ((even, "neither"), (spiked, "both")):
        (image,) = plot.table_image(table).images
        assert np.array_equal(np.asarray(image.get_array()), table) and image.colorbar.extend == extend
        low, high = image.get_clim()
        assert low == -high and (high == reach if table is even else 2 < high < 4) and image.cmap.name == plot.SIGNED
    assert plot.table_image(np.zeros((2, 2))).images[0].get_clim() == (-1, 1)


def test_sum_steps_draw_each_line_on_its_own_scale() -> None:
    addends = {"word": normal(8), "token type": normal(8, seed=4) / 40, "position": normal(8, seed=5)}
    total, normed = np.sum([*addends.values()], axis=0), 50 * normal(8, seed=6)
    ax = plot.sum_steps(addends, normed)
    lines = [line for line in ax.lines if len(line.get_ydata()) == 8]
    heights = [4, 3, 2, 1, 0]
    scales = [text for text in ax.texts if text.get_text().endswith(" -")]
    assert len(scales) == 2 * len(heights), "two numbers before each line"
    for i, (line, row) in enumerate(zip(lines, [*addends.values(), total, normed], strict=True)):
        gain = 0.48 / np.abs(row).max()
        assert np.allclose(np.asarray(line.get_ydata()) - heights[i], gain * row, rtol=1e-9, atol=1e-12)
        for scale in scales[2 * i : 2 * i + 2]:  # at the place that the line has
            number = float(scale.get_text().removesuffix(" -"))
            assert scale.xy[1] - heights[i] == pytest.approx(gain * number)
    names = ["word", "+ token type", "+ position", "= sum", "→ LayerNorm"]
    assert texts_of(ax.get_yticklabels()) == names and list(ax.get_yticks()) == heights
    notes = [text for text in texts_of(ax.texts) if text.startswith("mean")]
    assert notes[3] == f"mean {total.mean():.3f}\nstd {total.std():.3f}" and len(notes) == 5


def test_all_heads_stand_in_lines_of_blocks_on_one_scale() -> None:
    x = weights(2, 3, 4, 4)
    ax = plot.attention_heads(x)
    image = drawn(ax)
    assert image.shape == (2 * 5 - 1, 3 * 5 - 1) and ax.images[0].get_clim() == (0, 1)
    for block, head in np.ndindex(2, 3):
        part = image[5 * block : 5 * block + 4, 5 * head : 5 * head + 4]
        assert np.array_equal(part, x[block, head])
    assert image.mask[4].all() and image.mask[:, [4, 9]].all(), "blank between the grids"


@pytest.mark.parametrize(("query", "key"), [(6, 6), (1, 4), (5, 2)])
def test_relative_bias_shows_each_distance_once(query: int, key: int) -> None:
    by_distance = normal(3, query + key - 1)
    bias = by_distance[:, np.arange(key) - np.arange(query)[:, None] + query - 1]
    ax = plot.relative_bias(bias)
    assert np.array_equal(drawn(ax), by_distance)
    assert ax.images[0].get_clim() == (-np.abs(bias).max(), np.abs(bias).max())
    # the column of distance d is centred on d
    assert ax.images[0].get_extent() == [-query + 0.5, key - 0.5, 2.5, -0.5]


STARTS = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}


@pytest.mark.parametrize("ending", STARTS)
def test_save_writes_by_ending_and_the_same_bytes_each_time(ending: str, tmp_path: Path) -> None:
    for kind, name in ((str, "one"), (Path, "two")):
        ax = plot.table_image(normal(4, 8))
        plot.save(ax.figure, kind(tmp_path / f"{name}{ending}"))
    first, second = ((tmp_path / f"{name}{ending}").read_bytes() for name in ("one", "two"))
    assert first.startswith(STARTS[ending])
    assert first == second
    with pytest.raises(ValueError, match=r"\.svg.*\.png.*\.pdf"):
        plot.save(Figure(), tmp_path / "a.jpg")
    assert len(list(tmp_path.iterdir())) == 2, "nothing is left beside the pictures"
