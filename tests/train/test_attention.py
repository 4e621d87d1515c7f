"""Torch's attention computes what Megatron-Core's does."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset
from rank_pool import RankPool
from staged import SEQUENCE, Trained, set_up_staged, staged_run, train_staged

from repro.catalog.models.papers import Family
from repro.corpus.config import FAMILIES
from repro.errors import ReproError
from repro.train.megatron import attention
from repro.train.megatron.steps import Batch, forward_step
from repro.train.records import Attention, TrainingRun
from repro.train.run import forward_backward
from repro.train.training import Training, set_up

pytestmark = pytest.mark.slow


def _hide_the_end(batch: Batch) -> Batch:
    """BERT's batch with padding, of which the test corpus gives too little."""
    for name in ("padding_mask", "loss_mask"):
        batch[name][:, -SEQUENCE // 4 :] = 0
    return batch


def _set_up(run: TrainingRun, scratch: Path) -> Training:
    state = set_up_staged(run, scratch)
    if run.family != "bert":
        return state
    return replace(state, training=map(_hide_the_end, state.training))


def _train(run: TrainingRun, scratch: Path) -> Trained:
    """A rank's task: `train_staged` for one iteration, with padding."""
    with mock.patch("staged.set_up_staged", _set_up):
        return train_staged(run, scratch, 1)


@pytest.mark.parametrize(
    ("family", "stages"), [("gpt", 1), ("bert", 1), ("t5", 1), ("bert", 2), ("t5", 2)]
)
def test_torch_trains_as_megatron_does(
    pool: RankPool, enwiki: Path, tmp_path: Path, family: Family, stages: int
) -> None:
    def trained(attention: Attention) -> list[Trained]:
        run = replace(staged_run(family, enwiki, stages=stages), attention=attention)
        return pool.run(_train, run, tmp_path, ranks=stages, stages=stages, family=family)

    for one, other in zip(trained("megatron"), trained("torch"), strict=True):
        assert other.losses == pytest.approx(one.losses, rel=1e-6, nan_ok=True)
        assert other.gradient_norms == pytest.approx(one.gradient_norms, rel=1e-6)
        assert other.gradients.keys() == one.gradients.keys()
        for name, expected in one.gradients.items():
            scale = max(1e-6, float(np.abs(expected).max()))
            assert np.abs(other.gradients[name] - expected).max() < 1e-5 * scale, name


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_calls_the_kernel(
    one_rank: None, enwiki: Path, tmp_path: Path, family: Family
) -> None:
    run = staged_run(family, enwiki)
    layers = run.shape.layers * (3 if family == "t5" else 1)
    kernel = "scaled_dot_product_attention"
    for chosen, calls in (("megatron", 0), ("torch", layers)):
        state = _set_up(replace(run, attention=chosen), tmp_path)
        batch = next(state.training)
        with mock.patch.object(functional, kernel, wraps=getattr(functional, kernel)) as called:
            forward_backward(state, iter([batch]), microbatches=1)
        assert called.call_count == calls
    causal = [call.kwargs["is_causal"] for call in called.call_args_list]
    assert sum(causal) == {"gpt": layers, "bert": 0, "t5": layers // 3}[family]
    for call in called.call_args_list:
        mask = call.kwargs["attn_mask"]
        assert (mask is None) == call.kwargs["is_causal"]
        # Of no key at all softmax makes NaN in some of torch's kernels.
        assert mask is None or (bool(mask.any(-1).all()) and not bool(mask.all()))
    padding = {"gpt": None, "bert": "padding_mask", "t5": "dec_mask"}[family]
    assert padding is None or not bool(batch[padding].all()), "there is no padding to hide"


def test_padded_queries_leave_everything_finite(cuda_means_cpu: None) -> None:
    hidden = torch.tensor([[False, True], [True, True]])[None, None]
    config = mock.Mock(attention_dropout=0.0, kv_channels=4)
    core = attention.TorchAttention(config, 1, attention.AttnMaskType.padding, "self")
    query, key, value = (torch.randn(2, 1, 3, 4, requires_grad=True) for _ in range(3))
    output = core(query, key, value, hidden)
    assert output.shape == (2, 1, 12)
    assert torch.allclose(output[0], value[0].flatten(1))
    output[0].sum().backward()
    assert all(bool(heads.grad.isfinite().all()) for heads in (query, key, value))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_transformer_engine_is_named(
    one_rank: None, enwiki: Path, tmp_path: Path, family: Family
) -> None:
    run = replace(staged_run(family, enwiki), attention="transformer-engine")
    with (
        mock.patch.object(attention, "HAVE_TE", False),
        pytest.raises(ReproError, match=r"^attention is transformer-engine, but .* install .*$"),
    ):
        set_up(run, tmp_path)


def test_transformer_engine_gets_the_masks_that_megatron_gives_it() -> None:
    batch = {
        "text_enc": torch.tensor([[5, 6, 7, 0], [5, 6, 0, 0]]),
        "text_dec": torch.tensor([[5, 0, 0], [5, 6, 7]]),
        "labels": torch.zeros(2, 3),
    }
    batch["enc_mask"], batch["dec_mask"] = (
        (batch[tokens] > 0).long() for tokens in ("text_enc", "text_dec")
    )
    expected = T5MaskedWordPieceDataset.config_attention_mask(
        batch["text_enc"],
        batch["text_dec"],
        batch["enc_mask"] < 0.5,
        batch["dec_mask"] < 0.5,
        test_te_version="2.0",
    )
    model = mock.Mock()
    forward_step("t5", "transformer-engine")(iter([batch]), model)
    encoder, decoder, cross = model.call_args.args[2:]
    assert torch.equal(encoder, expected[0])
    assert decoder is None and expected[1] is None
    assert all(map(torch.equal, cross, expected[2]))
