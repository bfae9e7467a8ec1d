"""The page that computes in headless Chromium: by keyboard on a desk, by touch in the dark, and one state saved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import SMALL_GPT2
from in_browser import SENTENCE, choose, fits_and_is_readable, numbers, patient, rows, went
from served import live_served

import minibert
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.models.encoder import Encoder
from minibert.models.patching import patching_map
from minibert.show.attention import shares_of, terms_of
from minibert.show.live import Live

pytestmark = pytest.mark.browser

# tables and squares of which a part is hidden on a desk
CUT = """[...document.querySelectorAll(".wide, .scrolled")].filter((e) => e.scrollWidth > e.clientWidth)
    .map((e) => e.ariaLabel)"""
DESK = {"color_scheme": "light", "viewport": {"width": 1280, "height": 800}}


class Tab:
    """A tab of a browser at a live page. Whatever it throws, or asks of another address, is a failure."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.complaints: list[str] = []
        self.context = patient(browser, **options)
        self.tab = went(self.context, url, self.complaints, url.partition("?")[0])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tab, name)

    def says(self, selector: str, pattern: str) -> str:
        """Wait until an element's text has this pattern; give what the group of it found."""
        self.tab.wait_for_function(
            "([selector, pattern]) => new RegExp(pattern).test(document.querySelector(selector)?.innerText ?? '')",
            arg=[selector, pattern],
        )
        found = re.search(pattern, self.tab.locator(selector).inner_text())
        assert found
        return found[found.re.groups]

    def is_off(self) -> bool:
        """One switch alone."""
        return bool(self.tab.locator("[role=switch][aria-checked=false]").count() == 1)

    def close(self) -> None:
        fits_and_is_readable(self.tab)
        self.context.close()
        assert self.complaints == []


@pytest.fixture(scope="module")
def gpt2() -> Iterator[tuple[Encoder, str]]:
    with closing(minibert.load_encoder(SMALL_GPT2)) as encoder:
        live = Live(encoder, "gpt2-words")
        with live_served(live, lambda: live.page("wonderfu")) as (_, server):
            yield encoder, server.url


def chances(encoder: Encoder, text: str, change: Any = None, replaced: tuple[int, str] | None = None) -> Array:
    batch = encoder.tokenize(text)
    if replaced:
        batch["input_ids"][0, replaced[0]] = encoder.embeddings.tokenizer.id_of(replaced[1])
    return softmax(encoder.logits(**batch, change=change)[0, -1].astype(np.float64))


def likeliest(encoder: Encoder, found: Array) -> str:
    """As the page's line at the top says it."""
    best = int(found.argmax())
    return rf"likeliest at “\w+”: {encoder.tokens([best])[0]} {100 * found[best]:.2f}\u00a0%"


def is_of_400(message: Any) -> bool:
    """Chromium's own line on a question that is refused; it may come later than the answer."""
    return "status of 400" in message.text


