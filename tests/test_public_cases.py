"""Public bug reports about kernels: what went wrong elsewhere is right here, wherever the feature exists."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import public_attention  # noqa: F401
import public_folds  # noqa: F401  (registers what runs its cases)
from gristmill import dtypes as dt
from gristmill.dtypes import dt_numpy
from gristmill.errors import GristmillError
from machines import RUNNERS as RUN_ON
from machines import Run, bfloat16, compute, kernel_of, on_each_machine, shipped_kernels
from public_runs import RUNNERS, padded, runs


def load_cases() -> ModuleType:
    file = Path(__file__).parent / "data" / "public_cases.py"
    spec = importlib.util.spec_from_file_location("public_cases", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PUBLIC = load_cases()
CASES = {case["id"]: case for case in PUBLIC.CASES}

LANGUAGE: dict[str, str] = {}  # operations that the language lacks
KERNELS = {
    "R01": "cross_entropy", "R09": "max_pool2d", "R19": "batch_norm",
    "R25": "softplus", "R33": "bce_with_logits", "R34": "bce_with_logits", "R36": "kl_div", "R62": "rms_norm_backward",
    "R84": "cross_entropy", "R86": "adam_step",
    "R90": "batch_norm", "R92": "max_pool1d", "R94": "reflection_pad", "R96": "embedding", "R98": "rope",
    "R99": "layer_norm_backward",
}  # fmt: skip
ELSEWHERE = {
    "R64": "the launcher's checks", "R77": "a device with 8 GiB", "R125": "the launcher's checks", "R127": "streams",
    "R129": "stream capture", "R133": "threads", "R135": "the build", "R137": "the build", "R139": "the build",
    "R141": "the installed wheel", "R143": "the installed wheel", "R145": "the installed wheel",
}  # fmt: skip


OTHERWISE_ON_CUDA = {"R38": "exp2 is 0 where its result is denormal, as it says"}


@on_each_machine
@pytest.mark.parametrize("name", CASES)
def test_public_case(run, name):
    case = CASES[name]
    if name not in RUNNERS:
        missing = {**LANGUAGE, **KERNELS, **ELSEWHERE}[name]
        pytest.skip(f"needs {missing}: {case['feature']}")
    if run in (RUN_ON["simt"], RUN_ON.get("cuda")) and name in OTHERWISE_ON_CUDA:
        pytest.skip(OTHERWISE_ON_CUDA[name])
    inputs = case["make"]()
    found = RUNNERS[name](run, inputs)
    assert isinstance(case["want"](inputs), str) or PUBLIC.compare(case, found, inputs) == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["naive"]])
def test_case_tells_right_from_wrong(name):
    case = CASES[name]
    with np.errstate(all="ignore"):
        assert PUBLIC.compare(case, case["naive"](case["make"]()))
        assert not case["good"] or PUBLIC.compare(case, case["good"](case["make"]())) == []


# ---- kernels of the repository -------------------------------------------------------------------------------------


def call(run: Run, name: str, *arrays: np.ndarray, **named: Any) -> np.ndarray:
    """Call a kernel whose output has the shape of its first array."""
    out = np.full_like(np.ascontiguousarray(arrays[0]), 77)
    inputs = arrays[:3] if "norm" in name else arrays
    run(shipped_kernels()[name], None, *inputs, out, **named)
    return out


def layer_norm(run: Run, x: np.ndarray, eps: float, bias: float = 0.0) -> np.ndarray:
    columns = x.shape[-1]
    return call(run, "layer_norm_forward", x, np.ones(columns, x.dtype), np.full(columns, bias, x.dtype), eps=eps)


@runs("R17")
def layer_norm_far_from_zero(run, d):
    return {"y": layer_norm(run, d["x"], d["eps"])}


@runs("R21")
def rms_norm_of_halves(run, d):
    return {"y": call(run, "rms_norm_forward", d["x"], np.ones(2048, np.float16), eps=d["eps"])}


@runs("R88")
def step_of_bf16_parameters(run, d):
    parameter = d["p_bf16"].view(bfloat16)
    state = [d["m"], d["v"], np.zeros_like(d["m"])]
    new = [np.empty_like(parameter), *(np.empty_like(s) for s in state)]
    named = {"learning_rate": d["lr"], "beta1": d["b1"], "beta2": d["b2"], "eps": d["eps"], "weight_decay": d["wd"]}
    corrections = {"correction1": 1 - d["b1"] ** d["step"], "correction2": 1 - d["b2"] ** d["step"]}
    arrays = [parameter, d["g"].astype(bfloat16), *state, *new]
    run(shipped_kernels()["adamw_step"], None, *arrays, **named, **corrections)
    return {"p_bf16": new[0].view(np.uint16)}


@runs("R23")
def sum_of_halves(run, d):
    out = np.zeros(1, np.float16)
    run(shipped_kernels()["row_sum"], None, d["x"], out)
    return {"s": out[0]}


@runs("R27")
def gelu_tail(run, d):
    return {"y": call(run, "gelu_forward", d["x"])}


@runs("R29")
def gelu_of_halves(run, d):
    return {"y": call(run, "gelu_forward", d["x"]), "dx": call(run, "gelu_backward", d["dy"], d["x"])}


@runs("R31")
def sigmoid_and_silu_gradients(run, d):
    ones, s = np.ones_like(d["x"]), call(run, "sigmoid_forward", d["x"])
    return {"dsigmoid": call(run, "sigmoid_backward", ones, s), "dsilu": call(run, "silu_backward", ones, d["x"])}


@runs("R56")
def add_of_reversed_views(run, d):
    """Views that are not contiguous are refused; copies are added."""
    with pytest.raises(GristmillError, match="contiguous"):
        call(run, "vector_add", d["a"], d["b"])
    a, b, t = (np.ascontiguousarray(d[name]) for name in "abt")
    return {"ab": call(run, "vector_add", a, b), "tt": call(run, "vector_add", t, t)}


@runs("R58")
def add_of_views_inside_a_buffer(run, d):
    call(run, "vector_add", np.zeros(1000, np.float32), np.zeros(1000, np.float32))
    return {"x2": call(run, "vector_add", d["x"], d["x"]), "h2": call(run, "vector_add", d["h"], d["h"])}


@runs("R66")
def product_of_views_inside_buffers(run, d):
    c = np.full((33, 31), np.nan, np.float16)
    run(shipped_kernels()["matmul"], None, d["a"], d["b"], c)
    return {"c": c}


@runs("R68")
def products_without_depth_or_rows(run, d):
    ab, cd = np.full((5, 7), np.nan, np.float32), np.full((0, 3), np.nan, np.float32)
    run(shipped_kernels()["matmul"], None, d["a"], d["b"], ab)
    run(shipped_kernels()["matmul"], None, d["c"], d["d"], cd)
    return {"ab": ab, "cd": cd}


@runs("R74")
def layer_norm_of_wide_rows(run, d):
    return {name: layer_norm(run, x, d["eps"], d["bias"]) for name, x in (("y", d["x"]), ("y1", d["one"]))}


# ---- the language --------------------------------------------------------------------------------------------------


@runs("R11")
def minus(run, d):
    return {"y": compute(run, "-x", x=d["x"])}


@runs("R38")
def exp2_of_denormals(run, d):
    return {"y": compute(run, "tl.exp2(x)", x=padded(d["x"]))[:6]}


@runs("R40")
def cast_to_bf16(run, d):
    got = compute(run, "x.to(tl.bfloat16)", dt.bf16, x=padded(d["x"]))
    return {"y_bf16": got.view(np.uint16)[:13]}


@runs("R42")
def cast_to_e4m3(run, d):
    return {"y_e4m3": compute(run, "x.to(tl.float8e4nv)", dt.f8e4m3, x=padded(d["x"])).view(np.uint8)[: len(d["x"])]}


@runs("R44")
def block_pointer_with_padding(run, d):
    body = "p = tl.make_block_ptr(x_, (32,), (1,), (0,), (64,), (0,))"
    load = "tl.load(p, boundary_check=(0,), padding_option='{}')"
    named = {"body": body, "size": d["block"], "x": d["x"]}
    return {name: compute(run, load.format(name), dt.f32, **named) for name in ("nan", "zero")}


@runs("R46")
def division_folded_and_at_run_time(run, d):
    found = {}
    for key, sign in (("q", "//"), ("r", "%")):
        pairs = list(zip(d["a"], d["b"], strict=True))
        found[f"{key}_folded"] = [compute(run, "v", dt.i32, body=f"v = {a} {sign} {b}")[0] for a, b in pairs]
        found[f"{key}_runtime"] = compute(run, f"a {sign} b", a=padded(d["a"], np.int32), b=padded(d["b"], np.int32))
    return {key: np.array(value) for key, value in found.items()}


@runs("R48")
def floor_division(run, d):
    body = "q = x // y\nr = x % y"
    expression = "tl.where((r != 0) & ((r < 0) != (y < 0)), q - 1, q)"
    return {"q": compute(run, expression, body=body, x=d["x"], y=d["y"])}


@runs("R50")
def right_shift(run, d):
    return {key: compute(run, f"x >> {d['shift']}", x=padded(d[key]))[:3] for key in "abcs"}


@runs("R52")
def bools(run, d):
    source = """
    @gm.kernel(grid=1)
    def k(b: gm.ptr[gm.bool_], found: gm.ptr[gm.i32], inverted: gm.ptr[gm.bool_], n: gm.size["b"]):
        is_any = tl.zeros((64,), tl.int1)
        count = 0
        for start in range(0, n, 64):
            i = start + tl.arange(0, 64)
            v = tl.load(b + i, mask=i < n)
            is_any |= v
            count += tl.sum(v.to(tl.int32))
            tl.store(inverted + i, ~v, mask=i < n)
        tl.store(found, tl.max(is_any.to(tl.int32)))
        tl.store(found + 1, count)
    """
    found, inverted = np.zeros(2, np.int32), np.zeros(300, np.bool_)
    run(kernel_of(source), None, d["b"], found, inverted)
    is_positive = compute(run, "(x >= 0).to(tl.int32)", x=padded(d["x"]))[:7]
    return {"any": found[0], "count": found[1], "invert": inverted.view(np.uint8), "ge": is_positive}


@runs("R54")
def large_literals(run, d):
    difference = compute(run, "(3000000000 - (-1500000000)).to(tl.int64) + tl.zeros((1,), tl.int64)", dt.i64)
    sums = [compute(run, f"x + {literal}", x=padded(d["x"]))[:3] for literal in d["literals"]]
    return {"diff": difference[0], "sums": np.stack(sums, axis=1)}


@runs("R60")
def sum_of_strided_rows(run, d):
    source = """
    @gm.kernel(grid=lambda m: m)
    def k(x: gm.ptr[gm.f32, "1"], s: gm.ptr[gm.f32, "m"], m: gm.shape["x", 0], n: gm.shape["x", 1],
          step: gm.stride["x", 0]):
        row = tl.program_id(0)
        i = tl.arange(0, 8)
        tl.store(s + row, tl.sum(tl.load(x + row * step + i, mask=i < n)))
    """
    s = np.zeros(6, np.float32)
    run(kernel_of(source), None, d["x"], s)
    return {"s": s}


@runs("R70")
def product_of_8_bit_floats(run, d):
    source = """
    @gm.kernel(grid=1, num_warps=4)
    def k(a: gm.ptr[gm.f8e4m3], b: gm.ptr[gm.f8e4m3], c: gm.ptr[gm.f32], m: gm.shape["a", 0], n: gm.shape["b", 1],
          depth: gm.shape["a", 1], a_row: gm.stride["a", 0], b_row: gm.stride["b", 0]):
        i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
        sums = tl.zeros((16, 16), tl.float32)
        for start in range(0, depth, 32):
            steps = start + tl.arange(0, 32)
            x = tl.load(a + i * a_row + steps[None, :], mask=(i < m) & (steps[None, :] < depth))
            y = tl.load(b + steps[:, None] * b_row + j, mask=(steps[:, None] < depth) & (j < n))
            sums = tl.dot(x, y, sums)
        tl.store(c + i * n + j, sums, mask=(i < m) & (j < n))
    """
    c = np.full((10, 6), np.nan, np.float32)
    a, b = (d[name].view(dt_numpy(dt.f8e4m3)) for name in ("a_e4m3", "b_e4m3"))
    run(kernel_of(source), None, a, b, c)
    return {"c": c}


@runs("R79")
def offset_of_a_batch_item(run, d):
    source = """
    @gm.kernel(grid=lambda n: n)
    def k(pid: gm.ptr[gm.i32], offset: gm.ptr[gm.i64], stride: gm.i64, n: gm.size["pid"]):
        i = tl.program_id(0)
        tl.store(offset + i, tl.load(pid + i) * stride)
    """
    offset = np.zeros(len(d["pid"]), np.int64)
    run(kernel_of(source), None, d["pid"].astype(np.int32), offset, d["stride"])
    return {"offset": offset}


@runs("R105")
def atomic_addition_to_odd_addresses(run, d):
    source = """
    @gm.kernel(grid=5)
    def k(p: gm.ptr[gm.{}], v: gm.ptr[gm.{}], keep: gm.ptr[gm.bool_], n: gm.size["v"]):
        i = tl.arange(0, 64)
        mask = (i < n) & tl.load(keep + i, mask=i < n)
        tl.atomic_add(p + i, tl.load(v + i, mask=mask), mask=mask)
    """
    brain = d["whole"].astype(bfloat16)
    run(kernel_of(source.format("bf16", "bf16")), None, brain[1:38], d["value"].astype(bfloat16), d["mask"])
    run(kernel_of(source.format("f16", "f16")), None, d["dest"], d["value"], d["mask"])
    assert (brain == d["whole"].astype(bfloat16)).all()
    return {"whole": d["whole"]}


@runs("R107")
def atomic_addition_beside_another_half(run, d):
    source = """
    @gm.kernel(grid=256)
    def k(p: gm.ptr[gm.{}]):
        tl.atomic_add(p + 2 * tl.arange(0, 2), 1.0)
    """
    memory = d["memory_bf16"].view(bfloat16).copy()
    halves = memory.astype(np.float16)
    run(kernel_of(source.format("bf16")), None, memory)
    run(kernel_of(source.format("f16")), None, halves)
    assert halves.tolist() == [256, 5, 256, 0]
    return {"memory_bf16": memory.view(np.uint16)}


@runs("R109")
def random_numbers_of_wide_offsets(run, d):
    offsets = np.resize(np.array(d["offsets"], np.int64), 8)
    return {"u": compute(run, f"tl.rand({d['seed']}, x)", dt.f32, x=offsets)[: len(d["offsets"])]}


@runs("R111")
def conditional_expression(run, d):
    source = """
    @gm.kernel(grid=lambda n: n)
    def k(c: gm.ptr[gm.i32], a: gm.ptr[gm.f32], b: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.size["c"]):
        i = tl.program_id(0)
        tl.store(y + i, tl.load(a + i) if tl.load(c + i) != 0 else tl.load(b + i))
    """
    y = np.zeros(5, np.float32)
    run(kernel_of(source), None, d["c"], d["a"], d["b"], y)
    return {"y": y}


@runs("R113")
def dead_return_of_another_type(run, d):
    head = """
    def helper(v, IS_DOUBLED: tl.constexpr):
        if IS_DOUBLED:
            return v * 2
        return tl.sum(v)
    """
    on = compute(run, "helper(x, True)", head=head, x=d["x"])
    return {"on": on, "off": compute(run, "helper(x, False)", head=head, size=1, x=d["x"])[0]}


@runs("R115")
def assignment_to_the_loop_index(run, d):
    body = """
    s = tl.full((), 0, tl.float64)
    for i in range(0, 12, 3):
        i = i + 2
        s += tl.load(x_ + i)
    """
    return {"s": compute(run, "s", body=body, size=1, x=d["x"])[0]}


@runs("R117")
def functions_of_constants(run, d):
    return {
        name: np.array([compute(run, f"tl.{name}({float(c)})", dt.f32)[0] for c in d["c"]]) for name in ("sqrt", "exp")
    }


@runs("R119")
def helpers_of_one_name(run, d):
    head = """
    def max(x, dim):
        return tl.max(x, dim, keep_dims=True)
    """
    flat = d["x"].ravel()
    m = compute(run, "max(x.reshape(8, 32), 1).reshape(8)", head=head, size=8, x=flat).reshape(8, 1)
    helper = "def helper(v):\n    return v + {}"
    a, b = (compute(run, "helper(x)", head=helper.format(k), x=flat).reshape(8, 32) for k in (1, 2))
    return {"m": m, "a": a, "b": b}


@runs("R121")
def scalars_of_any_type(run, d):
    source = """
    @gm.kernel(grid=1)
    def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], factor: gm.f32, n: gm.size["x"]):
        i = tl.arange(0, 8)
        tl.store(y + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)
    """
    rows = np.zeros((4, 5), np.float32)
    for row, scalar in zip(rows, d["scalars"], strict=True):
        run(kernel_of(source), None, d["x"], row, scalar)
    return {"y": rows}


@runs("R123")
def integers_of_any_size(run, d):
    source = """
    @gm.kernel(grid=1)
    def k(y: gm.ptr[gm.i64], value: gm.i64):
        tl.store(y, value)
    """
    found = np.zeros(len(d["values"]), np.int64)
    for i, value in enumerate(d["values"]):
        run(kernel_of(source), None, found[i : i + 1], value)
    return {"y": found}


@runs("R131")
def update_in_place(run, d):
    source = """
    @gm.kernel(BLOCK=[256, 512], grid=lambda n, BLOCK: gm.cdiv(n, BLOCK))
    def k(x: gm.ptr[gm.f32], n: gm.size["x"], BLOCK: gm.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)
    """
    x = d["x"].copy()
    run(kernel_of(source), None, x)
    return {"x": x}


@runs("R147")
def constant_of_the_module(run, d):
    for factor in (d["before"], d["after"]):
        y = compute(run, "x * FACTOR", head=f"FACTOR = tl.constexpr({factor})", x=d["x"])
    return {"y": y}


def test_every_case_is_run_or_says_what_it_needs():
    parts = (RUNNERS, LANGUAGE, KERNELS, ELSEWHERE)
    assert sorted(name for part in parts for name in part) == sorted(CASES)


@pytest.mark.parametrize("name", LANGUAGE)
def test_skipped_case_needs_an_op_that_is_not_there(name):
    import gristmill.language as tl

    assert LANGUAGE[name] == "float8 casts" or not hasattr(tl, LANGUAGE[name])


@pytest.mark.parametrize("name", KERNELS)
def test_skipped_case_needs_a_kernel_that_is_not_there(name):
    assert not any(kernel.startswith(KERNELS[name]) for kernel in shipped_kernels())
