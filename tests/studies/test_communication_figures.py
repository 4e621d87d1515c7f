"""The communication study's figures hold what they are given."""

import hvplot
import pandas as pd

from repro.studies.communication.figures import growth, message_sizes


def test_bars_hold_all_calls_but_receives() -> None:
    hvplot.extension("matplotlib")
    frame = pd.DataFrame(
        [
            ("data", "all_reduce", 5000, 2.0),
            ("data", "all_reduce", 6000, 1.0),
            ("pipeline", "send", 4, 3.0),
            ("pipeline", "recv", 4, 3.0),
        ],
        columns=["role", "operation", "bytes", "calls"],
    )
    (panel,) = message_sizes({"one": frame})
    drawn = panel.dframe()
    values = dict(zip(zip(drawn["size"], drawn["group"], strict=True), drawn["calls"], strict=True))
    assert values[("4 KiB", "data")] == 3
    assert values[("4 B", "pipeline")] == 3
    assert sum(values.values()) == 6


def test_growth_has_volume_and_throughput_by_length_and_gpus() -> None:
    hvplot.extension("matplotlib")
    rows = [
        ("small", gpus, length, 1e9 * length, 100.0)
        for gpus, length in ((8, 512), (8, 1024), (16, 512))
    ]
    columns = ["model", "gpus", "sequence_length", "sent_bytes", "tokens_per_s_per_gpu"]
    assert len(growth(pd.DataFrame(rows, columns=columns))) == 4
