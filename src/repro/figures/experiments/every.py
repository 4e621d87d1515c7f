"""All figures of all experiments, with names, titles and captions."""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import holoviews as hv
import xarray as xr
from tqdm import tqdm

from repro.atomic import replace_text
from repro.figures.experiments.batches import batch_heatmap, share_by_micro_batch
from repro.figures.experiments.collectives import bandwidth_curves
from repro.figures.experiments.pipelines import (
    node_utilisation,
    split_breakdown,
    timeline,
    timer_breakdown,
)
from repro.figures.experiments.scaling import breakdown, received_over_time, share_by_protocol
from repro.figures.experiments.sharded import collective_times, share_by_gpus, throughput_by_gpus
from repro.figures.experiments.similarity import sensitivity
from repro.figures.export import save_figure, save_interactive
from repro.observe.environment import usable_cores
from repro.processes import process_pool
from repro.results.store import has_pipelines

Draw = Callable[..., hv.core.Dimensioned]
# Reproduced figures: those of IEEE Micro 2024 by number, those of the report with its name.
_REPRODUCED = {
    "strong_scaling_breakdown": "figure-3a-d",
    "strong_scaling_received": "figure-3e-h",
    "weak_scaling_breakdown": "figure-4a-d",
    "weak_scaling_received": "figure-4e-h",
    "model_parallelism_timers": "figure-5a-d",
    "model_parallelism_received": "figure-5e-h",
    "data_batches_share": "figure-6a",
    "pipeline_batches_share": "figure-6b",
    "cluster_b_breakdown": "figure-7",
    "gpt350m_collectives": "gpt350m-figure-1",
    "gpt350m_share": "gpt350m-figures-2-3",
    "gpt350m_throughput": "gpt350m-figure-4",
}
# Titles by the end of a figure's name; another name is its own title.
_TITLES = {
    "breakdown": "iteration by phase",
    "busbw": "bus bandwidth by size",
    "claims": "claims as published, predicted and measured",
    "collectives": "reduce-scatter and all-gather times",
    "headlines": "headline claims as published, predicted and measured",
    "links": "use of a node's NICs",
    "memory": "peak memory by part",
    "nodes": "rate received by each node's NIC",
    "received": "rate received by one NIC over time",
    "share": "communication fraction",
    "split": "waiting and messages of all stages",
    "throughput": "tokens per second and GPU",
    "time": "iteration by phase",
    "timeline": "timeline of pipeline stages",
    "timers": "iteration by the paper's timers",
}
_ABBREVIATIONS = {"gpt350m": "GPT-350M", "cluster b": "cluster B"}
INDEX = "index.json"
# Each process takes about 400 MB.
_MOST_PROCESSES = 8


@dataclass(frozen=True)
class Figure:
    """One figure: name, title, experiment, caption, and the function that draws it."""

    name: str
    title: str
    experiment: str
    caption: str
    draw: Draw


def figure(name: str, experiment: str, draw: Draw, *arguments: object) -> Figure:
    """Return a figure under its stable name; the docstring of `draw` becomes its caption."""
    stable = _REPRODUCED.get(name, name.replace("_", "-"))
    prose = " ".join((inspect.getdoc(draw) or "").split("\n\nParameters")[0].split())
    caption = prose.removeprefix("Draw ")
    caption = caption[:1].upper() + caption[1:]
    return Figure(stable, _title(name), experiment, caption, partial(draw, *arguments))


def _title(name: str) -> str:
    """Return a figure's title: `strong_scaling_share` is "Strong scaling: communication fraction".

    Figures of the papers name the number there: "... (figure 3a-d)".
    """
    subject, _, end = name.rpartition("_")
    words = subject.replace("_", " ").replace("collectives-", "Collectives on ")
    words = _ABBREVIATIONS.get(words, words)
    title = ": ".join(filter(None, [words, _TITLES.get(end, end)]))
    number = re.search("figures?-.*", _REPRODUCED.get(name, ""))
    return title[0].upper() + title[1:] + (f" ({number[0].replace('-', ' ', 1)})" if number else "")


def every_figure(results: Mapping[str, xr.Dataset]) -> list[Figure]:
    """Return the figures of all results that contain runs."""
    return [
        figure(f"{name}_{suffix}", name, draw, dataset)
        for name, dataset in results.items()
        if dataset.data_vars
        for suffix, draw in figures_of(dataset).items()
    ]


def save_figures(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """Write each figure as SVG, PNG, CSV and JSON, and their index; return all paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = list(figures)
    cores = max(1, round(usable_cores()))
    with process_pool(min(cores, _MOST_PROCESSES)) as pool:
        saved = pool.map(_save, drawn, repeat(folder))
        written = list(chain.from_iterable(tqdm(saved, "figures", len(drawn), unit="figure")))
    fields = ("name", "title", "experiment", "caption")
    index = [{field: getattr(one, field) for field in fields} for one in drawn]
    replace_text(folder / INDEX, json.dumps(index, indent=1) + "\n")
    return written


def _save(one: Figure, folder: Path) -> list[Path]:
    target = folder / one.name
    return [*save_figure(one.draw, target), save_interactive(one.draw, target)]


def figures_of(dataset: xr.Dataset) -> dict[str, Draw]:
    """Return the functions that draw an experiment, by the last word of the figures' names."""
    if "mfu" in dataset.dims:
        return {"share": sensitivity}
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
    return {
        "breakdown": breakdown,
        "share": share_by_protocol,
        "received": received_over_time,
    }
