"""Megatron's arguments give the model and the plan that the framework makes of them."""

import csv
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from repro.catalog.models.ignored_fields import read_ignored
from repro.catalog.models.megatron_arguments import Arguments, is_arguments, read_arguments
from repro.catalog.models.open_models import DecoderShape
from repro.errors import ReproError

FOLDER = Path(__file__).parent / "configs" / "args"
with (FOLDER / "INDEX.csv").open(encoding="utf-8") as file:
    INDEX = {row["file"]: row for row in csv.DictReader(file)}
SMALL = """
--num-layers 4
--hidden-size 512
--num-attention-heads 8
--seq-length 1024
--max-position-embeddings 2048
--vocab-size 1000
--bf16
"""


def _read(name: str) -> Arguments:
    return read_arguments((FOLDER / name).read_text(), int(INDEX[name]["vocabulary"]))


def _small(more: str = "") -> DecoderShape:
    return read_arguments(SMALL + more).model.shape


def _plan(more: str) -> dict[str, Any]:
    return dict(read_arguments(SMALL + more).plan)


def _refusal(text: str, vocabulary: int | None = None) -> str:
    with pytest.raises(ReproError) as refusal:
        read_arguments(text, vocabulary)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_the_index_lists_all_files() -> None:
    assert {path.name for path in FOLDER.glob("*.txt")} == set(INDEX)


@pytest.mark.parametrize("name", sorted(set(INDEX) - {"05.txt"}))
def test_parameters_are_those_of_the_weights(name: str) -> None:
    shape, row = _read(name).model.shape, INDEX[name]
    assert shape.count(shape.experts) == pytest.approx(float(row["own_total"]), rel=5e-4)


def test_an_encoder_is_refused_by_name() -> None:
    text = (FOLDER / "05.txt").read_text()
    assert "argument encoder_num_layers 12" in _refusal(text, 28996)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("02.txt", 32000),  # A multiple of 128 already.
        ("09.txt", 51200),  # 50257 to a multiple of 128 x 8.
        ("14.txt", 152064),  # 151936 to a multiple of 128 x 4.
        ("18.txt", 258560),  # 256000 to a multiple of 3232 x 2.
        ("22.txt", 50688),  # 50257 to a multiple of 128 x 4.
    ],
)
def test_the_vocabulary_is_padded_for_tensor_parallelism(name: str, rows: int) -> None:
    found = _read(name).model
    assert found.shape.vocab == rows
    padded = f"vocabulary of {INDEX[name]['vocabulary']} padded to {rows}"
    assert any(note.startswith(padded) for note in found.notes) == (name != "02.txt")


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("02.txt", {"tp": 1, "pp": 4, "ep": 8, "micro_batch": 1, "global_batch": 256, "zero": 1}),
        ("03.txt", {"cp": 1, "precision": "fp8", "gradient_bytes": 2, "seq": 8192}),
        ("06.txt", {"ep": 8, "etp": 1, "zero": 3, "recompute": "selective", "gradient_bytes": 2}),
        ("09.txt", {"tp": 8, "pp": 1, "recompute": "full", "zero": 0}),
        ("11.txt", {"tp": 8, "pp": 8, "vpp": 2, "recompute": "full"}),  # 80 / 8 stages / 5.
        ("18.txt", {"tp": 2, "pp": 4, "vpp": 2, "ep": 16, "etp": 1}),  # 8 chunks, 4 stages.
        ("22.txt", {"tp": 4, "pp": 4, "cp": 2, "vpp": 4, "seq": 8192}),
        ("24.txt", {"tp": 2, "pp": 4, "ep": 4, "seq": 4096, "global_batch": 128}),
    ],
)
def test_plans(name: str, plan: dict[str, Any]) -> None:
    found = _read(name).plan
    assert {field: found[field] for field in plan} == plan


def test_layers_that_are_mixtures() -> None:
    for name, dense, width in [("06.txt", 3, 18432), ("15.txt", 1, 10944), ("14.txt", 0, 0)]:
        shape = _read(name).model.shape
        assert (shape.dense_layers, shape.dense_ffn) == (dense, width)
    experts = "--num-experts 8 --moe-layer-freq "
    for pattern, dense in [("2", 2), ("([0]*1+[1]*3)", 1), ("[0,1]*2", 2), ("[0]+[1,1,1]", 1)]:
        assert _small(f"{experts}'{pattern}'").dense_layers == dense
    assert "moe_layer_freq has 3 layers" in _refusal(SMALL + experts + "[1]*3")
    assert "moe_layer_freq 'most'" in _refusal(SMALL + experts + "most")


