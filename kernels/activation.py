"""Activation functions and their gradients, element by element.

f16 and bf16 are computed in f32 and rounded once; f32 within 2e-6 of the value, over the whole range of inputs.
Gradients that are a sum which passes zero (gelu, silu) are within 2e-6 of the larger term there.
"""

import math

import numpy as np

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Tolerance, elementwise, spec, streaming

D = gm.dtype_var("D", gm.Float)
BLOCKS = [2048]


def programs(n, BLOCK):
    return gm.cdiv(n, BLOCK)


def computed_in(dtype):
    """The dtype in which values of `dtype` are computed."""
    return tl.float32 if dtype.bits < 32 else dtype


HALF_LOG2E = tl.constexpr(0.5 / math.log(2))


def gates(z, dtype):
    """Pieces of sigmoid(z) = share * root^2: share, root and sigmoid(-z), none of which cancels or underflows early.

    Halves need fewer bits than an exponential of a product has after its rounding, so they take the shorter way.
    """
    if dtype.bits < 32:
        return gates_of_root(z, tl.exp2(tl.abs(z) * -HALF_LOG2E))
    return gates_of_root(z, tl.exp(-0.5 * tl.abs(z)))


def gates_of_root(z, t):
    """As `gates`, for t = exp(-|z| / 2); only the sign of z is used."""
    share = tl.fdiv(1.0, 1.0 + t * t, approx=True)
    return share, tl.where(z >= 0, 1.0, t), tl.where(z >= 0, t * t, 1.0) * share


def gated(v, share, root):
    """v sigmoid(z), also where sigmoid(z) alone would be denormal."""
    return v * root * root * share


def gated_slope(g, v, share, root, rest):
    """g (s + v s (1 - s)) for s = sigmoid(z), 1 - s = rest times the derivative of z."""
    return g * share * root * (root + root * v * rest)


def np_sigmoid(z):
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, e) / (1.0 + e)


# ---- relu ----------------------------------------------------------------------------------------------------------


@gm.kernel(BLOCK=BLOCKS, grid=programs, backward="relu_backward")
def relu_forward(x: gm.ptr[D], y: gm.ptr[D], n: gm.size["x"], BLOCK: gm.constexpr):
    """y = max(x, 0); NaN stays NaN, -0 gives 0. x and y have one shape and dtype."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    v = tl.load(x + offsets, mask=keep)
    tl.store(y + offsets, tl.where(v <= 0, 0.0, v), mask=keep)


@gm.kernel(BLOCK=BLOCKS, grid=programs)
def relu_backward(dy: gm.ptr[D], x: gm.ptr[D], dx: gm.ptr[D], n: gm.size["x"], BLOCK: gm.constexpr):
    """dx = dy where x > 0 or x is NaN, else 0; arrays of one shape and dtype."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    v = tl.load(x + offsets, mask=keep)
    tl.store(dx + offsets, tl.where(v <= 0, 0.0, tl.load(dy + offsets, mask=keep)), mask=keep)


EXACT = Tolerance(f32=0.0, f64=0.0, half_ulps=0.0)

spec(
    relu_forward,
    reference=lambda x: np.where(x <= 0, 0.0, x),
    cases=elementwise("x", "y"),
    cost=streaming(flops=1),
    tolerance=EXACT,
)
spec(
    relu_backward,
    reference=lambda dy, x: np.where(x <= 0, 0.0, dy),
    cases=elementwise("dy", "x", "dx"),
    cost=streaming(flops=1),
    tolerance=EXACT,
)

# ---- gelu ----------------------------------------------------------------------------------------------------------

# gelu(x) = x sigmoid(z) with z = x (LINEAR + CUBIC x^2): 0.5 x (1 + tanh(z / 2)) without its cancellation for x < 0.
# In f32 an error of z is an error of exp(z), so there u = z / (2 ln 2), of which 2^-|u| is taken, is kept in two
# pieces. Its constants are split such that w - BASE_HIGH is exact while w < 8, beyond which 2^-|u| is 0.
LINEAR = tl.constexpr(2 * math.sqrt(2 / math.pi))
CUBIC = tl.constexpr(2 * math.sqrt(2 / math.pi) * 0.044715)
BASE = LINEAR.value / math.log(4)
RISE = CUBIC.value / math.log(4)
BASE_HIGH = tl.constexpr(round(BASE * 2**20) / 2**20)
BASE_LOW = tl.constexpr(BASE - BASE_HIGH.value)
RISE_HIGH = tl.constexpr(round(RISE * 2**27) / 2**27)
RISE_LOW = tl.constexpr(RISE - RISE_HIGH.value)
LN2 = tl.constexpr(math.log(2))
FLAT = tl.constexpr(30.0)  # beyond it sigmoid(z) is 0 or 1 in f64 too


