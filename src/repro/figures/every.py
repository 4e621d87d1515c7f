"""All figures of all experiments, for the disk."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import holoviews as hv
import xarray as xr
from tqdm import tqdm

from repro.figures.batches import batch_heatmap, share_by_micro_batch
from repro.figures.collectives import bandwidth_curves
from repro.figures.disk import save_figure
from repro.figures.pipelines import node_utilisation, split_breakdown, timeline, timer_breakdown
from repro.figures.scaling import breakdown, received_over_time
from repro.figures.sharded import collective_times, share_by_gpus, throughput_by_gpus
from repro.results.store import has_pipelines

Figure = Callable[[xr.Dataset], hv.core.Dimensioned]


def draw_every_figure(results: Mapping[str, xr.Dataset], folder: Path) -> list[Path]:
    """Draw the figures of everything that has been run; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {
        f"{name}_{suffix}": partial(draw, dataset)
        for name, dataset in results.items()
        if dataset.data_vars
        for suffix, draw in figures_of(dataset).items()
    }
    return [
        path
        for name, draw in tqdm(drawings.items(), desc="figures", unit="figure")
        for path in save_figure(draw, folder / name)
    ]


def figures_of(dataset: xr.Dataset) -> dict[str, Figure]:
    """What shows an experiment, by the ends of the files' names."""
    if "collective" in dataset.dims:
        return {"busbw": bandwidth_curves}
    if "micro_batch_size" in dataset.dims and has_pipelines(dataset):
        return {"share": share_by_micro_batch}
    if "micro_batch_size" in dataset.dims:
        return {
            "collectives": collective_times,
            "share": share_by_gpus,
            "throughput": throughput_by_gpus,
        }
    if "global_batch_size" in dataset.dims:
        return {"share": batch_heatmap}
    if has_pipelines(dataset):
        return {
            "timers": timer_breakdown,
            "split": split_breakdown,
            "timeline": timeline,
            "nodes": node_utilisation,
            "received": received_over_time,
        }
    return {"breakdown": breakdown, "received": received_over_time}
