"""Load Megatron-Core without torch's compiler, where there is no GPU to compile for.

Decorating its fused kernels loads the compiler, a third of the time that ranks take to start, and
without a GPU none of them is called. To be imported before anything of Megatron-Core.
"""

from unittest.mock import patch

import torch

with patch.object(torch, "compile", torch.compile if torch.cuda.is_available() else lambda f: f):
    import megatron.core.jit  # noqa: F401
