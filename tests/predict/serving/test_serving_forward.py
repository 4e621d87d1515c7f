"""Passes by operator: their work by closed forms, what binds them, and how they scale."""

from dataclasses import replace

import numpy as np
import pytest
from serving_examples import LATENT, on, rows_of

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.gpus import gpu
from repro.errors import ReproError
from repro.predict.operators.measured import operator_costs
from repro.predict.serving.forward import bound, forward
from repro.predict.serving.latency import latency, part_s, passes
from repro.predict.serving.memory import largest_batch, weight_bytes
from repro.predict.serving.parameters import engine
from repro.predict.serving.parts import ForwardPass, Part, prompt_pass, token_pass
from repro.predict.serving.served import Served, served

_ONCE = np.ones(1)


def _work(parts: list[Part], name: str, kind: str = "product") -> float:
    return float(sum((one.count * getattr(one, name)).sum() for one in parts if one.kind == kind))


def _decode(rows: Served, **where: str) -> list[Part]:
    return forward(rows, on(**where), token_pass(rows, _ONCE))


@pytest.mark.parametrize("model", ["llama3.1-8b", "llama2-70b", "gpt-j-6b", "falcon-180b"])
def test_a_token_multiplies_with_every_weight_once(model: str) -> None:
    shape = open_model(model).shape
    weights = shape.count(0) - shape.vocab * shape.hidden
    parts = _decode(rows_of(model))
    assert _work(parts, "flops") == pytest.approx(2 * 8 * weights, rel=1e-3)
    # And reads each of them once, beside 8 rows of hidden states.
    assert _work(parts, "memory_bytes") == pytest.approx(2 * weights, rel=0.02)


def test_a_prompts_layers_compute_for_all_its_tokens() -> None:
    rows, shape = rows_of(), open_model("llama3.1-8b").shape
    parts = forward(rows, on(), prompt_pass(rows, _ONCE))
    layers = shape.count(0) - 2 * shape.vocab * shape.hidden
    logits = 2 * 8 * shape.vocab * shape.hidden
    expected = 2 * 8 * 512 * layers + logits
    assert _work(parts, "flops") == pytest.approx(expected, rel=1e-3)
    # Causality leaves half of 4 s^2 d for each head.
    scores = 32 * 8 * 32 * 2 * 512**2 * 128
    assert _work(parts, "flops", "prompt attention") == pytest.approx(scores)


def test_layers_with_a_window_compute_scores_within_it() -> None:
    shape = open_model("gpt-oss-20b").shape
    for tokens in (64, shape.window, 1024):
        rows = rows_of("gpt-oss-20b", input_tokens=tokens)
        parts = forward(rows, on(), prompt_pass(rows, _ONCE))
        pairs = np.arange(1, tokens + 1)
        seen = (pairs.sum() + np.minimum(pairs, shape.window).sum()) / 2
        scores = shape.layers * 8 * shape.heads * 4 * seen * shape.head_dim
        # Sums over tokens, of which the diagonal counts half.
        assert _work(parts, "flops", "prompt attention") == pytest.approx(scores, rel=1.2 / tokens)


def test_what_is_exchanged_between_domains_leaves_each_rank_through_its_own_port() -> None:
    """Of an all-to-all among 16 ranks on two nodes, half of each rank's tokens."""
    rows = rows_of("mixtral-8x7b", ep=16, batch=1024)
    parts = forward(rows, on(), prompt_pass(rows, _ONCE))
    exchange = next(one for one in parts if one.name == "experts' exchange")
    device = on().device
    sent = 2 * 1024 / 16 * 512 * rows.hidden * 2
    port_s = 0.5 * sent / (device.nic_gbps * 1e9 / 8)
    assert (exchange.time_s > port_s).all()