def test_widths_of_experts_and_latent_attention() -> None:
    shape = _read("14.txt").model.shape
    assert (shape.expert_ffn, shape.ffn, shape.head_dim) == (768, 0, 128)
    assert _read("02.txt").model.shape.expert_ffn == 14336
    shape = _read("15.txt").model.shape
    # kv-channels 16 has no meaning there; no q-lora-rank: queries are not compressed.
    assert (shape.head_dim, shape.value_dim, shape.kv_rank, shape.query_rank) == (192, 128, 512, 0)
    assert shape.shared_expert_ffn == 2 * 1408
    latent = SMALL + "--multi-latent-attention"
    assert "kv_lora_rank is missing; fix: add --kv-lora-rank N" in _refusal(latent)


def test_defaults_are_those_of_megatron() -> None:
    shape = _small()
    assert (shape.ffn, shape.kv_heads, shape.head_dim) == (2048, 8, 64)
    assert (shape.tied, shape.biases, shape.positions, shape.gated_mlp) == (
        True,
        "all",
        2048,
        False,
    )
    assert _small("--swiglu").ffn == 1344  # 8 / 3 of 512 down to a multiple of 64.
    assert not _small("--untie-embeddings-and-output-weights").tied
    assert _small("--disable-bias-linear").biases == "none"
    assert _small("--disable-bias-linear --add-qkv-bias").biases == "qkv"
    assert _small("--position-embedding-type rope").positions == 0
    assert _small("--no-position-embedding").positions == 0


def test_groups_of_heads_need_the_switch() -> None:
    assert _small("--group-query-attention --num-query-groups 2").kv_heads == 2
    assert _small("--group-query-attention").kv_heads == 1  # Megatron-LM's default.
    assert "without group_query_attention" in _refusal(SMALL + "--num-query-groups 2")
    assert "num_query_groups 3 does not" in _refusal(
        SMALL + "--group-query-attention --num-query-groups 3"
    )
    # NeMo's configurations have no such switch.
    assert _read("22.txt").model.shape.kv_heads == 8


def test_sharding_of_replicas() -> None:
    assert _plan("")["zero"] == 0
    assert _plan("--use-distributed-optimizer")["zero"] == 1
    assert _plan("--use-torch-fsdp2")["zero"] == 3
    fsdp = "--use-megatron-fsdp --data-parallel-sharding-strategy "
    for strategy, level in [("no_shard", 0), ("optim", 1), ("optim_grads", 2)]:
        assert _plan(fsdp + strategy)["zero"] == level
    assert _plan(fsdp + "optim_grads_params")["zero"] == 3
    assert "choose from: no_shard, optim" in _refusal(SMALL + fsdp + "most")


def test_precisions_and_recomputation() -> None:
    assert "precision" not in _plan("")
    assert _plan("--fp8-format e4m3")["precision"] == "fp8"
    assert _plan("--fp8-format e4m3 --fp8-recipe mxfp8")["precision"] == "mxfp8"
    assert _plan("--fp4-format e2m1")["precision"] == "nvfp4"
    assert "recompute" not in _plan("")
    assert _plan("--recompute-activations")["recompute"] == "selective"
    assert _plan("--recompute-granularity full")["recompute"] == "full"
    assert "choose from: full, selective" in _refusal(SMALL + "--recompute-granularity half")


def test_windows() -> None:
    assert _small().window == 0
    for more, share in [("", 1), ("--window-attn-skip-freq 4", 3 / 4)]:
        shape = _small(f"--window-size 128,0 {more}")
        assert (shape.window, shape.windowed) == (128, share)
    assert _small("--window-size 128,0 --window-attn-skip-freq [1,0,0,0]").windowed == 1 / 4
    assert _small("--window-size -1,-1").window == 0
    assert "window_size True" in _refusal(SMALL + "--window-size")


