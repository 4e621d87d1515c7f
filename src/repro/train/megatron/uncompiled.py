"""Import of Megatron-Core without torch's compiler, where there is no GPU to compile for.

The decorators of its fused kernels load the compiler, which takes a third of the ranks' start time.
Without a GPU none of these kernels is called. Import this before any other part of Megatron-Core.
"""

from unittest.mock import patch

import torch

with patch.object(torch, "compile", torch.compile if torch.cuda.is_available() else lambda f: f):
    import megatron.core.jit  # noqa: F401
