"""Kernels of recommendation models as PyTorch operators, with typed functions in front of them.

The operators themselves are ``torch.ops.headway.*``; importing this package registers them, their shapes for compilers
and their gradients. What each computes is defined by the function of the same name in :mod:`headway.reference`.
"""

from headway.ops.hstu_attention import hstu_attention

__all__ = ["hstu_attention"]