def gelu_gates(x, dtype):
    """The gates of z; |x| <= FLAT for f32 and f64."""
    if dtype == tl.float32:
        return gelu_gates_in_f32(x)
    return gates(x * (LINEAR + CUBIC * x * x), dtype)


def gelu_gates_in_f32(x):
    """The gates to 1e-6, by u to 33 bits: its lower piece corrects the power of the higher one."""
    square = x * x
    square_low = tl.fma(x, x, -square)
    w = tl.fma(square, RISE_HIGH, BASE_HIGH)
    w_low = tl.fma(square, RISE_HIGH, BASE_HIGH - w) + BASE_LOW
    w_low = tl.fma(square_low, RISE_HIGH, tl.fma(square, RISE_LOW, w_low))
    u = x * w
    u_low = LN2 * tl.fma(x, w_low, tl.fma(x, w, -u))
    t = tl.exp2(-tl.abs(u))
    return gates_of_root(x, tl.fma(t, tl.where(x < 0, u_low, -u_low), t))


def within_reach(x, dtype):
    """x where the gates vary; further out they are what they are at its end. Halves need no limit."""
    if dtype.bits < 32:
        return x
    return tl.clamp(x, -FLAT, FLAT, propagate_nan="all")


@gm.kernel(BLOCK=BLOCKS, grid=programs, backward="gelu_backward")
def gelu_forward(x: gm.ptr[D], y: gm.ptr[D], n: gm.size["x"], BLOCK: gm.constexpr):
    """y = gelu(x) = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); x and y have one shape and dtype.

    The tanh form of Hendrycks and Gimpel, arXiv 1606.08415. -inf gives NaN, as the formula does.
    """
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    v = tl.load(x + offsets, mask=keep).to(computed_in(D))
    share, root, _ = gelu_gates(within_reach(v, D), D)
    tl.store(y + offsets, gated(v, share, root), mask=keep)


@gm.kernel(BLOCK=BLOCKS, grid=programs)
def gelu_backward(dy: gm.ptr[D], x: gm.ptr[D], dx: gm.ptr[D], n: gm.size["x"], BLOCK: gm.constexpr):
    """dx = dy gelu'(x) for the tanh form; arrays of one shape and dtype. Infinite x gives NaN, as the formula does."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    v = tl.load(x + offsets, mask=keep).to(computed_in(D))
    near = tl.clamp(v, -FLAT, FLAT, propagate_nan="all")
    share, root, rest = gelu_gates(near, D)
    g = tl.load(dy + offsets, mask=keep).to(computed_in(D))
    rest *= LINEAR + 3 * CUBIC * near * near
    tl.store(dx + offsets, gated_slope(g, v, share, root, rest), mask=keep)


def np_gelu_gate(x):
    near = np.clip(x, -30, 30)
    return near, np_sigmoid(near * (LINEAR.value + CUBIC.value * near * near))


def np_gelu(x):
    return x * np_gelu_gate(x)[1]


def np_gelu_backward(dy, x):
    near, share = np_gelu_gate(x)
    slope = share * np_gelu_gate(-x)[1] * (LINEAR.value + 3 * CUBIC.value * near * near)
    return dy * (share + slope * x)


spec(
    gelu_forward,
    reference=np_gelu,
    cases=elementwise("x", "y"),
    cost=streaming(flops=12),
    tolerance=Tolerance(f64=1e-12),
)
spec(
    gelu_backward,
    reference=np_gelu_backward,
    cases=elementwise("dy", "x", "dx", dy=(-1e4, 1e4)),
    cost=streaming(flops=20),
    tolerance=Tolerance(f64=1e-12, absolute=1e-7),
)

# ---- silu ----------------------------------------------------------------------------------------------------------


@gm.kernel(BLOCK=BLOCKS, grid=programs, backward="silu_backward")
def silu_forward(x: gm.ptr[D], y: gm.ptr[D], n: gm.size["x"], BLOCK: gm.constexpr):
    """y = x sigmoid(x), also called swish; x and y have one shape and dtype. -inf gives NaN, as the formula does."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    v = tl.load(x + offsets, mask=keep).to(computed_in(D))
    share, root, _ = gates(v, D)
    tl.store(y + offsets, gated(v, share, root), mask=keep)


