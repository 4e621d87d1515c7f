"""The site in a real browser, from disk."""

from pathlib import Path

import pytest
from browsing import faults, needs_browser
from playwright.sync_api import Page

from repro.claims.published import read_claims

pytestmark = [pytest.mark.slow, needs_browser]
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


@pytest.mark.parametrize("name", _PAGES)
def test_pages_are_whole_and_accessible(
    site: Path, page: Page, wrong: list[str], name: str
) -> None:
    page.goto((site / name).as_uri())
    assert wrong == []
    assert faults(page) == []


def test_the_table_of_claims_filters_what_is_below(site: Path, page: Page) -> None:
    page.goto((site / "claims.html").as_uri())
    page.wait_for_selector("#claims-table tbody a")
    assert page.locator("#claims > section:visible").count() == len(read_claims())
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
