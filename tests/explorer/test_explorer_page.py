"""The explorer in a real browser, served as a user serves it."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import faults, needs_browser
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.slow, needs_browser]
_REPRO = Path(sys.executable).with_name("repro")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [_REPRO, "explore", "--port", str(port), "--no-show"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    try:
        # It says where it is when it answers.
        assert any(f":{port}" in line for line in server.stdout)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.kill()
        server.wait()


# Of what the figures are drawn, as text.
_DRAWN = """() => JSON.stringify(
    [...Bokeh.documents[0]._all_models.values()]
        .filter((model) => model.type == "ColumnDataSource")
        .map((source) => Object.values(source.data).map((column) => Array.from(column)))
)"""


@pytest.fixture
def drawn(address: str, page: Page) -> Page:
    """The page, when its figures are there."""
    page.goto(f"{address}?protocol=tcp&gbps=40.5")
    expect(page.locator(".bk-Figure")).to_have_count(2)
    expect(page.get_by_label("link rate")).to_have_count(1)
    return page


def test_the_page_is_whole_and_accessible(drawn: Page) -> None:
    assert faults(drawn) == []


def test_a_slider_moves_the_figures_and_the_address_keeps_it(drawn: Page) -> None:
    before = drawn.evaluate(_DRAWN)
    assert "40.5" in drawn.url
    drawn.get_by_label("link rate").press("ArrowRight")
    drawn.wait_for_function(f"(before) => ({_DRAWN})() != before", arg=before)
    assert "protocol=tcp" in drawn.url and "gbps=41" in drawn.url


def test_so_is_the_page_of_a_job(address: str, page: Page) -> None:
    page.goto(f"{address}job?gpu=h100-sxm-80gb&gpus=64&model=llama3.1-8b")
    expect(page.locator(".bk-Figure")).to_have_count(2)
    expect(page.get_by_text("does not fit, with")).to_have_count(1)
    expect(page.get_by_label("increase")).to_have_count(10)
    assert faults(page) == []


def test_the_address_of_a_job_opens_it_again(address: str, page: Page) -> None:
    page.goto(f"{address}job")
    expect(page.locator(".bk-Figure")).to_have_count(2)
    text = page.get_by_label("config.json")
    text.fill('{"model_type": "mamba"}')
    text.blur()
    expect(page.get_by_text("model_type 'mamba' is not understood")).to_have_count(1)
    page.get_by_label("pipeline stages").fill("3")
    page.get_by_label("pipeline stages").press("Enter")
    page.wait_for_function(
        "location.search.includes('pasted=') && location.search.includes('pp=3')"
    )
    page.reload()
    expect(page.get_by_text("model_type 'mamba' is not understood")).to_have_count(1)
    expect(page.get_by_label("pipeline stages")).to_have_value("3")
