"""Logged runs as the study's dataset: where it agrees with the closed forms, and where not."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import xarray as xr
from made_up import configuration_dataset, small_run
from rank_pool import RankPool

from repro.claims.verdicts import judge_claims
from repro.launch.request import plain
from repro.observe.nic import NicSeries
from repro.results.communication import transfers
from repro.results.merging import merge
from repro.results.outcome import Outcome
from repro.results.schema import coordinates
from repro.studies.communication.claims import agreement
from repro.studies.communication.figures import logged_sizes
from repro.studies.communication.message_costs import logged_volumes
from repro.train.records import RankRecord, TrainingRun
from repro.train.run import train

pytestmark = pytest.mark.slow

_LAYOUTS = {"dp=4,zero=1": (1, 1, True), "tp=2,pp=2": (2, 2, False)}


def _trained(run: TrainingRun, scratch: Path) -> RankRecord:
    """A rank's task."""
    return train(run, scratch)[0]


@pytest.fixture(scope="module")
def logged(pool: RankPool, enwiki: Path, tmp_path_factory: pytest.TempPathFactory) -> xr.Dataset:
    parts, requests = [], []
    for name, (tensor, stages, distributed) in _LAYOUTS.items():
        run = replace(
            small_run("gpt", enwiki, microbatches=2),
            tensor_parallel=tensor,
            pipeline_parallel=stages,
            distributed_optimizer=distributed,
            log_communication=True,
        )
        scratch = tmp_path_factory.mktemp("scratch")
        groups = {"stages": stages, "tensor_parallel": tensor}
        records = pool.run(_trained, run, scratch, ranks=4, **groups)
        series = NicSeries(time_s=[0.0, 1e9], rx_bytes=[(0,), (1,)], tx_bytes=[(0,), (1,)])
        outcome = Outcome(tuple(records), series, (), 0.0)
        dataset = configuration_dataset(coordinates("gpt-350m", "rdma", 4), outcome)
        parts.append(dataset.expand_dims(layout=[name]))
        where = {"protocol": "rdma", "layout": name}
        requests.append({"coordinates": where, "run": plain(asdict(run))})
    return merge(parts).assign_attrs(requests=json.dumps(requests))


def test_log_and_forms_agree_in_every_layout(logged: xr.Dataset) -> None:
    table = agreement(logged).set_index("layout")
    assert table.agree.all()
    assert list(table.index) == list(_LAYOUTS)
    assert (table.calls == table.calls_by_forms).all()
    assert (table.bytes == table.bytes_by_forms).all()
    claims = {one.id: one for one in judge_claims({"communication": logged})}
    assert list(claims) == ["C152", "C153", "C154"]
    assert claims["C154"].findings["testbed"].verdict == "reproduced"
    assert claims["C154"].findings["testbed"].reason == "every call of 2 of 2 layouts"
    assert claims["C154"].findings["cluster"].verdict == "not run"


def test_one_call_of_another_size_is_no_agreement(logged: xr.Dataset) -> None:
    changed = logged.copy(deep=True)
    changed["transfer_bytes"][{"layout": 1, "transfer": 3}] += 4
    assert agreement(changed).agree.tolist() == [True, False]
    claim = judge_claims({"communication": changed})[-1]
    assert (claim.id, claim.findings["testbed"].verdict) == ("C154", "not reproduced")
    assert claim.findings["testbed"].reason == "every call of 1 of 2 layouts"


def test_histograms_have_a_panel_for_each_layout(logged: xr.Dataset) -> None:
    import hvplot

    hvplot.extension("matplotlib")
    assert len(logged_sizes(logged)) == 2
    volumes = logged_volumes(transfers(logged.sel(layout="tp=2,pp=2")))
    tensor = volumes[volumes.role == "tensor"]
    # The size of most calls is that of an activation: s b h in fp32.
    assert tensor.sort_values("calls").bytes.iloc[-1] == 48 * 2 * 96 * 4
