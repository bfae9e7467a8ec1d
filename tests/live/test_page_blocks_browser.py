"""The page's second part in headless Chromium: block, head and token by mouse and keyboard, and the weights shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from in_browser import CONTRAST, SENTENCE, Open, lowest_contrast

import minibert
from minibert.equations.input_layer import Array
from minibert.models.encoder import Encoder
from minibert.show.page.page import page

pytestmark = pytest.mark.browser

TOKENS = ["[CLS]", "the", "bank", "of", "the", "river", "was", "muddy", "[SEP]"]


def probabilities(encoder: Encoder, block: int, head: int | None, text: str = SENTENCE) -> Array:
    """What the trace has: one head's, or the mean of all."""
    of_block = encoder.trace(**encoder.tokenize(text))[f"attentions.{block}"][0].astype(np.float64)
    return of_block.mean(axis=0) if head is None else of_block[head]


def choose(tab: Any, token: int, block: int, head: str) -> None:
    tab.locator(f"fieldset input[value='{token}']").check(force=True)
    tab.locator("#block").select_option(str(block))
    tab.locator("#head").select_option(head)


def said(tab: Any) -> tuple[str, float]:
    """A sentence without its number, and that: JavaScript and Python may write it with other powers of ten."""
    text, _, number = tab.locator("#lookwork").inner_text().rpartition(" ")
    return text, float(number)


def sentence(where: str, weight: float, query: str, key: str) -> tuple[str, float]:
    return f"{where}: {query} gives {key} the weight", float(f"{weight:.6g}")


