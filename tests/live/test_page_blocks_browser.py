"""The page's second part in headless Chromium: blocks, cells, a prediction, two texts; by mouse, touch and keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from checkpoints import write_wordpiece
from in_browser import CONTRAST, SENTENCE, Open, lowest_contrast

import minibert
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.models.encoder import Encoder
from minibert.show.page import page
from minibert.show.prediction import logit_shares

pytestmark = pytest.mark.browser

TOKENS = ["[CLS]", "the", "bank", "of", "the", "river", "was", "muddy", "[SEP]"]


def probabilities(encoder: Encoder, block: int, head: int | None, text: str = SENTENCE) -> Array:
    """The trace's weights: one head's, or the mean of all heads."""
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


def test_every_block_and_head_shows_the_trace(shown: tuple[Encoder, Any]) -> None:
    encoder, tab = shown
    for token, block, head in ((0, 0, "mean"), (2, 3, "mean"), (5, 0, "0"), (8, 5, "11"), (2, 2, "7")):
        choose(tab, token, block, head)
        weights = probabilities(encoder, block, None if head == "mean" else int(head))
        assert np.abs(np.array(table(tab)) - weights[token]).max() <= 0.5e-4 + 1e-9, "four decimals"
        most = int(weights[token].argmax())
        where = f"block {block}, " + ("mean of heads" if head == "mean" else f"head {head}")
        assert said(tab) == sentence(where, weights[token, most], TOKENS[token], TOKENS[most])
        assert tab.locator("#takes tr.chosen th").inner_text() == TOKENS[most]


def test_pointing_at_the_grid_and_the_lines_tells_the_share(shown: tuple[Encoder, Any]) -> None:
    encoder, tab = shown
    choose(tab, 2, 1, "4")
    weights = probabilities(encoder, 1, 4)
    tab.locator(".looks").evaluate("element => element.scrollIntoView({block: 'end'})")
    box = tab.locator("#weights").bounding_box()
    for i, j in ((7, 5), (8, 0), (6, 8)):
        tab.mouse.move(box["x"] + box["width"] * (j + 0.5) / 9, box["y"] + box["height"] * (i + 0.5) / 9)
        assert said(tab) == sentence("block 1, head 4", weights[i, j], TOKENS[i], TOKENS[j])
    tab.locator(".lines rect[data-from='6']").hover()
    assert said(tab) == sentence("block 1, head 4", weights[2, 6], "bank", "was")


def test_lines_and_colours_are_the_weights(shown: tuple[Encoder, Any]) -> None:
    encoder, tab = shown
    choose(tab, 2, 2, "7")
    widths = [float(line.get_attribute("stroke-width")) for line in tab.locator(".lines line").all()]
    assert np.abs(np.array(widths) - np.maximum(0.3, 14 * probabilities(encoder, 2, 7)[2])).max() <= 0.005 + 1e-9
    choose(tab, 8, 0, "3")
    lightness = pixels(tab, 9)[..., :3] @ [0.2126, 0.7152, 0.0722]
    assert lightness.shape == (9, 9)
    lightness = lightness.ravel()
    order = np.argsort(probabilities(encoder, 0, 3).ravel(), kind="stable")
    assert np.all(np.diff(lightness[order]) >= -1.0), "one step of 255 for rounding"
    assert np.ptp(lightness) > 100


def test_the_moves_follow_the_token(shown: tuple[Encoder, Any]) -> None:
    encoder, tab = shown
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


def test_it_fits_can_be_read_and_heard(opened: Open, real: tuple[Encoder, str]) -> None:
    tab = opened(real[1], width=400)
    assert tab.evaluate("document.documentElement.scrollWidth") == 400
    assert tab.locator("#weights").bounding_box()["width"] > 250
    assert tab.locator(".lines svg").bounding_box()["width"] > 300
    contrast, element = lowest_contrast(opened(real[1]))
    assert contrast >= CONTRAST, element
    tab = opened(real[1])
    choose(tab, 2, 3, "5")
    tree = tab.locator("body").aria_snapshot()
    assert 'combobox "Block"' in tree and 'combobox "Head"' in tree
    assert 'img "block 3, head 5: weights of 9 by 9 tokens, up to ' in tree
    assert 'region "Attention weights"' in tree and 'region "How the token\'s vector changes"' in tree
    assert 'rowheader "block 3"' in tree and 'columnheader "attention adds"' in tree


def test_without_javascript_it_is_said_where_the_numbers_are(opened: Open, real: tuple[Encoder, str]) -> None:
    text = opened(real[1], java_script_enabled=False).locator("body").inner_text()
    assert "minibert explain TEXT --block 0" in text and "Attention weights" not in text


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
    tab.locator("#attended .square .above bdi").nth(3).tap()
    assert "bank gives of the weight" in tab.locator("#lookwork").inner_text()
    tab.locator("#attended .square .beside bdi").nth(7).tap()
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


def test_the_prediction_follows_the_token(opened: Open, tmp_path: Path) -> None:
    encoder = encoders.computed_once(minibert.load_encoder(encoders.write_gpt2(tmp_path / "gpt2")))
    tab = opened(page(encoder, "he was here", name="someone/tiny"))
    assert tab.locator(".model").inner_text() == "someone/tiny (gpt2)"
    batch = encoder.tokenize("he was here")
    trace, ids = encoder.trace(**batch, head="next_word"), batch["input_ids"]
    for place in (ids.shape[1] - 1, 1):
        tab.locator(f"fieldset input[value='{place}']").check(force=True)
        chances = softmax(trace["logits"][0, place].astype(np.float64))
        best = np.argsort(-chances)[:5]
        shown = tab.locator("#candidates td:nth-child(2)").all_inner_texts()
        assert shown == [f"{100 * chances[i]:.2f} %" for i in best]
        assert tab.locator("#grows tbody tr").count() == encoders.DEPTH + 1
        last = tab.locator("#grows tbody tr").last.locator("td").all_inner_texts()
        assert [text.strip() for text in last[1:]] == shown
        labels = np.tile(best, (ids.shape[1], 1))
        found = logit_shares(encoder, ids, trace, encoder.head("next_word"), labels)
        for n in (0, 3):
            tab.locator("#asked").select_option(str(n))
            for block, line in enumerate(tab.locator("#adds tbody tr").all()):
                numbers = [float(text) for text in line.locator("td").all_inner_texts()]
                heads = found.heads[place, n, block].tolist()
                assert numbers == pytest.approx([*heads, sum(heads), found.feed_forward[place, n, block]], abs=6e-4)
            said = tab.locator("#addwork").inner_text()
            assert float(said.rpartition(" ")[2]) == pytest.approx(found.total[place, n], abs=6e-4)
    contrast, element = lowest_contrast(tab)
    assert contrast >= CONTRAST, element
    assert opened(page(encoder, "he was"), width=320).evaluate("document.documentElement.scrollWidth") == 320


def test_one_word_in_two_texts(opened: Open, real: tuple[Encoder, str]) -> None:
    encoder, money = real[0], "The bank raised its rates again"
    html = page(encoder, SENTENCE, beside=money)
    tab = opened(html)
    first, second = (encoder.trace(**encoder.tokenize(text)) for text in (SENTENCE, money))
    assert tab.locator("#others").input_value() == "2", "the other bank"
    shown = [float(text) for text in tab.locator("#apart td:nth-child(2)").all_inner_texts()]
    for i, number in enumerate(shown):
        x, y = first[f"hidden_states.{i}"][0, 2].astype(float), second[f"hidden_states.{i}"][0, 2].astype(float)
        assert number == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=0.51e-4)
    tab.locator("#block").select_option("3")
    tab.locator("#head").select_option("7")
    tab.locator("#others").select_option("5")
    for table, trace, place in zip(tab.locator(".taking").all(), (first, second), (2, 5), strict=True):
        weights = [float(text) for text in table.locator("td:nth-child(2)").all_inner_texts()]
        assert np.abs(weights - trace["attentions.3"][0, 7, place]).max() <= 0.51e-4
    tab.locator("fieldset input[value='1']").check(force=True)
    assert tab.locator("#others").input_value() == "1", "the same word of the other text"
    assert opened(html, width=320).evaluate("document.documentElement.scrollWidth") == 320


def test_the_similarity_of_two_texts_is_a_sum_of_pairs(opened: Open, real: tuple[Encoder, str]) -> None:
    encoder, money = real[0], "Loans became more expensive this week."
    html = page(encoder, SENTENCE, beside=money)
    tab, split = opened(html, has_touch=True), encoder.similarity_pairs(SENTENCE, money)
    tab.locator("#summed").scroll_into_view_if_needed()

    def check(i: int, j: int) -> None:
        tables = tab.locator(".partner").all()
        for table, names, numbers in zip(
            tables, (split.others, split.tokens), (split.pairs[i], split.pairs[:, j]), strict=True
        ):
            order = np.argsort(-numbers, kind="stable")
            shown = [float(text) for text in table.locator("td:nth-child(2)").all_inner_texts()]
            assert np.abs(numbers[order] - shown).max() <= 0.51e-4
            assert table.locator("tbody th").all_inner_texts() == [names[each] for each in order]
        one, other, adds = split.tokens[i], split.others[j], f"{split.pairs[i, j]:.4f}"
        want = f"{one} with {other} adds {adds} to the cosine {split.pairs.sum():.4f}"
        assert tab.locator("#partwork").inner_text().replace("-0.0000", "0.0000") == want.replace("-0.0000", "0.0000")

    check(1, 1)
    tab.locator("#summed .square .beside bdi").nth(5).tap()
    assert tab.locator("fieldset input[value='5']").is_checked()
    tab.locator("#summed .square .above bdi").nth(4).tap()
    check(5, 4)
    box, (rows, columns) = tab.locator("#parts").bounding_box(), split.pairs.shape
    assert box["height"] / rows == pytest.approx(box["width"] / columns, rel=0.02)
    tab.locator("#parts").click(position={"x": box["width"] * 6.5 / columns, "y": box["height"] * 3.5 / rows})
    check(3, 6)
    tab.locator("#parts").press("ArrowDown")
    check(4, 6)
    contrast, element = lowest_contrast(tab)
    assert contrast >= CONTRAST, element
    assert opened(html, width=320).evaluate("document.documentElement.scrollWidth") == 320
