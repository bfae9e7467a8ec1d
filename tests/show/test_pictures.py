"""The arrays of a layer that each picture shows, read back from the Axes."""

from __future__ import annotations

from pathlib import Path

import encoders
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from reference_files import BY_NAME

import minibert
from minibert.cli import main
from minibert.equations.similarity import cosine_similarity
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.patching import patching_map
from minibert.show import plot
from minibert.show.attention import PARTS, shares_of, terms_of
from minibert.show.pictures import PICTURES, picture, position_table

WORDS, BYTES = " ".join(f"w{i}" for i in (5, 9, 7, 3, 5)), "he was here"


@pytest.fixture
def layer(request: pytest.FixtureRequest, tmp_path: Path) -> EmbeddingLayer:
    """The tiny checkpoint of the case named by the parameter, with a tokenizer for w0, w1, ..."""
    return BY_NAME[request.param].with_words(tmp_path)


@pytest.mark.parametrize(
    ("layer", "first"),
    [("bert", 0), ("roberta", 2), ("opt", 2), ("gpt2", 0), ("marian-encoder", 0), ("mpnet", 2)],
    indirect=["layer"],
)
def test_the_position_table_begins_where_texts_do(layer: EmbeddingLayer, first: int) -> None:
    """Its row 0 is added to the first token of a text."""
    table = position_table(layer)
    trace = layer.trace([[5, 9, 7]])
    received = next(rows for name, rows in trace.items() if "position" in name or "wpe" in name if rows.ndim == 3)
    assert np.array_equal(table[:3], received[0])
    assert len(table) == layer.max_length


def test_rows_lie_over_the_first_word_and_table_and_similarity_are_of_the_positions(minilm: Path) -> None:
    layer = minibert.load(minilm)
    table = layer.position_embeddings.weight
    drawn = picture("rows", layer, "dog bites man").axes[0].lines
    word = layer.word_embeddings(layer.tokenize("dog")["input_ids"][0, 1])
    assert len(drawn) == 2 and "dog" in drawn[0].get_label() and "position 0" in drawn[1].get_label()
    assert np.array_equal(drawn[0].get_ydata(), word) and np.array_equal(drawn[1].get_ydata(), table[0])
    for kind, values in (("table", table), ("similarity", cosine_similarity(table))):
        (image,) = picture(kind, layer).axes[0].images
        assert np.array_equal(np.asarray(image.get_array()), values)


@pytest.mark.parametrize("kind", ["rows", "sum"])
def test_another_token_of_the_text(kind: str, minilm: Path) -> None:
    layer = minibert.load(minilm)
    text = "dog bites man"
    third, first, last = (picture(kind, layer, text, token) for token in (3, None, 4))
    for figure, expected in ((third, "man"), (first, "dog"), (last, "[SEP]")):
        assert expected in (figure.axes[0].get_title(loc="left") or figure.axes[0].lines[0].get_label())


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


