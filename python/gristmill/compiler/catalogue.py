"""Every operation of the language, from the op table: what it is called, what it takes, and in which dtypes.

Dtypes are found by compiling an example of each operation for every dtype, as an author would meet them.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gristmill.language as tl
from gristmill.compiler.frontend import build
from gristmill.compiler.op import Composite, OpRow
from gristmill.dtypes import ALL, Dtype
from gristmill.errors import KernelError
from gristmill.load import load_kernels
from gristmill.specialisation import VARIANTS

MACHINES = ("interpreter", "host", "simt")
EXAMPLES = {
    "advance": "tl.load(tl.advance(tl.make_block_ptr(p, (n,), (1,), (0,), (16,), (0,)), (0,)))",
    "arange": "tl.arange(0, 16)",
    "argmax": "tl.argmax(x, 0)",
    "argmin": "tl.argmin(x, 0)",
    "associative_scan": "tl.associative_scan(x, 0, add)",
    "assume": "tl.assume(n % 16 == 0)",
    **{
        f"atomic_{kind}": f"tl.atomic_{kind}(p + tl.arange(0, 16), x)"
        for kind in ("add", "and", "max", "min", "or", "xchg", "xor")
    },
    "atomic_cas": "tl.atomic_cas(p + tl.arange(0, 16), x, x)",
    "broadcast_to": "tl.broadcast_to(x[:, None], (16, 4))",
    "cast": "tl.cast(x, tl.float32)",
    "debug_barrier": "tl.debug_barrier()",
    "device_assert": "tl.device_assert(x == x)",
    "device_print": 'tl.device_print("x", x)',
    "dot": "tl.dot(tl.reshape(x, (4, 4)), tl.reshape(x, (4, 4)))",
    "dot_scaled": "tl.dot_scaled(tl.reshape(x, (4, 4)), None, 'e4m3', tl.reshape(x, (4, 4)), None, 'e4m3')",
    "expand_dims": "tl.expand_dims(x, 0)",
    "flip": "tl.flip(x, 0)",
    "full": "tl.full((16,), 1, x.dtype)",
    "gather": "tl.gather(x, tl.arange(0, 16), 0)",
    "histogram": "tl.histogram(x, 8)",
    "inline_asm_elementwise": "tl.inline_asm_elementwise('', '=r,r', x, x.dtype, True, 1, fallback=tl.abs)",
    "load": "tl.load(p + tl.arange(0, 16))",
    "load_tensor_descriptor": "tl.load_tensor_descriptor(tl.make_tensor_descriptor(p, [n], [1], [16]), [0])",
    "make_block_ptr": "tl.load(tl.make_block_ptr(p, (n,), (1,), (0,), (16,), (0,)))",
    "make_tensor_descriptor": "tl.make_tensor_descriptor(p, [n], [1], [16]).load([0])",
    "map_elementwise": "tl.map_elementwise(add, x, x)",
    "max_constancy": "tl.max_constancy(x, 1)",
    "max_contiguous": "tl.max_contiguous(x, 1)",
    "multiple_of": "tl.multiple_of(x, 1)",
    "num_programs": "tl.num_programs(0)",
    "permute": "tl.permute(tl.reshape(x, (4, 4)), 1, 0)",
    "program_id": "tl.program_id(0)",
    "reduce": "tl.reduce(x, 0, add)",
    "reduce_or": "tl.reduce_or(x, 0)",
    "reshape": "tl.reshape(x, (4, 4))",
    "view": "tl.view(x, (4, 4))",
    "split": "tl.split(tl.reshape(x, (8, 2)))",
    "static_assert": "tl.static_assert(True)",
    "static_print": 'tl.static_print(end="")',
    "store": "tl.store(p + tl.arange(0, 16), x)",
    "store_tensor_descriptor": "tl.store_tensor_descriptor(tl.make_tensor_descriptor(p, [n], [1], [16]), [0], x)",
    "swizzle2d": "tl.swizzle2d(x, x, 4, 4, 2)",
    "topk": "tl.topk(x, 4)",
    "trans": "tl.trans(tl.reshape(x, (4, 4)))",
    "where": "tl.where(x == x, x, x)",
    "zeros": "tl.zeros((16,), x.dtype)",
}
"""Calls of operations on a block `x` of 16 elements, where they are not `tl.name(x, x, ...)`; `p` points to them."""


@dataclass(frozen=True)
class Operation:
    """One operation as users see it."""

    name: str
    family: str
    signature: str
    dtypes: tuple[str, ...]
    doc: str
    example: str
    machines: tuple[str, ...] = MACHINES


def operations() -> list[Operation]:
    """All operations of `gristmill.language`, by family and name."""
    rows = dict(_rows())
    dtypes = _dtypes({name: example_of(name, row) for name, row in rows.items()})
    found = [_operation(name, row, dtypes[name]) for name, row in rows.items()]
    return sorted(found, key=lambda o: (o.family, o.name))


def as_json(found: list[Operation]) -> list[dict[str, Any]]:
    """Operations as plain data."""
    return [asdict(operation) for operation in found]


def _rows() -> Iterator[tuple[str, OpRow | Composite]]:
    for name in tl.__all__:
        thing = getattr(tl, name)
        if isinstance(thing, (OpRow, Composite)):
            yield name, thing


def _operation(name: str, row: OpRow | Composite, dtypes: tuple[str, ...]) -> Operation:
    parameters = [p.replace(annotation=p.empty) for p in row.signature.parameters.values()]
    signature = f"{name}{inspect.Signature(parameters)}"
    return Operation(name, row.family, signature, dtypes, row.doc, example_of(name, row))


def example_of(name: str, row: OpRow | Composite) -> str:
    """A call of the operation on `x`."""
    if name in EXAMPLES:
        return EXAMPLES[name]
    parameters = row.signature.parameters.values()
    required = sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    return f"tl.{name}({', '.join(['x'] * max(1, required))})"


_HEAD = """\
import gristmill as gm
import gristmill.language as tl

D = gm.dtype_var("D", {dtypes})


def add(a, b):
    return a + b
"""
_KERNEL = """

@gm.kernel(grid=1)
def {name}_(p: gm.ptr[D], n: gm.i32):
    x = tl.load(p + tl.arange(0, 16))
    {example}
"""


@cache
def _kernels_text(examples: tuple[tuple[str, str], ...]) -> str:
    names = "[" + ", ".join(f"gm.{'bool_' if d.name == 'bool' else d.name}" for d in ALL) + "]"
    return _HEAD.format(dtypes=names) + "".join(_KERNEL.format(name=n, example=e) for n, e in examples)


def _dtypes(examples: dict[str, str]) -> dict[str, tuple[str, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "examples.py"
        file.write_text(_kernels_text(tuple(examples.items())))
        return {kernel.name[:-1]: tuple(d.name for d in _accepted(kernel)) for kernel in load_kernels(file)}


def _accepted(kernel: Any) -> Iterator[Dtype]:
    for specialisation in kernel.specialisations():
        try:
            build(kernel, specialisation, VARIANTS[0])
        except KernelError:
            continue
        yield specialisation.dtypes[0][1]
