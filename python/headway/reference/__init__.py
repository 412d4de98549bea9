"""Plain PyTorch, one definition of what kernels compute: slow, and the judge of tests."""

from headway.reference.hstu_attention import hstu_attention, hstu_mask

__all__ = ["hstu_attention", "hstu_mask"]
