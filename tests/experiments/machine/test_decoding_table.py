"""A decoder's measured tokens compared with the model at measured rates."""

import numpy as np
import pytest
import xarray as xr

from repro.catalog.studies.decoding import read_decoding
from repro.experiments.machine.decoding import decoding_table

_BYTES_PER_S, _FLOPS = 1e10, 1e15


@pytest.fixture
def measured() -> xr.Dataset:
    """A made-up machine that computes at once, whose tokens take as long as reading does."""
    shape = read_decoding().shape
    matrices = 2 * (shape.heads + shape.kv_heads) * shape.head_dim + 3 * shape.ffn
    weights = shape.hidden * (shape.layers * matrices + shape.vocab)
    batch, context = np.array([1, 16]), np.array([128, 2048])
    # Keys and values in bf16.
    cached = 2 * shape.layers * shape.kv_heads * shape.head_dim * 2 * batch[:, None] * context
    sizes = np.array([2.0, 1.0])[:, None, None] * weights
    return xr.Dataset(
        {
            "output_token_s": (("weights", "batch", "context"), (sizes + cached) / _BYTES_PER_S),
            "bytes_per_s": ("weights", [_BYTES_PER_S, _BYTES_PER_S]),
            "flops": ("weights", [_FLOPS, _FLOPS]),
        },
        {"weights": ["bf16", "int8"], "batch": batch, "context": context},
    )


def test_tokens_that_wait_for_memory_are_what_reading_takes(measured: xr.Dataset) -> None:
    table = decoding_table(measured)
    assert len(table) == 8
    assert table.error_pct.to_numpy() == pytest.approx(0, abs=0.1)


def test_each_precision_has_its_own_rates(measured: xr.Dataset) -> None:
    slower = measured.assign(bytes_per_s=("weights", [_BYTES_PER_S, _BYTES_PER_S / 2]))
    error_pct = decoding_table(slower).groupby("weights").error_pct.mean()
    assert error_pct["bf16"] == pytest.approx(0, abs=0.1)
    assert error_pct["int8"] == pytest.approx(100, abs=0.1)
