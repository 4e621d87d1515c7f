"""What trains and serves: GPUs, their clusters and links, protocols, and the software on them."""
