"""Tests of the claims that experiments of the testbed answer."""
