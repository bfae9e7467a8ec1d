"""The page's second part in headless Chromium: blocks, cells, a prediction, two texts; by mouse, touch and keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from in_browser import SENTENCE, Open, choose, chosen, middle, numbers, rows

import minibert
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.models.encoder import Encoder
from minibert.show.page import page
from minibert.show.prediction import logit_shares

pytestmark = pytest.mark.browser

Real = tuple[Encoder, str]
TOKENS = ["[CLS]", "the", "bank", "of", "the", "river", "was", "muddy", "[SEP]"]
FOUR = 0.5e-4 + 1e-7  # four decimals are printed
# the colour in the middle of each cell of a grid: (takers, givers, 4)
COLOURS = """(canvas, count) => {
  const width = canvas.width, { data } = canvas.getContext("2d").getImageData(0, 0, width, width);
  const at = [...Array(count).keys()].map((i) => Math.floor((i + 0.5) * width / count));
  return at.map((y) => at.map((x) => [...data.subarray(4 * (y * width + x)).subarray(0, 4)]));
}"""


def probabilities(encoder: Encoder, block: int, head: int | None, text: str = SENTENCE) -> Array:
    """The trace's weights: one head's, or the mean of all heads."""
    of_block = encoder.trace(**encoder.tokenize(text))[f"attentions.{block}"][0].astype(np.float64)
    return of_block.mean(axis=0) if head is None else of_block[head]


def look_at(tab: Any, block: int, head: int | None) -> None:
    tab.locator("#block").select_option(str(block))
    tab.locator("#head").select_option("mean" if head is None else str(head))


def told(tab: Any, where: str, i: int, j: int, weight: float) -> None:
    """The sentence on one cell. JavaScript and Python may write its number with other powers of ten."""
    text, _, number = tab.locator("#lookwork").inner_text().rpartition(" ")
    assert text == f"{where}: {TOKENS[i]} gives {TOKENS[j]} the weight"
    assert float(number) == float(f"{weight:.6g}")


def test_every_block_and_head_shows_the_trace(shown: tuple[Encoder, Any]) -> None:
    encoder, tab = shown
    for token, block, head in ((0, 0, None), (2, 3, None), (5, 0, 0), (8, 5, 11), (2, 2, 7), (8, 0, 3)):
        choose(tab, token)
        look_at(tab, block, head)
        weights = probabilities(encoder, block, head)
        assert np.abs(numbers(tab, "#takes td:nth-child(2)") - weights[token]).max() <= FOUR
        most = int(weights[token].argmax())
        where = f"block {block}, " + ("mean of heads" if head is None else f"head {head}")
        told(tab, where, token, most, weights[token, most])
        assert tab.locator("#takes tr.chosen th").inner_text() == TOKENS[most]
        widths = [float(line.get_attribute("stroke-width")) for line in tab.locator(".lines line").all()]
        assert np.abs(widths - np.maximum(0.3, 14 * weights[token])).max() <= 0.005 + 1e-9
    lightness = np.array(tab.locator("#weights").evaluate(COLOURS, 9))[..., :3] @ [0.2126, 0.7152, 0.0722]
    order = np.argsort(weights.ravel(), kind="stable")
    assert np.all(np.diff(lightness.ravel()[order]) >= -1.0), "one step of 255 for rounding"
    assert np.ptp(lightness) > 100


def test_the_moves_follow_the_token(shown: tuple[Encoder, Any]) -> None:
    encoder, tab = shown
    choose(tab, 2)
    look_at(tab, 4, None)
    trace = encoder.trace(**encoder.tokenize(SENTENCE))
    for i, line in enumerate(rows(tab, "#moves")):
        assert line[0].strip() == (f"block {i - 1}" if i else "the input layer")
        state = trace[f"hidden_states.{i}"][0]
        unit = state / np.linalg.norm(state, axis=1, keepdims=True)
        largest = int(np.abs(state[2]).argmax())
        assert line[5].startswith(f"{largest}: ") and line[5].endswith(f"{100 * unit[2, largest] ** 2:.0f} %")
        nearest = [other for other in np.argsort(-(unit @ unit[2])) if other != 2][:3]
        assert [part.split()[0] for part in line[6].split(", ")] == [TOKENS[other] for other in nearest]
        added = [trace[f"encoder.layer.{i - 1}.{name}output.dense"][0, 2] for name in ("attention.", "") if i]
        sizes = [np.linalg.norm(vector) for vector in (state[2], *added)]
        assert [float(text) for text in line[1:4] if text] == pytest.approx(sizes, rel=5e-4)
    assert i == 6 and tab.locator("#moves tr.chosen th").inner_text() == "block 4"


def test_it_fits_and_is_heard(opened: Open, real: Real) -> None:
    tab = opened(real[1], width=400)
    assert tab.locator("#weights").bounding_box()["width"] > 250
    assert tab.locator(".lines svg").bounding_box()["width"] > 300
    choose(tab, 2)
    look_at(tab, 3, 5)
    tree = tab.locator("body").aria_snapshot()
    for part in (
        'combobox "Block"', 'combobox "Head"', 'img "block 3, head 5: weights of 9 by 9 tokens, up to ',
        'region "Attention weights"', 'region "How the token\'s vector changes"', 'rowheader "block 3"',
        'columnheader "attention adds"',
    ):  # fmt: skip
        assert part in tree, part


def line_of(tab: Any) -> int:
    """Which line of the table of weights is the chosen one."""
    return int(tab.locator("#takes tr.chosen").evaluate("line => [...line.parentElement.children].indexOf(line)"))


def test_a_cell_is_pointed_at_tapped_and_reached_by_keys(opened: Open, real: Real) -> None:
    encoder, html = real
    tab, where = opened(html, has_touch=True), "block 1, head 4"
    look_at(tab, 1, 4)
    choose(tab, 2)
    weights = probabilities(encoder, 1, 4)
    for i, j in ((7, 5), (8, 0), (6, 8)):
        tab.mouse.move(*middle(tab, "#weights", i, j))
        told(tab, where, i, j, weights[i, j])
    tab.locator(".lines rect[data-from='6']").hover()
    told(tab, where, 2, 6, weights[2, 6])
    for i, j in ((7, 5), (2, 6), (2, 1)):  # of another row, of this one; not the largest of any
        tab.touchscreen.tap(*middle(tab, "#weights", i, j))
        told(tab, where, i, j, weights[i, j])
        assert weights[i, j] < weights[i].max() and (chosen(tab), line_of(tab)) == (i, j)
    tab.locator(".lines rect[data-from='8']").tap()
    told(tab, where, 2, 8, weights[2, 8])
    tab.locator("#attended .square .above bdi").nth(3).tap()
    told(tab, where, 2, 3, weights[2, 3])
    tab.locator("#attended .square .beside bdi").nth(7).tap()
    assert chosen(tab) == 7
    tab.touchscreen.tap(*middle(tab, "#cosines", 1, 6))
    assert tab.locator("#pairwork").inner_text().startswith("positions 1 (the) and 6 (was): ") and chosen(tab) == 1
    tab.locator("#weights").focus()
    assert line_of(tab) == (most := int(weights[1].argmax()))
    for key in ("ArrowDown", "ArrowRight"):
        tab.keyboard.press(key)
    assert (chosen(tab), line_of(tab)) == (2, most + 1)
    tab.locator(".lines").focus()
    tab.keyboard.press("ArrowDown")
    assert line_of(tab) == most + 2
    tab.locator("#cosines").focus()
    tab.keyboard.press("ArrowRight")
    assert tab.locator("#pairwork").inner_text().startswith("positions 2 (bank) and 3 (of): ")


@pytest.mark.parametrize("name", ["bert", "gpt2", "mpnet", "umt5", "qwen3", "mistral"])
def test_a_weight_is_made_of_query_key_scale_and_score(name: str, opened: Open, tmp_path: Path) -> None:
    encoder = encoders.computed_once(minibert.load_encoder(encoders.write_with_words(tmp_path, name)))
    tab = opened(page(encoder, "we lived above"))
    batch = encoder.tokenize("we lived above")
    trace, last = encoder.trace(**batch), batch["input_ids"].shape[1] - 1
    own = encoder.stack.blocks[1].attention
    assert chosen(tab) == last or not encoder.stack.causal, "it opens with the last token, which sees all"
    choose(tab, last)
    look_at(tab, 1, 3)
    weights, colours = trace["attentions.1"][0, 3], np.array(tab.locator("#weights").evaluate(COLOURS, last + 1))
    assert np.array_equal(colours[..., 3] > 0, weights > 0), "what the mask hides is blank"
    assert tab.locator(".lines line").count() == np.count_nonzero(weights[last])
    score = trace[own.scores][0, 3, last]
    products = (score - sum(term.shared(last + 1)[3, last] for term in own.terms)) / own.scale
    for key in (last, last - 1):
        tab.locator(f".lines rect[data-from='{key}']").click()
        parts = (tab.locator(f"#celled {tag}").all_inner_texts() for tag in ("dt", "dd"))
        said = dict(zip(*parts, strict=True))
        assert float(said["score"].split()[0]) == pytest.approx(score[key], abs=1e-4)
        assert float(said["q · k"].split(",")[0]) == pytest.approx(products[key], abs=3e-4)
        assert float(said["scale"].split()[0]) == pytest.approx(own.scale, rel=1e-5)
        assert float(said["weight"].split()[0]) == pytest.approx(weights[last, key], rel=1e-5)
        assert ("bias" in said) == (name in ("mpnet", "umt5")) and ("rotated" in said["q · k"]) == own.rotated
    if encoder.stack.causal:
        choose(tab, 1)
        assert tab.locator(".lines line").count() == 2, "itself, and the token before"
        tab.locator(f".lines rect[data-from='{last}']").click()
        assert tab.locator("#celled dd").inner_text() == "0, because of the mask"
    look_at(tab, 1, None)
    assert "the mean of 4 heads" in tab.locator("#celled").inner_text()


def test_long_names_and_more_than_forty_tokens_have_room(opened: Open, real: Real) -> None:
    encoder, sentence = real[0], "The river was muddy after the rain, and all who came there had to walk on planks. "
    text = f"{3 * sentence} pneumonoultramicroscopicsilicovolcanoconiosis {'x' * 90}"
    html, tokens = (
        page(encoder, text, name="a-name/" + "of-a-model" * 8),
        encoder.tokens(encoder.tokenize(text)["input_ids"][0]),
    )
    opened(html, width=320)
    tab = opened(html)
    assert len(tokens) > 40
    for side in ("above", "beside"):
        assert tab.locator(f"#attended .square .{side} bdi").all_inner_texts() == tokens
    names, grid = tab.locator("#attended .square .beside bdi"), tab.locator("#weights").bounding_box()
    boxes = [names.nth(i).bounding_box() for i in (0, len(tokens) - 1)]
    assert min(box["height"] for box in boxes) >= 12
    assert boxes[0]["y"] == pytest.approx(grid["y"], abs=3)
    assert boxes[1]["y"] + boxes[1]["height"] == pytest.approx(grid["y"] + grid["height"], abs=3)


def test_what_is_beyond_a_scale_is_named(shown: tuple[Encoder, Any]) -> None:
    """MiniLM's sum has dimensions far from all others: legend and histogram name them, and are not stretched."""
    encoder, tab = shown
    row = encoder.trace(**encoder.tokenize(SENTENCE))["sum"][0, 1]
    farthest = int(np.abs(row).argmax())
    legend, before = tab.locator("#groups .clipped").first, tab.locator(".hills p").first
    assert f"dimension {farthest} of sum ({row[farthest]:.3g}" in legend.inner_text()
    assert f"farthest: dimension {farthest} ({row[farthest]:.3g})" in before.inner_text()
    low, _, high = numbers(tab.locator(".hills .ends").first, "span")
    assert low == -high and 3 * high < abs(row[farthest])
    count = int(before.inner_text().split()[0])
    assert abs(count - np.count_nonzero(np.abs(row) > high)) <= 1, "two digits of the axis are printed"
    width = tab.locator(".hills path").first.evaluate("path => path.getBBox().width")
    assert width > 500, "the histogram fills its axis"


