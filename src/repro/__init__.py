"""A wind tunnel for LLM interconnects: what the network costs when language models train."""
