"""Single kernels and operators, and iterations predicted by replaying them."""
