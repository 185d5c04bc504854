"""The fused layers of liger-kernel (`mlp.py`), which take tensor descriptors: declarations as in liger_cases."""

from __future__ import annotations

import numpy as np

import gristmill as gm
from liger_cases import D, case, silu, wide

BATCH, LENGTH, DIM, HIDDEN = 2, 37, 40, 48
BLOCKS = {"BLOCK_M": [16], "BLOCK_N": [32], "BLOCK_K": [16], "GROUP_SIZE_M": [2]}
LEFT, TILE = gm.descriptor[D, 1, "BLOCK_M", "BLOCK_K"], gm.descriptor[D, 1, "BLOCK_M", "BLOCK_N"]
TURNED, RIGHT = gm.descriptor[D, "BLOCK_N", "BLOCK_K"], gm.descriptor[D, "BLOCK_K", "BLOCK_N"]
SIZES = {"S": gm.i32, "dim": gm.i32, "hidden_dim": gm.i32}
NUMBERS = {"S": LENGTH, "dim": DIM, "hidden_dim": HIDDEN}


def layer(kernel, columns, *, is_tuned=True, **declaration):
    declaration["signature"] |= SIZES | ({"bucket_M": gm.i32} if is_tuned else {})
    return case(
        "mlp", kernel, configs=[gm.Config(num_warps=4, num_stages=2)], ulps=8, **declaration,
        grid=lambda BLOCK_M, BLOCK_N: (gm.cdiv(LENGTH, BLOCK_M) * gm.cdiv(columns, BLOCK_N), BATCH),
    )  # fmt: skip


def weights(draw, rows, columns):
    return draw.normal(rows, columns, scale=0.2)


def _forward(draw, constants):
    x, gate, up = draw.normal(BATCH, LENGTH, DIM), weights(draw, HIDDEN, DIM), weights(draw, HIDDEN, DIM)
    gates, ups = (wide(x) @ wide(w).T for w in (gate, up))
    gates = gates * constants["gate_multiplier"]
    arguments = {"desc_input": x, "desc_Wg": gate, "desc_Wu": up, **NUMBERS, "bucket_M": 0}
    arguments |= {name: draw.empty(BATCH, LENGTH, HIDDEN) for name in ("desc_A", "desc_G", "desc_U")}
    return arguments, {"desc_A": silu(gates) * ups, "desc_G": gates, "desc_U": ups}


OPERANDS = {"desc_input": LEFT, "desc_Wg": TURNED, "desc_Wu": TURNED, "desc_A": TILE}
layer(
    "_swiglu_kernel_forward",
    HIDDEN,
    signature=OPERANDS | {"desc_G": TILE, "desc_U": TILE},
    constants=BLOCKS | {"gate_multiplier": [0.5]},
)(_forward)


@layer(
    "_swiglu_kernel_forward_inference", HIDDEN, signature=dict(OPERANDS), constants=BLOCKS | {"gate_multiplier": [1.0]}
)
def _(draw, constants):
    arguments, wanted = _forward(draw, constants)
    kept = {name: value for name, value in arguments.items() if name not in ("desc_G", "desc_U")}
    return kept, {"desc_A": wanted["desc_A"]}


@layer(
    "_swiglu_kernel_backward_dGU", HIDDEN, is_tuned=False,
    signature={"desc_dO": LEFT, "desc_Wd": RIGHT, **dict.fromkeys(("desc_G", "desc_U", "desc_dG", "desc_dU"), TILE)},
    constants=BLOCKS | {"gate_multiplier": [1.0], "down_multiplier": [2.0]},
)  # fmt: skip
def _(draw, constants):
    up, down = draw.normal(BATCH, LENGTH, DIM), weights(draw, DIM, HIDDEN)
    gates, ups = (draw.normal(BATCH, LENGTH, HIDDEN) for _ in range(2))
    back = wide(up) @ wide(down) * constants["down_multiplier"]
    rate = constants["gate_multiplier"]
    gate = 1 / (1 + np.exp(-wide(gates)))
    slope = gate * (1 + wide(gates) * (1 - gate))
    arguments = {"desc_dO": up, "desc_Wd": down, "desc_G": gates, "desc_U": ups, **NUMBERS}
    arguments |= {name: draw.empty(BATCH, LENGTH, HIDDEN) for name in ("desc_dG", "desc_dU")}
    return arguments, {"desc_dG": back * wide(ups) * slope * rate, "desc_dU": back * silu(wide(gates))}


@layer(
    "_swiglu_kernel_backward_dI", DIM, constants=BLOCKS,
    signature={"desc_dG": LEFT, "desc_Wg": RIGHT, "desc_dU": LEFT, "desc_Wu": RIGHT, "desc_dI": TILE},
)  # fmt: skip
def _(draw, constants):
    gates, ups = (draw.normal(BATCH, LENGTH, HIDDEN) for _ in range(2))
    of_gates, of_ups = weights(draw, HIDDEN, DIM), weights(draw, HIDDEN, DIM)
    arguments = {"desc_dG": gates, "desc_Wg": of_gates, "desc_dU": ups, "desc_Wu": of_ups, **NUMBERS, "bucket_M": 0}
    wanted = np.asarray(wide(gates) @ wide(of_gates) + wide(ups) @ wide(of_ups))
    return arguments | {"desc_dI": draw.empty(BATCH, LENGTH, DIM)}, {"desc_dI": wanted}