def test_what_the_model_does_not_know_is_reported() -> None:
    def notes(more: str) -> str:
        return " ".join(read_arguments(SMALL + more).model.notes)

    assert "not in the performance model" not in notes("--recompute-modules core_attn")
    for more in ("--fp8-param-gather", "--tp-comm-overlap", "--moe-expert-capacity-factor 1.5"):
        assert f"not in the performance model: {more.split()[0][2:].replace('-', '_')}" in notes(
            more
        )
    parallel = "--tensor-model-parallel-size 2 "
    assert "without sequence_parallel" in notes(parallel)
    assert "without sequence_parallel" not in notes(parallel + "--sequence-parallel")
    assert "recompute_method block" in notes("--recompute-method block --recompute-num-layers 2")


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("--number-of-brains 3", "argument number_of_brains is not understood; understood: "),
        ("--hybrid-override-pattern M*M-", "argument hybrid_override_pattern 'M*M-'"),
        ("--linear-attention-freq 4", "argument linear_attention_freq 4"),
        ("--retro-add-retriever", "argument retro_add_retriever True"),
        ("--cpu-offloading", "argument cpu_offloading True"),
        ("--optimizer-cpu-offload", "argument optimizer_cpu_offload True"),
        ("--optimizer muon", "argument optimizer is 'muon'; understood: adam"),
        ("--exp-avg-dtype bf16", "argument exp_avg_dtype is 'bf16'; understood: fp32"),
        ("--num-distributed-optimizer-instances 2", "instances is 2; understood: 1"),
        ("--ffn-hidden-size", "ffn_hidden_size is True; must be a whole number"),
        ("--ffn-hidden-size $FFN", "ffn_hidden_size is $FFN, a variable; fix: write its value"),
        (
            "--num-attention-heads 7",
            "hidden_size 512: no multiple of 7 heads; fix: add kv_channels",
        ),
        ("--num-layers 100000", "num_layers is 100000; must be a whole number up to 10000"),
        ("--hidden-size 99999999999999999999", "hidden_size is '99999999999999999999'"),
        ("--tokenizer-type 'open", "fix: close the quote"),
        ("--num-layers-per-virtual-pipeline-stage 3", "does not divide the layers of a stage"),
        ("--pipeline-model-parallel-layout x", "pipeline_model_parallel_layout 'x'"),
    ],
)
def test_arguments_that_are_refused_by_name(argument: str, named: str) -> None:
    assert named in _refusal(SMALL + argument)


def test_missing_arguments_are_named() -> None:
    assert "vocab_size is missing" in _refusal(SMALL.replace("--vocab-size 1000", ""))
    assert "seq_length is missing" in _refusal(SMALL.replace("--seq-length 1024", ""))
    assert "fix: give Megatron's arguments" in _refusal("a text\nof words")
    assert "hidden_size beside a recipe" in _refusal("--recipe gpt_oss_20b\nmodel.hidden_size=64")


def test_a_recipe_names_its_model_exactly() -> None:
    for recipe in ("gpt_oss_20b_pretrain_config", "gpt_oss_20b", "gpt_oss_20b_8k_sft_config"):
        found = read_arguments(f"--recipe {recipe}").model
        assert found.shape == _read("24.txt").model.shape.model_copy(
            update={"seq": found.shape.seq}
        )
    # Another model with a similar name, adapters, and none.
    for recipe in ("deepseek_v3_2_pretrain", "gpt_oss_20b_peft_config", "my_gpt_oss_20b", "my_own"):
        assert f"recipe '{recipe}' is of no model of: " in _refusal(f"--recipe {recipe}")


def test_spellings_are_read_alike() -> None:
    lines = [line for line in SMALL.split("\n") if line]
    pairs = [line[2:].replace("-", "_").split(" ") for line in lines]
    spellings = {
        "one line": " ".join(lines),
        "equals": "\n".join(line.replace(" ", "=") for line in lines),
        "continued": "torchrun pretrain_gpt.py \\\n" + " \\\n".join(lines),
        "comments": SMALL.replace("--bf16", "# --swiglu\n--bf16  # --swiglu"),
        "yaml": "\n".join(f"  {pair[0]}: {pair[-1]}" for pair in pairs if len(pair) == 2),
        "sections": "\n".join(f"model.{pair[0]}={pair[-1]}" for pair in pairs if len(pair) == 2),
        "printed": "\n".join(
            f"[default0]:  {pair[0]} {'.' * (48 - len(pair[0]))} {pair[-1]}"
            for pair in [*pairs, ("bf16", "True"), ("hybrid_attention_ratio", "0.0")]
            if len(pair) == 2
        ),
    }
    for name, text in spellings.items():
        assert is_arguments(text), name
        assert read_arguments(text).model.shape == _small(), name
    assert not is_arguments("hidden_size: 4096") and not is_arguments("")


