"""Requests that arrive at random: simulated times agree with what queueing theory knows."""

from dataclasses import replace

import numpy as np
import pytest
from serving_examples import on, rows_of

from repro.errors import ReproError
from repro.predict.serving.latency import latency, passes
from repro.predict.serving.load import Copy, copies, simulate

_PROMPT, _TOKENS, _STEP_S = 512, 65, 0.01


def _made_up(most: int, prompt_s: float = 0.0, room: float = 1e9) -> Copy:
    """A copy whose steps take as long with any number of sequences."""
    sequences = np.array([1.0, most])
    total_s = _TOKENS * _STEP_S + sequences * prompt_s
    others = [np.full(2, value) for value in (_STEP_S, prompt_s, 0.0, room)]
    split = {"tp": 1, "pp": 1, "ep": 1}
    return Copy(split, 1, 0.1, _PROMPT, _TOKENS, sequences, *others, total_s)


@pytest.mark.parametrize("utilization", [0.3, 0.7])
def test_one_request_at_a_time_waits_as_in_a_queue_of_equal_services(utilization: float) -> None:
    """Pollaczek and Khinchine: M/D/1 waits rho / (2 (1 - rho)) services on average."""
    copy = _made_up(most=1, prompt_s=0.1)
    service_s = 0.1 + _TOKENS * _STEP_S
    assert copy.most_requests_per_s == pytest.approx(1 / service_s)
    found = simulate(copy, utilization / service_s)
    waited_s = found.request_s.mean() - service_s
    expected_s = utilization / (2 * (1 - utilization)) * service_s
    assert waited_s == pytest.approx(expected_s, rel=0.05)
    assert found.output_token_s.to_numpy() == pytest.approx(_STEP_S)


def test_short_prompts_share_steps_with_all_that_arrived_in_the_one_before() -> None:
    """A step of mean m = d / (1 - rho) has prompts of time p: variance p^2 rate m / (1 - rho^2).

    A prompt meets a step in proportion to its length, and leaves with the next one.
    """
    d, p, rate = _STEP_S, 0.02, 25.0
    rho = rate * p
    mean = d / (1 - rho)
    met = mean + p**2 * rate / (1 - rho**2)
    found = simulate(_made_up(most=2000, prompt_s=p), rate)
    expected_s = met / 2 + d + p * (1 + rate * met)
    assert found.first_token_s.mean() == pytest.approx(expected_s, rel=0.03)
    # Tokens of a request wait for the prompts that arrive meanwhile: a delayed busy period.
    tokens = _TOKENS - 1
    assert found.output_token_s.mean() == pytest.approx(mean, rel=0.03)
    spread_s = np.sqrt(rate * p**2 * tokens * d / (1 - rho) ** 3)
    assert (tokens * found.output_token_s).std() == pytest.approx(spread_s, rel=0.05)


def test_prompts_longer_than_a_step_wait_for_each_other() -> None:
    """Each takes the room of four steps: M/D/1 with services of four steps and a prompt."""
    p, rate = 0.05, 8.0
    service_s = p + 4 * _STEP_S
    found = simulate(_made_up(most=500, prompt_s=p, room=_PROMPT / 4), rate)
    rho = rate * service_s
    expected_s = _STEP_S / 2 + (1 + rho / (2 * (1 - rho))) * service_s
    assert found.first_token_s.mean() == pytest.approx(expected_s, rel=0.05)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("utilization", [0.2, 0.5, 0.8])
def test_requests_in_flight_follow_from_their_rate(tp: int, pp: int, utilization: float) -> None:
    """Little's law holds of what is simulated, and of the closed form within a tenth."""
    rows = rows_of(tp=tp, pp=pp, input_tokens=1024, output_tokens=256)
    (copy,) = copies(rows, on())
    rate = utilization * copy.most_requests_per_s
    in_flight = rate * simulate(copy, rate).request_s.mean()
    assert copy.in_flight(rate) == pytest.approx(in_flight, rel=0.1)


def test_more_requests_than_it_sustains_leave_at_the_highest_rate() -> None:
    (copy,) = copies(rows_of(input_tokens=1024, output_tokens=256), on(), most=64)
    assert copy.sequences[-1] == 64
    rate = 2 * copy.most_requests_per_s
    # Of twice as many requests, each waits for one more than the one before it.
    found = simulate(copy, rate).request_s
    later_s = (found.iloc[-1] - found.iloc[0]) / (len(found) - 1)
    assert 1 / (later_s + 1 / rate) == pytest.approx(copy.most_requests_per_s, rel=0.03)


def test_times_of_a_copy_are_those_of_its_batches() -> None:
    """A request takes its tokens' steps and, of all that run, one prompt each."""
    rows = rows_of(tp=2, input_tokens=1024, output_tokens=256)
    (copy,) = copies(rows, on(), most=32)
    time = latency(passes(replace(rows, batch=np.array([32.0])), on()), on())
    assert copy.total_s[-1] == pytest.approx(time.total_s[0])
    steps_s = 256 * copy.step_s + copy.sequences * copy.prompt_s
    assert steps_s == pytest.approx(copy.total_s)
    assert (np.diff(copy.sequences / copy.total_s) > 0).all()


def test_a_prompt_passes_all_stages_of_a_pipeline() -> None:
    """Stages work on different prompts, so that another one follows sooner than one ends."""
    one, two = (
        copies(rows_of(tp=1, pp=pp, input_tokens=4096, output_tokens=256), on())[0] for pp in (1, 2)
    )
    idle = [simulate(copy, 1e-3).first_token_s.mean() for copy in (one, two)]
    assert idle[1] == pytest.approx(idle[0], rel=0.1)
    assert two.prompt_s[-1] < 0.6 * one.prompt_s[-1]
    assert two.drain_s[-1] == pytest.approx(two.prompt_s[-1]) and not one.drain_s.any()


def test_software_without_steps_that_all_share_has_no_rate() -> None:
    with pytest.raises(ReproError, match="FasterTransformer 5, which serves batch by batch; fix"):
        copies(rows_of(), on(stack="fastertransformer-5"))
    with pytest.raises(ReproError, match="with 1 output token; take 2 or more"):
        copies(rows_of(output_tokens=1), on())
