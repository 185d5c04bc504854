"""Exceptions that Triton's users catch; nothing here raises them, since nothing is compiled when a program runs."""

from __future__ import annotations


class TritonError(Exception):
    """Base of Triton's errors."""


class CompilationError(TritonError):
    """A kernel's body cannot be compiled: here a `gristmill.KernelError` of the build."""


class OutOfResources(TritonError):
    """A kernel needs more of a device than there is: here found out when the package is built."""
