"""Measurements in addition to timers: NIC counters, memory, communication logs, provenance."""
