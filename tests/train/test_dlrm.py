"""However tables are divided, ranks together do what one does."""

import pytest
import torch
from rank_pool import RankPool

from repro.catalog.models.dlrm import PLANS, DlrmShape, Table, plan_shards

pytestmark = pytest.mark.slow

_SHAPE = DlrmShape(dense=3, width=6, bottom=(5,), top=(4,), batch=12)
_TABLES = (Table(20, 3), Table(11, 7), Table(30, 1))
_STEPS = 3


def _trained(plan: str) -> tuple[list[float], dict[tuple[int, int, int], torch.Tensor]]:
    """Losses of this rank, and its shards by table, first row and first column."""
    import torch.distributed as dist

    from repro.train.dlrm import Dlrm

    rank, ranks = dist.get_rank(), dist.get_world_size()
    # As many samples on all ranks together.
    shape = _SHAPE.model_copy(update={"batch": _SHAPE.batch // ranks})
    shards = plan_shards(plan, _TABLES, shape.width, ranks)
    model = Dlrm(shape, _TABLES, shards, rank, ranks)
    losses = [model.iterate(model.batch(seed)) for seed in range(_STEPS)]
    own = [one for one in shards if one.rank == rank]
    held = {
        (one.table, one.rows[0], one.columns[0]): weight
        for one, weight in zip(own, model.weights, strict=True)
    }
    return losses, held


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_do_what_one_does(pool: RankPool, plan: str, ranks: int) -> None:
    ((losses, whole),) = pool.run(_trained, plan, ranks=1)
    found = pool.run(_trained, plan, ranks=ranks)
    together = torch.tensor([one for one, _ in found]).mean(0)
    assert torch.allclose(together, torch.tensor(losses), rtol=1e-5)
    for _, held in found:
        for (table, row, column), part in held.items():
            rows, columns = slice(row, row + part.shape[0]), slice(column, column + part.shape[1])
            assert torch.allclose(part, whole[table, 0, 0][rows, columns], atol=1e-6)


def test_looked_up_rows_learn(pool: RankPool) -> None:
    ((_, held),) = pool.run(_trained, "row-wise", ranks=1)
    before = torch.arange(20 * 6).view(20, 6).float().sin()
    # Of 20 rows, 36 lookups a step leave few as they were.
    assert (held[0, 0, 0] != before).any(1).float().mean() > 0.9