def test_a_page_opens_with_a_token_of_the_text(opened: Open, real: Real) -> None:
    assert chosen(opened(real[1])) == 1
    assert chosen(opened(page(real[0], "the [MASK] was muddy"))) == 2, "what is to be found"


def test_the_prediction_follows_the_token(opened: Open, tmp_path: Path) -> None:
    encoder = encoders.computed_once(minibert.load_encoder(encoders.write_gpt2(tmp_path / "gpt2")))
    html, batch = page(encoder, "he was here", name="someone/tiny"), encoder.tokenize("he was here")
    opened(html, width=320)
    tab = opened(html)
    assert tab.locator(".model").inner_text() == "someone/tiny (gpt2)"
    trace, ids = encoder.trace(**batch, head="next_word"), batch["input_ids"]
    for place in (ids.shape[1] - 1, 1):
        choose(tab, place)
        chances = softmax(trace["logits"][0, place].astype(np.float64))
        best = np.argsort(-chances)[:5]
        shown = tab.locator("#candidates td:nth-child(2)").all_inner_texts()
        assert shown == [f"{100 * chances[i]:.2f} %" for i in best]
        grown = rows(tab, "#grows")
        assert len(grown) == encoders.DEPTH + 1 and [text.strip() for text in grown[-1][2:]] == shown
        labels = np.tile(best, (ids.shape[1], 1))
        found = logit_shares(encoder, ids, trace, encoder.head("next_word"), labels)
        for n in (0, 3):
            tab.locator("#asked").select_option(str(n))
            for block, (_, *line) in enumerate(rows(tab, "#adds")):
                heads = found.heads[place, n, block].tolist()
                want = [*heads, sum(heads), found.feed_forward[place, n, block]]
                assert [float(text) for text in line] == pytest.approx(want, abs=6e-4)
            said = tab.locator("#addwork").inner_text()
            assert float(said.rpartition(" ")[2]) == pytest.approx(found.total[place, n], abs=6e-4)


