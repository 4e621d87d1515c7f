"""Claims of the performance-modelling paper (C155-C164): hardware, CPUs, prediction errors.

Prediction errors of other papers are reproduced by errors of this package that are as small, on the
iterations of GPUs in `data/measured/`.
"""

from functools import cache, partial

import numpy as np
import pandas as pd

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.gpus import gpu
from repro.catalog.systems.technology import read_technology
from repro.claims.findings import Finding, unanswered
from repro.claims.published import Claim
from repro.claims.quantities import Answers, Comparison, Estimate
from repro.observe.precision import CONFIDENCE
from repro.predict.explore.hardware import more_gpus
from repro.predict.explore.jobs.fused_plans import Training
from repro.predict.operators.trace_replay import geometric_mean_pct, iterations, model_kind
from repro.predict.serving.host import Host, output_token_s
from repro.results.measured import NO_GPU, by_gpu, read_all_kept

# Model, GPUs and global batch, which the paper does not state.
_TRAINING = "gpt3-175b", 1024, 1536
# A socket of a fifth-generation Xeon: reads get four fifths of the memory's rate (STREAM on such
# sockets, 0.75 to 0.85), and matmuls half of the peak of 64 cores with tiles (2,048 operations per
# cycle at 2.5 GHz).
_READING, _MATMULS = 0.8, 0.5 * 64 * 2048 * 2.5e9
# All-reduce of some KB over the fabric and in a node.
_REDUCE_S = 3e-5
# The abstract's model has 72B and runs on several machines, usually with two sockets each.
_MODEL, _SOCKETS, _WEIGHT_BYTES, _CONTEXT = "qwen-72b", 4, 2.0, 1024
# Words per minute of silent reading (Brysbaert, Journal of Memory and Language, 2019), and tokens
# per word (four for three words, the usual rule for English).
_WORDS_PER_MINUTE, _TOKENS_PER_WORD = 238.0, 4 / 3
_RESAMPLES = 1000


def _speed_up() -> tuple[float, float]:
    model, gpus, global_batch = _TRAINING
    training = Training(open_model(model), gpus, global_batch)
    found = more_gpus(training, gpu("a100-sxm-80gb"), gpu("b200-sxm-180gb"), times=(1,)).iloc[0]
    return float(found.times_as_fast), float(np.log(found.high / found.times_as_fast))


def _nodes_nm() -> list[float]:
    return [node.nm for node in read_technology().nodes]


def xeon_token_s(sockets: int, weight_bytes: float) -> float:
    """Predict seconds per output token of a 72B model on sockets of a fifth-generation Xeon."""
    memory = next(one for one in read_technology().host_memories if one.name == "DDR5-5600")
    host = Host(_READING * memory.places * memory.gbytes_per_s * 1e9, _MATMULS, _REDUCE_S)
    shape = open_model(_MODEL).shape
    return float(output_token_s(shape, host, 1, _CONTEXT, weight_bytes, ranks=sockets))


def xeon_table() -> pd.DataFrame:
    """Return milliseconds per output token by sockets (rows) and precision of weights (columns)."""
    return pd.DataFrame(
        {
            name: {sockets: 1e3 * xeon_token_s(sockets, size) for sockets in (1, 2, 4, 8)}
            for name, size in {"bf16": 2.0, "int8": 1.0}.items()
        }
    ).rename_axis("sockets")


def _xeon_ms() -> tuple[float, float]:
    # Reads get 0.65 to 0.95 of the memory's rate.
    return 1e3 * xeon_token_s(_SOCKETS, _WEIGHT_BYTES), float(np.log(0.95 / 0.8))


def _reading_ms() -> tuple[float, float]:
    # The standard deviation of readers is a fifth.
    return 60e3 / (_WORDS_PER_MINUTE * _TOKENS_PER_WORD), 0.2


@cache
def _measured() -> pd.DataFrame | None:
    kept = read_all_kept("gpu_iterations")
    return by_gpu(kept, iterations) if kept else None


def error_finding(errors_pct: pd.Series, published: float) -> Finding:
    """Judge the geometric mean of errors, with the interval of resampled iterations."""
    draw = np.random.default_rng(0)
    means = [
        geometric_mean_pct(errors_pct.sample(frac=1, replace=True, random_state=draw))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Finding(
        geometric_mean_pct(errors_pct),
        (float(low), float(high)),
        "reproduced" if low <= published else "not reproduced",
        f"{len(errors_pct)} measured iterations of single GPUs; the largest error is "
        f"{errors_pct.abs().max():.1f} %",
    )


def _error(kind: str, claim: Claim) -> Finding:
    """Judge the error of predicted iterations on measured GPUs."""
    assert claim.value is not None
    found = _measured()
    if found is None:
        return unanswered(NO_GPU)
    return error_finding(found.error_pct[model_kind(found) == kind], claim.value)


ANSWERS: Answers = {
    "C155": Estimate("", _speed_up),
    "C156": Estimate("", lambda: (min(_nodes_nm()), 0.0)),
    "C157": Estimate("", lambda: (max(_nodes_nm()), 0.0)),
    # Statements that do not hold.
    "C158 C159": Estimate("", lambda: (0.0, 0.0)),
    "C160": Estimate("", _xeon_ms),
    "C161": Estimate("", _reading_ms),
    "C162": Comparison("", partial(_error, "dlrm")),
    "C163": Comparison("", partial(_error, "transformer")),
}
