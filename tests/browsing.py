"""A real browser, Debian's chromium through Playwright, for tests of pages."""

import os
import shutil
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright
from waiting import PATIENCE_S

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(
    _CHROMIUM is None, reason="no chromium; `apt-get install chromium`"
)
_WIDTHS = (1400, 390)
# Of many sections alike, as claims are: those that come later are not looked into.
_LATER = "section:nth-of-type(n + 13)"
# What stays on this machine.
_HERE = ("file:", "data:", "blob:", "http://127.0.0.1:", "ws://127.0.0.1:")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE_S * 1000)
        # Its sockets' addresses have no room for every folder's name.
        environment = {**os.environ, "TMPDIR": "/tmp"}
        started = playwright.chromium.launch(
            executable_path=_CHROMIUM, args=["--no-sandbox"], env=environment
        )
        yield started
        started.close()


@pytest.fixture
def wrong() -> list[str]:
    """What a page complained of, and what it asked for that is elsewhere."""
    return []


@pytest.fixture(params=_WIDTHS)
def page(browser: Browser, request: pytest.FixtureRequest, wrong: list[str]) -> Iterator[Page]:
    """A page that fails its test if anything is wrong."""
    opened = browser.new_page(viewport={"width": request.param, "height": 900})
    opened.set_default_timeout(PATIENCE_S * 1000)
    opened.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "request", lambda asked: None if asked.url.startswith(_HERE) else wrong.append(asked.url)
    )
    yield opened
    opened.close()
    assert wrong == []


def faults(page: Page) -> list[str]:
    """Whatever keeps people from using a page: it scrolls sideways, axe finds it inaccessible."""
    width = page.evaluate("document.documentElement.scrollWidth")
    sideways = width > page.viewport_size["width"]  # type: ignore[index]
    # It would ask for style sheets in a way that browsers refuse on disk, and tell what is right.
    options: dict[str, object] = {"preload": False, "resultTypes": ["violations"]}
    # Two thirds of its time, for colours that no width changes.
    if page.viewport_size["width"] < max(_WIDTHS):  # type: ignore[index]
        options["rules"] = {"color-contrast": {"enabled": False}}
    found = Axe().run(page, context={"exclude": [_LATER]}, options=options).response["violations"]
    return ["it scrolls sideways"] * sideways + [
        f"{one['id']}, {len(one['nodes'])}: {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
