"""Tests of the claims that logs, predictions and single operators answer."""
