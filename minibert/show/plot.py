"""Pictures of arrays: every function draws one picture into an Axes and returns it.

Pass `ax` to draw into your own figure; pyplot is not imported then. Without `ax` pyplot opens a new figure. No function
computes the numbers that it draws, or knows a model: similarities come from `equations.similarity`, tables and rows
from a layer.

Values from 0 up become colours by viridis: its lightness rises evenly with the value. Signed values become colours by
PuOr: 0 is nearly white, and the farther from 0, the darker, violet below and orange above. Colour-blind readers can
tell the two apart. The limits of signed values are as far below 0 as above it; for cosines they are -1 and 1, so that
the pictures of two models can be compared.

>>> from matplotlib.figure import Figure
>>> ax = similarity_matrix(np.eye(3), ax=Figure().subplots())
>>> ax.get_xlabel(), ax.get_ylabel(), ax.images[0].get_array().shape
('position', 'position', (3, 3))
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.equations.fast import check_ids
from minibert.equations.input_layer import Array
from minibert.files.writing import output_ending, write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "viridis"
SIGNED = "PuOr_r"
# a dark and a light ink, different in lightness as much as in hue
DARK, LIGHT = "#14284b", "#f0a32f"
BETWEEN = "0.55"  # a third ink, between the two
FEW_TOKENS = 40  # up to this count their names fit beside a grid
FORMATS = (".svg", ".png", ".pdf")


def _axes(ax: Axes | None, width: float, height: float) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def _image(ax: Axes, values: Array, label: str, limits: tuple[float, float], **options: Any) -> Axes:
    """Draw a matrix as colours; arrows at the colour bar's ends mean that some values are beyond its limits.

    Limits on both sides of 0 mean signed values.
    """
    if values.ndim != 2:
        raise ValueError(f"expected a matrix to draw as an image, found shape {values.shape}")
    low, high = limits
    colours, rounding = SIGNED if low < 0 else COLOURS, 1e-6 * (high - low)  # a cosine of 1 may be 1 + 2e-7
    # nearest: one entry is one block of one colour, not a blend with its neighbours
    image = ax.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest", **options)
    extend = "neither" if low - rounding <= values.min() and values.max() <= high + rounding else "both"
    ax.figure.colorbar(image, ax=ax, label=label, extend=extend)
    ax.spines[:].set_visible(False)
    return ax


def _numbers(ax: Axes, values: Array, digits: int, dark: float) -> None:
    """Write each value into its cell of an image: white from `dark` on, where the colours are dark."""
    for (line, column), value in np.ndenumerate(values):
        ink = "white" if abs(value) > dark else "black"
        text = f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no -0
        ax.text(column, line, text, ha="center", va="center", fontsize="x-small", color=ink)


def _reach(values: Array) -> tuple[float, float]:
    """Return limits as far below 0 as above it."""
    reach = float(np.abs(values).max(initial=0.0)) or 1.0
    return -reach, reach


def _bare(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _beyond(row: Array, reach: float) -> str:
    """Return the end of a label: the farthest number, if a row leaves the picture."""
    farthest = float(row[np.abs(row).argmax()])
    return f", to {farthest:.2g}" if abs(farthest) > reach else ""


def position_rows(
    table: Array,
    token_row: Array | None = None,
    positions: Sequence[int] | None = None,
    axes: Iterable[Axes] | None = None,
    token: str = "",
    sums: bool = False,
    lines: Mapping[str, slice] | None = None,
) -> list[Axes]:
    """Draw several rows of a position table below each other, on one scale, each over the row of a token.

    table (positions, dim), token_row (dim,), token: its name; the picture compares the sizes of the two rows. Default
    of `positions`: 0, 1, 2, 10 and then even steps, of 100 for 512. `axes` are as many Axes as positions. Trained rows,
    above all row 0, have a few numbers ten times larger than the rest. So the scale is 1.5 times the size of 99 % of
    the numbers, and the label of a line that leaves the picture has its farthest number.

    sums   with a token's row: draw the sum of the two rows too
    lines  name -> dimensions: draw one line of a row for each; sines and cosines in alternation make no curve

    Raises as `check_ids` for a position outside the table, ValueError unless there are as many axes as positions.
    """
    if positions is None:
        step = max(1, int(float(f"{len(table) // 5:.0e}")))  # rounded to one digit
        positions = [p for p in sorted({0, 1, 2, 10, *range(step, len(table), step)}) if p < len(table)]
    if axes is None:
        import matplotlib.pyplot as plt

        figure = plt.figure(figsize=(12, 0.9 * len(positions) + 0.6), layout="constrained")
        axes = figure.subplots(len(positions), sharex=True, squeeze=False)[:, 0]
    axes, curves = list(axes), lines or {"": slice(None)}
    rows = table[check_ids(positions, len(table), "positions")]
    drawn = rows if token_row is None else np.vstack([rows, token_row, *([rows + token_row] if sums else [])])
    reach = 1.5 * float(np.percentile(np.abs(drawn), 99)) or 1.0
    if token_row is not None:
        token += _beyond(token_row, reach)
    for ax, position, row in zip(axes, positions, rows, strict=True):
        if token_row is not None:
            ax.plot(np.arange(len(token_row)), token_row, color=LIGHT, linewidth=0.8, label=f"token {token}".strip())
        for (name, dimensions), colour in zip(curves.items(), (DARK, LIGHT), strict=False):
            label = f"position {position}{name and f', {name}'}{_beyond(row[dimensions], reach)}"
            ax.plot(np.arange(len(row))[dimensions], row[dimensions], color=colour, linewidth=0.8, label=label)
        if token_row is not None and sums:
            total = row + token_row
            label = f"sum{_beyond(total, reach)}"
            ax.plot(np.arange(len(row)), total, color=BETWEEN, linewidth=0.8, zorder=1, label=label)
        ax.set(xlim=(0, len(row) - 1), ylim=(-reach, reach))
        for text in ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False).get_texts():
            text.set_parse_math(False)  # a token can hold a dollar sign
        _bare(ax)
    axes[len(axes) // 2].set_ylabel("value")
    axes[-1].set_xlabel("dimension")
    return axes


def similarity_matrix(
    similarity: Array, ax: Axes | None = None, labels: Sequence[str] | None = None, of: str = "position"
) -> Axes:
    """Draw a matrix of cosine similarities as an image, from -1 to 1; row 0 is on top, as in the matrix.

    similarity (n, n), from `equations.cosine_similarity`. `labels` name the rows, if they are few.
    """
    ax = _axes(ax, 6, 5)
    _image(ax, similarity, "cosine similarity", (-1.0, 1.0))
    ax.set(xlabel=of, ylabel=of)
    return ax if labels is None else _name_sides(ax, labels)


def _name_sides(ax: Axes, labels: Sequence[str]) -> Axes:
    """Name the columns and rows of a square image."""
    ax.set_xticks(range(len(labels)), labels, rotation=90, parse_math=False)
    ax.set_yticks(range(len(labels)), labels, parse_math=False)
    return ax


def table_image(table: Array, ax: Axes | None = None) -> Axes:
    """Draw a whole table of positions as an image: one line for each row, one column for each dimension.

    table (rows, dim). The colours span all values. But if a few values are far larger than the rest, as in trained
    tables, the colours span 98 % of the values, and the colour bar has pointed ends.
    """
    ax = _axes(ax, 8, 5)
    most, highest = (float(value) for value in np.percentile(np.abs(table), (98, 100)))
    reach = (most if highest > 2 * most else highest) or 1.0
    _image(ax, table, "value", (-reach, reach), aspect="auto")
    ax.set(xlabel="dimension", ylabel="position")
    return ax


def sum_steps(addends: Mapping[str, Array], normed: Array | None = None, ax: Axes | None = None) -> Axes:
    """Draw how one token's vector is computed: every addend, their sum, and the result of LayerNorm.

    addends: name -> row (dim,), in the order in which they are added; normed (dim,). Each line has its own scale, so
    that a small row shows its shape: the numbers on the left of a line are its scale, on the right stand its mean and
    standard deviation.
    """
    ax = _axes(ax, 12, 1 + 0.8 * (len(addends) + 2))
    total = np.sum(list(addends.values()), axis=0)
    rows = {**addends, "sum": total, **({} if normed is None else {"LayerNorm": normed})}
    heights = range(len(rows) - 1, -1, -1)  # first addend on top
    for height, row in zip(heights, rows.values(), strict=True):
        gain = 0.48 / (float(np.abs(row).max()) or 1.0)
        ax.axhline(height, color="0.8", linewidth=0.6)
        ax.plot(np.arange(len(row)), height + gain * row, color=DARK, linewidth=0.8)
        _scale(ax, height, gain)
        note = f"mean {row.mean():.3f}\nstd {row.std():.3f}"
        ax.annotate(note, (1.01, height), xycoords=("axes fraction", "data"), va="center", fontsize="small")
    signs = ["", *["+ "] * (len(addends) - 1), "= ", "→ "]
    ax.set_yticks(heights, [sign + name for sign, name in zip(signs, rows, strict=False)], parse_math=False)
    ax.tick_params(axis="y", length=0, pad=32)
    ax.set(xlim=(0, len(total) - 1), ylim=(-0.6, len(rows) - 0.4), xlabel="dimension")
    ax.spines["left"].set_visible(False)
    return _bare(ax)


def _scale(ax: Axes, height: float, gain: float) -> None:
    """Mark two round numbers at the left end of a line, as its scale."""
    mark = float(f"{0.35 / gain:.0e}")
    for value in (-mark, mark):
        place = (0, height + gain * value)
        ax.annotate(f"{value:g} -", place, xycoords=("axes fraction", "data"), ha="right", va="center",
                    fontsize="x-small", color="0.35")  # fmt: skip


def attention_grid(probabilities: Array, tokens: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw the attention weights of one head as a grid: a row for each query token, a column for each key token.

    probabilities (query, key), each row with the sum 1; tokens name both sides, if they are few. A weight of exactly 0
    is left blank: a mask hides that token. So GPT-2's grid is a triangle.
    """
    side = min(12.0, max(5.0, 0.3 * len(tokens) + 2))
    ax = _axes(ax, side + 1, side)
    _image(ax, np.ma.masked_equal(probabilities, 0), "attention weight", (0.0, float(probabilities.max())))
    ax.set(xlabel="key token", ylabel="query token")
    return _name_sides(ax, tokens) if len(tokens) <= FEW_TOKENS else ax


