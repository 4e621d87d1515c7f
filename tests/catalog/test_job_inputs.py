"""Models and hardware as commands take them: exactly what was named, or an error."""

import json
from pathlib import Path

import pytest
import yaml

from repro.catalog.job_inputs import nics_gbps, read_hardware, read_model
from repro.catalog.systems.gpus import gpu, read_gpus
from repro.errors import ReproError

# The Llama 3.1 8B of its authors.
_CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
_ARGUMENTS = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear "
    "--untie-embeddings-and-output-weights --position-embedding-type rope "
    "--padded-vocab-size 128256 --global-batch-size 128 --tensor-model-parallel-size 2"
)


def test_a_model_is_the_same_by_name_file_and_arguments(tmp_path: Path) -> None:
    config, script = tmp_path / "llama.json", tmp_path / "train.sh"
    config.write_text(json.dumps(_CONFIG))
    script.write_text(_ARGUMENTS)
    named = read_model("llama3.1-8b", seq=8192)
    for given in (str(config), str(script), _ARGUMENTS):
        found = read_model(given, seq=8192)
        assert found.shape == named.shape
        assert not any(note.startswith("sequence length") for note in found.notes)
    assert read_model(str(script), seq=8192).plan == {"tp": 2, "global_batch": 128, "zero": 0} | {
        "seq": 8192
    }
    assert read_model(str(config)).label == "llama"


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ("llama3.3-70b", "Llama 3.1 70B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama 3.1 70B"),
        ("Meta-Llama-3-8B", "Llama 3.1 8B"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral 8x7B"),
        ("openai/gpt-oss-120b", "GPT-OSS 120B"),
    ],
)
def test_a_name_may_be_spelled_as_its_authors_do(given: str, label: str) -> None:
    assert read_model(given).label == label


@pytest.mark.parametrize("given", ["llama9", "llama3.1-8b-deeper", "tiny-mistral-7b", "llama"])
def test_no_name_is_taken_for_the_nearest_one(given: str) -> None:
    with pytest.raises(ReproError, match=f"unknown model '{given}': no such file; choose from: "):
        read_model(given)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("h100-sxm-80gb", "h100-sxm-80gb"),
        ("H100", "h100-sxm-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("A100 PCIe 40GB", "a100-pcie-40gb"),
        ("b200_sxm", "b200-sxm-180gb"),
    ],
)
def test_a_gpu_may_be_spelled_in_any_way(given: str, name: str) -> None:
    assert read_hardware(given).device.label == gpu(name).label


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("h100-96gb", "unknown GPU 'h100-96gb'"),
        ("a100", "GPU 'a100' is one of several; choose from: a100-sxm-80gb, a100-sxm-40gb, a100-p"),
        ("h900", "unknown GPU 'h900'"),
    ],
)
def test_no_gpu_is_taken_for_the_nearest_one(given: str, message: str) -> None:
    with pytest.raises(ReproError, match=message):
        read_hardware(given)


def test_every_gpu_has_its_names() -> None:
    for name, entry in read_gpus().items():
        for written in (name, entry.label, *entry.published_as):
            assert read_hardware(written).device == entry


def test_nodes_and_nics_of_ones_own_replace_the_makers() -> None:
    found = read_hardware("h100-sxm-80gb", gpus_per_node=4, nic="4x200")
    assert (found.gpus_per_node, found.nic_gbps) == (4, 800)
    assert (found.device.domain_gpus, found.device.nic_gbps) == (4, 200)
    assert not found.notes and found.known
    # A rack's links join more GPUs than a node has.
    assert read_hardware("gb200", gpus_per_node=4).device.domain_gpus == 72
    assert [nics_gbps(text) for text in ("8x400", "200", "4*12.5")] == [3200, 200, 50]
    with pytest.raises(ReproError, match="gpus_per_node 0: take 1 or more"):
        read_hardware("h100", gpus_per_node=0)
    with pytest.raises(ReproError, match="seq 0: take 1 or more"):
        read_model("llama3.1-8b", seq=0)
    with pytest.raises(ReproError, match="nic 'fast'; fix: write the NICs of a node as 8x400"):
        nics_gbps("fast")


def test_a_cluster_has_its_own_gpu_links_and_nics() -> None:
    found = read_hardware(cluster="dgx-h100")
    assert found.device.label == "H100-SXM-80GB"
    # 450 GB/s of NVLink in each direction, eight NICs of 400 Gbit/s.
    assert (found.device.link_gbytes_per_s, found.device.nic_gbps, found.nic_gbps) == (
        450,
        400,
        3200,
    )
    for inputs, message in (
        ({"nic": "8x200"}, "cluster beside gpus_per_node or nic"),
        ({"gpu": "l40s"}, "gpu l40s: dgx-h100 has H100-SXM-80GB; fix: omit it"),
    ):
        with pytest.raises(ReproError, match=message):
            read_hardware(cluster="dgx-h100", **inputs)


def test_a_data_sheet_is_not_calibrated(tmp_path: Path) -> None:
    sheet = tmp_path / "gh200.yaml"
    sheet.write_text(yaml.safe_dump(gpu("h100-sxm-80gb").model_dump() | {"label": "GH200"}))
    found = read_hardware(str(sheet))
    assert found.device.label == "GH200" and not found.known
    with pytest.raises(ReproError, match="no GPU; fix: give gpu"):
        read_hardware()
