"""The site, built from made-up results and without: pages, links, size, and use in a browser.

One file, so that one of pytest's workers builds it.
"""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browsing import faults, needs_browser
from playwright.sync_api import Page

from repro.claims.published import read_claims
from repro.paths import ROOT

pytestmark = pytest.mark.slow
_PAGES = (
    "index.html",
    "claims.html",
    "figures/index.html",
    "figures/figure-4a-d.html",
    "figures/figure-4e-h.html",
    "figures/headlines.html",
    "notebooks/README.html",
    "what-if.html",
    "provenance.html",
    "reference/params.html",
    "reference/command-line.html",
    "documents.html",
    "docs/explanation/model.html",
)


class _Read(HTMLParser):
    """Addresses that a page links to or loads, and ids that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {given[name] or "" for name in ("id", "name") if name in given}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        elif tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.loads.append(given["href"] or "")
        elif tag in ("script", "img", "iframe") and given.get("src"):
            self.loads.append(given["src"] or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site of made-up results."""
    folder = tmp_path_factory.mktemp("results")
    build = Path(__file__).with_name("build_site.py")
    subprocess.run([sys.executable, build, folder, "made-up"], check=True)
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Read]:
    return {path: _Read(path) for path in site.rglob("*.html")}


def test_no_page_loads_anything_from_elsewhere(pages: dict[Path, _Read]) -> None:
    for path, page in pages.items():
        for address in page.loads:
            if address.startswith("data:"):
                continue
            assert not urlsplit(address).netloc, f"{path}: {address}"
            assert (path.parent / urlsplit(address).path).exists(), f"{path}: {address}"


def test_links_lead_somewhere(pages: dict[Path, _Read]) -> None:
    checked = 0
    for path, page in pages.items():
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path}: {address}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids | {"#"}, f"{path}: {address}"
            checked += 1
    assert checked > 500


def test_programs_find_all_pages_in_llms_txt(site: Path, pages: dict[Path, _Read]) -> None:
    lines = (site / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# repro") and lines[2].startswith("> ")
    assert {"## Pages", "## Figures", "## Tutorial", "## How-to guides"} <= set(lines)
    links = [match[1] for line in lines if (match := re.match(r"- \[.+?\]\((.+?)\)", line))]
    assert {site / link for link in links} == pages.keys() - {
        site / name for name in ("index.html", "search.html", "genindex.html", "py-modindex.html")
    }


def test_figures_are_headed_by_their_titles(site: Path) -> None:
    text = (site / "figures" / "figure-4a-d.html").read_text(encoding="utf-8")
    assert "<h1>Weak scaling: iteration by phase (figure 4a-d)" in text


def test_every_claim_has_an_address(site: Path, pages: dict[Path, _Read]) -> None:
    wanted = {claim.id for claim in read_claims()}
    assert wanted <= pages[site / "claims.html"].ids


def test_every_field_of_the_parameters_is_there(site: Path) -> None:
    from repro.catalog.studies.experiments import Experiment
    from repro.catalog.systems.gpus import Gpu

    text = (site / "reference" / "params.html").read_text(encoding="utf-8")
    for path in (ROOT / "params").rglob("*.yaml"):
        assert path.name in text or f"{path.parent.name}/*.yaml" in text, path
    for name in (*Experiment.model_fields, *Gpu.model_fields):
        assert f">{name}<" in text, name


def test_the_first_page_answers_with_what_was_measured(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "index.html").read_text(encoding="utf-8"))
    # The made-up experiment: 0.1 s of computing, 2 x 7/8 x 10 Gbit at 100, 25 and 10 Gbit/s.
    assert "measured on the testbed" in text
    assert f"{(0.1 + 0.7) / (0.1 + 0.175):.3g} times" in text
    assert "published: 2.51 times, 4.79 times" in text


def test_it_is_light(site: Path) -> None:
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    assert size < 15e6, f"{size / 1e6:.1f} MB"


def test_without_results_it_says_what_is_missing(tmp_path: Path) -> None:
    build = Path(__file__).with_name("build_site.py")
    subprocess.run([sys.executable, build, tmp_path], check=True)
    text = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "Not measured" in text and "make" in text
    assert "No figures yet" in (tmp_path / "site" / "figures" / "index.html").read_text()


@needs_browser
@pytest.mark.parametrize("name", _PAGES)
def test_pages_are_whole_and_accessible(
    site: Path, page: Page, wrong: list[str], name: str
) -> None:
    page.goto((site / name).as_uri())
    assert wrong == []
    assert faults(page) == []


@needs_browser
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


@needs_browser
def test_an_address_shows_its_claim(site: Path, page: Page) -> None:
    page.goto((site / "claims.html").as_uri() + "#C135")
    page.wait_for_selector("#claims-table tbody a")
    page.wait_for_timeout(300)
    top = page.evaluate("document.getElementById('C135').getBoundingClientRect().top")
    assert 0 <= top < 400


@needs_browser
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


@needs_browser
def test_the_keyboard_reaches_the_search(site: Path, page: Page) -> None:
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("Control+k")
    page.keyboard.type("similarity rule")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")
    assert page.locator("#search-results li a").count() >= 1
