"""Models: shapes, parameters, FLOPs and bytes of a training step."""
