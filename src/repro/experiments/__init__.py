"""Configurations of a selection and their datasets, for each source."""
