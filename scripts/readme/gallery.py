"""Draw the README's pictures into scripts/readme/gallery/, small enough to be kept with the sources.

    python scripts/readme/gallery.py [--model ./all-MiniLM-L6-v2] [--output FOLDER]

Two show all-MiniLM-L6-v2's tables (the model that scripts/demo fetches), one a formula alone, and one the page of
`minibert explain --html` in Chromium: that needs the extra `browser`, and chromium on the path.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

import minibert
from minibert.equations.similarity import cosine_similarity
from minibert.show import plot
from minibert.show.page.page import page
from minibert.show.pictures import picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 60_000  # bytes of a picture
LARGEST_PAGE = 200_000  # bytes of the page's
SENTENCE = "The bank of the river was muddy after the rain"
WIDTH = 900  # pixels; the README shows two side by side


def steps(layer: minibert.EmbeddingLayer) -> Figure:
    """How the vector of one token is computed."""
    figure = picture("sum", layer, "clouds above us")
    figure.set_size_inches(9, 5)
    return figure


def similarity(layer: minibert.EmbeddingLayer) -> Figure:
    """Which learned positions resemble each other; a part, so that each pair is a few pixels."""
    table = layer.position_embeddings.weight[:128]
    ax = plot.similarity_matrix(cosine_similarity(table))
    ax.set_title("learned positions 0 to 127", loc="left")
    ax.figure.set_size_inches(9, 7)
    return ax.figure


def sinusoids(layer: minibert.EmbeddingLayer) -> Figure:
    """The position table that needs no training."""
    ax = plot.table_image(minibert.sinusoidal_positions(128, 128))
    ax.set_title("sinusoidal positions, 128 x 128", loc="left")
    ax.figure.set_size_inches(9, 7)
    return ax.figure


PICTURES: tuple[Callable[[minibert.EmbeddingLayer], Figure], ...] = (steps, similarity, sinusoids)


def write(figure: Figure, path: Path) -> None:
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, dpi=WIDTH / figure.get_figwidth())
    write_image(Image.open(drawn).convert("RGB"), path, LARGEST)


def write_image(image: Any, path: Path, largest: int) -> None:
    """Write a PNG with a palette: 256 colours are as many as the colour map has, and take a third of the bytes."""
    from PIL import Image

    image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path}  {size / 1000:.0f} kB")
    if size > largest:
        raise SystemExit(f"{path.name} is larger than {largest / 1000:.0f} kB; draw less of it")


def write_page(model: str, path: Path) -> None:
    """Write both parts of the page of one sentence, one below the other."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with minibert.load_encoder(model) as encoder:
        html = page(encoder, SENTENCE)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = chromium.new_page(color_scheme="light", viewport={"width": 1000, "height": 800})
        tab.set_content(html)
        # what sticks to the window's top would cover the second part; its table is of the same numbers as its lines
        tab.add_style_tag(content="fieldset { position: static !important } #takes { display: none }")
        tab.locator("fieldset input[value='2']").check(force=True)
        tab.locator("#block").select_option("2")
        tab.locator("#head").select_option("8")
        boxes = [tab.locator(part).bounding_box() for part in ("#groups", "#attended")]
        first, second = (box["y"] + box["height"] for box in boxes)
        drawn = Image.open(BytesIO(tab.screenshot(full_page=True))).convert("RGB")
        chromium.close()
    parts = [drawn.crop((0, 0, drawn.width, int(first) + 16)),
             drawn.crop((0, int(boxes[1]["y"]), drawn.width, int(second)))]  # fmt: skip
    joined = Image.new("RGB", (drawn.width, sum(part.height for part in parts)), "white")
    joined.paste(parts[0], (0, 0))
    joined.paste(parts[1], (0, parts[0].height))
    write_image(joined, path, LARGEST_PAGE)


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
            write(draw(layer), arguments.output / f"{draw.__name__}.png")
    write_page(arguments.model, arguments.output / "page.png")


if __name__ == "__main__":
    main()
