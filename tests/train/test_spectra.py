"""Ranks and entropies of matrices that have known ones."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from made_up import small_run

from repro.train.spectra import effective_rank, entropy_bits, watch_spectra


def test_the_effective_rank_of_equal_singular_values_is_their_number() -> None:
    assert effective_rank(torch.eye(7)) == pytest.approx(7)
    assert effective_rank(torch.ones(5, 9)) == pytest.approx(1, rel=1e-3)
    # Shares of 2/3 and 1/3.
    assert effective_rank(torch.diag(torch.tensor([2.0, 1.0]))) == pytest.approx(
        (1.5 ** (2 / 3)) * (3 ** (1 / 3))
    )


def test_the_entropy_of_as_many_numbers_as_integers_is_their_bits() -> None:
    # In blocks of 256: -127 ... 127 and one of them twice.
    numbers = torch.arange(-128.0, 128).clamp(min=-127).repeat(4)
    assert entropy_bits(numbers) == pytest.approx(8 - 2 / 256, abs=1e-4)
    assert entropy_bits(torch.ones(512)) == 0


@pytest.mark.slow
def test_every_matrix_is_looked_at(enwiki: Path, tmp_path: Path) -> None:
    run = replace(small_run("gpt", enwiki), iterations=4)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        found = process.submit(watch_spectra, run, 2, tmp_path).result()
    assert {one.step for one in found} == {0, 2, 4}
    layers = {one.layer for one in found if one.kind == "activation"}
    assert layers == {"decoder.layers.0", "decoder.layers.1"}
    gradients = {one.layer for one in found if one.kind == "gradient"}
    assert "embedding.word_embeddings.weight" in gradients
    assert all(0 < one.rank_share <= 1 and 0 < one.entropy_bits <= 8 for one in found)