def test_a_printed_list_of_megatron_lm() -> None:
    # From a public log of GPT-2 345M, with what it prints of models that it does not train:
    # 24 layers x 12 x 1024^2 and the padded table, 354.9e6 parameters.
    printed = {
        **{"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 1024},
        **{"encoder_num_layers": 24, "decoder_num_layers": None, "encoder_seq_length": 1024},
        **{"hybrid_attention_ratio": 0.0, "hybrid_override_pattern": None, "spec": None},
        **{"retro_add_retriever": False, "retro_encoder_layers": 2, "num_experts": None},
        **{"moe_router_topk": 2, "group_query_attention": False, "num_query_groups": 1},
        **{"kv_channels": 64, "ffn_hidden_size": 4096, "max_position_embeddings": 1024},
        **{"position_embedding_type": "learned_absolute", "untie_embeddings": False},
        **{"tensor_model_parallel_size": 4, "sequence_parallel": True, "world_size": 4},
        **{"use_distributed_optimizer": False, "optimizer": "adam", "fp8": None, "vision": "yes"},
        **{"add_position_embedding": True, "num_channels": 3, "recompute_granularity": None},
    }
    text = "\n".join(f"  {name} {'.' * (48 - len(name))} {of}" for name, of in printed.items())
    found = read_arguments(text, 50257)
    shape = found.model.shape
    assert shape.count(0) == pytest.approx(354.9e6, rel=0.002)
    assert (shape.kv_heads, shape.experts, found.plan["gpus"], found.plan["tp"]) == (16, 0, 4, 4)
    for changed in ("  spec ....... mamba", "  hybrid_attention_ratio ....... 0.5"):
        assert changed.split()[0] in _refusal(text + "\n" + changed, 50257)


def test_the_launcher_states_the_gpus() -> None:
    assert _plan("--nnodes 4 --nproc_per_node 8")["gpus"] == 32
    assert "gpus" not in _plan("--nnodes $NODES --nproc_per_node 8")


def test_no_argument_is_understood_and_ignored() -> None:
    ignored = read_ignored().arguments
    assert not ignored.names & ignored.reported
    assert not ignored.names & ignored.switched_off
    for name in ("num_layers", "hidden_size", "moe_ffn_hidden_size", "cpu_offloading"):
        assert not ignored.covers(name, 1)


_WORDS = [
    *("--num-layers", "--hidden-size", "--num-experts", "--moe-layer-freq", "--window-size"),
    *("--recipe", "--pipeline-model-parallel-layout", "0", "-1", "1e400", "9" * 5000, "[1]*9999"),
    *("([0]*9999+[1])*9", "(((", "Et*999|(t|)*999", "(((t)*999)*999)*999|t", "'", '"', "\\", "#"),
    *("=", ":", "None", "true", "$X", "\n", "\0", "....... 5", "  num_layers ....... 3", "--"),
]


@pytest.mark.parametrize("seed", range(10))
def test_mutated_arguments_are_read_or_refused(seed: int) -> None:
    source, ended = random.Random(seed), Counter[str]()
    texts = [(FOLDER / name).read_text() for name in INDEX] + [SMALL]
    for _ in range(1000):
        words = source.choice(texts).replace("\n", " \n ").split(" ")
        for _ in range(source.randint(1, 4)):
            at = source.randrange(len(words))
            words[at : at + source.choice([0, 1, 1, 4])] = [source.choice(_WORDS)]
        text = " ".join(words)
        try:
            found = read_arguments(text, 50257)
        except ReproError as refusal:
            assert "\n" not in str(refusal)
            ended["refused"] += 1
        else:
            shape = found.model.shape
            assert shape.count(shape.experts) > 0
            ended["read"] += 1
    assert min(ended.values()) > 100