def pixels(tab: Any, count: int) -> Array:
    """The colour in the middle of each cell of the grid: (takers, givers, 4)."""
    drawn = tab.locator("#weights").evaluate("c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]")
    side = int((len(drawn) / 4) ** 0.5) // count
    grid = np.array(drawn).reshape(count * side, count * side, 4)
    return grid[side // 2 :: side, side // 2 :: side]


def table(tab: Any) -> list[float]:
    return [float(text) for text in tab.locator("#takes td:nth-child(2)").all_inner_texts()]


def test_every_block_and_head_shows_the_trace(opened: Open, real: tuple[Encoder, str]) -> None:
    encoder, html = real
    tab = opened(html)
    for token, block, head in ((0, 0, "mean"), (2, 3, "mean"), (5, 0, "0"), (8, 5, "11"), (2, 2, "7")):
        choose(tab, token, block, head)
        weights = probabilities(encoder, block, None if head == "mean" else int(head))
        assert np.abs(np.array(table(tab)) - weights[token]).max() <= 0.5e-4 + 1e-9, "four decimals"
        most = int(weights[token].argmax())
        where = f"block {block}, " + ("mean of heads" if head == "mean" else f"head {head}")
        assert said(tab) == sentence(where, weights[token, most], TOKENS[token], TOKENS[most])
        assert tab.locator("#takes tr.chosen th").inner_text() == TOKENS[most]


def test_pointing_at_the_grid_and_the_lines_tells_the_share(opened: Open, real: tuple[Encoder, str]) -> None:
    encoder, html = real
    tab = opened(html)
    choose(tab, 2, 1, "4")
    weights = probabilities(encoder, 1, 4)
    tab.locator(".looks").evaluate("element => element.scrollIntoView({block: 'end'})")
    box = tab.locator("#weights").bounding_box()
    for i, j in ((7, 5), (8, 0), (6, 8)):
        tab.mouse.move(box["x"] + box["width"] * (j + 0.5) / 9, box["y"] + box["height"] * (i + 0.5) / 9)
        assert said(tab) == sentence("block 1, head 4", weights[i, j], TOKENS[i], TOKENS[j])
    tab.locator(".lines rect[data-from='6']").hover()
    assert said(tab) == sentence("block 1, head 4", weights[2, 6], "bank", "was")


def test_a_click_chooses_the_token(opened: Open, real: tuple[Encoder, str]) -> None:
    tab = opened(real[1])
    tab.locator(".looks").evaluate("element => element.scrollIntoView({block: 'end'})")
    box = tab.locator("#weights").bounding_box()
    tab.mouse.click(box["x"] + 5, box["y"] + box["height"] * 7.5 / 9)
    assert tab.locator("fieldset input:checked").get_attribute("value") == "7"
    tab.locator(".lines rect[data-taker='5']").click()
    assert tab.locator("fieldset input:checked").get_attribute("value") == "5"
    assert "river gives" in said(tab)[0]


def test_block_and_head_are_chosen_by_keyboard(opened: Open, real: tuple[Encoder, str]) -> None:
    encoder, html = real
    tab = opened(html)
    tab.locator("#block").focus()
    for key in ("ArrowDown", "ArrowDown", "Tab", "ArrowDown"):
        tab.keyboard.press(key)
    assert said(tab)[0].startswith("block 2, head 0: the gives ")
    assert np.abs(np.array(table(tab)) - probabilities(encoder, 2, 0)[1]).max() <= 0.5e-4 + 1e-9
    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus can be seen"


def test_lines_are_as_wide_as_the_weights(opened: Open, real: tuple[Encoder, str]) -> None:
    encoder, html = real
    tab = opened(html)
    choose(tab, 2, 2, "7")
    widths = [float(line.get_attribute("stroke-width")) for line in tab.locator(".lines line").all()]
    assert np.abs(np.array(widths) - np.maximum(0.3, 14 * probabilities(encoder, 2, 7)[2])).max() <= 0.005 + 1e-9


def test_colours_of_the_grid_are_the_weights(opened: Open, real: tuple[Encoder, str]) -> None:
    encoder, html = real
    tab = opened(html)
    choose(tab, 8, 0, "3")
    lightness = pixels(tab, 9)[..., :3] @ [0.2126, 0.7152, 0.0722]
    assert lightness.shape == (9, 9)
    lightness = lightness.ravel()
    order = np.argsort(probabilities(encoder, 0, 3).ravel(), kind="stable")
    assert np.all(np.diff(lightness[order]) >= -1.0), "one step of 255 for rounding"
    assert np.ptp(lightness) > 100


def test_the_moves_follow_the_token(opened: Open, real: tuple[Encoder, str]) -> None:
    encoder, html = real
    tab = opened(html)
    choose(tab, 2, 4, "mean")
    trace = encoder.trace(**encoder.tokenize(SENTENCE))
    lines = [row.locator("th, td").all_inner_texts() for row in tab.locator("#moves tbody tr").all()]
    assert [line[0].strip() for line in lines] == ["the input layer", *(f"block {i}" for i in range(6))]
    for i, line in enumerate(lines):
        state = trace[f"hidden_states.{i}"][0]
        assert float(line[1]) == pytest.approx(np.linalg.norm(state[2]), rel=5e-4)
        unit = state / np.linalg.norm(state, axis=1, keepdims=True)
        largest = int(np.abs(state[2]).argmax())
        assert line[5].startswith(f"{largest}: ") and line[5].endswith(f"{100 * unit[2, largest] ** 2:.0f} %")
        nearest = [other for other in np.argsort(-(unit @ unit[2])) if other != 2][:3]
        assert [part.split()[0] for part in line[6].split(", ")] == [TOKENS[other] for other in nearest]
        if i:
            added = trace[f"encoder.layer.{i - 1}.attention.output.dense"][0, 2]
            assert float(line[2]) == pytest.approx(np.linalg.norm(added), rel=5e-4)
            added = trace[f"encoder.layer.{i - 1}.output.dense"][0, 2]
            assert float(line[3]) == pytest.approx(np.linalg.norm(added), rel=5e-4)
    assert tab.locator("#moves tr.chosen th").inner_text() == "block 4"


def test_gpt2_s_triangle_is_blank_above(opened: Open, tmp_path: Path) -> None:
    encoder = minibert.load_encoder(encoders.write_gpt2(tmp_path / "gpt2"))
    tab = opened(page(encoder, "he was"))
    count = len(encoder.tokenize("he was")["input_ids"][0])
    assert count > 2
    assert np.array_equal(pixels(tab, count)[..., 3] > 0, np.tri(count, dtype=bool))
    assert tab.locator(".lines line").count() == count, "it opens with the last token, which sees all"
    tab.locator("fieldset input[value='0']").check(force=True)
    assert tab.locator(".lines line").count() == 1, "the first token sees itself alone"


def test_a_narrow_window_needs_no_scrolling_sideways(opened: Open, real: tuple[Encoder, str]) -> None:
    tab = opened(real[1], width=400)
    assert tab.evaluate("document.documentElement.scrollWidth") == 400
    assert tab.locator("#weights").bounding_box()["width"] > 250
    assert tab.locator(".lines svg").bounding_box()["width"] > 300


def test_text_can_be_read(opened: Open, real: tuple[Encoder, str]) -> None:
    contrast, element = lowest_contrast(opened(real[1]))
    assert contrast >= CONTRAST, element


def test_everything_has_a_name_for_a_screen_reader(opened: Open, real: tuple[Encoder, str]) -> None:
    tab = opened(real[1])
    choose(tab, 2, 3, "5")
    tree = tab.locator("body").aria_snapshot()
    assert 'combobox "Block"' in tree and 'combobox "Head"' in tree
    assert 'img "block 3, head 5: weights of 9 by 9 tokens, up to ' in tree
    assert 'region "Attention weights"' in tree and 'region "How the token\'s vector changes"' in tree
    assert 'rowheader "block 3"' in tree and 'columnheader "attention adds"' in tree


def test_a_long_text_opens(opened: Open, real: tuple[Encoder, str]) -> None:
    tab = opened(page(real[0], "muddy " * 130))
    choose(tab, 131, 5, "11")
    assert tab.locator("#takes tbody tr").count() == 132
    assert sum(table(tab)) == pytest.approx(1, abs=132 * 0.5e-4)


def test_without_javascript_it_is_said_where_the_numbers_are(opened: Open, real: tuple[Encoder, str]) -> None:
    text = opened(real[1], java_script_enabled=False).locator("body").inner_text()
    assert "minibert explain TEXT --block 0" in text and "Attention weights" not in text
