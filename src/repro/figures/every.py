"""All figures of all experiments, for the disk."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import xarray as xr
from tqdm import tqdm

from repro.figures.disk import save_figure
from repro.figures.scaling import breakdown, received_over_time
from repro.results.store import has_runs


def draw_every_figure(results: Mapping[str, xr.Dataset], folder: Path) -> list[Path]:
    """Draw breakdowns and NIC series of every experiment that has been run; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {}
    for name, dataset in results.items():
        if has_runs(dataset):
            drawings[f"{name}_breakdown"] = partial(breakdown, dataset)
            drawings[f"{name}_received"] = partial(received_over_time, dataset)
    return [
        path
        for name, draw in tqdm(drawings.items(), desc="figures", unit="figure")
        for path in save_figure(draw, folder / name)
    ]
