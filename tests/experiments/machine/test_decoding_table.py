"""A decoder's measured tokens beside what two others let expect."""

import numpy as np
import pytest
import xarray as xr

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.studies.decoding import read_decoding
from repro.experiments.machine.decoding import decoding_table

# What each weight takes, what each layer does, and what it does for each number in its cache.
_WEIGHT_S, _LAYER_S, _CACHED_S = 1e-10, 5e-4, 1e-8


def _token_s(shape: DecoderShape, batch: np.ndarray, context: np.ndarray) -> np.ndarray:
    attention = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    weights = shape.hidden * (shape.layers * (attention + 3 * shape.ffn) + shape.vocab)
    one = weights * _WEIGHT_S + shape.layers * _LAYER_S
    return one * (1 + batch / 100) + shape.layers * _CACHED_S * batch * context


@pytest.fixture
def measured() -> xr.Dataset:
    """A made-up machine, on which one rank takes what it takes in bf16, in two repeats."""
    entry = read_decoding()
    profile, probes = entry.profile("default"), entry.probes
    batches, contexts = (np.array(axis, float) for axis in (profile.batches, profile.contexts))
    probed = np.array(entry.probed_batches(profile), float)
    caches = np.array(probes.contexts, float)
    steps = [_token_s(shape, probed, np.full_like(probed, caches[0])) for shape in probes.shapes]
    values = {
        "output_token_s": (("batch", "context"), _token_s(entry.shape, batches[:, None], contexts)),
        "probe_token_s": (("probe_width", "probe_batch"), np.array(steps)),
        "attention_s": (("probe_batch", "probe_context"), _CACHED_S * probed[:, None] * caches),
    }
    coords = {
        **{"weights": ["bf16"], "ranks": [1], "repeat": [0, 1]},
        **{"batch": batches, "context": contexts},
        **{"probe_batch": probed, "probe_context": caches},
        "probe_width": [shape.hidden for shape in probes.shapes],
    }
    one = xr.Dataset(values, {name: coords[name] for name in coords if name not in _OUTER})
    return one.expand_dims({name: coords[name] for name in _OUTER})


_OUTER = ("weights", "ranks", "repeat")


def test_what_layers_and_weights_take_is_what_a_token_takes(measured: xr.Dataset) -> None:
    table = decoding_table(measured)
    assert len(table) == 6
    assert table.error_pct.to_numpy() == pytest.approx(0, abs=1e-6)


def test_a_probe_that_was_disturbed_counts_less_than_others(measured: xr.Dataset) -> None:
    own = measured.copy(deep=True)
    # One sequence in one of two repeats took twice what it does.
    own["probe_token_s"][{"repeat": 0, "probe_width": 1, "probe_batch": 0}] *= 2
    error_pct = decoding_table(own).set_index(["batch", "context"]).error_pct
    # As a mean half a step more, which alone would make 27 %; steps that would not rise share it.
    assert 0 < error_pct.loc[1.0].max() < 12
