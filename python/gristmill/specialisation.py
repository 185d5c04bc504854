"""What a kernel is compiled for: configurations, variants and specialisations, with their readable ids and symbols."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.dtypes import Dtype
from gristmill.errors import DeclarationError
from gristmill.positions import caller_position

DEFAULT_NUM_WARPS = 4
DEFAULT_NUM_STAGES = 1
NUM_WARPS = (1, 2, 4, 8, 12, 16, 32)  # 12: three warpgroups, of products of 192 rows
NUM_STAGES = range(1, 9)
DEVICES = ("cuda", "cpu")
BLOCKS_PER_SM = range(1, 9)
NUM_CTAS = (1, 2, 4, 8)

Constants = tuple[tuple[str, object], ...]


class Config:
    """Constants that are chosen together, with the number of warps and of pipeline stages.

    `blocks_per_sm`: how many blocks of threads a multiprocessor is to hold at once, so that one computes while another
    waits or stores: each has its part of shared memory and of the registers.
    `num_ctas`: how many blocks, a cluster of multiprocessors, share a program where the hardware copies its operands
    (sm_90a): each has its part of the rows of all products, with `num_warps` warps, and what several of them read
    comes once for all. Elsewhere one block computes the program.
    `aligned=True`: only the code for aligned calls is compiled, in which arrays start on 16 bytes, lengths and strides
    that addresses are made of keep to that, and offsets fit in 32 bits. Others take the next configuration that suits.
    `narrow=False`: code for calls that are not aligned is compiled once, for offsets of 64 bits: half as much of it,
    and slower where addresses take much of the time.
    `device="cuda"` or `"cpu"`: it is compiled for these alone; others take the next configuration that suits.
    `warpgroups=True` or `False`: likewise, for CUDA devices whose warpgroups multiply (sm_90a), or for all but these.
    """

    def __init__(
        self,
        *,
        num_warps: int | None = None,
        num_stages: int | None = None,
        blocks_per_sm: int | None = None,
        num_ctas: int | None = None,
        aligned: bool = False,
        narrow: bool = True,
        device: str = "",
        warpgroups: bool | None = None,
        **constants: object,
    ):
        for name, value, allowed in (
            ("num_warps", num_warps, NUM_WARPS),
            ("num_stages", num_stages, NUM_STAGES),
            ("blocks_per_sm", blocks_per_sm, BLOCKS_PER_SM),
            ("num_ctas", num_ctas, NUM_CTAS),
        ):
            if value is not None and not is_one_of(value, allowed):
                raise _impossible(f"{name}={value!r}", allowed_fix(name, allowed))
        if not isinstance(aligned, bool):
            raise _impossible(f"aligned={aligned!r}", "write `aligned=True`, or leave it out")
        if not isinstance(narrow, bool):
            raise _impossible(f"narrow={narrow!r}", "write `narrow=False`, or leave it out")
        if device not in ("", *DEVICES):
            raise _impossible(f"device={device!r}", "write `device=` one of " + ", ".join(map(repr, DEVICES)))
        if warpgroups not in (None, True, False):
            raise _impossible(f"warpgroups={warpgroups!r}", "write `warpgroups=True` or `False`, or leave it out")
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.blocks_per_sm = blocks_per_sm
        self.num_ctas = num_ctas
        self.aligned = aligned
        self.narrow = narrow
        self.device = device
        self.warpgroups = warpgroups
        self.constants = constants

    def __repr__(self) -> str:
        launch: dict[str, object] = {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "blocks_per_sm": self.blocks_per_sm,
            "num_ctas": self.num_ctas,
        }
        launch |= {"aligned": self.aligned or None, "narrow": None if self.narrow else False}
        launch |= {"device": self.device or None, "warpgroups": self.warpgroups}
        given = self.constants | {name: value for name, value in launch.items() if value is not None}
        return "gm.Config(" + ", ".join(f"{name}={value!r}" for name, value in given.items()) + ")"


def _impossible(argument: str, fix: str) -> DeclarationError:
    return DeclarationError(f"`{argument}` is not possible", fix=fix, position=caller_position())


@dataclass(frozen=True)
class LaunchOption:
    """A parameter of a kernel that stands for its specialisation's `num_warps` or `num_stages`."""

    name: str


