"""Random kernels from the language's operations, whose results every machine must agree on to the bit.

Values are small integers, in integer and floating dtypes alike, so that no order of additions rounds; each step is
limited again. Shapes, warps and the ways between shapes are random: with them layouts, relayouts and exchanges are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from machines import kernel_of

DTYPES = {"i16": "int16", "i32": "int32", "f32": "float32", "f64": "float64"}
FLOATS = ("f32", "f64")
SHAPES = [(1,), (2,), (32,), (256,), (4, 16), (16, 4), (64, 8), (1, 128), (2, 4, 8), (8, 2, 16)]
LIMIT = 16


@dataclass(frozen=True)
class Variable:
    """A tile of the kernel under construction."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return int(np.prod(self.shape))


class Program:
    """A kernel as it grows, line by line."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.variables: list[Variable] = []
        self.num_warps = self.random.choice([1, 2, 4, 8])
        self.in_loop = False

    def add(self, expression: str, dtype: str, shape: tuple[int, ...], *, limited: bool = True) -> Variable:
        made = Variable(f"v{len(self.variables)}", dtype, shape)
        if limited:
            expression = f"tl.minimum(tl.maximum({expression}, -{LIMIT}), {LIMIT}).to(tl.{DTYPES[dtype]})"
        self.lines.append(f"{made.name} = {expression}")
        self.variables.append(made)
        return made

    def pick(self, where: Callable[[Variable], bool] = lambda v: True) -> Variable | None:
        fitting = [v for v in self.variables if where(v)]
        return self.random.choice(fitting) if fitting else None

    def start(self) -> None:
        shape, dtype = self.random.choice(SHAPES), self.random.choice(list(DTYPES))
        count = int(np.prod(shape))
        self.add(f"tl.reshape(tl.load(x_{dtype} + tl.arange(0, {count})), {shape})", dtype, shape, limited=False)

    def step(self) -> None:
        self.random.choice(STEPS)(self)


def unary(p: Program) -> None:
    x = p.pick()
    assert x is not None
    forms = ["-{x}", "tl.abs({x})", "{x} + 3", "{x} * 2", "tl.where({x} > 1, {x}, -3)", "tl.maximum({x}, 2)"]
    forms += (
        ["tl.floor({x} * 0.5)"] if x.dtype in FLOATS else ["{x} // 3", "{x} % 5", "{x} & 13", "{x} ^ 9", "{x} << 1"]
    )
    p.add(p.random.choice(forms).format(x=x.name), x.dtype, x.shape)


def binary(p: Program) -> None:
    x = p.pick()
    assert x is not None
    y = p.pick(lambda v: v.shape == x.shape)
    assert y is not None
    form = p.random.choice(
        ["{x} + {y}", "{x} - {y}", "{x} * {y}", "tl.minimum({x}, {y})", "tl.where({x} < {y}, {x}, {y})"]
    )
    p.add(form.format(x=x.name, y=y.name), x.dtype, x.shape)


def convert(p: Program) -> None:
    x, dtype = p.pick(), p.random.choice(list(DTYPES))
    assert x is not None
    p.add(x.name, dtype, x.shape)


def reshape(p: Program) -> None:
    x = p.pick()
    assert x is not None
    shape = p.random.choice([s for s in SHAPES if np.prod(s) == x.elements] or [(x.elements,)])
    p.add(f"tl.reshape({x.name}, {shape})", x.dtype, shape, limited=False)


def permute(p: Program) -> None:
    x = p.pick(lambda v: len(v.shape) > 1)
    if x is None:
        return unary(p)
    order = p.random.sample(range(len(x.shape)), len(x.shape))
    p.add(
        f"tl.permute({x.name}, {', '.join(map(str, order))})", x.dtype, tuple(x.shape[i] for i in order), limited=False
    )


def reduce(p: Program) -> None:
    x = p.pick()
    assert x is not None
    axis, name = p.random.randrange(len(x.shape)), p.random.choice(["sum", "max", "min", "argmax"])
    dtype = "i32" if name == "argmax" else x.dtype
    kept = f"tl.{name}({x.name}, {axis}, keep_dims=True)"
    p.add(
        f"tl.broadcast_to({kept}, {x.shape}) % 7" if dtype[0] == "i" else f"tl.broadcast_to({kept}, {x.shape})",
        dtype,
        x.shape,
    )


def scan(p: Program) -> None:
    x = p.pick()
    assert x is not None
    axis, reverse = p.random.randrange(len(x.shape)), p.random.random() < 0.5
    p.add(f"tl.cumsum({x.name}, {axis}, {reverse})", x.dtype, x.shape)


def move(p: Program) -> None:
    x = p.pick()
    assert x is not None
    axis = p.random.randrange(len(x.shape))
    places = f"(tl.arange(0, {x.shape[axis]}) * 5 + 3) & {x.shape[axis] - 1}"
    at = "[" + ", ".join(":" if a == axis else "None" for a in range(len(x.shape))) + "]"
    forms = [
        f"tl.flip({x.name}, {axis})",
        f"tl.sort({x.name})",
        f"tl.gather({x.name}, tl.broadcast_to(({places}){at if len(x.shape) > 1 else ''}, {x.shape}), {axis})",
        f"tl.split(tl.join({x.name}, {x.name} + 1))[{p.random.randrange(2)}]",
    ]
    p.add(p.random.choice(forms), x.dtype, x.shape)


def loop(p: Program) -> None:
    x = p.pick()
    assert x is not None
    made = p.add(x.name, x.dtype, x.shape)
    axis = p.random.randrange(len(x.shape))
    inner = p.random.choice([f"tl.cumsum({{v}}, {axis})", f"tl.flip({{v}}, {axis}) + i", "{v} * 2 - i"]).format(
        v=made.name
    )
    limited = f"tl.minimum(tl.maximum({inner}, -{LIMIT}), {LIMIT}).to(tl.{DTYPES[x.dtype]})"
    p.lines += [f"for i in range({p.random.randrange(4)}):", f"    {made.name} = {limited}"]


STEPS = [unary, binary, convert, reshape, permute, reduce, scan, move, loop]


def source_of(seed: int) -> tuple[str, list[Variable]]:
    """Return a kernel's source, and the tiles that it stores one behind the other."""
    program = Program(seed)
    for _ in range(program.random.randint(1, 3)):
        program.start()
    for _ in range(program.random.randint(3, 12)):
        program.step()
    stored, place = program.variables[-4:], 0
    for v in stored:
        program.lines.append(f"tl.store(out + {place} + tl.arange(0, {v.elements}), tl.ravel({v.name}).to(tl.float64))")
        place += v.elements
    inputs = ", ".join(f"x_{d}: gm.ptr[gm.{d}]" for d in DTYPES)
    head = f"@gm.kernel(grid=1, num_warps={program.num_warps})\ndef k({inputs}, out: gm.ptr[gm.f64]):\n"
    return head + "".join(f"    {line}\n" for line in program.lines), stored


def disagreement(seed: int, machines: Mapping[str, Any]) -> str:
    """Run the kernel of a seed on each machine; return what they disagree on, or nothing."""
    source, stored = source_of(seed)
    kernel, results = kernel_of(source), {}
    numbers = np.random.default_rng(seed).integers(-LIMIT, LIMIT, 512)
    for name, run in machines.items():
        out = np.full(sum(v.elements for v in stored), 77.0)
        run(kernel, None, *(numbers.astype(numpy) for numpy in DTYPES.values()), out)
        results[name] = out
    first, *others = results
    wrong = [name for name in others if not np.array_equal(results[name], results[first])]
    return f"seed {seed}: {', '.join(wrong)} and {first} disagree on\n{source}" if wrong else ""
