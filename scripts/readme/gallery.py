"""Draw the README's four pictures into scripts/readme/gallery/, small enough to be kept with the sources.

    python scripts/readme/gallery.py [--model ./all-MiniLM-L6-v2] [--output FOLDER]

Three show all-MiniLM-L6-v2's tables (the model that scripts/demo fetches), one a formula alone.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

import minibert
from minibert.show import plot
from minibert.show.pictures import picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 60_000  # bytes of a picture
WIDTH = 900  # pixels; the README shows two side by side
WORDS = "one two four eight thousand dog cat mouse bird fish paris london berlin tokyo vienna"


def steps(layer: minibert.EmbeddingLayer) -> Figure:
    """How the vector of one token comes about."""
    figure = picture("sum", layer, "clouds above us")
    figure.set_size_inches(9, 5)
    return figure


def similarity(layer: minibert.EmbeddingLayer) -> Figure:
    """Which learned positions resemble each other; a part, so that each pair is a few pixels."""
    from minibert.show import analysis

    table = layer.position_embeddings.weight[:128]
    ax = plot.similarity_matrix(analysis.cosine_similarity(table))
    ax.set_title("learned positions 0 to 127", loc="left")
    ax.figure.set_size_inches(9, 7)
    return ax.figure


def sinusoids(layer: minibert.EmbeddingLayer) -> Figure:
    """The position table that needs no training."""
    ax = plot.table_image(minibert.sinusoidal_positions(128, 128))
    ax.set_title("sinusoidal positions, 128 x 128", loc="left")
    ax.figure.set_size_inches(9, 7)
    return ax.figure


def tokens(layer: minibert.EmbeddingLayer) -> Figure:
    """A map of the word rows of some words, before any context."""
    from minibert.show import analysis

    ids = [layer.tokenize(word)["input_ids"][0, 1] for word in WORDS.split()]
    found = analysis.principal_components(layer.word_embeddings(ids))
    ax = plot.token_map(found.coordinates, layer.tokens(ids), shares=found.shares.tolist())
    ax.set_title("word rows without context", loc="left")
    ax.figure.set_size_inches(9, 7)
    return ax.figure


PICTURES: tuple[Callable[[minibert.EmbeddingLayer], Figure], ...] = (steps, similarity, sinusoids, tokens)


def write(figure: Figure, path: Path) -> int:
    """Write a figure as a PNG with a palette; the number of its bytes."""
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, dpi=WIDTH / figure.get_figwidth())
    # 256 colours are as many as the colour map has, and take a third of the bytes
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    return path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description="draw the README's pictures")
    parser.add_argument("--model", default=os.environ.get("MINIBERT_MODEL"), help="a folder of all-MiniLM-L6-v2")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent / "gallery", metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.model is None:
        parser.error("name the folder of all-MiniLM-L6-v2 with --model or MINIBERT_MODEL; scripts/demo prints it")
    mpl.use("agg")
    arguments.output.mkdir(parents=True, exist_ok=True)
    with minibert.load(arguments.model) as layer:
        for draw in PICTURES:
            path = arguments.output / f"{draw.__name__}.png"
            size = write(draw(layer), path)
            print(f"{path}  {size / 1000:.0f} kB")
            if size > LARGEST:
                raise SystemExit(f"{path.name} is larger than {LARGEST / 1000:.0f} kB; draw less of it")


if __name__ == "__main__":
    main()