def is_one_of(value: object, allowed: Sequence[int]) -> bool:
    """Return whether `value` is one of some integers; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value in allowed


def allowed_fix(name: str, allowed: Sequence[int]) -> str:
    """Return a fix that lists what the argument `name` may be."""
    return f"write `{name}=` one of " + ", ".join(map(str, allowed))


@dataclass(frozen=True)
class Variant:
    """What an entry may assume: offsets fit in `index_bits`; `is_aligned`: arrays start on 16 bytes."""

    index_bits: int
    is_aligned: bool

    @property
    def name(self) -> str:
        return f"{'a' if self.is_aligned else 'g'}{self.index_bits}"


VARIANTS = (Variant(32, True), Variant(32, False), Variant(64, False))


@dataclass(frozen=True)
class Specialisation:
    """One choice of dtypes, constants and configuration; `has_config` if warps or stages were declared.

    `only_aligned`: it serves aligned calls alone, and has no general code. `has_narrow`: it has general code with
    offsets of 32 bits too. `device`: the only kind of devices that it is for, "" for all. `warpgroups`: whether it is
    only for CUDA devices that have products by warpgroups, or only for others; None for all.
    """

    kernel: str
    dtypes: tuple[tuple[str, Dtype], ...]
    constants: Constants
    num_warps: int = DEFAULT_NUM_WARPS
    num_stages: int = DEFAULT_NUM_STAGES
    has_config: bool = False
    only_aligned: bool = False
    blocks_per_sm: int = 1
    has_narrow: bool = True
    device: str = ""
    warpgroups: bool | None = None
    num_ctas: int = 1

    @property
    def variants(self) -> tuple[Variant, ...]:
        """What it is compiled as, in the order of VARIANTS."""
        general = () if self.only_aligned else VARIANTS[1:] if self.has_narrow else VARIANTS[2:]
        return (VARIANTS[0], *general)

    def variants_on(self, kind: str) -> tuple[Variant, ...]:
        """Those that targets of a kind have code for: a CPU, to which wide offsets cost nothing, one of the general."""
        is_one_enough = kind == "host" and VARIANTS[2] in self.variants
        return tuple(v for v in self.variants if v != VARIANTS[1]) if is_one_enough else self.variants

    def serves(self, kind: str) -> bool:
        """Whether it is for targets of a kind: "cuda", or "host" for CPUs."""
        return not self.device or (self.device == "cpu") == (kind == "host")

    @property
    def id(self) -> str:
        """The readable name, as `softmax_forward__f32__1024__w8`; `w8s3b2c4` with stages, blocks and ctas."""
        return "__".join([self.base, *([self.suffix] if self.suffix else [])])

    @property
    def base(self) -> str:
        """The id without warps and stages: specialisations that share it compute the same on a host."""
        return "__".join([self.kernel, *(d.name for _, d in self.dtypes), *(show(v) for _, v in self.constants)])

    @property
    def suffix(self) -> str:
        stages = f"s{self.num_stages}" if self.num_stages != DEFAULT_NUM_STAGES else ""
        blocks = f"b{self.blocks_per_sm}" if self.blocks_per_sm > 1 else ""
        ctas = f"c{self.num_ctas}" if self.num_ctas > 1 else ""
        return f"w{self.num_warps}{stages}{blocks}{ctas}" if self.has_config else ""

    def symbol(self, variant: Variant) -> str:
        """Return the entry symbol, a C identifier."""
        return symbol_name(self.id, variant)


def symbol_name(identity: str, variant: Variant) -> str:
    """Return the C identifier for an id: `-` as `m`, `.` as `p`, others outside [A-Za-z0-9_] as `_`."""
    spelled = identity.replace("-", "m").replace(".", "p")
    return re.sub(r"[^A-Za-z0-9_]", "_", spelled) + "__" + variant.name


EMPTY = "empty"  # the text without letters, in ids


def show(value: object) -> str:
    """Return a constant's value as ids spell it."""
    return EMPTY if value == "" else str(value).lower() if isinstance(value, bool) else str(value)
