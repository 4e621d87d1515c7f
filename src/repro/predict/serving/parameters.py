"""Engines by name, and what the costs of some software were calibrated to
(`params/serving_fit.yaml`)."""

from repro.catalog.reading import Entry, choose, read_params
from repro.catalog.systems.gpus import Gpu
from repro.catalog.systems.serving import ServingCosts, read_serving_stacks
from repro.predict.parameters import TRANSFER, Residuals
from repro.predict.serving.served import Engine, precision

FITTED = "serving_fit.yaml"


class ServingFit(Entry):
    """Costs of one software, with where they come from; `residuals` are of models that a fit has
    not seen."""

    source: str
    date: str
    costs: ServingCosts
    residuals: Residuals


def read_fits() -> dict[str, ServingFit]:
    """The calibrations by name of the software.

    Raises
    ------
    ReproError
        The file is missing or not valid.
    """
    fits: dict[str, ServingFit] = read_params(FITTED, dict[str, ServingFit])
    return fits


def engine(device: Gpu, weights: str, cache: str = "", stack: str = "") -> Engine:
    """A GPU with software.

    Parameters
    ----------
    device
        A GPU, which need not exist.
    weights, cache
        Precisions; without one of its own the cache has that of the weights.
    stack
        A name of `params/serving.yaml`; the first without one.

    Raises
    ------
    ReproError
        A name is unknown, or the GPU lacks a precision.
    """
    known, fits = read_serving_stacks(), read_fits()
    name = stack or next(iter(known))
    found = choose("serving software", name, known)
    widest = max(fit.residuals.half_width for fit in fits.values())
    costs, width = found.costs, float((widest**2 + TRANSFER**2) ** 0.5)
    if costs is None:
        fitted = choose("calibrated software", name, fits)
        costs, width = fitted.costs, fitted.residuals.half_width
    kept = precision(cache or weights)
    return Engine(device, precision(weights), kept, found, costs, width)
