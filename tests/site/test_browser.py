"""The site in a real browser, from disk: Debian's chromium through Playwright."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("site"),  # which then builds its site once
    pytest.mark.skipif(_CHROMIUM is None, reason="no chromium; `apt-get install chromium`"),
]
_PAGES = (
    "index.html",
    "claims.html",
    "figures/index.html",
    "figures/figure-4a-d.html",
    "figures/figure-4e-h.html",
    "figures/headlines.html",
    "notebooks/index.html",
    "what-if.html",
    "provenance.html",
    "reference/params.html",
    "reference/command-line.html",
    "docs/model.html",
)
_WIDTHS = (1400, 390)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def wrong() -> list[str]:
    """What a page complained of, and what it asked for that is not on disk."""
    return []


@pytest.fixture(params=_WIDTHS)
def page(browser: Browser, request: pytest.FixtureRequest, wrong: list[str]) -> Iterator[Page]:
    """A page that fails its test if anything is wrong."""
    opened = browser.new_page(viewport={"width": request.param, "height": 900})
    opened.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "request",
        lambda asked: (
            None if asked.url.startswith(("file:", "data:", "blob:")) else wrong.append(asked.url)
        ),
    )
    yield opened
    opened.close()
    assert wrong == []


@pytest.mark.parametrize("name", _PAGES)
def test_pages_are_whole_and_accessible(
    site: Path, page: Page, wrong: list[str], name: str
) -> None:
    page.goto((site / name).as_uri())
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= page.viewport_size["width"], "the page scrolls sideways"  # type: ignore[index]
    assert wrong == []
    # It would ask for style sheets in a way that browsers refuse on disk.
    found = Axe().run(page, options={"preload": False}).response["violations"]
    serious = [
        f"{one['id']}, {len(one['nodes'])}: {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_the_table_of_claims_filters_what_is_below(site: Path, page: Page) -> None:
    page.goto((site / "claims.html").as_uri())
    page.wait_for_selector("#claims-table tbody a")
    assert page.locator("#claims > section:visible").count() == 151
    page.get_by_label("Search claims:").fill("C017")
    page.wait_for_function(
        "document.querySelectorAll('#claims > section:not([hidden])').length < 9"
    )
    assert page.locator("#C017").is_visible()
    assert not page.locator("#C001").is_visible()


def test_an_address_shows_its_claim(site: Path, page: Page) -> None:
    page.goto((site / "claims.html").as_uri() + "#C135")
    page.wait_for_selector("#claims-table tbody a")
    page.wait_for_timeout(300)
    top = page.evaluate("document.getElementById('C135').getBoundingClientRect().top")
    assert 0 <= top < 400


def test_figures_are_drawn_and_their_legends_hide(site: Path, page: Page) -> None:
    page.goto((site / "figures/figure-4e-h.html").as_uri())
    page.wait_for_function("document.querySelectorAll('.panel .bk-Figure').length == 4")
    names, hidden = page.evaluate(
        """() => {
            const plot = Bokeh.documents[0].roots()[0];
            const legend = plot.below.find((part) => part.type == "Legend");
            return [legend.items.map((item) => item.label.value), legend.click_policy];
        }"""
    )
    assert {"RDMA", "IPoIB", "TCP/IP", "RDMA, published"} <= set(names)
    assert hidden == "hide"


def test_the_keyboard_reaches_the_search(site: Path, page: Page) -> None:
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("Control+k")
    page.keyboard.type("similarity rule")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")
    assert page.locator("#search-results li a").count() >= 1
