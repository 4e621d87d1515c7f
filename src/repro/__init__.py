"""A wind tunnel for LLM interconnects: published, predicted and measured network cost side by side."""
