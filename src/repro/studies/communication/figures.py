"""Communication of GPT training: sizes of messages by group, growth of volume and throughput."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import numpy as np
import pandas as pd
import xarray as xr

from repro.figures.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from repro.figures.panels import HEIGHT, LEGEND_WIDTH, WIDTH, not_run_here, panels
from repro.results.communication import transfers
from repro.results.store import has_runs
from repro.studies.communication.message_costs import logged_volumes

_ROLE_COLOURS = {
    "data": BLUE,
    "tensor": VERMILION,
    "pipeline": GREEN,
    "context": PURPLE,
    "embedding": ORANGE,
    "optimizer": BLACK,
}
_LINE_COLOURS = (BLACK, SKY_BLUE, BLUE, GREEN, VERMILION)
_UNITS = ("B", "KiB", "MiB", "GiB")


def logged_sizes(results: xr.Dataset) -> hv.Layout:
    """Draw `message_sizes` of the communication log, a panel per layout."""
    if not has_runs(results):
        return not_run_here(results)
    names = [str(name) for name in results["layout"].values]
    return message_sizes(
        {name: logged_volumes(transfers(results.sel(layout=name))) for name in names}
    )


def message_sizes(volumes: dict[str, pd.DataFrame]) -> hv.Layout:
    """Draw calls of a rank and iteration by size, stacked by kind of group, a panel per entry.

    Parameters
    ----------
    volumes
        Tables by the panel's title: `role`, `operation`, `bytes` and `calls`. A bar holds sizes up
        to four times as large as its smallest.
    """
    drawn = []
    for title, frame in volumes.items():
        own = frame[frame.operation != "recv"]
        exponents = (np.log2(own.bytes.clip(lower=1)) // 2 * 2).astype(int)
        counted = own.assign(exponent=exponents).pivot_table(
            index="exponent", columns="role", values="calls", aggfunc="sum", fill_value=0.0
        )
        counted = counted[[role for role in _ROLE_COLOURS if role in counted]]
        counted.index = [_written(2**exponent) for exponent in counted.index]
        drawn.append(
            counted.rename_axis("size").hvplot.bar(
                stacked=True,
                color=[_ROLE_COLOURS[str(role)] for role in counted],
                title=title,
                xlabel="size of a call, from",
                ylabel="calls of a rank in an iteration",
                group_label="group",
                value_label="calls",
                legend="right",
                width=WIDTH + LEGEND_WIDTH,
                height=HEIGHT,
            )
        )
    return panels(drawn)


def growth(study: pd.DataFrame) -> hv.Layout:
    """Draw bytes sent and throughput per GPU by sequence length and by GPUs, a line per model.

    Parameters
    ----------
    study
        Output of `repro.studies.communication.predicted.predict_study`.
    """
    own = study.groupby("model", sort=False).sequence_length.transform(
        lambda lengths: lengths.mode().iloc[0]
    )
    by_length = study[study.gpus == study.gpus.min()]
    by_gpus = study[study.sequence_length == own]
    drawn = []
    for along, rows in (("sequence_length", by_length), ("gpus", by_gpus)):
        for quantity, label, scale in (
            ("sent_bytes", "GB sent by a GPU in an iteration", 1e-9),
            ("tokens_per_s_per_gpu", "tokens/s per GPU", 1.0),
        ):
            table = scale * rows.pivot_table(index=along, columns="model", values=quantity)
            table = table[list(dict.fromkeys(study.model))].rename(index=str)
            drawn.append(
                table.hvplot.line(
                    color=list(_LINE_COLOURS),
                    logy=True,
                    xlabel="GPUs" if along == "gpus" else "sequence length, tokens",
                    ylabel=label,
                    group_label="model",
                    # Panels with one name for their values would share an axis.
                    value_label=label,
                    legend="right",
                    width=WIDTH + LEGEND_WIDTH,
                    height=HEIGHT,
                )
            )
    return panels(drawn)


def _written(size_bytes: int) -> str:
    power = min((size_bytes.bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{size_bytes >> (10 * power)} {_UNITS[power]}"
