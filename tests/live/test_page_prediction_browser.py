"""A prediction and two texts side by side, on the page in headless Chromium: what is shown is what is computed."""

from __future__ import annotations

from pathlib import Path

import encoders
import numpy as np
import pytest
from in_browser import CONTRAST, SENTENCE, Open, lowest_contrast

import minibert
from minibert.equations.blocks import softmax
from minibert.models.encoder import Encoder
from minibert.show.page.page import page
from minibert.show.text.contributions import shares

pytestmark = pytest.mark.browser


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
        found = shares(encoder, ids, trace, encoder.head("next_word"), labels)
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
