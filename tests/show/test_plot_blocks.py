"""The pictures of attention, read back from the Axes: the probabilities drawn, their names, GPT-2's triangle."""

from __future__ import annotations

from pathlib import Path

import encoders
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import minibert
from minibert.cli import main
from minibert.equations.input_layer import Array
from minibert.models.encoder import Encoder
from minibert.show import plot_blocks
from minibert.show.pictures import picture

TEXT = "he was here"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoders.write_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def gpt2(folder: Path) -> Encoder:
    return encoders.computed_once(minibert.load_encoder(folder))


def drawn(ax: Axes) -> np.ma.MaskedArray:
    (image,) = ax.images
    values = image.get_array()
    assert isinstance(values, np.ma.MaskedArray)
    return values


def weights(*shape: int) -> Array:
    numbers = np.random.default_rng(0).random(shape)
    return np.asarray(numbers / numbers.sum(axis=-1, keepdims=True))


def test_a_grid_shows_every_probability_with_its_tokens() -> None:
    x, ax = weights(3, 3), Figure().subplots()
    assert plot_blocks.attention_grid(x, ["a", "$b", "c"], ax) is ax
    assert np.array_equal(drawn(ax), x)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "$b", "c"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "$b", "c"]
    assert ax.images[0].get_clim() == (0, x.max())
    assert plt.get_fignums() == []
    assert plot_blocks.attention_grid(x, ["a", "b", "c"]).figure.number in plt.get_fignums()


def test_many_tokens_are_not_named() -> None:
    ax = plot_blocks.attention_grid(weights(60, 60), ["token"] * 60, Figure().subplots())
    assert "token" not in [label.get_text() for label in ax.get_xticklabels()]


def test_all_heads_stand_in_lines_of_blocks_on_one_scale() -> None:
    x, ax = weights(2, 3, 4, 4), Figure().subplots()
    assert plot_blocks.attention_heads(x, ax) is ax
    image = drawn(ax)
    assert image.shape == (2 * 5 - 1, 3 * 5 - 1) and ax.images[0].get_clim() == (0, 1)
    for block in range(2):
        for head in range(3):
            part = image[5 * block : 5 * block + 4, 5 * head : 5 * head + 4]
            assert np.array_equal(part, x[block, head])
    assert image.mask[4].all() and image.mask[:, [4, 9]].all(), "blank between the grids"
    assert ax.get_xticks().tolist() == [1.5, 6.5, 11.5] and ax.get_yticks().tolist() == [1.5, 6.5]
    assert plot_blocks.attention_heads(x).figure.number in plt.get_fignums()


def test_gpt2_s_triangle_shows(gpt2: Encoder) -> None:
    trace = gpt2.trace(**gpt2.tokenize(TEXT))
    ax = picture("attention", gpt2, TEXT, block=1, head=2).axes[0]
    image, seq = drawn(ax), trace["attentions.1"].shape[-1]
    assert np.array_equal(image.mask, ~np.tri(seq, dtype=bool))
    assert np.array_equal(image.filled(0), trace["attentions.1"][0, 2])
    assert ax.get_title("left") == "block 1, head 2"
    assert [label.get_text() for label in ax.get_xticklabels()] == gpt2.tokens(gpt2.tokenize(TEXT)["input_ids"][0])


def test_without_block_and_head_all_are_shown_and_one_of_them_means_0_for_the_other(gpt2: Encoder) -> None:
    trace = gpt2.trace(**gpt2.tokenize(TEXT))
    seq = trace["attentions.0"].shape[-1]
    image = drawn(picture("attention", gpt2, TEXT).axes[0]).filled(0)
    assert np.array_equal(image[seq + 1 : 2 * seq + 1, -seq:], trace["attentions.1"][0, 3])
    assert picture("attention", gpt2, TEXT, head=3).axes[0].get_title("left") == "block 0, head 3"
    assert picture("attention", gpt2, TEXT, block=1).axes[0].get_title("left") == "block 1, head 0"
    assert picture("attention", gpt2, TEXT, model="org/x").get_suptitle() == "org/x (gpt2)"


def test_what_cannot_be_drawn_is_said(gpt2: Encoder) -> None:
    for choice, says in (({"block": 2}, r"block is 2, but this model has blocks 0\.\.1"),
                         ({"head": -1}, r"head is -1, but this model has heads 0\.\.3")):  # fmt: skip
        with pytest.raises(IndexError, match=says):
            picture("attention", gpt2, TEXT, **choice)
    with pytest.raises(ValueError, match="'attention' is about a text"):
        picture("attention", gpt2)
    with pytest.raises(ValueError, match="has no tokens"):
        picture("attention", gpt2, "")
    with pytest.raises(ValueError, match=r"pass a whole model, minibert\.load_encoder"):
        picture("attention", gpt2.embeddings, TEXT)
    with pytest.raises(ValueError, match="'table' has no blocks or heads; block and head apply only to attention"):
        picture("table", gpt2.embeddings, head=0)


def test_plot_attention_writes_a_picture(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "attention.svg"
    command = ["plot", "attention", "--model", str(folder), "--text", TEXT, "-o", str(path)]
    assert main(command) == 0
    whole = path.read_bytes()
    assert main([*command, "--block", "1", "--head", "2"]) == 0
    assert b"<svg" in whole and path.read_bytes() != whole
    assert "block 1, head 2" not in capsys.readouterr().err, "both were asked for"
    assert main([*command, "--block", "1"]) == 0
    assert "this is block 1, head 0; --block and --head choose another" in capsys.readouterr().err
    assert main([*command, "--side", "encoder"]) == 1
    assert "leave out --side" in capsys.readouterr().err