def attention_heads(attentions: Array, ax: Axes | None = None) -> Axes:
    """Draw all heads of all blocks, small: a line of grids for each block, a grid for each head, all on one scale.

    attentions (blocks, heads, query, key). A blank line separates two grids. The first token's line is on top, as in
    `attention_grid`.
    """
    blocks, heads, query, key = attentions.shape
    ax = _axes(ax, min(16.0, 1.0 * heads + 2), min(16.0, 1.0 * blocks + 1))
    parted = np.zeros((blocks, query + 1, heads, key + 1), attentions.dtype)
    parted[:, :query, :, :key] = attentions.swapaxes(1, 2)
    image = parted.reshape(blocks * (query + 1), heads * (key + 1))[:-1, :-1]
    _image(ax, np.ma.masked_equal(image, 0), "attention weight", (0.0, 1.0))
    ax.set_xticks(np.arange(heads) * (key + 1) + (key - 1) / 2, [str(i) for i in range(heads)])
    ax.set_yticks(np.arange(blocks) * (query + 1) + (query - 1) / 2, [str(i) for i in range(blocks)])
    ax.tick_params(length=0)
    ax.set(xlabel="head", ylabel="block")
    return ax


def patching_grid(shares: Array, tokens: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw which hidden states restore a prediction: a row for each state, a column for each token.

    shares (blocks + 1, seq), from `models.patching`. The top row is the input of block 0, the last row the output of
    the last block. The scale ends at 1, where a state restores all of the prediction; each cell has its number, if the
    tokens are few.
    """
    states, seq = shares.shape
    ax = _axes(ax, min(16.0, 0.45 * seq + 3), min(12.0, 0.3 * states + 2))
    _image(ax, shares, "share of the prediction restored", (-1.0, 1.0), aspect="auto")
    if seq <= FEW_TOKENS:
        _numbers(ax, shares, 2, dark=0.6)
    ax.set_xticks(range(seq), tokens, rotation=90, parse_math=False)
    ax.set_yticks(range(states), [*(f"before block {i}" for i in range(states - 1)), "after the last"])
    ax.set(xlabel="token (text | other text)", ylabel="hidden state")
    return ax


def token_pairs(
    pairs: Array, tokens: Sequence[str], others: Sequence[str], ax: Axes | None = None, of: str = "similarity"
) -> Axes:
    """Draw what each pair of tokens adds to the similarity of two texts, with the sum of each row and column as bars.

    pairs (tokens, others), whose sum is the similarity `of` two vectors; tokens and others name the sides, if they are
    few. The bars right of a row and above a column have one scale.
    """
    rows, columns = pairs.shape
    ax = _axes(ax, min(14.0, max(4.0, 0.35 * columns) + 3), min(12.0, max(3.0, 0.3 * rows) + 2))
    _image(ax, pairs, f"adds to the {of}", _reach(pairs), aspect="auto")
    for labels, count, set_ticks in ((others, columns, ax.set_xticks), (tokens, rows, ax.set_yticks)):
        if count <= FEW_TOKENS:
            set_ticks(range(count), labels, parse_math=False)
    ax.tick_params(axis="x", rotation=90)
    ax.set(xlabel="token of the other text", ylabel="token of the text")
    sums = pairs.sum(axis=0), pairs.sum(axis=1)
    ends = min(0.0, *(float(side.min()) for side in sums)), max(0.0, *(float(side.max()) for side in sums)) or 1.0
    above = _bare(ax.inset_axes((0, 1.02, 1, 0.2), sharex=ax, ylim=ends))
    above.bar(range(columns), sums[0], color=DARK)
    above.tick_params(axis="x", bottom=False, labelbottom=False)
    right = _bare(ax.inset_axes((1.02, 0, 0.2, 1), sharey=ax, xlim=ends))
    right.barh(range(rows), sums[1], color=DARK)
    right.tick_params(axis="y", left=False, labelleft=False)
    return ax


def term_shares(shares: Array, parts: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw each term's share of the scores' variance, in percent: a line for each term, a column for each head.

    shares (parts, parts, heads), from `equations.term_shares`. A violet term has a negative share: it works against the
    sum.
    """
    heads, percent = shares.shape[-1], 100 * shares.reshape(-1, shares.shape[-1])
    ax = _axes(ax, 0.5 * heads + 3.5, 4)
    _image(ax, percent, "share of the variance, %", (-100.0, 100.0), aspect="auto")
    _numbers(ax, percent, 0, dark=60)
    ax.set_xticks(range(heads))
    ax.set_yticks(range(len(percent)), [f"{query} with {key}" for query in parts for key in parts])
    ax.set_xlabel("head")
    return ax


def relative_bias(bias: Array, ax: Axes | None = None) -> Axes:
    """Draw a bias that depends only on the distance, like T5's: one line of colours for each head, over the distance.

    bias (heads, query, key) -> distances key - query from -(query - 1) to key - 1: earlier tokens are left of 0.
    """
    query, key = bias.shape[1:]
    by_distance = np.concatenate([bias[:, :0:-1, 0], bias[:, 0, :]], axis=1)
    ax = _axes(ax, 8, 3)
    extent = (-query + 0.5, key - 0.5, len(bias) - 0.5, -0.5)
    _image(ax, by_distance, "bias", _reach(by_distance), aspect="auto", extent=extent)
    ax.set(xlabel="key position - query position", ylabel="head")
    ax.locator_params(axis="y", integer=True)
    return ax


def rotary(angles: Array, ax: Axes | None = None) -> Axes:
    """Draw rotary's angles as an image: for each pair of dimensions the cosine of its angle at each position.

    angles (positions, pairs) in radians, for example `np.outer(np.arange(128), frequencies)`. The first pairs turn
    fast and distinguish neighbours; the last hardly turn and distinguish far from near.
    """
    ax = _axes(ax, 8, 4.5)
    _image(ax, np.cos(angles), "cosine of the angle", (-1.0, 1.0), aspect="auto")
    ax.set(xlabel="pair of dimensions", ylabel="position")
    ax.locator_params(integer=True)
    return ax


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as .svg, .png or .pdf, by the ending of the path.

    The file appears whole or not at all: it is written under another name and then moved. The same figure has the same
    bytes each time. Raises ValueError for another ending, FileNotFoundError if the folder is absent, IsADirectoryError
    for a folder.
    """
    import matplotlib as mpl

    ending = output_ending(path, FORMATS)
    # a date or a random id in the file would make every run a change
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
    buffer = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "minibert"}):
        figure.savefig(buffer, format=ending[1:], dpi=150, bbox_inches="tight", metadata=dates[ending])
    write_output(path, buffer.getvalue())