def test_one_word_in_two_texts(opened: Open, real: Real) -> None:
    encoder, money = real[0], "The bank raised its rates again"
    tab = opened(page(encoder, SENTENCE, beside=money))
    traces = [encoder.trace(**encoder.tokenize(text)) for text in (SENTENCE, money)]
    assert tab.locator("#others").input_value() == "2", "the other bank"
    for i, number in enumerate(numbers(tab, "#apart td:nth-child(2)")):
        x, y = (trace[f"hidden_states.{i}"][0, 2].astype(float) for trace in traces)
        assert number == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=0.51e-4)
    look_at(tab, 3, 7)
    tab.locator("#others").select_option("5")
    for table, trace, place in zip(tab.locator(".taking").all(), traces, (2, 5), strict=True):
        weights = numbers(table, "td:nth-child(2)")
        assert np.abs(weights - trace["attentions.3"][0, 7, place]).max() <= 0.51e-4
    choose(tab, 1)
    assert tab.locator("#others").input_value() == "1", "the same word of the other text"


def test_the_similarity_of_two_texts_is_a_sum_of_pairs(opened: Open, real: Real) -> None:
    encoder, money = real[0], "Loans became more expensive this week."
    html, split = page(encoder, SENTENCE, beside=money), encoder.similarity_pairs(SENTENCE, money)
    opened(html, width=320)
    tab = opened(html, has_touch=True)

    def check(i: int, j: int) -> None:
        sides = ((split.others, split.pairs[i]), (split.tokens, split.pairs[:, j]))
        for table, (names, adds) in zip(tab.locator(".partner").all(), sides, strict=True):
            order = np.argsort(-adds, kind="stable")
            assert np.abs(adds[order] - numbers(table, "td:nth-child(2)")).max() <= 0.51e-4
            assert table.locator("tbody th").all_inner_texts() == [names[each] for each in order]
        one, other, part = split.tokens[i], split.others[j], f"{split.pairs[i, j]:.4f}"
        want = f"{one} with {other} adds {part} to the cosine {split.pairs.sum():.4f}"
        assert tab.locator("#partwork").inner_text().replace("-0.0000", "0.0000") == want.replace("-0.0000", "0.0000")

    check(1, 1)
    tab.locator("#summed .square .beside bdi").nth(5).tap()
    assert chosen(tab) == 5
    tab.locator("#summed .square .above bdi").nth(4).tap()
    check(5, 4)
    box, (count, many) = tab.locator("#parts").bounding_box(), split.pairs.shape
    assert box["height"] / count == pytest.approx(box["width"] / many, rel=0.02)
    tab.mouse.click(*middle(tab, "#parts", 3, 6, (count, many)))
    check(3, 6)
    tab.locator("#parts").press("ArrowDown")
    check(4, 6)
