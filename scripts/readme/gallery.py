"""Draw the README's picture, scripts/readme/gallery/page.png: the page of one sentence, in a small file.

    MINIBERT_MODEL=folder python scripts/readme/gallery.py

Chromium draws the page of `minibert explain --html`: this needs the extra `browser`, and chromium on the path.
"""

from __future__ import annotations

import os
import shutil
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import minibert
from minibert.show.page import page

PICTURE, LARGEST = Path(__file__).with_name("gallery") / "page.png", 100_000  # bytes
SENTENCE = "The bank of the river was muddy."
BLOCK, HEAD, BANK, RIVER, TOKENS = "0", "4", 2, 5, 10  # README's example prints this weight


def draw(model: str) -> Image.Image:
    """Draw the sentence and, below it, the attention weights of one head."""
    with minibert.load_encoder(model) as encoder:
        html = page(encoder, SENTENCE)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = chromium.new_page(color_scheme="light", viewport={"width": 1000, "height": 2000})
        tab.set_content(html)
        tab.locator(f"fieldset input[value='{BANK}']").check(force=True)
        # README's text replaces the page's text
        hidden = "header > :not(h1), fieldset, section:not(#attended), #attended > p:not(:has(select)), #celled, #takes"
        tab.add_style_tag(content=hidden + " { display: none !important }")
        tab.locator("#block").select_option(BLOCK)
        tab.locator("#head").select_option(HEAD)
        grid = tab.locator("#weights").bounding_box()
        assert grid
        x, y = ((place + 0.5) / TOKENS for place in (RIVER, BANK))
        tab.locator("#weights").click(position={"x": grid["width"] * x, "y": grid["height"] * y})
        tab.evaluate("scrollTo(0, 0)")
        attended = tab.locator("#attended").bounding_box()
        drawn = Image.open(BytesIO(tab.screenshot())).convert("RGB")
        chromium.close()
    assert attended
    return drawn.crop((0, 0, drawn.width, int(attended["y"] + attended["height"])))


if __name__ == "__main__":
    # a palette: the colour map has 256 colours, and they need a third of the bytes
    draw(os.environ["MINIBERT_MODEL"]).quantize(256, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    if (size := PICTURE.stat().st_size) > LARGEST:
        raise SystemExit(f"{PICTURE} has {size:,} bytes, more than {LARGEST:,}; draw less of it")
