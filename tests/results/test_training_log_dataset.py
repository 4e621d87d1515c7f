"""Dataset of a training log: raw iterations of every run, timers, and nothing that is made up."""

from pathlib import Path

import numpy as np

from repro.logs.reading import read_text
from repro.logs.training.reading import read_training_log
from repro.paths import PUBLISHED
from repro.results.store import has_runs, read_dataset, write_dataset
from repro.results.training_logs import log_dataset

_LOG = PUBLISHED / "logs" / "megatron_gpt2_32_v100.txt"


def test_a_dataset_has_the_raw_iterations_and_timers(tmp_path: Path) -> None:
    text = read_text(_LOG)
    write_dataset(
        log_dataset(read_training_log(text), text, _LOG.name, ["GPT-2"]), tmp_path / "l.nc"
    )
    dataset = read_dataset(tmp_path / "l.nc")
    assert has_runs(dataset)
    run = dataset.sel(source="log", run=1)
    # As printed: 3171.3, 1572.7 and 1613.7 ms, in lines of iterations 10, 20 and 30.
    assert np.allclose(run.iteration_time_s[:3], [3.1713, 1.5727, 1.6137])
    assert run.iteration_number[:3].values.tolist() == [10, 20, 30]
    assert run.kind[:2].values.tolist() == ["warm-up", "steady"]
    assert float(run.timer_time_s.sel(timer="backward-embedding-all-reduce")) > 0.7
    assert (run.gpus, run.model, run.tool) == (32, "GPT-2", "Megatron")
    assert _LOG.name in dataset.attrs["provenance"]
    assert "rank" not in dataset.dims
    assert "phase_time_s" not in dataset


def test_runs_of_different_lengths_are_filled_with_nan() -> None:
    line = " iteration {:8}/ 100 | elapsed time per iteration (ms): {:.1f} |\n"
    text = "".join(line.format(n, 1000.0) for n in range(1, 9))
    text += "".join(line.format(n, 500.0) for n in range(1, 6))
    dataset = log_dataset(read_training_log(text), text, "two.log")
    assert dataset.iteration_time_s.count("iteration").values.tolist() == [[8, 5]]
    assert dataset.iteration_time_s.mean("iteration").values.tolist() == [[1.0, 0.5]]
    assert np.isnan(dataset.gpus).all()
