"""Hypothesis without deadlines (no test asserts a time) and with the same examples in every run."""

import tempfile

from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

# Its caches would otherwise end up in the repository.
set_hypothesis_home_dir(tempfile.gettempdir() + "/hypothesis")
settings.register_profile("repro", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("repro")
