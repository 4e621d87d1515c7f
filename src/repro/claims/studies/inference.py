"""Claims about inference on CPUs that the performance-modelling paper quotes, as predicted."""

import numpy as np
import pandas as pd

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.technology import read_technology
from repro.claims.studies.hardware import ClaimEstimate
from repro.predict.serving.host import Host, output_token_s

# A fifth-generation Xeon's socket: all channels of its memory, of whose rate reading gets four
# fifths (STREAM on such sockets, 0.75 to 0.85), and 64 cores with tiles of 2,048 operations a cycle
# at 2.5 GHz, of which products keep half.
_READING, _PRODUCTS = 0.8, 0.5 * 64 * 2048 * 2.5e9
# An all-reduce of some KB over the fabric and in a node.
_REDUCE_S = 3e-5
# The abstract's model has 72B and runs on several machines, of two sockets each as is usual.
_MODEL, _SOCKETS, _WEIGHT_BYTES, _CONTEXT = "qwen-72b", 4, 2.0, 1024
_UNSTATED = (
    "sockets and precision are not stated: Qwen 72B in bf16 on two nodes of two sockets, one "
    "sequence of 1,024 tokens; two sockets in int8 take as long, two in bf16 twice as long"
)
# Words a minute of silent reading (Brysbaert, Journal of Memory and Language, 2019), and tokens of
# a word (four for three words, the usual rule for English).
_WORDS_PER_MINUTE, _TOKENS_PER_WORD = 238.0, 4 / 3
_READERS = "238 words a minute (Brysbaert, 2019), four tokens for three words"


def xeon_token_s(sockets: int, weight_bytes: float) -> float:
    """Seconds per output token of a 72B model on sockets of a fifth-generation Xeon."""
    memory = next(one for one in read_technology().host_memories if one.name == "DDR5-5600")
    host = Host(_READING * memory.places * memory.gbytes_per_s * 1e9, _PRODUCTS, _REDUCE_S)
    shape = open_model(_MODEL).shape
    return float(output_token_s(shape, host, 1, _CONTEXT, weight_bytes, ranks=sockets))


def xeon_table() -> pd.DataFrame:
    """Milliseconds per output token by sockets (rows) and precision of the weights (columns)."""
    return pd.DataFrame(
        {
            name: {sockets: 1e3 * xeon_token_s(sockets, size) for sockets in (1, 2, 4, 8)}
            for name, size in {"bf16": 2.0, "int8": 1.0}.items()
        }
    ).rename_axis("sockets")


def _xeon_ms() -> tuple[float, float]:
    # Reading gets 0.65 to 0.95 of the channels' rate.
    return 1e3 * xeon_token_s(_SOCKETS, _WEIGHT_BYTES), float(np.log(0.95 / 0.8))


def _reading_ms() -> tuple[float, float]:
    # A standard deviation of readers is a fifth.
    return 60e3 / (_WORDS_PER_MINUTE * _TOKENS_PER_WORD), 0.2


INFERENCE: dict[str, ClaimEstimate] = {
    "C160": ClaimEstimate(_xeon_ms, assumption=_UNSTATED),
    "C161": ClaimEstimate(_reading_ms, assumption=_READERS),
}
