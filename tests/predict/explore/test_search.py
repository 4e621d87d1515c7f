"""Plan search: every plan that divides the job, and the same runs as from a table."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.gpus import gpu
from repro.predict.explore.jobs.fused_plans import Training, fitting_plans
from repro.predict.explore.jobs.search import enumerate_plans
from repro.predict.tables.training import read_runs


def test_plans_are_all_that_divide_the_job() -> None:
    sizes = range(1, 9)
    found = enumerate_plans(
        8,
        "a model",
        widths=(4,),
        layers=(6, 8),
        global_batch=16,
        tp=sizes,
        pp=sizes,
        ep=sizes,
        vpp=sizes,
        micro_batch=sizes,
    )
    expected = []
    for t, p, e, v, b in product(sizes, repeat=5):
        d = 8 // (t * p)
        whole = d * t * p == 8 and 4 % t == 0 and d * t % e == 0
        layers = (6 % (p * v) == 0 or 8 % (p * v) == 0) and (v == 1 or p > 1)
        if whole and layers and 16 % (b * d) == 0 and (v == 1 or 16 // (b * d) % p == 0):
            expected.append((t, p, e, v, b, d))
    columns = (found.tp, found.pp, found.ep, found.vpp, found.micro_batch, found.dp)
    assert list(zip(*columns, strict=True)) == expected


@pytest.mark.parametrize("name", ["llama3.1-8b", "qwen3-30b-a3b", "gpt-oss-120b"])
def test_runs_of_plans_are_those_of_a_table(name: str) -> None:
    entry, device = open_model(name), gpu("gb200")
    shape = entry.shape
    imbalance = 1.25 if shape.experts else 1.0
    found = fitting_plans(Training(entry, 64, 256), device, zero=(1, 3), expert_imbalance=imbalance)
    table = found.table().assign(
        **shape.model_dump(exclude={"gated_mlp"}),
        gated_mlp="yes" if shape.gated_mlp else "no",
        gpu=device.label,
        gpus=64,
        global_batch=256,
        stack="megatron-core",
        nvlink_domain=device.domain_gpus,
        expert_imbalance=imbalance,
        gradient_bytes=4,
        model=name,
    )
    read = read_runs(table.assign(fsdp=np.where(table.zero == 3, "yes", "no")))
    # Published recipes gather parameters in low precision; Megatron's default is half precision.
    wanted = pd.DataFrame(vars(read)).assign(parameter_bytes=2.0)
    pd.testing.assert_frame_equal(pd.DataFrame(vars(found.run)), wanted, rtol=1e-15)
