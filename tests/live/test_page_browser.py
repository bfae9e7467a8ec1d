"""The page of `minibert explain --html` and the built site in headless Chromium: mouse, keyboard, both schemes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from checkpoints import BERT, DISTILBERT, ELECTRA, GPT2, T5, wordpiece_json, write, write_byte_level, write_wordpiece
from command_line import SMALL_GPT2
from in_browser import Open, choose, chosen, middle, numbers, patient
from needed import missing

import minibert
from minibert import families
from minibert.equations.input_layer import Array
from minibert.models.input_layer import EmbeddingLayer
from minibert.show.page import page

pytestmark = pytest.mark.browser

SENTENCE = "We lived above the clouds"
STRIPS = "#groups .strip canvas"


@pytest.fixture(scope="session")
def real(minilm: Path) -> Iterator[tuple[EmbeddingLayer, str]]:
    with closing(minibert.load(minilm)) as layer:
        yield layer, page(layer, SENTENCE)


def strips(tab: Any) -> list[str]:
    """Draw the content of each band as a picture."""
    pictures: list[str] = tab.eval_on_selector_all(STRIPS, "all => all.map((canvas) => canvas.toDataURL())")
    return pictures


def shows(tab: Any, layer: EmbeddingLayer, text: str, token: int, dimension: int) -> None:
    """The page must show six digits of every intermediate of the trace."""
    trace = floats(layer, text)
    want = [float(f"{each[token, dimension]:.6g}") for each in trace]
    assert numbers(tab, "#groups .strip:has(canvas) output").tolist() == want


def floats(layer: EmbeddingLayer, text: str) -> list[Array]:
    return [each[0] for each in layer.trace(**layer.tokenize(text)).values() if each.dtype.kind == "f"]


def test_a_token_is_chosen_by_click_and_keyboard(shown: tuple[EmbeddingLayer, Any]) -> None:
    layer, tab = shown
    for _ in range(2):  # the summary of the layer's parts, then the tokens
        tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.name") == "token"
    outline = tab.evaluate("getComputedStyle(document.activeElement.nextElementSibling).outlineStyle")
    assert outline == "solid", "the focus can be seen"
    first = strips(tab)
    assert len(first) == 5 and len(set(first)) == 5
    tab.locator("fieldset").get_by_text("lived", exact=True).click(force=True)  # what lies there hears it
    assert chosen(tab) == 2
    same = [a == b for a, b in zip(first, strips(tab), strict=True)]
    assert same == [False, True, False, False, False], "types are equal"
    shows(tab, layer, SENTENCE, 2, 0)
    assert "word_embeddings[2973]" in tab.locator("#groups").inner_text()
    for place in (3, 4, 5, 6, 0, 1):
        tab.keyboard.press("ArrowRight")
        assert chosen(tab) == place
        shows(tab, layer, SENTENCE, place, 0)
    assert strips(tab) == first


def test_every_token_and_dimension_shows_the_trace(shown: tuple[EmbeddingLayer, Any]) -> None:
    layer, tab = shown
    for token in range(7):
        choose(tab, token)
        for dimension in (0, 1, 190, 382, 383):
            tab.locator("input[type=range]").fill(str(dimension))
            shows(tab, layer, SENTENCE, token, dimension)
    tab.mouse.move(*middle(tab, f"{STRIPS} >> nth=4", 0, 100, (1, 384)))
    assert tab.locator("input[type=range]").input_value() == "100"
    shows(tab, layer, SENTENCE, 6, 100)
    # the slider answers to keys, and the sum is told
    tab.locator("input[type=range]").focus()
    for key in ("End", "ArrowLeft", "ArrowLeft"):
        tab.keyboard.press(key)
    *told, output = [float(f"{each[6, 381]:.6g}") for each in floats(layer, SENTENCE)]
    said = re.sub("[()]", "", tab.locator("#groups .worked").inner_text()).removeprefix("dimension 381: ")
    assert [float(part) for part in re.split(r" [+=] ", said)] == told
    assert float(tab.locator("#normwork").inner_text().rpartition(" = ")[2]) == output


def test_colours_are_the_numbers(shown: tuple[EmbeddingLayer, Any]) -> None:
    layer, tab = shown
    pixels = tab.eval_on_selector_all(
        STRIPS, "all => all.map((c) => [...c.getContext('2d').getImageData(0, 0, c.width, 1).data])"
    )
    for painted, (_, row, *_) in zip(pixels, floats(layer, SENTENCE), strict=True):
        red, green, blue = np.array(painted).reshape(-1, 4)[:, :3].T
        lightness = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        assert np.all((red > blue)[row > 0.05 * np.ptp(row)]) and np.all((red < blue)[row < -0.05 * np.ptp(row)])
        for side in (row > 0, row < 0):
            order = np.argsort(np.abs(row[side]), kind="stable")
            assert np.all(np.diff(lightness[side][order]) <= 1.0), "one step of 255 for rounding"
        assert np.ptp(lightness) > 30


def test_similarities_follow_the_token(shown: tuple[EmbeddingLayer, Any]) -> None:
    layer, tab = shown
    choose(tab, 2)
    rows = layer.position_embeddings.weight[:7].astype(np.float64)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.abs(numbers(tab, "#likes td:last-child") - unit @ unit[2]).max() <= 0.5e-4 + 1e-7, "four decimals"
    assert tab.locator("tr.chosen").count() == 2, "here, and in LayerNorm's table"
    tab.mouse.move(*middle(tab, "#cosines", 1, 5, (7, 7)))
    assert tab.locator("#pairwork").inner_text() == f"positions 1 (we) and 5 (clouds): {unit[1] @ unit[5]:.4f}"


def test_a_piece_from_right_to_left_keeps_its_marks_in_front(opened: Open, tmp_path: Path) -> None:
    """Where "##" is drawn, in a piece of Hebrew letters: left of them, as in a piece of Latin ones."""
    folder = write(tmp_path / "bert", BERT)
    vocabulary = wordpiece_json().replace('"##a"', '"##\u05d9\u05dd"').replace('"a"', '"\u05e9"')
    (folder / "tokenizer.json").write_text(vocabulary, encoding="utf-8")
    tab = opened(page(minibert.load(folder), "\u05e9\u05d9\u05dd"))
    piece = tab.locator("fieldset bdi", has_text="##").first
    marks, letters = piece.evaluate("""(element) => [[0, 2], [2, 4]].map(([from, to]) => {
      const range = document.createRange();
      range.setStart(element.firstChild, from);
      range.setEnd(element.firstChild, to);
      return range.getBoundingClientRect().left;
    })""")
    assert marks < letters


def test_it_fits_and_is_heard(opened: Open, real: tuple[EmbeddingLayer, str]) -> None:
    tab = opened(real[1], width=400)
    for box in [strip.bounding_box() for strip in tab.locator(STRIPS).all()]:
        assert box["width"] > 300 and box["x"] >= 0
    choose(tab, 2)
    tree = tab.locator("body").aria_snapshot().replace("lived , id", "lived, id")
    for part in (
        'radio "lived, id 2973" [checked]', 'group "Token"', 'slider "dimension, 0 to 383"', "heading", "table",
        'img "word_embeddings[2973] of lived: 384 numbers from', 'region "What LayerNorm does to mean and variance"',
    ):  # fmt: skip
        assert part in tree, part


@pytest.mark.parametrize("config", [GPT2, T5, ELECTRA, DISTILBERT])
def test_other_families_open(config: dict[str, Any], opened: Open, tmp_path: Path) -> None:
    name = config["model_type"]
    folder = write(tmp_path / name, config)
    layer = minibert.load(write_byte_level(folder) if name == "gpt2" else write_wordpiece(folder))
    tab = opened(page(layer, "we lived"))
    assert tab.locator("#normed").is_visible() == (name in ("electra", "distilbert"))
    assert tab.locator("#pair").is_visible() == (name != "t5")
    tab.locator("fieldset input").last.check(force=True)
    for slider in tab.locator("input[type=range]").all():
        slider.fill("3")
    trace = floats(layer, "we lived")[: 1 if name == "t5" else None]  # a sum of one row is not shown twice
    shown = numbers(tab, "#groups .strip:has(canvas) output")
    assert shown.tolist() == [float(f"{each[-1, 3]:.6g}") for each in trace]


def test_texts_that_are_hostile_or_without_tokens_open(opened: Open, tmp_path: Path) -> None:
    folder = write_wordpiece(write(tmp_path / "bert", {**BERT, "max_position_embeddings": 200}))
    text = "</script><script>alert(1)</script><img src=x onerror=alert(1)><!--data-->\u202e"
    tab = opened(page(minibert.load(folder), text))
    assert tab.locator("h1").text_content() == text.replace("\u202e", "\\u202e")
    assert tab.locator("img[src], iframe").count() == 0
    assert tab.locator(STRIPS).count() == 5
    tab = opened(page(minibert.load(write_byte_level(write(tmp_path, GPT2))), ""))
    assert "The text has no tokens." in tab.locator("#groups").inner_text()


def test_a_text_of_full_length_opens_and_leaves_room(opened: Open, real: tuple[EmbeddingLayer, str]) -> None:
    tab = opened(page(real[0], "clouds " * 510))
    assert tab.locator("h1").bounding_box()["height"] < 200, "of a window of 800"
    assert tab.locator("fieldset").bounding_box()["y"] < 400
    tab.locator("fieldset input").last.check(force=True)
    shows(tab, real[0], "clouds " * 510, 511, 0)
    assert tab.locator("#likes tr").count() == 512


@pytest.mark.parametrize("norm", [True, False])
def test_without_javascript_it_is_said_where_the_numbers_are(opened: Open, minilm: Path, norm: bool) -> None:
    with minibert.load_encoder(minilm if norm else SMALL_GPT2) as encoder:
        tab = opened(page(encoder, SENTENCE if norm else "clouds"), java_script_enabled=False)
    text = tab.locator("body").inner_text()
    assert "needs JavaScript" in text and "minibert explain TEXT --block 0" in text and "Attention weights" not in text
    assert tab.locator("tr[data-token]:visible").count() == 7 * norm
    assert tab.locator("ol li:visible").count() == 3 + norm
    assert tab.locator("canvas:visible").count() == tab.locator("table:visible:not(:has(td))").count() == 0


SITE = Path(__file__).parents[2] / "build" / "site"


def built(page: str) -> Path:
    if not (path := SITE / page).exists():
        missing("the site is not built: sh scripts/site/build")
    return path


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_each_page_fits_and_stays_at_home(width: int, scheme: str, browser: Any) -> None:
    built("index.html")
    pages = [path for path in sorted(SITE.rglob("*.html")) if SITE / "source" not in path.parents]
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    context = patient(browser, color_scheme=scheme, viewport={"width": width, "height": 800})
    tab = context.new_page()
    asked: list[str] = []
    tab.on("request", lambda request: request.url.startswith((home, "data:", "blob:")) or asked.append(request.url))
    wide = []
    for path in pages:
        tab.goto(home + path.relative_to(SITE).as_posix())
        if not path.name.endswith("-live.html"):  # as `minibert explain` writes it, without the theme
            tab.wait_for_selector(f"body[data-md-color-scheme={'slate' if scheme == 'dark' else 'default'}]")
        if tab.evaluate("document.documentElement.scrollWidth") > width:
            wide.append(path.name)
    tab.goto(f"{home}index.html")
    tab.locator("label[for=__search]:visible, input[data-md-component=search-query]:visible").first.click()
    # text that is filled in before the index is read may be lost
    tab.locator(".md-search-result__meta", has_not_text="Initializing search").wait_for(state="attached")
    tab.locator("input[data-md-component=search-query]").press_sequentially("semantic_search")
    tab.locator(".md-search-result__link[href*='minibert.semantic_search']").first.wait_for()
    context.close()
    server.shutdown()
    server.server_close()
    assert (asked, wide) == ([], [])


def test_a_page_of_the_course_opens_its_answers_its_pictures_and_the_page_to_click_through(browser: Any) -> None:
    context = patient(browser, viewport={"width": 390, "height": 800}, has_touch=True)
    tab = context.new_page()
    tab.goto(built("course/where_heads_look.html").as_uri())
    answer = tab.locator("details:has(summary:text-is('Answer 1'))")
    assert not answer.locator("p:not(.admonition-title)").first.is_visible()
    answer.locator("summary").tap()
    assert answer.locator("p:not(.admonition-title)").first.is_visible()
    inside = tab.frame_locator("iframe.live")
    inside.locator("#groups canvas").first.wait_for(state="attached")  # a lazy frame: now its script has run
    first = inside.locator("#groups").inner_text()
    inside.locator("fieldset label:has(input[value='5'])").tap()
    assert inside.locator("#groups").inner_text() != first
    assert tab.locator(".md-footer__link--prev, .md-footer__link--next").count() == 2
    picture = tab.locator("a.wide > img").first  # it scrolls in its frame, and the page does not
    shown, drawn = picture.bounding_box()["width"], picture.evaluate("image => image.naturalWidth")
    frame, page = tab.locator("a.wide").first.bounding_box()["width"], tab.evaluate("document.body.scrollWidth")
    picture.tap()
    tab.wait_for_url("**/where_heads_look-1.png")
    context.close()
    assert frame < page <= 390 < shown <= drawn


def test_what_a_family_is_made_of_is_shown() -> None:
    """No `__init__` names the fields of a step: the site makes the signature of what is annotated."""
    text = re.sub(r"<[^>]+>", "", built("api/families.html").read_text("utf-8"))
    parts = [getattr(families, name) for name in families.__all__]
    steps = [each for each in parts if isinstance(each, type) and issubclass(each, families.Step)]
    assert len(steps) > 5
    for step in steps:
        shown = re.findall(rf"^{step.__name__}\((.*?)^ *Bases:", text, re.MULTILINE | re.DOTALL)
        assert [re.findall(r"(\w+): ", each) for each in shown] == [list(step._fields)], step