def test_gpus_without_links_send_through_their_ports() -> None:
    rows = rows_of(tp=[1, 2])
    parts = _decode(rows, device="dgx-spark")
    (reduced,) = (one for one in parts if one.name == "all-reduce")
    # 8 hidden states of 4,096 in half precision: each of two GPUs sends and receives all once.
    sent = 8 * 4096 * 2
    assert reduced.nic_bytes[1] == pytest.approx(sent) and reduced.link_bytes[1] == 0
    assert reduced.time_s[1] >= sent / 25e9
    total_s = latency(passes(rows, on("dgx-spark")), on("dgx-spark")).total_s
    assert np.isfinite(total_s).all()


def test_decoding_reads_the_cache_once() -> None:
    cached = 2 * 2 * 32 * 8 * 128 * 8 * (512 + 32)
    assert _work(_decode(rows_of()), "memory_bytes", "decoding") == pytest.approx(cached)


def test_all_experts_are_read_where_many_tokens_choose() -> None:
    shape = open_model("mixtral-8x7b").shape
    many, one = rows_of("mixtral-8x7b", batch=256), rows_of("mixtral-8x7b", batch=1)
    every = 3 * 8 * shape.hidden * shape.expert_ffn * shape.layers
    named = [p for p in _decode(many, device="b200-sxm-180gb") if p.name.startswith("experts")]
    assert _work(named, "memory_bytes") == pytest.approx(2 * every, rel=0.05)
    named = [p for p in _decode(one, device="b200-sxm-180gb") if p.name.startswith("experts")]
    assert _work(named, "memory_bytes") == pytest.approx(2 * every / 4, rel=0.01)


def test_tensor_parallel_ranks_share_products_and_reduce_twice_a_layer() -> None:
    alone, four = _decode(rows_of("llama3.1-70b")), _decode(rows_of("llama3.1-70b", tp=4))
    assert _work(four, "flops") == pytest.approx(_work(alone, "flops") / 4, rel=1e-3)
    (reduced,) = (one for one in four if one.name == "all-reduce")
    assert reduced.count == 160
    # 2 (n - 1)/n of 8 rows of 8,192 in half precision.
    assert reduced.link_bytes == pytest.approx(1.5 * 8 * 8192 * 2)
    # So small a message costs its launch and hops.
    assert bound(reduced, on()) == "launch"


def test_messages_between_nodes_wait_for_the_port() -> None:
    for stages, carried_by in ((2, "link_bytes"), (4, "nic_bytes")):
        rows = rows_of("llama3.1-70b", tp=4, pp=stages, input_tokens=2048)
        parts = forward(rows, on(), prompt_pass(rows, _ONCE))
        (message,) = (one for one in parts if one.kind == "message")
        # Hidden states of 8 prompts in half precision; each rank has a part.
        sent = {"link_bytes": 0.0, "nic_bytes": 0.0, carried_by: 8 * 2048 * 8192 * 2 / 4}
        assert {name: getattr(message, name).item() for name in sent} == sent
        assert bound(message, on()) == "network"


def test_prefill_computes_and_decode_reads() -> None:
    rows = rows_of(batch=4, input_tokens=2048)
    found = {
        (phase, part.name): str(bound(part, on())[0])
        for phase, one in (
            ("prefill", prompt_pass(rows, _ONCE)),
            ("decode", token_pass(rows, _ONCE)),
        )
        for part in forward(rows, on(), one)
    }
    assert found["prefill", "MLP up"] == "compute"
    assert found["decode", "MLP up"] == "memory"
    assert found["prefill", "element-wise"] == "memory"


def test_more_work_takes_longer_and_more_gpus_do_not() -> None:
    batches = rows_of(batch=np.array([1, 8, 64, 256]))
    found = latency(passes(batches, on()), on())
    assert (np.diff(found.output_token_s) > 0).all() and (np.diff(found.total_s) > 0).all()
    assert (np.diff(found.first_token_s) > 0).all()
    assert (np.diff(found.tokens_per_s_per_gpu) > 0).all()
    widths = rows_of("llama2-70b", tp=np.array([2, 4, 8]), input_tokens=2048)
    found = latency(passes(widths, on()), on())
    assert (np.diff(found.output_token_s) < 0).all() and (np.diff(found.first_token_s) < 0).all()


