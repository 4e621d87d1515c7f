"""How a training step is spread over ranks, and what ranks communicate, encoded or not."""