@gm.kernel(BLOCK=BLOCKS, grid=programs)
def silu_backward(dy: gm.ptr[D], x: gm.ptr[D], dx: gm.ptr[D], n: gm.size["x"], BLOCK: gm.constexpr):
    """dx = dy (s + x s (1 - s)), s = sigmoid(x); arrays of one shape and dtype. Infinite x gives NaN."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    v = tl.load(x + offsets, mask=keep).to(computed_in(D))
    share, root, rest = gates(v, D)
    g = tl.load(dy + offsets, mask=keep).to(computed_in(D))
    tl.store(dx + offsets, gated_slope(g, v, share, root, rest), mask=keep)


def np_silu_backward(dy, x):
    share = np_sigmoid(x)
    return dy * (share + share * np_sigmoid(-x) * x)


spec(
    silu_forward,
    reference=lambda x: x * np_sigmoid(x),
    cases=elementwise("x", "y"),
    cost=streaming(flops=5),
)
spec(
    silu_backward,
    reference=np_silu_backward,
    cases=elementwise("dy", "x", "dx", dy=(-1e4, 1e4)),
    cost=streaming(flops=10),
    tolerance=Tolerance(absolute=1e-7),
)

# ---- tanh ----------------------------------------------------------------------------------------------------------


@gm.kernel(BLOCK=BLOCKS, grid=programs, backward="tanh_backward")
def tanh_forward(x: gm.ptr[D], y: gm.ptr[D], n: gm.size["x"], BLOCK: gm.constexpr):
    """y = tanh(x); x and y have one shape and dtype."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    v = tl.load(x + offsets, mask=keep).to(computed_in(D))
    tl.store(y + offsets, tl.tanh(v), mask=keep)


@gm.kernel(BLOCK=BLOCKS, grid=programs)
def tanh_backward(dy: gm.ptr[D], y: gm.ptr[D], dx: gm.ptr[D], n: gm.size["y"], BLOCK: gm.constexpr):
    """dx = dy (1 - y^2), y = tanh(x); arrays of one shape and dtype."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    t = tl.load(y + offsets, mask=keep).to(computed_in(D))
    g = tl.load(dy + offsets, mask=keep).to(computed_in(D))
    tl.store(dx + offsets, g * ((1.0 - t) * (1.0 + t)), mask=keep)


spec(tanh_forward, reference=lambda x: np.tanh(x), cases=elementwise("x", "y"), cost=streaming(flops=8))
spec(
    tanh_backward,
    reference=lambda dy, y: dy * ((1 - y) * (1 + y)),
    cases=elementwise("dy", "y", "dx", y=(-1, 1)),
    cost=streaming(flops=4),
)

# ---- sigmoid -------------------------------------------------------------------------------------------------------


@gm.kernel(BLOCK=BLOCKS, grid=programs, backward="sigmoid_backward")
def sigmoid_forward(x: gm.ptr[D], y: gm.ptr[D], n: gm.size["x"], BLOCK: gm.constexpr):
    """y = 1 / (1 + exp(-x)); x and y have one shape and dtype."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    v = tl.load(x + offsets, mask=keep).to(computed_in(D))
    tl.store(y + offsets, tl.sigmoid(v), mask=keep)


@gm.kernel(BLOCK=BLOCKS, grid=programs)
def sigmoid_backward(dy: gm.ptr[D], y: gm.ptr[D], dx: gm.ptr[D], n: gm.size["y"], BLOCK: gm.constexpr):
    """dx = dy y (1 - y), y = sigmoid(x); arrays of one shape and dtype."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    s = tl.load(y + offsets, mask=keep).to(computed_in(D))
    g = tl.load(dy + offsets, mask=keep).to(computed_in(D))
    tl.store(dx + offsets, g * (s * (1.0 - s)), mask=keep)


spec(sigmoid_forward, reference=lambda x: np_sigmoid(x), cases=elementwise("x", "y"), cost=streaming(flops=4))
spec(
    sigmoid_backward,
    reference=lambda dy, y: dy * (y * (1 - y)),
    cases=elementwise("dy", "y", "dx", y=(0, 1)),
    cost=streaming(flops=3),
)
