"""Training corpus: Wikipedia dump, articles, tokenizers and Megatron datasets, in that order."""
