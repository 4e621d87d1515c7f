"""GPUs, clusters, links and protocols, and the software that trains and serves on them."""
