"""Emulated nodes on one machine: network namespaces, shaped links and throttled ranks."""
