"""Cells of the page in headless Chromium, by touch and keyboard; what a weight is made of; outliers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from checkpoints import write_wordpiece
from in_browser import SENTENCE, Open

import minibert
from minibert.models.encoder import Encoder
from minibert.show.page.page import page

pytestmark = pytest.mark.browser

LONG = (
    "The river was muddy after the rain, and all who came there had to walk on planks that somebody had laid out. " * 2
)


def tap(tab: Any, selector: str, i: int, j: int, count: int = 9) -> None:
    """Tap the middle of a cell of a square."""
    square = tab.locator(selector)
    square.evaluate("element => element.scrollIntoView({block: 'end'})")
    box = square.bounding_box()
    tab.touchscreen.tap(box["x"] + box["width"] * (j + 0.5) / count, box["y"] + box["height"] * (i + 0.5) / count)


def chosen(tab: Any) -> str:
    return str(tab.locator("fieldset input:checked").get_attribute("value"))


def test_a_tapped_cell_shows_its_own_weight(opened: Open, real: tuple[Encoder, str]) -> None:
    encoder, html = real
    tab = opened(html, has_touch=True)
    tab.locator("#block").select_option("1")
    tab.locator("#head").select_option("4")
    weights = encoder.trace(**encoder.tokenize(SENTENCE))["attentions.1"][0, 4]
    for i, j in ((7, 5), (2, 6), (2, 1)):  # of another row, of this one; not the largest of any
        tap(tab, "#weights", i, j)
        text, _, number = tab.locator("#lookwork").inner_text().rpartition(" ")
        names = [tab.locator("#takes tbody th").nth(place).inner_text() for place in (i, j)]
        assert text == f"block 1, head 4: {names[0]} gives {names[1]} the weight"
        assert float(number) == pytest.approx(weights[i, j], rel=1e-5) and weights[i, j] < weights[i].max()
        assert chosen(tab) == str(i) and tab.locator("#takes tr.chosen th").inner_text() == names[1]
    tab.locator(".lines rect[data-from='8']").tap()
    assert "bank gives [SEP] the weight" in tab.locator("#lookwork").inner_text()
    tab.locator(".square .above bdi").nth(3).tap()
    assert "bank gives of the weight" in tab.locator("#lookwork").inner_text()
    tab.locator(".square .beside bdi").nth(7).tap()
    assert chosen(tab) == "7"
    tap(tab, "#cosines", 1, 6)
    assert tab.locator("#pairwork").inner_text().startswith("positions 1 (the) and 6 (was): ")
    assert chosen(tab) == "1"


def test_the_arrow_keys_move_from_cell_to_cell(opened: Open, real: tuple[Encoder, str]) -> None:
    tab = opened(real[1])
    tab.locator("#weights").focus()
    tab.locator("#lookwork").scroll_into_view_if_needed()
    first = tab.locator("#takes tr.chosen").evaluate("line => [...line.parentElement.children].indexOf(line)")
    for key in ("ArrowDown", "ArrowRight"):
        tab.keyboard.press(key)
    most = int(real[0].trace(**real[0].tokenize(SENTENCE))["attentions.0"][0].mean(axis=0)[1].argmax())
    assert first == most and chosen(tab) == "2"
    at = tab.locator("#takes tr.chosen").evaluate("line => [...line.parentElement.children].indexOf(line)")
    assert at == most + 1
    tab.locator(".lines").focus()
    tab.keyboard.press("ArrowDown")
    assert tab.locator("#takes tr.chosen").evaluate("line => [...line.parentElement.children].indexOf(line)") == at + 1
    tab.locator("#cosines").focus()
    tab.keyboard.press("ArrowRight")
    assert tab.locator("#pairwork").inner_text().startswith("positions 2 (bank) and 3 (of): ")


@pytest.mark.parametrize("name", ["bert", "gpt2", "mpnet", "umt5", "qwen3", "mistral"])
def test_a_weight_is_made_of_query_key_scale_and_score(name: str, opened: Open, tmp_path: Path) -> None:
    if name == "gpt2":
        folder = encoders.write_gpt2(tmp_path)
    else:
        folder = write_wordpiece(encoders.write(tmp_path, name))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', "utf-8")
    encoder = encoders.computed_once(minibert.load_encoder(folder))
    tab = opened(page(encoder, "we lived above"))
    batch = encoder.tokenize("we lived above")
    trace, last = encoder.trace(**batch), batch["input_ids"].shape[1] - 1
    own, block = encoder.stack.blocks[1].attention, 1
    tab.locator(f"fieldset input[value='{last}']").check(force=True)
    tab.locator("#block").select_option(str(block))
    tab.locator("#head").select_option("3")
    score = trace[own.scores][0, 3, last]
    bias = sum(term.shared(last + 1)[3, last] for term in own.terms)
    products = (score - bias) / own.scale
    for key in (last, last - 1):
        tab.locator(f".lines rect[data-from='{key}']").click()
        parts = (tab.locator(f"#celled {tag}").all_inner_texts() for tag in ("dt", "dd"))
        said = dict(zip(*parts, strict=True))
        assert float(said["score"].split()[0]) == pytest.approx(score[key], abs=1e-4)
        assert float(said["q · k"].split(",")[0]) == pytest.approx(products[key], abs=3e-4)
        assert float(said["scale"].split()[0]) == pytest.approx(own.scale, rel=1e-5)
        assert float(said["weight"].split()[0]) == pytest.approx(trace["attentions.1"][0, 3, last, key], rel=1e-5)
        assert ("bias" in said) == (name in ("mpnet", "umt5")) and ("rotated" in said["q · k"]) == own.rotated
    if encoder.stack.causal:
        tab.locator("fieldset input[value='1']").check(force=True)
        tab.locator(f".lines rect[data-from='{last}']").click()
        assert tab.locator("#celled dd").inner_text() == "0, because of the mask"
    tab.locator("#head").select_option("mean")
    assert "the mean of 4 heads" in tab.locator("#celled").inner_text()


def test_nothing_is_wider_than_a_small_telephone(opened: Open, real: tuple[Encoder, str]) -> None:
    text = f"{LONG} pneumonoultramicroscopicsilicovolcanoconiosis {'x' * 90}"
    for html in (real[1], page(real[0], text, name="a-name/" + "of-a-model" * 8)):
        tab = opened(html, width=320)
        assert tab.evaluate("document.documentElement.scrollWidth") == 320


def test_more_than_forty_tokens_have_names_with_room(opened: Open, real: tuple[Encoder, str]) -> None:
    encoder, _ = real
    tab, tokens = opened(page(encoder, LONG)), encoder.tokens(encoder.tokenize(LONG)["input_ids"][0])
    assert len(tokens) > 40
    for side in ("above", "beside"):
        assert tab.locator(f".square .{side} bdi").all_inner_texts() == tokens
    names, grid = tab.locator(".square .beside bdi"), tab.locator("#weights").bounding_box()
    boxes = [names.nth(i).bounding_box() for i in (0, len(tokens) - 1)]
    assert min(box["height"] for box in boxes) >= 12
    assert boxes[0]["y"] == pytest.approx(grid["y"], abs=3)
    assert boxes[1]["y"] + boxes[1]["height"] == pytest.approx(grid["y"] + grid["height"], abs=3)


def test_what_is_beyond_a_scale_is_named(opened: Open, real: tuple[Encoder, str]) -> None:
    """MiniLM's sum has dimensions far from all others: legend and histogram name them, and are not stretched."""
    encoder, html = real
    tab = opened(html)
    row = encoder.trace(**encoder.tokenize(SENTENCE))["sum"][0, 1]
    farthest = int(np.abs(row).argmax())
    legend, before = tab.locator("#groups .clipped").first, tab.locator(".hills p").first
    assert f"dimension {farthest} of sum ({row[farthest]:.3g}" in legend.inner_text()
    assert f"farthest: dimension {farthest} ({row[farthest]:.3g})" in before.inner_text()
    ends = [float(text) for text in tab.locator(".hills .ends").first.locator("span").all_inner_texts()]
    assert ends[0] == -ends[2] and 3 * ends[2] < abs(row[farthest])
    count = int(before.inner_text().split()[0])
    assert abs(count - np.count_nonzero(np.abs(row) > ends[2])) <= 1, "two digits of the axis are printed"
    heights = tab.locator(".hills path").first.evaluate("path => path.getBBox().width")
    assert heights > 500, "the histogram fills its axis"


def test_a_page_opens_with_a_token_of_the_text(opened: Open, real: tuple[Encoder, str]) -> None:
    encoder, html = real
    assert chosen(opened(html)) == "1"
    assert chosen(opened(page(encoder, "the [MASK] was muddy"))) == "2", "what is to be found"
