"""What only a GPU shows: precisions, memory that is full, counters, NCCL with one rank."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import small_run

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.models.papers import model
from repro.catalog.studies.selection import select
from repro.catalog.systems.gpus import Gpu, find_gpu_name, gpu
from repro.experiments import measurement
from repro.experiments.machine.gpu_decoding import _part
from repro.experiments.measurement import measure
from repro.experiments.on_nodes import node_measurement
from repro.observe.counters import open_counters
from repro.observe.memory import peak_bytes, reset_peak
from repro.results.measured import measured_on
from repro.train.decoding import Decoder, Linear, random_matrix
from repro.train.gpu_operators import call_s, kernels, replays_s, sustained
from repro.train.records import TrainingRun
from repro.train.run import train

pytestmark = pytest.mark.gpu
_DECODER = DecoderShape(
    **{"layers": 2, "hidden": 256, "ffn": 512, "heads": 8, "kv_heads": 2, "head_dim": 32},
    **{"gated_mlp": True, "seq": 64, "vocab": 512},
)


def _run(corpus: Path, precision: str, **changes: object) -> TrainingRun:
    shape = model("gpt2-medium").testbed.model_copy(update={"hidden_size": 256})
    run = replace(small_run("gpt", corpus), shape=shape, iterations=30, learning_rate=1e-3)
    return replace(run, precision=precision, save_every=0, **changes)  # type: ignore[arg-type]


def _this_gpu() -> Gpu:
    return gpu(find_gpu_name(torch.cuda.get_device_name()))


def test_precisions_learn_alike(one_rank: None, enwiki: Path, tmp_path: Path) -> None:
    losses = {}
    for precision in ("fp32", "bf16", "fp16"):
        (record,) = train(_run(enwiki, precision), tmp_path)
        losses[precision] = np.array(record.loss)
        assert losses[precision][-5:].mean() < losses[precision][:5].mean() - 0.5
    np.testing.assert_allclose(losses["bf16"], losses["fp32"], rtol=0.03)
    np.testing.assert_allclose(losses["fp16"], losses["fp32"], rtol=0.03)


def test_attentions_learn_alike(one_rank: None, enwiki: Path, tmp_path: Path) -> None:
    losses = [
        np.array(train(_run(enwiki, "bf16", attention=attention), tmp_path)[0].loss)
        for attention in ("megatron", "torch")
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.03)


def test_peak_memory_is_what_was_held_at_once() -> None:
    held = reset_peak()
    one = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    del one
    two = torch.empty(1 << 27, dtype=torch.uint8, device="cuda")
    assert peak_bytes() - held == 1 << 28
    assert reset_peak() - held == two.nbytes


def test_a_rank_alone_logs_nothing(one_rank: None, enwiki: Path, tmp_path: Path) -> None:
    (record,) = train(_run(enwiki, "bf16", log_communication=True), tmp_path)
    assert record.transfers == ()


def test_the_gpus_links_are_counted() -> None:
    with open_counters() as counters:
        names = [name for name in counters.names if name.startswith("gpu0")]
        if not names:
            pytest.skip("this driver counts neither PCIe nor NVLink")
        at = counters.names.index(names[-1])
        before = counters.read()[at]
        for _ in range(20):
            torch.ones(1 << 26).to("cuda")
        received = counters.read()[at][0] - before[0]
    assert received > 0


def test_a_graph_computes_what_the_host_launches() -> None:
    one = torch.zeros((), device="cuda")
    times = replays_s([lambda: one.add_(1)] * 10, repeats=3)
    # The warm-up outside the graph, and a replay that is not recorded.
    assert len(times) == 3 and one.item() == 1 + 4 * 10


def test_a_decoder_writes_what_it_does_on_a_cpu() -> None:
    here, there = Decoder(_DECODER, "bf16"), Decoder(_DECODER, "bf16", device="cuda")
    for mine, its in zip(here._layers, there._layers, strict=True):
        for name in ("qkv", "out", "up", "down"):
            getattr(its, name)._weight = getattr(mine, name)._weight.float().cuda()
            getattr(mine, name)._weight = getattr(mine, name)._weight.float()
    for decoder, where in ((here, "cpu"), (there, "cuda")):
        decoder._logits._weight = here._logits._weight.float().to(where)
        decoder._embedding = here._embedding.float().to(where)
        decoder._norm = decoder._norm.float()
        decoder._memory = decoder._memory.float()
    prompts = torch.randint(512, (4, 40), generator=torch.Generator().manual_seed(0))
    found = []
    for decoder, where in ((here, "cpu"), (there, "cuda")):
        decoder.fill(4, 0, 50)
        written = [decoder.read(prompts.to(where))]
        for _ in range(5):
            written.append(decoder.step(written[-1]))
        found.append(torch.stack(written).cpu())
    assert torch.equal(*found)


def test_a_pass_is_its_kernels() -> None:
    decoder = Decoder(_DECODER, "fp8", device="cuda")
    decoder.fill(16, 0, 64)
    found = kernels(lambda: (decoder.rewind(0), decoder.read(torch.zeros(16, 64).long().cuda())))
    parts = [_part(name) for name, _ in found]
    assert all(seconds > 0 for _, seconds in found)
    # Queries with keys and values, attention's output, both of the MLP; and the vocabulary.
    assert parts.count("products") >= 4 * 2 + 1 and parts.count("casts") == 4 * 2
    assert parts.count("attention") >= 2 and parts.count("element-wise") > 20


def test_fp8_multiplies_as_on_a_cpu() -> None:
    full = random_matrix(256, 512, torch.Generator().manual_seed(0))
    rows = torch.randn(3, 512, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    here, there = Linear(full.clone(), "fp8")(rows), Linear(full.cuda(), "fp8")(rows.cuda())
    torch.testing.assert_close(there.cpu(), here, rtol=0.02, atol=0.02)


def test_products_without_a_pause_are_no_faster_than_the_peak() -> None:
    found = sustained("fp8", (4096, 4096, 4096), seconds=0.3, rest_s=0.1)
    assert found.at_s == sorted(found.at_s) and 0.2 < found.at_s[-1] < 5
    assert max(2 * 4096**3 / one for one in map(float, found.call_s)) < (_this_gpu().fp8_flops or 0)
    assert min(found.power_w) > 50 and min(found.clock_mhz) > 100


def test_operators_move_bytes_no_faster_than_the_memory() -> None:
    peak = _this_gpu().memory_gbytes_per_s * 1e9
    rates = {}
    for precisions, element_bytes in ((("fp32", "bf16"), 6), (("bf16", "bf16"), 4)):
        times = call_s("copy_/2", precisions, (1 << 28,), 3e8, 3)
        rates[precisions] = element_bytes * (1 << 28) / np.median(times)
    # Torch's cast has the same 2 TB/s on GPUs whose memories differ by 1.4 times.
    assert max(rates.values()) < peak and rates["bf16", "bf16"] > 0.5 * peak


@pytest.mark.slow
def test_a_sweep_ends_where_memory_does(
    enwiki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "RESULTS", tmp_path)
    selection = select("one_gpu", "cluster", models="bert-large", profile="ci")
    dataset = measure(node_measurement(selection, enwiki, "95,5"))
    assert gpu(measured_on(dataset)) == _this_gpu()
    full = dataset["out_of_memory"].squeeze()
    assert not full.sel(micro_batch_size=[1, 2, 4]).any() and full.sel(micro_batch_size=512)
    peaks = dataset["peak_memory_bytes"].squeeze().sel(micro_batch_size=[1, 2, 4])
    assert (np.diff(peaks.values.ravel()) > 0).all()
    # One set of ranks served all of them.
    (logs,) = [path for path in (tmp_path / "logs/one_gpu").iterdir() if path.is_dir()]
    assert (logs / "rank0.log").exists()
    (ran_on, *_) = json.loads(dataset.attrs["ran_on"])
    assert ran_on["backend"].startswith("NCCL")
