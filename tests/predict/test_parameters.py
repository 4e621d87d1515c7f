"""Calibrations are found by name, and what is wrong in them is named."""

import numpy as np
import pytest

from repro.errors import ReproError
from repro.predict.parameters import calibration


def test_an_unknown_calibration_is_named() -> None:
    with pytest.raises(ReproError) as raised:
        calibration("abacus")
    message = str(raised.value)
    assert "unknown calibration 'abacus'" in message
    assert "a100-megatron" in message
    assert "\n" not in message


def test_the_covariance_is_one_of_what_was_fitted() -> None:
    found = calibration("a100-megatron")
    assert set(found.fitted) <= set(type(found.parameters).model_fields)
    covariance = np.array(found.covariance)
    assert covariance.shape == (len(found.fitted),) * 2
    np.testing.assert_allclose(covariance, covariance.T)
    assert (np.linalg.eigvalsh(covariance) > 0).all()
