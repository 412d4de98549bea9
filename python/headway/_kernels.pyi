"""Types of the kernel extension; importing it registers ``torch.ops.headway.*``. See kernels/torch/."""

torch_version: str
