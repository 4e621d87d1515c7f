"""Decoders on this machine's GPU: times of tokens and prompts, and of their kernels."""

import gc
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product

import numpy as np
import torch
import xarray as xr
from tqdm import tqdm

from repro.catalog.models.open_models import open_model
from repro.catalog.studies.gpu import GpuDecoder
from repro.experiments.machine.on_gpu import about, attributes, possible
from repro.train.decoding import Decoder
from repro.train.gpu_operators import Work, eager_s, kernels, replays_s

# Ways to launch the passes of a decoder.
_LAUNCHES: Mapping[str, Callable[..., list[float]]] = {
    "graph": lambda work, repeats: replays_s([work], repeats),
    "host": eager_s,
}
# Parts of a pass by text in kernels' names, where the first match counts. All other kernels are
# element-wise.
_PARTS = {
    "attention": ("fmha", "flash", "sdpa"),
    "casts": ("float8_copy",),
    "products": ("gemm", "nvjet", "cutlass", "xmma", "splitk", "gemv"),
    "element-wise": ("",),
}
_Measure = Callable[[Work], list[float]]


def measure_gpu_decoding(asked: GpuDecoder) -> xr.Dataset:
    """Measure times of decoding steps, and of reading prompts (prefill).

    Returns
    -------
    Dataset
        `output_token_s` (model, weights, launch, batch, context, repeat) and `prompt_s` (model,
        weights, launch, prompt_batch, prompt_tokens, repeat). `launch` is `graph`, a CUDA graph, or
        `host`, operator by operator. NaN where the caches did not fit.
    """
    reasons: dict[str, str] = {}

    def by_launch(decoder: Decoder, called: str) -> xr.Dataset:
        found = []
        for launch, seconds in _LAUNCHES.items():
            passes = _passes(
                *(asked, decoder, f"{called} {launch}", reasons),
                *(partial(seconds, repeats=asked.repeats), "repeat", asked.repeats),
            )
            found.append(passes.expand_dims(launch=[launch]))
        return xr.concat(found, "launch")

    found = _of_decoders(asked, by_launch)
    return found.assign_attrs(attributes("Decoders on a GPU", asked, reasons))


def measure_gpu_decoding_parts(asked: GpuDecoder) -> xr.Dataset:
    """Measure the times of kernels in decoders' passes, by kind of kernel.

    Returns
    -------
    Dataset
        `output_token_s` and `prompt_s` of one pass each as in `measure_gpu_decoding`, but with
        `part` (products, attention, casts, element-wise) instead of launches and repeats.
        `output_token_kernels` and `prompt_kernels` are numbers of kernels.
    """
    reasons: dict[str, str] = {}

    def by_part(decoder: Decoder, called: str) -> xr.Dataset:
        found = _passes(asked, decoder, called, reasons, _by_part, "part", 2 * len(_PARTS))
        counts = found.isel(part=slice(len(_PARTS), None)).rename(
            {name: name.replace("_s", "_kernels") for name in _KINDS}
        )
        for count in counts.values():
            count.attrs = about("kernels of a pass", "1")
        parts = (found.isel(part=slice(len(_PARTS))), counts)
        return xr.merge([one.assign_coords(part=list(_PARTS)) for one in parts])

    found = _of_decoders(asked, by_part)
    return found.assign_attrs(attributes("Kernels of decoders on a GPU", asked, reasons))


def _by_part(work: Work) -> list[float]:
    """Return the seconds of each part, followed by the number of its kernels."""
    times, counts = dict.fromkeys(_PARTS, 0.0), dict.fromkeys(_PARTS, 0.0)
    for name, seconds in kernels(work):
        times[_part(name)] += seconds
        counts[_part(name)] += 1
    return [*times.values(), *counts.values()]


def _part(kernel: str) -> str:
    name = kernel.lower()
    return next(part for part, known in _PARTS.items() if any(one in name for one in known))


def _of_decoders(asked: GpuDecoder, measure: Callable[[Decoder, str], xr.Dataset]) -> xr.Dataset:
    """Measure each model in each precision of its weights."""
    of_models = []
    for model in asked.models:
        of_model = []
        for weights in asked.weights:
            decoder = Decoder(open_model(model).shape, weights, device="cuda")
            one = measure(decoder, f"{model} {weights}")
            of_model.append(one.expand_dims(model=[model], weights=[weights]))
            # Two decoders may not fit a GPU, so this one is freed before the next one is built.
            del decoder
            gc.collect()
            torch.cuda.empty_cache()
        of_models.append(xr.concat(of_model, "weights"))
    return xr.concat(of_models, "model")


def _passes(
    asked: GpuDecoder,
    decoder: Decoder,
    called: str,
    reasons: dict[str, str],
    measure: _Measure,
    along: str,
    size: int,
) -> xr.Dataset:
    """Measure each pass of a decoder: `size` numbers along a dimension.

    Passes for which the GPU lacks memory are NaN, with a reason.
    """
    sizes = {
        "batch": list(asked.batches),
        "context": list(asked.contexts),
        "prompt_batch": list(asked.prompt_batches),
        "prompt_tokens": list(asked.prompt_tokens),
    }
    variables = {}
    for name, (long_name, make, dims) in _KINDS.items():
        grid = [*product(*(sizes[dim] for dim in dims))]
        values = []
        for one in tqdm(grid, desc=f"{called}, {long_name}"):
            work = partial(_done, measure, make, decoder, *one)
            found = possible(work, f"{called} {name} {list(one)}", reasons)
            values.append(found or [np.nan] * size)
        shape = (*(len(sizes[dim]) for dim in dims), size)
        variables[name] = ((*dims, along), np.reshape(values, shape), about(long_name, "s"))
    return xr.Dataset(variables, sizes)


def _done(measure: _Measure, make: Callable[..., Work], *of: object) -> list[float]:
    return measure(make(*of))


def _token(decoder: Decoder, batch: int, context: int) -> Work:
    """Return work that decodes one token of `batch` sequences after `context` cached ones."""
    last = decoder.drawn_tokens(batch)
    decoder.fill(batch, context, 1)

    def work() -> None:
        decoder.step(last)
        decoder.rewind(context)

    return work


def _prompt(decoder: Decoder, batch: int, tokens: int) -> Work:
    """Return work that reads prompts (prefill), which can be repeated."""
    prompts = decoder.drawn_tokens(batch, tokens)
    decoder.fill(batch, 0, tokens)

    def work() -> None:
        decoder.read(prompts)
        decoder.rewind(0)

    return work


_KINDS: Mapping[str, tuple[str, Callable[[Decoder, int, int], Work], tuple[str, str]]] = {
    "output_token_s": ("time per output token", _token, ("batch", "context")),
    "prompt_s": ("time of reading prompts", _prompt, ("prompt_batch", "prompt_tokens")),
}
