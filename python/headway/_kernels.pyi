"""The extension whose import registers ``torch.ops.headway.*``; see kernels/torch/."""

torch_version: str