def test_a_token_takes_at_least_what_reading_weights_does() -> None:
    for device, peak in (("a100-sxm-80gb", 2.039e12), ("h200-sxm-141gb", 4.8e12)):
        engine = on(device, stack="tensorrt-llm")
        found = latency(passes(rows_of(batch=1, input_tokens=1), engine), engine)
        least = 2 * (8.03e9 - 128256 * 4096) / peak
        assert 1 < found.output_token_s / least < 2


def test_fp8_is_up_to_twice_as_fast() -> None:
    half, eighth = (
        latency(passes(rows_of(batch=4), on(weights=name)), on(weights=name))
        for name in ("bf16", "fp8")
    )
    assert 1.3 < half.output_token_s / eighth.output_token_s < 2
    with pytest.raises(ReproError, match="precision 'fp8': A100-SXM-80GB has no units for it"):
        on("a100-sxm-80gb", "fp8")
    with pytest.raises(ReproError, match="unknown precision 'int3'"):
        on(weights="int3")


def test_whole_sequences_of_micro_batches_wait_for_each_other() -> None:
    """FasterTransformer's stages: p of them take (m + p - 1)/p of m micro batches' passes."""
    engine = on("a100-sxm-80gb", stack="fastertransformer-5")
    shape = {"batch": 24, "input_tokens": 512, "pp": 3}
    found = passes(rows_of("llama2-7b", **shape), engine)
    # A third of the batch has 4,096 tokens, half of it 2,048.
    assert found.prompt_passes == 6 and found.token_passes == 3
    steady = on("a100-sxm-80gb")
    assert passes(rows_of("llama2-7b", **shape), steady).prompt_passes == 24


def test_prompts_share_passes_with_tokens() -> None:
    """A prompt joins as a sequence ends: 8 end in 64 steps; of 256, 4 end at each."""
    found = passes(rows_of(batch=np.array([8, 256])), on())
    assert found.prompt_passes.tolist() == [8, 64]
    (product,) = (one for one in found.prompts if one.name == "MLP down")
    # Tokens of all passes: prompts of 512, and one of each sequence in each pass.
    tokens = product.flops / (2 * 4096 * 14336) * found.prompt_passes
    assert tokens.tolist() == pytest.approx([8 * (512 + 8), 256 * (512 + 64)])
    # A pass has 8,192 tokens at most, of which 300 are other sequences'.
    long = passes(rows_of(batch=300, input_tokens=2048), on("h200-sxm-141gb"))
    assert long.prompt_passes == np.ceil(300 * 2048 / (8192 - 300))


def test_a_pipeline_is_as_slow_as_its_last_stage() -> None:
    """The last of eight stages has a layer and the logits, and each pass is in all of them."""
    sizes = {"pp": [1, 8], "ep": 1, "batch": [8, 64], "input_tokens": 64, "output_tokens": 1024}
    shape = open_model("llama3.1-8b").shape.model_copy(update={"layers": 8, "vocab": 2_000_000})
    rows = served(shape, tp=1, **sizes)
    no_host = on().costs.model_copy(update=dict.fromkeys(("step_s", "sequence_s", "relay_s"), 0.0))
    engine = replace(on(), costs=no_host)
    known = passes(rows, engine)
    logits = sum(part_s(part, no_host) for part in known.tokens if part.name == "logits")
    one, eight = latency(known, engine).step_s
    # Eight passes of as many sequences: a layer and the logits each, and messages between stages.
    sent = sum(part_s(part, no_host)[1] for part in known.tokens if part.kind == "message")
    assert eight == pytest.approx(8 * logits[1] + (one - logits[0]) + sent, rel=1e-6)


def test_hosts_of_stages_pass_on_the_tokens_of_all_sequences() -> None:
    rows = rows_of(tp=1, pp=[1, 2, 8], batch=64)
    costs = on().costs.model_copy(update={"relay_s": 0.0})
    with_s, without_s = (
        latency(passes(rows, on()), replace(on(), costs=one)).step_s
        for one in (costs.model_copy(update={"relay_s": 1e-5}), costs)
    )
    assert with_s - without_s == pytest.approx([0.0, 64e-5, 3 * 64e-5])


