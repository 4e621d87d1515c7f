"""Tables of runs are read with what follows from them, and refused with what is wrong."""

import numpy as np
import pandas as pd
import pytest

from repro.catalog.models.open_models import open_model, read_open_models
from repro.errors import ReproError
from repro.paths import PUBLISHED
from repro.predict.fused.iteration import layer_parameters
from repro.predict.fused.run import training_flops
from repro.predict.tables.training import read_runs

_ONE = {
    "gpu": "h100_sxm",
    "gpus": 16,
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "seq": 2048,
    "vocab": 50304,
    "global_batch": 64,
}


def _table(**changed: object) -> pd.DataFrame:
    return pd.DataFrame([{**_ONE, **changed}])


def test_what_a_table_does_not_say_is_the_usual() -> None:
    run = read_runs(_table(tp=4, micro_batch=2))
    assert (run.dp, run.micro_batches, run.ffn, run.kv_heads, run.head_dim) == (
        4,
        8,
        16384,
        32,
        128,
    )
    assert (run.operand_bytes, run.peak_flops, run.domain_gpus) == (2, 989.4e12, 8)
    assert run.nic_bytes_per_s == 400e9 / 8
    unknown = read_runs(_table(tp=4, gpus_per_node="unknown", head_dim="-", window="?"))
    assert (unknown.head_dim, unknown.window, unknown.nic_bytes_per_s) == (128, 0, 400e9 / 8)
    # Data and tensor parallelism overlap by default, exchanges of experts do not.
    assert (run.hidden_dp, run.hidden_tp, run.hidden_ep) == (1, 1, 0)


def test_what_it_says_holds() -> None:
    run = read_runs(
        _table(dtype="fp8", overlap="dp-grad", inter_node_gbps_per_node=800, gpus_per_node=4)
    )
    assert (run.peak_flops, run.operand_bytes) == (1978.9e12, 1)
    assert (run.hidden_gradients, run.hidden_dp, run.hidden_tp) == (1, 0, 0)
    assert run.nic_bytes_per_s == 200e9 / 8
    assert read_runs(_table(dtype="fp16")).peak_flops == 989.4e12
    # An A100 has no units for it.
    assert read_runs(_table(dtype="fp8", gpu="a100_80gb")).peak_flops == 312e12
    assert read_runs(_table(gpu="gb200")).domain_gpus == 72


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gpu": "h900"}, "unknown GPU 'h900'; choose from: .*h100-sxm-80gb"),
        (
            {"dtype": "int4"},
            "line 2: dtype is 'int4'; must be one of bf16, fp8, mxfp8, nvfp4, fp16; "
            "fix: correct it or leave it blank$",
        ),
        ({"dp": 3}, "line 2: gpus is 16; must be tp x pp x cp x dp; fix: correct it$"),
        (
            {"fsdp": "perhaps"},
            "line 2: fsdp is 'perhaps'; must be yes or no; fix: correct it or leave it blank$",
        ),
        (
            {"expert_imbalance": 0.5},
            "line 2: expert_imbalance is 0.5; must be a number of 1 or more; "
            "fix: correct it or leave it blank$",
        ),
        (
            {"zero_bubble": "yes", "vpp": 2, "pp": 2},
            "line 2: vpp is 2; must be 1 where zero_bubble is yes; fix: correct it$",
        ),
        (
            {"layers": "many"},
            "line 2: layers is 'many'; must be a positive number; fix: correct it$",
        ),
        ({"stack": "megatron-9"}, "unknown stack 'megatron-9'; choose from: megatron-core, "),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ReproError, match=message):
        read_runs(_table(**changed))


def test_a_missing_column_is_named() -> None:
    with pytest.raises(
        ReproError, match=r"no column 'vocab'; must have gpu, .*; fix: add the column$"
    ):
        read_runs(_table().drop(columns="vocab"))


@pytest.mark.parametrize(
    "name", [name for name, one in read_open_models().items() if not one.shape.dense_layers]
)
def test_layers_have_the_open_models_parameters(name: str) -> None:
    shape = open_model(name).shape
    gated = "yes" if shape.gated_mlp else "no"
    run = read_runs(_table(**{**shape.model_dump(), "gated_mlp": gated}))
    common, experts = layer_parameters(run)
    tables = (1 if shape.tied else 2) * shape.vocab * shape.hidden
    norms = (2 * shape.layers + 1) * shape.hidden
    counted = shape.layers * (common + experts) + tables + norms
    assert counted == pytest.approx(shape.count(shape.experts))


def test_operations_are_those_that_published_rates_imply() -> None:
    """Megatron-Bridge prints model FLOP/s beside tokens/s, by a formula of its own."""
    table = pd.read_csv(PUBLISHED / "training_modern.csv")
    known = table[
        table["set"].str.startswith("mbridge") & table.model.str.startswith(("llama", "qwen"))
    ]
    known = known.dropna(subset=["tflops_per_gpu_source"]).reset_index(drop=True)
    run = read_runs(known)
    rate = training_flops(run) / (known.iteration_time_s * run.gpus) / 1e12
    assert len(known) > 20
    assert np.median(np.abs(rate / known.tflops_per_gpu_source - 1)) < 0.015
    assert (np.abs(rate / known.tflops_per_gpu_source - 1) < 0.06).all()
