"""Opens a page in headless Chromium, in both colour schemes; what it says, asks of a network or throws is a failure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import encoders
import numpy as np
import pytest

import minibert
from minibert.equations.input_layer import Array
from minibert.show.page import page

ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
CONTRAST = 4.5  # the least that WCAG 2.2 asks of text (AA)
PATIENCE = 300_000  # ms for what a page shows at once, on a machine that is busy with other things
SENTENCE = "The bank of the river was muddy"

Open = Callable[..., Any]

# of a text's colour and what lies behind it, by WCAG's definition; and the element
LOWEST_CONTRAST = """() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = numbers(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  let worst = [21, ""];
  for (const element of document.querySelectorAll("body *")) {
    const words = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!words || !element.getClientRects().length || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    const style = getComputedStyle(element), front = element.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(numbers(front)), light(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < worst[0]) worst = [contrast, element.outerHTML.slice(0, 80)];
  }
  return worst;
}"""


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    # a Chromium that is told to end may leave a file of its own in the folder of temporary files; the path is short,
    # since that of a socket may have 107 bytes
    folder = TemporaryDirectory(dir=tmp_path_factory.getbasetemp().parent, ignore_cleanup_errors=True)
    with folder as own, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(ARGUMENTS), env={**os.environ, "TMPDIR": own}
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def real(minilm: Path) -> Iterator[tuple[Any, str]]:
    """The real model with its blocks, and its page of `SENTENCE`."""
    with closing(encoders.computed_once(minibert.load_encoder(minilm))) as encoder:
        yield encoder, page(encoder, SENTENCE)


@pytest.fixture(params=["light", "dark"])
def opened(request: pytest.FixtureRequest, browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a page in one colour scheme; in the end it has to fit, to be readable, and to have complained of nothing."""
    complaints: list[str] = []
    tabs = []

    def open_page(html: str, width: int = 1100, **options: Any) -> Any:
        (tmp_path / "page.html").write_text(html, encoding="utf-8", newline="")
        size = {"width": width, "height": 800}
        context = patient(browser, color_scheme=request.param, viewport=size, offline=True, **options)
        tabs.append(went(context, (tmp_path / "page.html").as_uri(), complaints, "file:"))
        return tabs[-1]

    yield open_page
    for tab in tabs:
        fits_and_is_readable(tab)
        tab.context.close()
    assert complaints == []


@pytest.fixture
def shown(opened: Open, real: tuple[Any, str]) -> tuple[Any, Any]:
    """The real model, and its page in a tab."""
    return real[0], opened(real[1])


def patient(browser: Any, **options: Any) -> Any:
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    return context


def went(context: Any, address: str, complaints: list[str], *own: str) -> Any:
    """Open an address in a new tab and note what the page says, throws, or asks of addresses that are not its own."""
    tab = context.new_page()
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: (complaints.append("dialog"), dialog.dismiss()))
    tab.on("request", lambda asked: asked.url.startswith((*own, "data:", "blob:")) or complaints.append(asked.url))
    tab.goto(address)
    return tab


def fits_and_is_readable(tab: Any) -> None:
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") == 0, "wider than the window"
    contrast, element = tab.evaluate(LOWEST_CONTRAST)
    assert contrast >= CONTRAST, element


def choose(tab: Any, token: int) -> None:
    tab.locator(f"fieldset input[value='{token}']").check(force=True)


def chosen(tab: Any) -> int:
    return int(tab.locator("fieldset input:checked").get_attribute("value"))


def numbers(tab: Any, selector: str) -> Array:
    return np.array([float(text) for text in tab.locator(selector).all_inner_texts()])


def rows(tab: Any, table: str) -> list[list[str]]:
    """The texts of each line of a table's body."""
    return [line.locator("th, td").all_inner_texts() for line in tab.locator(f"{table} tbody tr").all()]


def middle(tab: Any, selector: str, i: int, j: int, size: tuple[int, int] = (9, 9)) -> tuple[float, float]:
    """Where the middle of a cell of a grid of rows and columns is in the window."""
    square = tab.locator(selector)
    square.evaluate("element => element.scrollIntoView({block: 'end'})")
    box = square.bounding_box()
    return box["x"] + box["width"] * (j + 0.5) / size[1], box["y"] + box["height"] * (i + 0.5) / size[0]