def test_sequences_that_memory_does_not_hold_wait() -> None:
    """Twice as many sequences in a closed loop at the same rate take twice as long (Little)."""
    engine = on(stack="tensorrt-llm")
    held = int(largest_batch(rows_of(input_tokens=8192), engine).item())
    rows = rows_of(batch=held * np.array([1, 2]), input_tokens=8192)
    found = latency(passes(rows, engine), engine)
    assert found.total_s[1] == pytest.approx(2 * found.total_s[0])
    assert found.tokens_per_s_per_gpu[1] == pytest.approx(found.tokens_per_s_per_gpu[0])
    assert found.first_token_s[1] - found.first_token_s[0] == pytest.approx(found.total_s[0])


def test_weights_in_four_bits_are_multiplied_as_the_gpu_can() -> None:
    """Small batches read fewer bytes; large ones are no faster without units for four bits."""
    assert on("h100-sxm-80gb", "mxfp4").units("mxfp4") == "bf16"
    assert on("b200-sxm-180gb", "mxfp4").units("mxfp4") == "mxfp8"
    assert on("a100-sxm-80gb", "awq").units("int4") == "bf16"
    with pytest.raises(ReproError, match="precision 'fp4': H100-SXM-80GB has no units for it"):
        on("h100-sxm-80gb", "nvfp4")

    def product(name: str, tokens: int) -> Part:
        rows = rows_of(batch=1, input_tokens=tokens)
        parts = forward(rows, on(weights=name), prompt_pass(rows, _ONCE))
        return next(one for one in parts if one.name == "MLP up")

    k, n = 4096, 2 * 14336
    # AWQ has a scale of two bytes for 128 weights.
    assert product("int4", 1).memory_bytes == pytest.approx(k * n * (0.5 + 2 / 128) + 2 * (k + n))
    assert product("int4", 1).time_s < 0.5 * product("bf16", 1).time_s
    assert product("int4", 8192).time_s > 0.9 * product("bf16", 8192).time_s


def test_only_experts_of_gpt_oss_are_in_four_bits() -> None:
    rows, engine = rows_of("gpt-oss-120b"), on(weights="mxfp4-experts")
    # The checkpoint has 60.8 GiB (OpenAI, model card, 2025, table 1).
    assert weight_bytes(rows, engine) / 2**30 == pytest.approx(60.8, rel=0.02)


def test_groups_that_share_experts_gather_all_tokens() -> None:
    """Attention on each of 8 GPUs, experts spread over them (DEP)."""
    rows = rows_of("llama4-maverick", ep=8, batch=64)
    engine = on("h200-sxm-141gb", "fp8", "tensorrt-llm")
    parts = forward(rows, engine, token_pass(rows, _ONCE))
    (exchange,) = (one for one in parts if one.name == "experts' exchange")
    # Of 64 tokens in half precision, each GPU receives those of 7 others.
    assert exchange.link_bytes == pytest.approx(7 / 8 * 64 * 5120 * 2)
    # There and back in each second layer of 48.
    assert exchange.count == 2 * 24


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": 0}, "batch is 0; take 1 or more"),
        ({"input_tokens": 0}, "input_tokens is 0"),
        ({"tp": 5}, "tp 5 does not divide 32 heads"),
    ],
)
def test_what_cannot_be_served_is_refused(changed: dict[str, int], message: str) -> None:
    with pytest.raises(ReproError, match=message):
        rows_of(**changed)


