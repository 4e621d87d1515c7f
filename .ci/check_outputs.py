"""Check that the pipeline's outputs exist and are well formed."""

import json
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import yaml

from repro.catalog.studies.experiments import experiment
from repro.figures.experiments.every import every_figure
from repro.paths import RESULTS, find
from repro.results.store import is_sweep, read_dataset, read_experiments, read_sweeps

profile = yaml.safe_load(find("params/pipeline.yaml").read_text())["profile"]
sweeps = read_sweeps()
for name, dataset in sweeps.items():
    assert json.loads(dataset.attrs["not_run"]) == {}, dataset.attrs["not_run"]
    # Configurations that converge early have fewer repeats than others.
    smallest = dataset["call_time_s"].sel(layout="world").isel(size_bytes=0, in_place=0)
    assert bool((smallest.max(["rank", "repeat"]) > 0).all()), f"{name}: a collective is missing"
experiments = read_experiments()
for name, dataset in experiments.items():
    assert set(dataset.dims) >= {"source", "model", "protocol", "gpus", "iteration", "rank"}, name
    assert json.loads(dataset.attrs["not_run"]) == {}, dataset.attrs["not_run"]
    parts = json.loads(dataset.attrs["provenance"])
    assert parts and all(part["commit"] != "unknown" for part in parts)
    ran = dataset["out_of_memory"] == 0
    assert bool(ran.any()), f"{name}: everything is out of memory"
    time = dataset["iteration_time_s"].isel(rank=0)
    # Configurations stop when they converge, after different numbers of iterations.
    recorded = time > 0
    least = experiment(name).profiles[profile].iterations
    enough = recorded.sum("iteration") >= least
    assert bool(enough.where(ran, True).all()), f"{name}: an iteration is missing"
    phases = dataset["phase_time_s"].sum("phase").isel(rank=0)
    sums_agree = np.allclose(phases.where(recorded, 0), time.where(recorded, 0))
    assert sums_agree, f"{name}: phases do not sum to the iteration time"
    losses = dataset["loss"].notnull().any(["rank", "iteration"])
    assert bool(losses.where(ran, True).all()), f"{name}: no stage has a loss"
for figure in every_figure(experiments | sweeps):
    path = RESULTS / "figures" / figure.name
    ElementTree.parse(path.with_suffix(".svg"))
    assert matplotlib.image.imread(path.with_suffix(".png")).std() > 0.02, path
    assert len(path.with_suffix(".csv").read_text().splitlines()) > 1, path
assert read_dataset(RESULTS / "sensitivity.nc").sizes["mfu"] == 2
claims = json.loads((RESULTS / "claims.json").read_text())
assert len(claims) > 50
swept = {name for name, dataset in experiments.items() if is_sweep(dataset)}
assert set(json.loads((RESULTS / "metrics.json").read_text())) == set(experiments) - swept
pages = {path.relative_to(RESULTS / "site") for path in (RESULTS / "site").rglob("*.html")}
assert {Path(f"notebooks/{name}.html") for name in experiments} <= pages
assert "claims.html#C017" in (RESULTS / "site" / "index.html").read_text()
size = sum(path.stat().st_size for path in (RESULTS / "site").rglob("*") if path.is_file())
assert size < 15e6, f"the site is {size / 1e6:.1f} MB"
print("outputs are well formed")
