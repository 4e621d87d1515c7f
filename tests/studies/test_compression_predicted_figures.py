"""Figures of predicted compression hold what they are given."""

import holoviews as hv
import pandas as pd
import pytest

from repro.studies.compression.predicted_figures import (
    break_even_maps,
    gain_by_link,
    gain_by_setting,
    parts_by_scheme,
)

_PARTS = ("computing", "bubble and stragglers", "tensor", "pipeline", "gradients", "parameters")


@pytest.fixture(autouse=True)
def _matplotlib() -> None:
    import hvplot

    hvplot.extension("matplotlib")


def _predicted() -> pd.DataFrame:
    rows = [
        {"link": link, "scheme": scheme, "gain_pct": gain, "low": gain - 1, "high": gain + 2}
        for link, gains in {"Lassen": (0.0, -5.0, -2.0), "TCP/IP": (0.0, 40.0, 30.0)}.items()
        for scheme, gain in zip(("none", "naive", "hybrid"), gains, strict=True)
    ]
    return pd.DataFrame(rows).assign(**dict.fromkeys((*_PARTS, "coding"), 1.0))


def test_gains_stand_beside_what_is_published_of_the_first_network_only() -> None:
    drawn = gain_by_link(_predicted())
    scatters = {one.label: one for one in drawn.traverse(lambda one: one, [hv.Scatter])}
    assert scatters["naive"].data["gain"].tolist() == [-5.0, 40.0]
    assert sorted(scatters["published"]["published"]) == [12.7, 17.3, 22.5, 23.6]
    assert max(scatters["published"]["at"]) < 0.5


def test_bars_have_a_panel_for_each_network() -> None:
    drawn = parts_by_scheme(_predicted())
    assert len(drawn) == 2
    assert len(drawn.traverse(lambda one: one, [hv.Rectangles])) == 2 * 7


def test_curves_go_from_the_least_gain_to_the_most() -> None:
    sweep = pd.DataFrame({"link_ratio": [1.0, 1.0, 0.5], "naive": [1.0, -2.0, 5.0]})
    drawn = gain_by_setting(sweep.assign(hybrid=0.0), "link_ratio")
    curves = drawn.traverse(lambda one: one, [hv.Curve])
    gains = [(float(one["gain"].min()), float(one["gain"].max())) for one in curves]
    assert gains == [(5.0, 5.0), (-2.0, 1.0), (0.0, 0.0), (0.0, 0.0)]
    assert {float(one["share"].max()) for one in curves} == {100.0}


def test_the_map_has_a_panel_for_each_rate_that_saves() -> None:
    drawn = break_even_maps()
    titles = [one.opts.get("plot").kwargs["title"] for one in drawn]
    assert [title.split(" at ")[1] for title in titles] == [
        "4 of 16 bits",
        "8 of 16 bits",
        "12 of 16 bits",
    ]