def test_a_head_that_one_multiprocessor_reads_waits_for_it() -> None:
    """8 heads of keys of a sequence, 128 wide, are fewer than an H200 has multiprocessors."""
    device, context = gpu("h200-sxm-141gb"), 8192
    engine_ = engine(device, "bf16", stack="pytorch")
    for batch in (1, 64):
        one = ForwardPass(np.full(1, batch), np.full(1, batch), np.full(1, context), prompt=False)
        (part,) = [
            part for part in forward(rows_of(batch=batch), engine_, one) if part.kind == "decoding"
        ]
        rounds = np.ceil(batch * 8 / 132)
        read_s = 2 * 2 * context * 128 / (engine_.stack.head_gbytes_per_s * 1e9)
        head = rounds * (engine_.stack.head_s + read_s)
        together = batch * 8 * 2 * 2 * context * 128 / (device.memory_gbytes_per_s * 1e9 * 0.92)
        launch = operator_costs("gemm", device, "bf16").costs["launch_s"]
        time = (part_s(part, engine_.costs) / part.count).item() - launch
        assert time == pytest.approx(max(head, together))
        assert (head > together) == (batch == 1)


def test_short_caches_that_queries_share_keep_multiprocessors_for_a_heads_least_time() -> None:
    """1,024 sequences of 8 heads and 64 tokens: 63 rounds on the 132 multiprocessors of an H100."""
    device = gpu("h100-sxm-80gb")
    one = ForwardPass(np.full(1, 1024.0), np.full(1, 1024.0), np.full(1, 64.0), prompt=False)
    engine_ = engine(device, "bf16", stack="pytorch")
    found = []
    for model in ("llama3.1-8b", "llama2-7b"):
        of = rows_of(model, batch=1024)
        (part,) = [part for part in forward(of, engine_, one) if part.kind == "decoding"]
        found.append((part_s(part, engine_.costs) / part.count).item())
    launch = operator_costs("gemm", device, "bf16").costs["launch_s"]
    head_bytes = 2 * 2 * 64 * 128
    one_s = engine_.stack.head_s + head_bytes / (engine_.stack.head_gbytes_per_s * 1e9)
    assert found[0] == pytest.approx(launch + 63 * one_s)
    # Heads with a query of their own are divided: only reading is left.
    read_s = 1024 * 32 * head_bytes / (device.memory_gbytes_per_s * 1e9 * 0.92)
    assert found[1] == pytest.approx(launch + read_s)


def test_a_token_multiplies_with_the_weights_of_all_kinds_of_layers() -> None:
    """DeepSeek-V3 states 37B active parameters; 128 heads share a vector of 576 elements."""
    rows = served(LATENT, tp=1, pp=1, ep=1, batch=1, input_tokens=4096, output_tokens=64)
    parts = _decode(rows)
    # The embedding table is looked up, not multiplied.
    active = LATENT.count(LATENT.experts_per_token) - LATENT.vocab * LATENT.hidden
    assert active + LATENT.vocab * LATENT.hidden == pytest.approx(37e9, rel=0.02)
    # A router has few outputs and takes no time.
    assert _work(parts, "flops") == pytest.approx(2 * active, rel=0.005)
    seen, layers = 4096 + 32, 61
    assert _work(parts, "memory_bytes", "decoding") == pytest.approx(2 * layers * 576 * seen)
    scores = 2 * layers * 128 * (576 + 512) * seen
    assert _work(parts, "flops", "decoding") == pytest.approx(scores)
    dense = [part for part in parts if part.name == "MLP up, dense layers"]
    assert [part.count.item() for part in dense] == [3]


def test_heads_that_read_one_vector_wait_for_computing() -> None:
    """Two FLOPs of 1,088 by 128 heads per 1,152 bytes are 242 per byte: an H100 has 295."""
    rows = served(LATENT, tp=1, pp=1, ep=1, batch=64, input_tokens=4096, output_tokens=64)
    device = on().device
    (part, _) = (part for part in _decode(rows) if part.kind == "decoding")
    assert (part.flops / part.memory_bytes).item() == pytest.approx(2 * 1088 * 128 / 1152)
    whole_s = (part.time_s + part.fixed_s + part.read_s).item()
    assert whole_s > part.flops.item() / device.peak_flops
    assert whole_s < 2.5 * part.flops.item() / device.peak_flops
