"""Figures of a training log show its iterations, its timers and the predictions beside them."""

import holoviews as hv
import hvplot
import pytest
from drawing import drawn

from repro.figures.predicted.logged import explanations, iteration_times, parts_compared
from repro.logs.reading import read_text
from repro.logs.training.reading import read_training_log
from repro.paths import PUBLISHED
from repro.predict.explore.jobs.logged import JudgedRun, judge

pytestmark = pytest.mark.slow


@pytest.fixture(params=["bokeh", "matplotlib"])
def backend(request: pytest.FixtureRequest) -> str:
    hvplot.extension(request.param, logo=False)
    return str(request.param)


@pytest.fixture(scope="module")
def one() -> JudgedRun:
    log = read_training_log(read_text(PUBLISHED / "logs" / "megatron_gpt2_32_v100.txt"))
    given = {"gpu": "v100-sxm2-32gb", "gpus_per_node": 4, "nic": "4x100", "vocabulary": 50257}
    (found,) = judge(log, given)
    return found


def test_iterations_are_drawn_by_kind_beside_the_steady_median(
    one: JudgedRun, backend: str
) -> None:
    figure = iteration_times(one.run)
    (points,) = figure.traverse(lambda part: part, [hv.NdOverlay])
    by_kind = {kind: part.dframe() for (kind,), part in points.data.items()}
    assert {kind: len(frame) for kind, frame in by_kind.items()} == {
        **{"warm-up": 1, "steady": 18, "evaluation": 1}
    }
    # The log's first line says 3171.3 ms, and that after the evaluation 1773.4 ms.
    assert by_kind["warm-up"].seconds.tolist() == pytest.approx([3.1713])
    assert by_kind["evaluation"].seconds.tolist() == pytest.approx([1.7734])
    (line,) = figure.traverse(lambda part: part, [hv.HLine])
    assert line.data == pytest.approx(1.617, rel=0.01)
    assert drawn(figure, backend)


def test_parts_add_up_to_the_iterations(one: JudgedRun, backend: str) -> None:
    assert one.measured is not None
    figure = parts_compared(one.run, one.measured)
    (bars,) = figure.traverse(lambda part: part, [hv.Bars])
    sums = bars.dframe().groupby("index")["value"].sum()
    assert sums["measured"] == pytest.approx(one.measured.time_s)
    assert sums["predicted"] == pytest.approx(one.measured.estimate.iteration_time_s)
    pipeline = bars.dframe().set_index(["index", "Variable"]).value["measured", "pipeline"]
    # Median timers of receiving, of both sends, and of the embedding sync, in ms.
    assert pipeline == pytest.approx(0.236 + 0.0053 + 0.0009 + 0.722, rel=0.02)
    assert drawn(figure, backend)


def test_explanations_are_beside_the_measured_time(one: JudgedRun, backend: str) -> None:
    assert one.measured is not None
    figure = explanations(one.measured)
    rows = figure.dframe().dropna().set_index("index").value
    assert rows["measured"] == one.measured.time_s
    assert rows["as predicted"] == one.measured.estimate.iteration_time_s
    assert len(rows) == 2 + min(len(one.measured.explanations), 8)
    assert drawn(figure, backend)
