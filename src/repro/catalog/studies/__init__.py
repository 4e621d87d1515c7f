"""What is measured and predicted, and how thoroughly: experiments, sweeps and studies."""
