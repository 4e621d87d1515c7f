"""A job is exactly what was given: the rest is filled by named rules, or the job is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from repro.catalog.job_inputs import nics_gbps
from repro.catalog.jobs import Job, ResolvedJob, job_of, read_job, read_jobs, resolve
from repro.catalog.systems.gpus import gpu
from repro.errors import ReproError

CONFIGS = Path(__file__).parent / "configs"
DENSE = {"model": "llama3.1-8b", "gpu": "h100-sxm-80gb"}
MIXTURE = {"model": str(CONFIGS / "mixtral-8x7b.json"), "gpu": "h100-sxm-80gb"}
LATENT = {"model": str(CONFIGS / "args" / "06.txt"), "gpu": "h100-sxm-80gb", "vocabulary": 129280}
ARGUMENTS = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 "
    "--tensor-model-parallel-size 2 --micro-batch-size 4 --bf16"
)


def _resolved(**fields: Any) -> ResolvedJob:
    return resolve(job_of(fields))


def _refusal(**fields: Any) -> str:
    with pytest.raises(ReproError) as refusal:
        _resolved(**fields)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_every_field_is_used_as_given() -> None:
    given = {
        **{"gpus": 128, "gpus_per_node": 4, "nic": "4x200", "tp": 2, "pp": 2, "cp": 2, "ep": 4},
        **{"etp": 1, "vpp": 2, "micro_batch": 2, "global_batch": 256, "seq": 4096},
        **{"precision": "fp8", "stack": "maxtext", "recompute": "selective", "zero": 2},
        **{"gradient_bytes": 2, "lora_rank": 16, "expert_imbalance": 1.5, "overlap": "none"},
    }
    assert set(given) | {"model", "gpu", "cluster", "vocabulary"} == set(Job.model_fields)
    job = _resolved(**MIXTURE, **given)
    for name in set(given) - {"nic", "seq"}:
        assert getattr(job, name) == given[name], name
    assert (job.shape.seq, job.nic_gbps, job.device.nic_gbps) == (4096, 800, 200)
    # 128 GPUs in groups of 2 x 2 x 2; 256 sequences over 16 replicas by 2.
    assert (job.dp, job.micro_batches, job.tokens) == (16, 8, 256 * 4096)
    assert not [note for note in job.notes if note.split(" ")[0] in given]


def test_rules_of_what_is_not_given_are_named() -> None:
    job = _resolved(**DENSE)
    assert (job.gpus, job.gpus_per_node, job.dp, job.nic_gbps) == (8, 8, 8, 3200)
    assert (job.tp, job.pp, job.cp, job.ep, job.etp, job.vpp) == (1, 1, 1, 1, 1, 1)
    # 8 micro batches per replica and stage.
    assert (job.micro_batch, job.global_batch) == (1, 64)
    assert set(job.notes) == {
        "sequence length 8192, of params/open_models.yaml",
        "8 GPUs per node, as not given",
        "a NIC of 400 Gbit/s per GPU, of its maker's systems",
        "gpus 8, one node",
        "tp 1, as not given",
        "pp 1, as not given",
        "cp 1, as not given",
        "vpp 1, as not given",
        "micro_batch 1, as not given",
        "global_batch 64, 8 micro batches per replica and stage",
        "precision bf16, as not given",
        "stack megatron-core, as not given",
        "recompute none, as not given",
        "zero 1, the distributed optimizer",
        "gradient_bytes 4, Megatron's default",
    }
    notes = _resolved(**MIXTURE, gpus=16, tp=2, ep=4).notes
    assert "etp 2, Megatron's default is tp" in notes
    assert "sequence length 8192, as config.json allows 32768" in notes
    assert "ep 1, as not given" in _resolved(**MIXTURE).notes


def test_a_sequence_length_replaces_that_of_the_file() -> None:
    for fields in (DENSE, MIXTURE, LATENT | {"gpus": 64}):
        job = _resolved(**fields, seq=2048)
        assert job.shape.seq == 2048
        assert not [note for note in job.notes if note.startswith("sequence length")]


def test_arguments_bring_their_plan() -> None:
    job = _resolved(model=ARGUMENTS, vocabulary=1000, gpu="h100-sxm-80gb")
    assert (job.tp, job.micro_batch, job.zero, job.shape.seq) == (2, 4, 0, 1024)
    assert "tp 2, from the arguments" in job.notes
    assert "vocabulary of 1000 padded to 1024, a multiple of 256" in job.notes
    # Fields of the job replace those of the arguments, and their notes.
    job = _resolved(model=ARGUMENTS, vocabulary=2000, gpu="h100-sxm-80gb", tp=4, zero=1, seq=512)
    assert (job.tp, job.zero, job.shape.seq, job.dp) == (4, 1, 512, 2)
    assert not [note for note in job.notes if note.startswith("tp ")]
    stated = ARGUMENTS + " --padded-vocab-size 5120"
    assert _resolved(model=stated, gpu="h100-sxm-80gb").shape.vocab == 5120
    assert _resolved(model=stated, gpu="h100-sxm-80gb", vocabulary=2000).shape.vocab == 2048
    assert "vocab_size is missing" in _refusal(model=ARGUMENTS, gpu="h100-sxm-80gb")


def test_a_file_of_arguments() -> None:
    job = _resolved(**LATENT, gpus=64)
    assert (job.zero, job.ep, job.etp, job.recompute, job.gradient_bytes) == (
        *(3, 8, 1, "selective"),
        2,
    )
    # The script says 8 GPUs; 4 stages of 8 experts need 32.
    script = {"model": str(CONFIGS / "args" / "02.txt"), "vocabulary": 32000}
    message = _refusal(**script, gpu="h100-sxm-80gb")
    assert message.startswith("ep 8 x etp 1 does not divide the 2 ranks of a stage")
    assert _resolved(**script, gpu="h100-sxm-80gb", gpus=32).dp == 8


def test_a_model_is_named_by_its_file_or_folder(tmp_path: Path) -> None:
    assert _resolved(**MIXTURE).label == "mixtral-8x7b"
    folder = tmp_path / "my--model"
    folder.mkdir()
    (folder / "config.json").write_text((CONFIGS / "qwen3-8b.json").read_text())
    job = _resolved(model=str(folder / "config.json"), gpu="h100-sxm-80gb")
    assert (job.label, job.shape.layers) == ("my--model", 36)


def test_a_cluster_brings_gpu_links_and_nics() -> None:
    job = _resolved(model="llama3.1-8b", cluster="cluster-b")
    # params/clusters.yaml: 4 nodes of 4 A100, NVLink of 2400 Gbit/s, a port of 100 Gbit/s per node.
    assert job.device.label == gpu("a100-sxm-40gb").label
    assert (job.gpus, job.gpus_per_node, job.nic_gbps, job.device.nic_gbps) == (4, 4, 100, 25)
    assert job.device.link_gbytes_per_s == 300
    larger = "more nodes than the cluster has, which are 16 GPUs"
    assert larger in _resolved(model="llama3.1-8b", cluster="cluster-b", gpus=32).notes
    assert larger not in _resolved(model="llama3.1-8b", cluster="cluster-b", gpus=16).notes
    same = _resolved(model="llama3.1-8b", cluster="cluster-b", gpu="a100-sxm-40gb")
    assert same.device == job.device


def test_a_data_sheet_is_a_gpu_that_is_not_known(tmp_path: Path) -> None:
    sheet = tmp_path / "mine.yaml"
    fields = json.loads(gpu("h100-sxm-80gb").model_dump_json(exclude_none=True))
    sheet.write_text(json.dumps(fields | {"label": "Mine", "nic_gbps": 100}))
    job = _resolved(model="llama3.1-8b", gpu=str(sheet))
    assert (job.known, job.device.label, job.nic_gbps) == (False, "Mine", 800)
    assert _resolved(**DENSE).known
    sheet.write_text("label: Mine")
    assert "this key is missing" in _refusal(model="llama3.1-8b", gpu=str(sheet))
    sheet.write_bytes(b"\xff\xfe\x00")
    assert str(sheet) in _refusal(model="llama3.1-8b", gpu=str(sheet))
    assert "no such file" in _refusal(model="llama3.1-8b", gpu=str(tmp_path / "none.yaml"))


def test_no_gpu_is_taken_for_a_similar_one() -> None:
    job = _resolved(model="llama3.1-8b", gpu="H200 SXM")
    assert job.device.label == gpu("h200-sxm-141gb").label
    assert job.device.label == "H200-SXM-141GB"
    several = _refusal(model="llama3.1-8b", gpu="a100")
    assert "is one of several; choose from: a100-sxm-80gb, a100-sxm-40gb, a100-pcie-40gb" in several
    for name in ("h100-96gb", "a100-sxm-60gb", "", "--"):
        assert "unknown GPU" in _refusal(model="llama3.1-8b", gpu=name)


@pytest.mark.parametrize(
    ("text", "gbps"), [("8x400", 3200), ("400", 400), (" 2 x 12.5 ", 25), ("4*200", 800)]
)
def test_nics_of_a_node(text: str, gbps: float) -> None:
    assert nics_gbps(text) == gbps


@pytest.mark.parametrize("text", ["", "x", "8x", "fast", "0", "8x0", "-1", "8x400x2", "9" * 400])
def test_nics_that_are_refused(text: str) -> None:
    with pytest.raises(ReproError, match="write the NICs of a node as 8x400"):
        nics_gbps(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpus": 24, "tp": 16}, "gpus 24: no multiple of tp 16 x pp 1 x cp 1 = 16"),
        ({"gpus": 3, "tp": 3}, "tp 3 does not divide 32 heads"),
        ({"global_batch": 12}, "global_batch 12 is no multiple of micro_batch 1 x dp 8"),
        ({"gpus": 64, "pp": 64}, "pp 64 x vpp 1 are more chunks than 32 layers"),
        ({"vpp": 2}, "vpp 2 needs pp above 1"),
        ({"gpus": 9, "cp": 3}, "seq 8192 is no multiple of 2 x cp 3"),
        ({"gpus": 16, "pp": 2, "zero": 3}, "zero 3 with pp 2"),
        ({"ep": 2}, "Llama 3.1 8B has no experts"),
        ({"etp": 2}, "Llama 3.1 8B has no experts"),
        ({"expert_imbalance": 2}, "Llama 3.1 8B has no experts"),
        ({"stack": "mine"}, "unknown stack 'mine'; choose from: "),
        ({"precision": "nvfp4"}, "precision nvfp4: "),
        ({"cluster": "cluster-b", "nic": "400"}, "cluster beside gpus_per_node or nic"),
        ({"cluster": "cluster-b"}, "gpu h100-sxm-80gb: cluster-b has A100"),
        ({"gpu": None, "cluster": "mine"}, "unknown cluster 'mine'; choose from: "),
        ({"gpu": None}, "no GPU; fix: give gpu"),
        ({"vocabulary": 1000}, "vocabulary 1000: llama3.1-8b has its own; fix: omit it"),
        ({"tp": 0}, "tp is 0: "),
        ({"tp": 10**20}, "tp is 100000000000000000000: "),
        ({"gpus": 10**7}, "gpus is 10000000: "),
        ({"zero": 4}, "zero is 4: "),
        ({"gradient_bytes": 3}, "gradient_bytes is 3: "),
        ({"recompute": "half"}, "recompute is 'half': "),
        ({"precision": "fp3"}, "precision is 'fp3': "),
        ({"expert_imbalance": 0.5}, "expert_imbalance is 0.5: "),
        ({"expert_imbalance": float("inf")}, "expert_imbalance is inf: "),
        ({"overlap": "some"}, "overlap is 'some': "),
        ({"brains": 3}, "unknown field brains; choose from: model, vocabulary, gpu, "),
        ({"model": None}, "model is None: "),
        ({"model": "none.json"}, "unknown model 'none.json': no such file; choose from: "),
        ({"model": "a" * 5000}, "unknown model 'aaaa"),
        ({"model": "a\0"}, "unknown model"),
        ({"model": str(CONFIGS)}, "no such file"),
        ({"model": str(CONFIGS / "README.md")}, "neither a config.json nor Megatron's arguments"),
        ({"model": str(CONFIGS / "glm-5.json")}, "model_type 'glm_moe_dsa'"),
        ({"model": str(CONFIGS / "args" / "05.txt")}, "argument encoder_num_layers 12"),
        ({"model": "--num-layers $N"}, "num_layers is $N, a variable"),
        ({"model": str(CONFIGS / "gpt2-xl.json"), "seq": 2048}, "1024 learned positions"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], message: str) -> None:
    assert message in _refusal(**DENSE | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpus": 16, "ep": 16}, "ep 16 does not divide 8 experts"),
        ({"gpus": 8, "ep": 8, "etp": 2}, "ep 8 x etp 2 does not divide the 8 ranks of a stage"),
        ({"gpus": 24, "tp": 8, "pp": 3, "ep": 2}, "ep 2 x etp 8 does not divide the 8 ranks"),
        ({"vocabulary": 1000}, "has its own; fix: omit it"),
    ],
)
def test_refusals_of_experts(fields: dict[str, Any], message: str) -> None:
    assert message in _refusal(**MIXTURE | fields)


def test_heads_of_keys_and_values_limit_tensor_parallelism(tmp_path: Path) -> None:
    fields = json.loads((CONFIGS / "llama-3-70b.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields | {"num_attention_heads": 64, "num_key_value_heads": 32}))
    job = {"model": str(path), "gpu": "h100-sxm-80gb"}
    assert _resolved(**job, gpus=64, tp=64).tp == 64  # Copies of 32 heads.
    path.write_text(
        json.dumps(
            fields | {"num_attention_heads": 24, "num_key_value_heads": 12} | {"head_dim": 128}
        )
    )
    assert "neither divides 12 key-value heads" in _refusal(**job, gpus=8, tp=8)


def test_a_job_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("{model: llama3.1-8b, gpu: h100-sxm-80gb, gpus: 16, tp: 2, nic: 8x200}")
    job = read_job(path)
    assert job_of(job) == Job(model="llama3.1-8b", gpu="h100-sxm-80gb", gpus=16, tp=2, nic="8x200")
    # Options replace single fields of a file.
    changed = job_of(job | {"tp": 4})
    assert (resolve(changed).tp, resolve(changed).gpus) == (4, 16)
    for text, message in [
        ("{model: llama3.1-8b, brains: 3}", "brains: unknown key (got 3)"),
        ("{model: llama3.1-8b, tp: two}", "tp: "),
        ("[1, 2]", "(top): "),
        ("{model: ", "not valid YAML"),
    ]:
        path.write_text(text)
        with pytest.raises(ReproError) as refusal:
            read_job(path)
        assert message in str(refusal.value) and str(path) in str(refusal.value)
    with pytest.raises(ReproError, match="cannot be read as text"):
        read_job(tmp_path)


def test_jobs_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "\ufeffmodel,gpus,tp,nic,gradient_bytes,expert_imbalance\n"
        "llama3.1-8b,16,2,8x400,2,\n\nllama3.1-70b,64,,,,1\n",
        encoding="utf-8",
    )
    first, second = read_jobs(path, {"gpu": "h100-sxm-80gb", "tp": 4, "pp": 2})
    # Cells replace options, which fill the cells that are empty.
    assert (first.tp, first.pp, first.gradient_bytes, first.nic_gbps) == (2, 2, 2, 3200)
    assert (second.tp, second.gpus, second.gradient_bytes) == (4, 64, 4)
    with pytest.raises(ReproError, match=r"all rows state gpus; fix: omit the option"):
        read_jobs(path, {"gpu": "h100-sxm-80gb", "gpus": 8})
    path.write_text("model\n")
    assert read_jobs(path, {}) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("llama3.1-8b,8,two", "line 5: tp is 'two': "),
        ("llama3.1-8b,8,3", "line 5: gpus 8: no multiple of tp 3"),
        ("mine,8,1", "line 5: unknown model 'mine'"),
        (",8,1", "line 5: model is missing; fix: give it"),
        ("llama3.1-8b,8,1,9", "line 5: unknown field cell without a column"),
    ],
)
def test_a_row_that_is_no_job_is_named_by_its_line(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "jobs.csv"
    # Empty lines and lines within quotes count.
    path.write_text(f'model,gpus,tp\n\n"llama3.1-8b",8,"1\n"\n{row}\n')
    with pytest.raises(ReproError) as refusal:
        read_jobs(path, {"gpu": "h100-sxm-80gb"})
    assert str(refusal.value).startswith(f"{path}, {message}")


def test_tables_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"model\n\xff\n")
    for given in (path, tmp_path, tmp_path / "none.csv"):
        with pytest.raises(ReproError, match="cannot be read as CSV"):
            read_jobs(given, {})
