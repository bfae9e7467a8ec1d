"""The built site in headless Chromium: no page asks another host or is wider than the window, in the light on a desk
and in the dark on a phone."""

from __future__ import annotations

import re
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from needed import missing

from minibert import families

pytestmark = pytest.mark.browser

SITE = Path(__file__).parents[2] / "build" / "site"


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_each_page_fits_and_stays_at_home(width: int, scheme: str, browser: Any) -> None:
    pages = [page for page in sorted(SITE.rglob("*.html")) if SITE / "source" not in page.parents]
    if not pages:
        missing("the site is not built: sh scripts/site/build")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    tab = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    asked: list[str] = []
    tab.on("request", lambda request: request.url.startswith((home, "data:", "blob:")) or asked.append(request.url))
    wide = []
    for page in pages:
        tab.goto(home + page.relative_to(SITE).as_posix())
        tab.wait_for_selector(f"body[data-md-color-scheme={'slate' if scheme == 'dark' else 'default'}]")
        if tab.evaluate("document.documentElement.scrollWidth") > width:
            wide.append(page.name)
    tab.close()
    server.shutdown()
    server.server_close()
    assert (asked, wide) == ([], [])


def test_what_a_family_is_made_of_is_shown() -> None:
    """No `__init__` names the fields of a step: the site makes the signature of what is annotated."""
    page = SITE / "api/families.html"
    if not page.exists():
        missing("the site is not built: sh scripts/site/build")
    text = re.sub(r"<[^>]+>", "", page.read_text("utf-8"))
    parts = [getattr(families, name) for name in families.__all__]
    steps = [each for each in parts if isinstance(each, type) and issubclass(each, families.Step)]
    assert len(steps) > 5
    for step in steps:
        shown = re.findall(rf"^{step.__name__}\((.*?)^ *Bases:", text, re.MULTILINE | re.DOTALL)
        assert [re.findall(r"(\w+): ", each) for each in shown] == [list(step._fields)], step
