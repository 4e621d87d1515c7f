"""Figures of the study of partitioning hold what they are given."""

import holoviews as hv
import pandas as pd
import pytest

from repro.studies.hierarchical_zero.figures import bytes_by_level_bars, gain_by_choice, scheme_map


@pytest.fixture(autouse=True)
def _matplotlib() -> None:
    import hvplot

    hvplot.extension("matplotlib")


def test_bars_are_of_levels_and_phases() -> None:
    moved = pd.DataFrame(
        {
            "scheme": ["zero-3", "zero-3", "hpz"],
            "level": ["fabric", "fabric", "node"],
            "phase": ["gradient sync", "parameter all-gather", "parameter all-gather"],
            "operation": "all_gather",
            "sent_bytes": [1e6, 2e6, 3e6],
        }
    )
    by_level, by_phase = bytes_by_level_bars(moved, "made up")
    assert by_level.Rectangles.Fabric.data["value"].tolist() == [3.0, 0.0]
    assert by_phase.get(("Rectangles", "Gradient_sync")).data["value"].tolist() == [1.0, 0.0]


def test_a_map_has_a_panel_for_each_domain_and_a_box_for_each_cell() -> None:
    rows = [
        (domain, "gpt-20b", 1, gpus, ratio, scheme, 50.0, 1.2)
        for domain in ("frontier", "dgx-h100")
        for gpus, ratio, scheme in ((8, 0.5, "mics"), (8, 1.0, "hpz"), (16, 0.5, "none fits"))
    ]
    columns = ["cluster", "model", "micro_batches", "gpus", "link_ratio", "scheme"]
    found = pd.DataFrame(rows, columns=[*columns, "tflops_per_gpu", "ahead"])
    drawn = scheme_map(found)
    assert len(drawn) == 2
    boxes = drawn.traverse(lambda one: one, [hv.Rectangles])
    assert sum(len(one) for one in boxes) == 6


def test_gains_that_do_not_fit_are_no_part_of_the_curve() -> None:
    sweep = pd.DataFrame({"link_ratio": [1.0, 1.0, 0.5], "gain": [1.1, float("nan"), 1.5]})
    curves = gain_by_choice(sweep).traverse(lambda one: one, [hv.Curve])
    assert [len(one) for one in curves] == [1, 1]
