"""Figures of a job show its estimate, and its verdict states it."""

import holoviews as hv
import hvplot
import pandas as pd
import pytest
from drawing import drawn

from repro.catalog.jobs import Job, resolve
from repro.figures.predicted.your_job import (
    changes_table,
    iteration_by_network,
    memory_by_stage,
    verdict,
)
from repro.predict.explore.jobs.estimate import (
    JobEstimate,
    by_phase,
    cheapest_fixes,
    estimate,
    other_networks,
)
from repro.predict.explore.jobs.explain import explain

# Parameters of a layer of Llama 3.1 70B (its config.json): queries and output, keys and values,
# three matrices of the feed-forward network; norms are not divided by tensor parallelism.
_LAYER = 2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672


@pytest.fixture(params=["bokeh", "matplotlib"])
def backend(request: pytest.FixtureRequest) -> str:
    hvplot.extension(request.param, logo=False)
    return str(request.param)


def _estimate(**fields: object) -> JobEstimate:
    given = {"model": "llama3.1-70b", "gpu": "h100-sxm-80gb", "gpus": 64, "tp": 8, "pp": 4}
    return estimate([resolve(Job(**{**given, **fields}))])[0]  # type: ignore[arg-type]


def _table(figure: hv.Overlay, element: type) -> pd.DataFrame:
    (found,) = figure.traverse(lambda part: part, [element])
    return found.dframe()


def test_bars_of_memory_are_the_stages_parts(backend: str) -> None:
    one = _estimate()
    figure = memory_by_stage(one)
    table = _table(figure, hv.Bars).pivot(index="pipeline stage", columns="part", values="memory")
    assert list(table.index) == ["0", "1", "2", "3"]
    # 20 layers of 2 bytes per parameter on 8 ranks.
    assert table.loc["1", "weights"] == pytest.approx(2 * 20 * _LAYER / 8 / 2**30, rel=1e-3)
    # The whole stack is the interval's high end; without fragmentation, its low end.
    assert table.sum(axis=1).to_numpy() == pytest.approx(one.stages.high / 2**30)
    expected = one.stages.low / 2**30
    assert table.drop(columns="fragmentation").sum(axis=1).to_numpy() == pytest.approx(expected)
    (line,) = figure.traverse(lambda part: part, [hv.HLine])
    # 80 GB cards have 80 GiB, of which the driver keeps a hundredth.
    assert line.data == pytest.approx(80 * 0.99)
    drawn(figure, backend)


def test_bars_of_time_are_the_phases_and_longer_ones_are_cut(backend: str) -> None:
    one = _estimate()
    networks = other_networks(one)
    figure = iteration_by_network(one, networks)
    bars = _table(figure, hv.Bars)
    total = bars.groupby("network", sort=False)["time"].sum()[::-1]
    every = [one, *(change.estimate for change in networks)]
    assert total.to_numpy() == pytest.approx([other.iteration_time_s for other in every])
    # Labels are wrapped, and state the time.
    for name, other in zip(total.index, every, strict=True):
        assert " ".join(name.split()).endswith(f": {other.iteration_time_s:.3g} s")
    ends = _table(figure, hv.ErrorBars).iloc[-1]
    assert ends["time"] + ends["above"] == pytest.approx(one.interval_s[1])
    assert ends["time"] - ends["below"] == pytest.approx(one.interval_s[0])
    # TCP/IP over 10 Gbit/s takes more than three times as long, and the title tells.
    limit = 3 * one.iteration_time_s
    assert total.max() > limit
    assert figure.get_dimension("time").range == (0, pytest.approx(limit))
    title = hv.Store.lookup_options(backend, figure.get(0), "plot").kwargs["title"]
    assert title.endswith(f"cut at {limit:.3g} s)")
    drawn(figure, backend)


def test_a_job_within_a_node_has_one_bar_which_is_whole(backend: str) -> None:
    one = _estimate(model="llama3.1-8b", gpus=8, tp=8, pp=1)
    assert other_networks(one) == []
    figure = iteration_by_network(one, [])
    assert _table(figure, hv.Bars)["network"].nunique() == 1
    assert figure.get_dimension("time").range[1] >= one.interval_s[1]
    drawn(figure, backend)


def test_gains_of_changes_are_relative_to_the_job() -> None:
    one = _estimate(model="llama3.1-8b", gpus=8, tp=1, pp=1)
    changes = cheapest_fixes(one)
    table = changes_table(changes, one)
    assert list(table.index) == [change.words for change in changes]
    ratio = table["tokens/s per GPU"] / one.tokens_per_s_per_gpu
    assert table["difference, %"].to_numpy() == pytest.approx(100 * (ratio - 1))


def test_the_verdict_states_memory_time_and_the_longest_wait() -> None:
    one = _estimate()
    text = verdict(one)
    assert text.startswith("Predicted for Llama 3.1 70B on 64 H100-SXM-80GB: fits, with ")
    assert "of 79.2 GiB" in text and "989 TFLOP/s (dense bf16)" in text
    assert f"An iteration takes {one.iteration_time_s:.3g} s" in text
    waits = {name: seconds for name, seconds in by_phase(one).items() if name != "compute"}
    assert f"next is {max(waits, key=waits.__getitem__)}, " in text


def test_the_verdict_names_the_change_that_makes_a_job_fit() -> None:
    # 8.03e9 parameters, of which each GPU has bf16 weights and fp32 gradients alone: 45 GiB, and
    # activations of 8,192 tokens.
    one = _estimate(model="llama3.1-8b", gpus=8, tp=1, pp=1)
    assert "does not fit, with" in verdict(one)
    assert f"makes it fit: {cheapest_fixes(one)[0].words}." in verdict(one)
    hopeless = _estimate(model="llama3.1-405b", gpus=8, tp=8, pp=1)
    assert "No change of one or two sizes makes it fit." in verdict(hopeless)


def test_the_verdict_judges_a_measurement() -> None:
    one = _estimate()
    alike = explain(one, f"{one.iteration_time_s}s")
    assert verdict(one, alike).endswith("s are as expected.")
    slower = explain(one, f"{1.5 * one.iteration_time_s}s")
    assert "s are slower.\nThe nearest explanation is " in verdict(one, slower)