def test_by_keyboard_on_a_desk(browser: Any, gpt2: tuple[Encoder, str], tmp_path: Path) -> None:
    encoder, url = gpt2
    with closing(Tab(browser, url, **DESK, accept_downloads=True)) as tab:
        tab.says("#nownow", likeliest(encoder, chances(encoder, "wonderfu")))
        assert tab.evaluate(CUT) == []
        positions = [str(i) for i in range(9)]
        for side in ("above", "beside"):
            assert tab.locator(f"#pair .square .{side} bdi").all_inner_texts() == positions
        tab.locator("#pair .square .beside bdi").nth(8).click()
        tab.locator("#pair .square .above bdi").nth(4).click()
        assert tab.locator("#pairwork").inner_text().startswith("positions 8 (u) and 4 (d): ")
        # a head off: its switch by the arrow keys, from the first one, of block 0
        tab.locator("#headgrid .switch").first.focus()
        for key in ("ArrowRight", "ArrowDown", "Space"):
            tab.keyboard.press(key)
        without = chances(encoder, "wonderfu", minibert.knock_out(encoder, heads=[(1, 0)]))
        tab.says("#changed", "head 0 of block 1 is off")
        tab.says("#nownow", likeliest(encoder, without))
        before = chances(encoder, "wonderfu")
        for name, *line in rows(tab, "#changes"):
            i = encoder.embeddings.tokenizer.id_of(name.strip())
            wanted = [f"{100 * found[i]:.2f}\u00a0%" for found in (before, without)]
            assert [part.strip() for part in line[:2]] == wanted
        switch = tab.locator("[role=switch][aria-label='head 0 of block 1']")
        assert switch.get_attribute("aria-checked") == "false"
        assert tab.evaluate("document.activeElement.ariaLabel") == "head 0 of block 1", "the focus stays"
        # a token replaced: chosen by the keyboard, typed, Enter
        tab.locator("fieldset input:checked").focus()
        tab.keyboard.press("ArrowRight")
        tab.keyboard.press("ArrowRight")
        tab.locator("#replacement").fill("t")
        tab.keyboard.press("Enter")
        tab.says("#changed", "token 1 is now t")
        choose(tab, 8)
        both = chances(encoder, "wonderfu", minibert.knock_out(encoder, heads=[(1, 0)]), (1, "t"))
        tab.says("#nownow", likeliest(encoder, both))
        # a cell, number by number
        tab.locator("#headgrid .look").nth(1 * 4 + 2).focus()
        tab.keyboard.press("Enter")
        tab.locator("#weights").focus()
        tab.keyboard.press("ArrowLeft")
        tab.locator("#livecell summary").focus()
        tab.keyboard.press("Enter")
        said = r"Block 1, head 2: the query of “u” \(token 8\) and the key of “.+” \(token (\d)\)"
        key = int(tab.says("#cellsaid", said))
        batch = encoder.tokenize("wonderfu")
        batch["input_ids"][0, 1] = encoder.embeddings.tokenizer.id_of("t")
        trace = encoder.trace(**batch, change=minibert.knock_out(encoder, heads=[(1, 0)]))
        q, k, _ = (x.reshape(9, 4, 16)[:, 2] for x in np.split(trace["h.1.attn.c_attn"][0], 3, axis=-1))
        shown = numbers(tab, "#celldot td:last-child")
        assert np.allclose(shown, q[8] * k[key], rtol=1e-4, atol=1e-5)
        assert float(tab.says("#cellsum", r"score = .* = (\S+)\. The")) == pytest.approx(q[8] @ k[key] / 4, rel=1e-4)
        weight = trace["attentions.1"][0, 2, 8, key]
        assert float(tab.says("#cellweight", r"weight = \S+ / \S+ = (\S+)\.")) == pytest.approx(weight, rel=1e-4)
        # saved as a page of its own, which asks nobody
        with tab.expect_download() as download:
            tab.locator("#save").press("Enter")
        download.value.save_as(tmp_path / "saved.html")
        line = tab.locator("#nownow").inner_text()
    with closing(Tab(browser, (tmp_path / "saved.html").as_uri(), **DESK)) as tab:
        assert tab.locator("#nownow").inner_text() == line
        assert "token 1 is now t" in tab.locator("#changed").inner_text()
        assert tab.locator("#typed").is_disabled() and tab.is_off()
        assert np.array_equal(numbers(tab, "#celldot td:last-child"), shown)


def test_a_term_is_taken_out_of_block_0(browser: Any, gpt2: tuple[Encoder, str]) -> None:
    encoder, url = gpt2
    terms = terms_of(encoder, encoder.tokenize("wonderfu"))
    with closing(Tab(browser, url, **DESK)) as tab:
        shown = tab.locator("#terms .switch").all_inner_texts()
        shares = shares_of(encoder, terms)
        assert shown == [f"{round(100 * share)}\u00a0%" for share in shares.mean(axis=-1).ravel()]
        tab.locator("#headgrid .look").nth(2).click()
        tab.says("#ninesaid", "The shares are those of head 2 of block 0")
        assert tab.locator("#terms .switch").nth(4).inner_text() == f"{round(100 * shares[1, 1, 2])}\u00a0%"
        tab.locator("#terms .switch").first.focus()
        for key in ("ArrowRight", "ArrowDown", "Space"):
            tab.keyboard.press(key)
        tab.says("#changed", "block 0's scores are without the query's position with the key's position")
        left = {encoder.stack.blocks[0].attention.scores: lambda scores: scores - terms[1, 1].astype(np.float32)}
        tab.says("#nownow", likeliest(encoder, chances(encoder, "wonderfu", left)))
        assert tab.is_off()
        tab.locator("#changed button").click()
        tab.says("#nownow", likeliest(encoder, chances(encoder, "wonderfu")))
        assert not tab.is_off()


