"""Compression of training messages: codecs, a ring for encoded data, and hooks into training."""
