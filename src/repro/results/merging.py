"""Union of datasets of the schema, values and attributes."""

import json
from collections import Counter
from collections.abc import Sequence

import xarray as xr

from repro.catalog.phases import P2P_TIMERS, PHASES
from repro.catalog.studies.experiments import SWEPT

_IN_ORDER = ("source", "model", "protocol", "level", "collective", "layout", "scheme", "in_place")


def merge(datasets: Sequence[xr.Dataset]) -> xr.Dataset:
    """Return the union of datasets of the schema; configurations in none of them are NaN.

    The order of models and protocols is that of their first appearance; GPU counts ascend. The
    attributes `requests` and `ran_on` list those of every part, `provenance` the distinct ones, and
    `not_run` is the union. Other attributes are those of the first part. Parts without variables
    add attributes only.
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
    ascending = ("gpus", "rank", "size_bytes", *SWEPT)
    return (
        merged.sel(order)
        .sortby([name for name in ascending if name in merged.dims])
        .assign_attrs(attributes)
    )


def _merged_attributes(datasets: Sequence[xr.Dataset]) -> dict[str, object]:
    attributes = dict(datasets[0].attrs)
    for name, combine in (("provenance", _distinct), ("requests", list), ("ran_on", list)):
        if entries := _entries(datasets, name):
            attributes[name] = json.dumps(combine(entries))
    spent: Counter[str] = Counter()
    for dataset in datasets:
        spent.update(json.loads(dataset.attrs.get("spent_s", "{}")))
    if spent:
        attributes["spent_s"] = json.dumps({what: round(s, 3) for what, s in spent.items()})
    if any("not_run" in dataset.attrs for dataset in datasets):
        reasons = [json.loads(dataset.attrs.get("not_run", "{}")) for dataset in datasets]
        attributes["not_run"] = json.dumps(
            {what: why for part in reasons for what, why in part.items()}
        )
    return attributes


def _entries(datasets: Sequence[xr.Dataset], name: str) -> list[dict[str, object]]:
    """Return the entries of a JSON attribute, a list or one entry, of all datasets."""
    found: list[dict[str, object]] = []
    for dataset in datasets:
        entries = json.loads(dataset.attrs.get(name, "[]"))
        found += entries if isinstance(entries, list) else [entries]
    return found


def _distinct(parts: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return parts of a provenance that differ in more than their time; each has its first time."""
    found: dict[str, dict[str, object]] = {}
    for part in sorted(parts, key=lambda part: str(part.get("time"))):
        found.setdefault(json.dumps({**part, "time": ""}, sort_keys=True), part)
    return list(found.values())