def test_by_touch_in_the_dark(browser: Any, gpt2: tuple[Encoder, str]) -> None:
    encoder, url = gpt2
    narrow = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "color_scheme": "dark"}
    with closing(Tab(browser, url, **narrow)) as tab:
        tab.locator("#second summary").tap()
        tab.locator("#typedbeside").fill("beautifu")
        tab.says("#beside", "The other text: beautifu")
        tab.locator("#patchblock").select_option("2")
        tab.locator("#patch button").tap()
        tab.says("#changed", "stream before block 2: token 8, u has the value of token 8, u of the second text")
        states = [encoder.trace(**encoder.tokenize(text))["hidden_states.2"] for text in ("wonderfu", "beautifu")]
        put = np.where(np.arange(9)[:, None] == 8, *reversed(states))
        tab.says("#nownow", likeliest(encoder, chances(encoder, "wonderfu", {"hidden_states.2": put})))
        tab.locator("#undo").tap()
        tab.says("#changed", "nothing")
        # a map of the text's states in the second text's run: with a token more it is refused in words
        tab.locator("#typedbeside").fill("beautiful")
        tab.says("#patchfrom", "9: l")
        with tab.expect_console_message(is_of_400):
            tab.locator("#mapit").tap()
        tab.says("#mapsaid", "as many tokens, found 9 and 10")
        tab.locator("#typedbeside").fill("wonderou")
        tab.says("#patchfrom", "7: o")
        assert tab.locator("#mapsaid").inner_text() == ""
        tab.locator("#mapit").tap()
        tab.says("#mapsaid", "l at token 8: probability 0.806, in the second text 0.00142")
        found = patching_map(encoder, "wonderfu", "wonderou").shares
        names, *shares = zip(*rows(tab, "#map"), strict=True)
        assert list(names) == ["before block 0", "before block 1", "before block 2", "after the last"]
        assert np.abs(np.array(shares, float).T - found).max() <= 0.0051
        assert tab.locator("#map thead th").all_inner_texts()[-2:] == ["f | o", "u"]
        choose(tab, 7)
        tab.wait_for_function("!document.querySelector('#map td')")  # it was another token's
        choose(tab, 8)
        # top-k 1 leaves the likeliest
        tab.locator("#topk").fill("1")
        assert tab.says("#sampled", r"chosen: (\w+) \(100.00\u00a0%\); 1 of the words") == "l"
        tab.locator("#append").tap()
        tab.says("h1", "wonderful")
        now = chances(encoder, "wonderful")
        tab.says("#nownow", re.escape(f"{100 * now.max():.2f}\u00a0%"))
        # a text that cannot be is said in words, and the page goes on
        with tab.expect_console_message(is_of_400):
            tab.locator("#typed").fill("wonderful and more than sixteen")
        tab.says("#trouble", "16")
        assert len(tab.complaints) == 2
        tab.complaints.clear()
        tree = tab.locator("body").aria_snapshot()
        for name in ('textbox "Text"', 'slider "temperature"', 'switch "head 2 of block 1"', 'switch "block 0"',
                     'switch "feed-forward of block 2"', 'button "look at head 3 of block 0: looks like'):  # fmt: skip
            assert name in tree, name
        small = tab.evaluate(
            "[...document.querySelectorAll('#liveheads button, #ask button, #sampling button, #livechanges button')]"
            ".filter((b) => b.getClientRects().length && Math.min(b.offsetWidth, b.offsetHeight) < 24).length"
        )
        assert small == 0, "a finger hits it"


def test_a_model_without_a_head_and_its_kinds(browser: Any, minilm: Path) -> None:
    with closing(minibert.load_encoder(minilm)) as encoder:
        live = Live(encoder)
        trace = encoder.trace(**encoder.tokenize(SENTENCE))
        page = live_served(live, lambda: live.page(SENTENCE))
        with page as (_, server), closing(Tab(browser, server.url)) as tab:
            assert "no head" in tab.locator("#nohead").inner_text()
            assert tab.locator("#headgrid canvas").count() == 72
            assert tab.evaluate(CUT) == [], "Chromium's own window is 1280 wide"
            tab.locator("#headgrid .look").nth(2).click()
            own = trace["attentions.0"][0, 2]
            share = float(tab.says("#kindwork", r"head 2 of block 0: previous token (\d\.\d\d)"))
            assert share == pytest.approx(np.mean([own[i, i - 1] for i in range(2, 9)]), abs=0.0051) and share > 0.9
            tab.locator("[role=switch][aria-label='block 3']").click()
            without = encoder(**encoder.tokenize(SENTENCE), change=minibert.knock_out(encoder, blocks=[3]))
            moved, usual = (states[0].mean(axis=0) for states in (without, trace["hidden_states.6"]))
            cosine = moved @ usual / np.linalg.norm(moved) / np.linalg.norm(usual)
            tab.says("#changed", "block 3 is off")
            assert float(tab.says("#nohead", r"cosine (\d\.\d{6}) ")) == pytest.approx(cosine, abs=2e-6)
