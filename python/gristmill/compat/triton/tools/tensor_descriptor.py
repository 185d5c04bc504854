"""`triton.tools.tensor_descriptor`: descriptors that a program makes before a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class TensorDescriptor:
    """An array and the blocks of it that a kernel accesses; what `gm.descriptor` declares, it is for one launch."""

    base: Any
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    padding: str = "zero"

    @staticmethod
    def from_tensor(tensor: Any, block_shape: Sequence[int], padding: str = "zero") -> TensorDescriptor:
        """Describe the whole of an array of torch."""
        return TensorDescriptor(tensor, tensor.shape, tensor.stride(), block_shape, padding)
