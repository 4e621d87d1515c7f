"""Engines by name, and what the costs of some software were calibrated to
(`params/serving_fit.yaml`)."""

from collections.abc import Sequence

import numpy as np

from repro.catalog.models.hugging_face import ModelFile
from repro.catalog.models.open_models import OpenModel, plain_name
from repro.catalog.reading import Entry, choose, read_params
from repro.catalog.systems.gpus import Gpu, gpu
from repro.catalog.systems.serving import ServingCosts, ServingStack, read_serving_stacks
from repro.errors import ReproError
from repro.predict.parameters import TRANSFER, Residuals
from repro.predict.serving.served import CACHE_BYTES, FORMATS, Engine, precision

FITTED = "serving_fit.yaml"
KINDS = ("dense", "mixtures of experts")


class ServingFit(Entry):
    """Costs of one software, with where they come from and the GPUs that they were fitted on.

    `residuals` by `KINDS` of models are of rows whose model, GPU or release a fit has not seen.
    """

    source: str
    date: str
    gpus: tuple[str, ...]
    costs: ServingCosts
    residuals: dict[str, Residuals]


def read_fits() -> dict[str, ServingFit]:
    """The calibrations by name of the software.

    Raises
    ------
    ReproError
        The file is missing or not valid.
    """
    fits: dict[str, ServingFit] = read_params(FITTED, dict[str, ServingFit])
    return fits


def weights_of(model: OpenModel | ModelFile, name: str) -> str:
    """Return the format of a model's weights that a precision's name means; blank: as published.

    Raises
    ------
    ReproError
        The precision is unknown, or is one of experts and the model has none.
    """
    published = model.published_formats
    found = precision(name or published.get("published", "bf16"))
    weights = published.get(found, found)
    if FORMATS[weights].others and not model.shape.experts:
        raise ReproError(f"precision {name!r}: {model.label} has no experts; fix: choose another")
    return weights


def stack_named(name: str) -> str:
    """Return the software that `name` spells, such as trtllm; the name itself if none or several.

    Without a name it is the first of `params/serving.yaml`.
    """
    stacks = read_serving_stacks()
    spelled = {
        key for key, one in stacks.items() if plain_name(name) in map(plain_name, (key, *one.sets))
    }
    return next(iter(spelled)) if len(spelled) == 1 else name or next(iter(stacks))


def borrowed_costs(stack: ServingStack) -> str:
    """Describe whose costs a software has that no table was fitted for; empty with its own."""
    if not stack.like:
        return ""
    other = read_serving_stacks()[stack.like].label
    return f"costs of {stack.label} are those of {other}, with wider intervals"


def engine(device: Gpu, weights: str, cache: str = "", stack: str = "") -> Engine:
    """A GPU with software.

    Parameters
    ----------
    device
        A GPU, which need not exist.
    weights, cache
        Precisions; without one of its own the cache has the usual one of the weights' format.
    stack
        A name of `params/serving.yaml` in any spelling; the first without one.

    Raises
    ------
    ReproError
        A name is unknown, or the GPU lacks a precision.
    """
    known, fits = read_serving_stacks(), read_fits()
    name = stack_named(stack)
    found = choose("serving software", name, known)
    if found.costs is None:
        fitted = choose("calibrated software", found.like or name, fits)
        seen = not found.like and device in [gpu(one) for one in fitted.gpus]
        costs, widths = fitted.costs, half_widths([fitted], seen)
    else:
        costs, widths = found.costs, half_widths(list(fits.values()), seen=False)
    held = precision(weights)
    kept = precision(cache or FORMATS[held].cache, CACHE_BYTES)
    return Engine(device, held, kept, found, costs, widths)


def half_widths(fits: Sequence[ServingFit], seen: bool) -> tuple[float, float]:
    """Return the widest of fits by kind of model; wider on GPUs or software that none has seen."""

    def widest(kind: str) -> float:
        known = [fit.residuals[kind] for fit in fits if kind in fit.residuals]
        every = known or [one for fit in fits for one in fit.residuals.values()]
        return float(np.hypot(max(one.half_width for one in every), 0.0 if seen else TRANSFER))

    dense, mixture = (widest(kind) for kind in KINDS)
    return dense, max(dense, mixture)
