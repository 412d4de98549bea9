# SPDX-License-Identifier: Apache-2.0
"""Types of the kernel extension; importing it registers ``torch.ops.headway.*``. See kernels/torch/."""

torch_version: str
