"""1F1B pipelines, stage by stage: how long the last stage waits."""

from dataclasses import dataclass

import numpy as np

from repro.predict.workload import Array, Workload


@dataclass(frozen=True)
class Stages:
    """One micro batch's forward and backward pass on each kind of stage, in seconds.

    The first stage has the embedding beside its layers, the last one the logits; all others are
    `middle` ones. `receive` is what a stage waits for messages, both ways and for all its chunks.
    Without pipeline parallelism the only stage has both and waits for nobody.
    """

    first: Array
    middle: Array
    last: Array
    receive: Array


def bubble_s(w: Workload, stages: Stages) -> Array:
    """What the last stage waits in an iteration, beside its messages.

    Every other stage once, before the first micro batch arrives and after the last one's gradients
    have left, which interleaving divides by the number of chunks (Narayanan et al., SC 2021,
    section 2.2.2); then the difference to the slowest stage for each further micro batch.
    """
    p, v, m = w.pipeline_parallel, w.virtual_stages, w.micro_batches
    others = (p - 1) * (stages.middle + stages.receive) + stages.first - stages.middle
    slowest = np.maximum(stages.first, stages.last)
    return np.where(p > 1, others / v + (m - 1) * (slowest - stages.last), 0.0)
