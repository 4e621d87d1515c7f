"""Check that the pipeline's outputs exist and are well formed."""

import json
from xml.etree import ElementTree

import matplotlib.image
import numpy as np

from repro.paths import RESULTS
from repro.results.store import read_dataset, read_experiments

for name, dataset in read_experiments().items():
    assert set(dataset.dims) >= {"source", "model", "protocol", "gpus", "iteration", "rank"}, name
    assert json.loads(dataset.attrs["not_run"]) == {}, dataset.attrs["not_run"]
    parts = json.loads(dataset.attrs["provenance"])
    assert len(parts) == dataset.sizes["protocol"]
    assert all(part["commit"] != "unknown" for part in parts)
    time = dataset["iteration_time_s"].isel(rank=0)
    assert bool((time > 0).all()), f"{name}: an iteration is missing"
    phases = dataset["phase_time_s"].sum("phase").isel(rank=0)
    assert np.allclose(phases, time), f"{name}: phases do not add up to the iteration"
    assert bool(dataset["loss"].isel(rank=0).notnull().all())
    for suffix in ("breakdown", "received"):
        figure = RESULTS / "figures" / f"{name}_{suffix}"
        ElementTree.parse(figure.with_suffix(".svg"))
        assert matplotlib.image.imread(figure.with_suffix(".png")).std() > 0.02, figure
assert read_dataset(RESULTS / "sensitivity.nc").sizes["mfu"] == 2
claims = json.loads((RESULTS / "claims.json").read_text())
assert len(claims) > 50
assert set(json.loads((RESULTS / "metrics.json").read_text())) == {"strong_scaling", "weak_scaling"}
assert "<html" in (RESULTS / "report.html").read_text()[:2000].lower()
print("outputs are well formed")
