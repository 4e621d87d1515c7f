"""Join datasets of the schema, values and attributes."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import get_args

import xarray as xr

from repro.catalog.phases import P2P_TIMERS, PHASES
from repro.catalog.studies.experiments import Swept

_IN_ORDER = ("source", "model", "protocol", "level", "collective", "layout", "scheme", "in_place")


def merge(datasets: Sequence[xr.Dataset]) -> xr.Dataset:
    """The union of datasets of the schema; configurations in none of them are NaN.

    The order of models and protocols is that of their first appearance; GPU counts ascend. Of the
    attributes, `provenance` and `asked` list those of every part, `not_run` is the union, and the
    others are the first part's. Parts without variables add attributes only.
    """
    parts = [dataset for dataset in datasets if dataset.data_vars]
    attributes = _merged_attributes(datasets)
    if not parts:
        return xr.Dataset(attrs=attributes)
    merged = xr.merge(
        [part.drop_attrs(deep=False) for part in parts], join="outer", compat="no_conflicts"
    )
    order = {
        name: list(
            dict.fromkeys(
                value for part in parts if name in part for value in part[name].values.tolist()
            )
        )
        for name in _IN_ORDER
    }
    order["phase"], order["timer"] = list(PHASES), list(P2P_TIMERS)
    order = {name: values for name, values in order.items() if name in merged.dims}
    ascending = ("gpus", "rank", "size_bytes", *get_args(Swept))
    return (
        merged.sel(order)
        .sortby([name for name in ascending if name in merged.dims])
        .assign_attrs(attributes)
    )


def _merged_attributes(datasets: Sequence[xr.Dataset]) -> dict[str, object]:
    attributes = dict(datasets[0].attrs)
    for name in ("provenance", "asked"):
        described = [dataset.attrs[name] for dataset in datasets if name in dataset.attrs]
        if described:
            entries = [entry for part in described for entry in json.loads(part)]
            attributes[name] = json.dumps(entries)
    spent: Counter[str] = Counter()
    for dataset in datasets:
        spent.update(json.loads(dataset.attrs.get("spent_s", "{}")))
    if spent:
        attributes["spent_s"] = json.dumps({what: round(s, 3) for what, s in spent.items()})
    reasons = [json.loads(dataset.attrs.get("not_run", "{}")) for dataset in datasets]
    if any("not_run" in dataset.attrs for dataset in datasets):
        attributes["not_run"] = json.dumps(
            {what: why for part in reasons for what, why in part.items()}
        )
    return attributes