@pytest.mark.parametrize(("layer", "names"), ADDENDS.items(), ids=list(ADDENDS), indirect=["layer"])
def test_the_addends_drawn_are_those_of_the_sum(
    layer: EmbeddingLayer, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = {}

    def sum_steps(addends: dict[str, np.ndarray], normed: np.ndarray | None) -> plt.Axes:
        drawn.update(addends, normed=normed)
        return Figure().subplots()

    monkeypatch.setattr(plot, "sum_steps", sum_steps)
    picture("sum", layer, WORDS)
    normed = drawn.pop("normed")
    trace = layer.trace(**layer.tokenize(WORDS))
    assert list(drawn) == names
    np.testing.assert_allclose(np.sum(list(drawn.values()), axis=0), trace["sum"][0, 0], atol=1e-7)  # 6e-8 measured
    norms = [rows for name, rows in trace.items() if "orm" in name]
    assert (normed is None) == (norms == [])
    if normed is not None:
        assert np.array_equal(normed, norms[0][0, 0])


@pytest.mark.parametrize("layer", ["opt-project"], indirect=True)
def test_rows_of_another_width_than_the_words_are_not_drawn_over_them(layer: EmbeddingLayer) -> None:
    with pytest.raises(ValueError):
        picture("rows", layer, "w5")


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


def test_gpt2_s_triangle_shows_and_one_of_block_and_head_means_0_for_the_other(gpt2: Encoder) -> None:
    batch = gpt2.tokenize(BYTES)
    trace = gpt2.trace(**batch)
    ax = picture("attention", gpt2, BYTES, block=1, head=2).axes[0]
    image, seq = drawn(ax), trace["attentions.1"].shape[-1]
    assert np.array_equal(image.mask, ~np.tri(seq, dtype=bool))
    assert np.array_equal(image.filled(0), trace["attentions.1"][0, 2])
    assert [label.get_text() for label in ax.get_xticklabels()] == gpt2.tokens(batch["input_ids"][0])
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
    lines = [label.get_text() for label in ax.get_yticklabels()]
    assert lines == [f"{query} with {key}" for query in PARTS for key in PARTS]
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written == {(h, i): str(round(share)) for (i, h), share in np.ndenumerate(shares.reshape(9, -1))}


def test_plot_attention_writes_a_picture(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "attention.svg"
    command = ["plot", "attention", "--model", str(folder), "--text", BYTES, "-o", str(path)]
    assert main(command) == 0
    assert "--block N --head N draws one head with" in capsys.readouterr().err
    whole = path.read_bytes()
    assert main([*command, "--block", "1", "--head", "2"]) == 0
    assert b"<svg" in whole and path.read_bytes() != whole
    assert "block 1, head 2" not in capsys.readouterr().err, "both were asked for"
    assert main([*command, "--block", "1"]) == 0
    assert "this is block 1, head 0; --block and --head choose another" in capsys.readouterr().err


def test_plot_patching_draws_the_map(tmp_path: Path) -> None:
    study = Path(__file__).parents[2] / "scripts" / "study"
    for name, *texts in (("bert-words", "questi[MASK]n", "questa[MASK]n"), ("gpt2-words", "wonderfu", "wonderou")):
        encoder = minibert.load_encoder(study / name)
        found, figure = patching_map(encoder, *texts), picture("patching", encoder, texts[0], other=texts[1])
        ax = figure.axes[0]
        assert np.array_equal(drawn(ax), found.shares) and ax.images[0].get_clim() == (-1, 1)
        written = [float(text.get_text()) for text in ax.texts]
        assert written == found.shares.round(2).ravel().tolist()
        names = [encoder.tokens(ids) for ids in found.ids]
        labels = [label.get_text() for label in ax.get_xticklabels()]
        assert labels == [one if one == two else f"{one} | {two}" for one, two in zip(*names, strict=True)]
        rows, blocks = [label.get_text() for label in ax.get_yticklabels()], len(encoder.stack.blocks)
        assert rows == [*(f"before block {i}" for i in range(blocks)), "after the last"]
        assert ax.images[0].colorbar.ax.get_ylabel() == "share of the prediction restored"
        title = f"at token {found.token}: probability {np.exp(found.clean):.3g}, in the other text "
        assert title in ax.get_title("left") and encoder.tokens([found.label])[0] in ax.get_title("left")
    command = ["plot", "patching", "-m", str(study / "gpt2-words"), "--text", "wonderfu"]
    path = tmp_path / "patching.svg"
    assert main([*command, "--other", "wonderou", "-o", str(path)]) == 0 and b"<svg" in path.read_bytes()


def test_plot_pairs_draws_the_sum(minilm: Path, tmp_path: Path) -> None:
    text, other = "Rates rise.", "Loans cost more money."
    encoder = minibert.load_encoder(minilm)
    split, figure = encoder.similarity_pairs(text, other), picture("pairs", encoder, text, other=other)
    ax = figure.axes[0]
    # each encodes the texts, and with some kernels a text's last bits depend on BLAS's threads: 2e-8 measured
    np.testing.assert_allclose(drawn(ax), split.pairs, rtol=0, atol=1e-6)
    assert [label.get_text() for label in ax.get_yticklabels()] == split.tokens
    assert [label.get_text() for label in ax.get_xticklabels()] == split.others
    assert figure.get_supxlabel() == f"cosine {split.pairs.sum():.4f}, the sum over all pairs"
    command = ["plot", "pairs", "-m", str(minilm), "--text", text, "-o", str(tmp_path / "pairs.png")]
    assert main([*command, "--other", other]) == 0 and (tmp_path / "pairs.png").stat().st_size > 5000
