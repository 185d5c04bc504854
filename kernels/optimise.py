"""A step of an optimiser: everything that is kept for a parameter is updated in one pass."""

import numpy as np

import gristmill as gm
import gristmill.language as tl
from gristmill.cases import Tolerance, elementwise, spec, streaming

D = gm.dtype_var("D", gm.Float)
BLOCKS = [1024]


@gm.kernel(BLOCK=BLOCKS, D=[gm.bf16, gm.f32], grid=lambda n, BLOCK: gm.cdiv(n, BLOCK))
def adamw_step(
    parameter: gm.ptr[D],
    gradient: gm.ptr[D],
    mean: gm.ptr[gm.f32],
    square: gm.ptr[gm.f32],
    average: gm.ptr[gm.f32],
    new_parameter: gm.ptr[D],
    new_mean: gm.ptr[gm.f32],
    new_square: gm.ptr[gm.f32],
    new_average: gm.ptr[gm.f32],
    learning_rate: gm.f64 = 1e-3,
    beta1: gm.f64 = 0.9,
    beta2: gm.f64 = 0.999,
    eps: gm.f64 = 1e-8,
    weight_decay: gm.f64 = 0.01,
    correction1: gm.f64 = 1.0,
    correction2: gm.f64 = 1.0,
    gradient_scale: gm.f64 = 1.0,
    average_decay: gm.f64 = 0.999,
    n: gm.size["parameter"] = None,
    BLOCK: gm.constexpr = None,
):
    """one step of AdamW, with a running average of the parameters; all arrays have one shape.

    correction1 and correction2 are 1 - beta^t at step t; the gradient is multiplied by gradient_scale first. Pass the
    same array as old and new to update in place. Computed in f32, within 2e-6 of the larger term of each sum.
    Loshchilov and Hutter, arXiv 1711.05101.
    """
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offsets < n
    p = tl.load(parameter + offsets, mask=keep).to(tl.float32)
    g = tl.load(gradient + offsets, mask=keep).to(tl.float32) * gradient_scale.to(tl.float32)
    m = mixed(tl.load(mean + offsets, mask=keep), g, beta1)
    v = mixed(tl.load(square + offsets, mask=keep), g * g, beta2)
    root = tl.sqrt(v / correction2.to(tl.float32)) + eps.to(tl.float32)
    step = m / correction1.to(tl.float32) / root + weight_decay.to(tl.float32) * p
    p -= learning_rate.to(tl.float32) * step
    tl.store(new_parameter + offsets, p, mask=keep)
    tl.store(new_mean + offsets, m, mask=keep)
    tl.store(new_square + offsets, v, mask=keep)
    tl.store(new_average + offsets, mixed(tl.load(average + offsets, mask=keep), p, average_decay), mask=keep)


def mixed(old, new, share):
    """old share + new (1 - share), where 1 - share must not be rounded as a difference in f32."""
    return old * share.to(tl.float32) + new * (1.0 - share).to(tl.float32)


def np_adamw(
    parameter,
    gradient,
    mean,
    square,
    average,
    learning_rate,
    beta1,
    beta2,
    eps,
    weight_decay,
    correction1,
    correction2,
    gradient_scale,
    average_decay,
):
    g = gradient * gradient_scale
    m = beta1 * mean + (1 - beta1) * g
    v = beta2 * square + (1 - beta2) * g * g
    step = m / correction1 / (np.sqrt(v / correction2) + eps)
    p = parameter - learning_rate * (step + weight_decay * parameter)
    return p, m, v, average_decay * average + (1 - average_decay) * p


OLD = ("parameter", "gradient", "mean", "square", "average")
NEW = ("new_parameter", "new_mean", "new_square", "new_average")

spec(
    adamw_step,
    reference=np_adamw,
    cases=elementwise(*OLD, *NEW, **dict.fromkeys(OLD, (-1e4, 1e4)) | {"square": (0.0, 1e4)}),
    cost=streaming(flops=22),
    tolerance=Tolerance(absolute=1e-7),
)
