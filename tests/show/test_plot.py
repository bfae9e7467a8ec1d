"""Each function of the pictures, read back from the Axes: the data drawn, the labels, the colour bars. No pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from drawn import normal
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from minibert.equations.input_layer import Array, sinusoidal_positions
from minibert.show import plot


@pytest.fixture
def ax() -> Axes:
    return Figure().subplots()


def weights(*shape: int) -> Array:
    numbers = np.abs(normal(*shape))
    return np.asarray(numbers / numbers.sum(axis=-1, keepdims=True))


def drawn_image(ax: Axes) -> Array:
    (image,) = ax.images
    return np.asarray(image.get_array())


def colour_bar(ax: Axes) -> Axes:
    return next(other for other in ax.figure.axes if other.get_label() == "<colorbar>")


def texts_of(labels: Iterable[Text]) -> list[str]:
    return [label.get_text() for label in labels]


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
def test_an_axes_passed_is_drawn_into_and_without_one_there_is_a_figure(name: str, ax: Axes) -> None:
    assert SINGLE[name](ax) is ax
    assert ax.has_data()
    assert ax.get_xlabel()
    assert ax.get_ylabel() or name == "sum_steps", "only the sum names its lines instead of its axis"
    assert plt.get_fignums() == [], "pyplot must not learn of a figure it did not make"
    assert bool(ax.images) == any(other.get_label() == "<colorbar>" for other in ax.figure.axes)
    if ax.images:
        assert colour_bar(ax).get_ylabel(), "a colour bar that does not say what it measures"
    own = SINGLE[name](None)  # then pyplot opens one figure
    assert [own.figure] == [plt.figure(number) for number in plt.get_fignums()]


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: plot.position_rows(normal(3, 4), positions=[0, -1]), r"positions\[1\].* -1"),
        (lambda: plot.position_rows(normal(3, 4), positions=[0, 1], axes=[Figure().subplots()]), "zip"),
        (lambda: plot.table_image(normal(4)), "expected a matrix"),
        (lambda: plot.table_image(normal(2, 3, 4)), "expected a matrix"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], object], said: str) -> None:
    with pytest.raises((IndexError, ValueError), match=said):
        draw()


# rows


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
    for length, positions in ((512, (0, 1, 2, 10, 100, 200, 300, 400, 500)), (300, (0, 1, 2, 10, 60, 120, 180, 240))):
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
    (ax,) = plot.position_rows(table, token_row, [3], [Figure().subplots()], token="we", sums=True)
    assert np.array_equal(ax.lines[2].get_ydata(), table[3] + token_row)
    assert texts_of(ax.get_legend().get_texts()) == ["token we", "position 3", "sum"]
    halves = {"sine": slice(0, None, 2), "cosine": slice(1, None, 2)}
    (ax,) = plot.position_rows(table, positions=[2], axes=[Figure().subplots()], lines=halves)
    for line, start, name in zip(ax.lines, (0, 1), halves, strict=True):
        assert np.array_equal(line.get_xdata(), np.arange(start, 8, 2))
        assert np.array_equal(line.get_ydata(), table[2, start::2])
        assert line.get_label() == f"position 2, {name}"


# images


@pytest.mark.parametrize("name", ["similarity_matrix", "rotary", "attention_grid"])
def test_an_image_shows_every_number(name: str, ax: Axes) -> None:
    numbers, names = normal(64, 64), ["a", "$b", "c"]
    x = weights(3, 3)
    draw, image, limits = {
        "similarity_matrix": (lambda: plot.similarity_matrix(numbers, ax), numbers, (-1, 1)),
        "rotary": (lambda: plot.rotary(numbers, ax), np.cos(numbers), (-1, 1)),
        "attention_grid": (lambda: plot.attention_grid(x, names, ax), x, (0, x.max())),
    }[name]
    draw()
    assert np.array_equal(drawn_image(ax), image) and ax.images[0].get_clim() == limits
    assert (ax.images[0].cmap.name == plot.SIGNED) == (limits[0] < 0)
    assert ax.get_ylim()[0] > ax.get_ylim()[1], "row 0 is on top"
    if name == "attention_grid":
        assert texts_of(ax.get_xticklabels()) == texts_of(ax.get_yticklabels()) == names
        many = plot.attention_grid(weights(60, 60), ["token"] * 60, Figure().subplots())
        assert "token" not in texts_of(many.get_xticklabels())


def test_pairs_of_tokens_stand_between_their_sums(ax: Axes) -> None:
    pairs, tokens, others = normal(2, 3), ["a", "$b"], ["c", "d", "e"]
    above, right = plot.token_pairs(pairs, tokens, others, ax, of="cosine").child_axes
    assert np.array_equal(drawn_image(ax), pairs) and colour_bar(ax).get_ylabel() == "adds to the cosine"
    assert texts_of(ax.get_yticklabels()) == tokens and texts_of(ax.get_xticklabels()) == others
    assert [bar.get_height() for bar in above.patches] == pairs.sum(axis=0).tolist()
    assert [bar.get_width() for bar in right.patches] == pairs.sum(axis=1).tolist()
    assert above.get_ylim() == right.get_xlim() and above.get_xlim() == ax.get_xlim()
    assert right.get_ylim() == ax.get_ylim() and ax.get_ylim()[0] > ax.get_ylim()[1], "row 0 is on top"
    many = plot.token_pairs(normal(60, 2), ["token"] * 60, ["other"] * 2, Figure().subplots())
    assert "token" not in texts_of(many.get_yticklabels()) and texts_of(many.get_xticklabels()) == ["other"] * 2


def test_arrows_of_a_colour_bar_and_names_of_a_square() -> None:
    for factor, extend in ((3, "both"), (1 + 1e-7, "neither")):
        assert plot.similarity_matrix(factor * np.eye(3), Figure().subplots()).images[0].colorbar.extend == extend
    labels = ["[CLS]", "$5$", "_"]
    named = plot.similarity_matrix(np.eye(3), Figure().subplots(), labels, of="token")
    assert texts_of(named.get_yticklabels()) == texts_of(named.get_xticklabels()) == labels
    assert not any(text.get_parse_math() for text in [*named.get_xticklabels(), *named.get_yticklabels()])


def test_table_image_shows_all_values_of_an_even_table_and_a_spike_beyond_its_colours() -> None:
    even, spiked = sinusoidal_positions(40, 16), normal(40, 16)
    spiked[0, 0], reach = 100.0, np.abs(even).max()
    for table, extend in ((even, "neither"), (spiked, "both")):
        (image,) = plot.table_image(table, Figure().subplots()).images
        assert np.array_equal(np.asarray(image.get_array()), table) and image.colorbar.extend == extend
        low, high = image.get_clim()
        assert low == -high and (high == reach if table is even else 2 < high < 4) and image.cmap.name == plot.SIGNED
    assert plot.table_image(np.zeros((2, 2)), Figure().subplots()).images[0].get_clim() == (-1, 1)


# the sum


def test_sum_steps_draw_each_line_on_its_own_scale(ax: Axes) -> None:
    addends = {"word": normal(8), "token type": normal(8, seed=4) / 40, "position": normal(8, seed=5)}
    total = addends["word"] + addends["token type"] + addends["position"]
    normed = 50 * normal(8, seed=6)
    plot.sum_steps(addends, normed, ax)
    lines = [line for line in ax.lines if len(line.get_ydata()) == 8]
    heights = [4, 3, 2, 1, 0]
    scales = [text for text in ax.texts if text.get_text().endswith(" -")]
    assert len(scales) == 2 * len(heights), "two numbers before each line"
    for line, height, row, lower, upper in zip(
        lines, heights, [*addends.values(), total, normed], scales[::2], scales[1::2], strict=True
    ):
        shape = np.asarray(line.get_ydata()) - height
        assert np.allclose(shape, 0.48 * row / np.abs(row).max(), rtol=1e-9, atol=1e-12)
        for scale in (lower, upper):  # at the place that the line has
            number = float(scale.get_text().removesuffix(" -"))
            assert scale.xy[1] - height == pytest.approx(0.48 * number / np.abs(row).max())
    names = ["word", "+ token type", "+ position", "= sum", "→ LayerNorm"]
    assert texts_of(ax.get_yticklabels()) == names and list(ax.get_yticks()) == heights
    notes = [text for text in texts_of(ax.texts) if text.startswith("mean")]
    assert notes[3] == f"mean {total.mean():.3f}\nstd {total.std():.3f}" and len(notes) == 5


# attention


def test_all_heads_stand_in_lines_of_blocks_on_one_scale(ax: Axes) -> None:
    x = weights(2, 3, 4, 4)
    plot.attention_heads(x, ax)
    image = ax.images[0].get_array()
    assert isinstance(image, np.ma.MaskedArray)
    assert image.shape == (2 * 5 - 1, 3 * 5 - 1) and ax.images[0].get_clim() == (0, 1)
    for block, head in np.ndindex(2, 3):
        part = image[5 * block : 5 * block + 4, 5 * head : 5 * head + 4]
        assert np.array_equal(part, x[block, head])
    assert image.mask[4].all() and image.mask[:, [4, 9]].all(), "blank between the grids"


@pytest.mark.parametrize(("query", "key"), [(6, 6), (1, 4), (5, 2)])
def test_relative_bias_shows_each_distance_once(query: int, key: int, ax: Axes) -> None:
    by_distance = normal(3, query + key - 1)
    bias = by_distance[:, np.arange(key) - np.arange(query)[:, None] + query - 1]
    plot.relative_bias(bias, ax)
    assert np.array_equal(drawn_image(ax), by_distance)
    assert ax.images[0].get_clim() == (-np.abs(bias).max(), np.abs(bias).max())
    # the column of distance d is centred on d
    assert ax.images[0].get_extent() == [-query + 0.5, key - 0.5, 2.5, -0.5]


# files

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
