"""The training corpus: Wikipedia dump, articles, tokenizers, Megatron datasets, in that order."""
