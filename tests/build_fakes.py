"""A compiler for tests of the build: valid PTX by template, host objects through llvmlite, and ways to fail."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

from gristmill.dtypes import f16
from gristmill.errors import KernelError, Position
from gristmill.specialisation import VARIANTS
from gristmill.tensor_map import TensorMap

HOST_SUFFIX = {"x86-64-v2": "__v2", "x86-64-v3": "__v3", "x86-64-v4": "__v4", "aarch64": "__aarch64"}
PTX = """\
// a comment
.version {version}
.target {target}
.address_size 64

.visible .entry {symbol}(.param .u64 x, .param .u32 n) .maxntid 128
{{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [x];
    {body}
    ret;
}}
"""

N, N_OVER_64 = (1, 3), (1, 3, 0, 64, 6)  # of the kernels below
MAP = TensorMap("x", f16, ((0, 64), N_OVER_64), (N,), (64, 8), 128)

KERNELS = '''\
import gristmill as gm
from helper import SCALE

D = gm.dtype_var("D", [gm.f32, gm.f16])


@gm.kernel(BLOCK=[256, 1024], grid=lambda n, BLOCK: gm.cdiv(n, BLOCK), backward="gelu_backward")
def gelu_forward(x: gm.ptr[D], y: gm.ptr[D], scale: gm.f32 = 0.5, n: gm.size["x"] = None, BLOCK: gm.constexpr = None):
    """y = "gelu"(x) \\\\ ä"""


@gm.kernel(BLOCK=[256, 1024], grid=lambda n, BLOCK: gm.cdiv(n, BLOCK))
def gelu_backward(x: gm.ptr[D], y: gm.ptr[D], scale: gm.f32 = 0.5, n: gm.size["x"] = None, BLOCK: gm.constexpr = None):
    pass
'''


def write_project(folder):
    """Write a kernel file and a module that it imports; return the path of the first."""
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    (folder / "kernels" / "helper.py").write_text("SCALE = 2\n")
    file = folder / "kernels" / "gelu.py"
    file.write_text(KERNELS)
    return file


def compile_fake(kernel, specialisation, target, body="st.global.u32 [%rd1], 1;", maps=(MAP,)):
    """Compile to nothing much; for sm_90a alone the aligned variant is code of its own, which takes `maps`."""
    if target in HOST_SUFFIX:
        return [host_artifact(specialisation, variant, target) for variant in specialisation.variants_on("host")]
    if specialisation.only_aligned:
        return [cuda_artifact(specialisation, VARIANTS[0], target, body, maps)]
    aligned, general, wide = (cuda_artifact(specialisation, v, target, body, maps) for v in VARIANTS)
    return [aligned if target == "sm_90a" else general, general, wide]


def cuda_artifact(specialisation, variant, target, body, maps):
    symbol = specialisation.symbol(variant)
    version = 80 if target == "sm_90a" else 70
    code = PTX.format(version=version / 10, target=target, symbol=symbol, body=body).encode()
    divisibility, tensor_maps = ({"n": 4}, maps) if variant.is_aligned else ({}, ())
    more = {"ptx_version": version, "ctas": 2 if target == "sm_90a" else 1, "tensor_maps": tensor_maps}
    more["draws"] = variant.is_aligned and target == "sm_90a"
    return artifact(symbol, code, divisibility, **more)


def host_artifact(specialisation, variant, target):
    symbol = specialisation.symbol(variant) + HOST_SUFFIX[target]
    return artifact(symbol, host_object(symbol))


def artifact(symbol, code, divisibility=None, ptx_version=None, ctas=1, tensor_maps=(), draws=False):
    return SimpleNamespace(
        symbol=symbol,
        code=code,
        threads=128,
        shared_bytes=16,
        ctas=ctas,
        written=("y",),
        read=("x",),
        divisibility=divisibility or {},
        ptx_version=ptx_version,
        tensor_maps=tensor_maps,
        draws=draws,
    )


def host_object(symbol):
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(f"define void @{symbol}(ptr %p, ptr %grid, i64 %begin, i64 %end) {{ ret void }}")
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
    return machine.emit_object(module)


def is_culprit(specialisation, target):
    return specialisation.id == "gelu_backward__f16__256" and target == "sm_90a"


def compile_aborting(kernel, specialisation, target):
    """End the process as LLVM does on a fatal error."""
    if is_culprit(specialisation, target):
        print("LLVM ERROR: Cannot select: f16 = nothing", file=sys.stderr, flush=True)
        os.abort()
    return compile_fake(kernel, specialisation, target)


def compile_raising(kernel, specialisation, target):
    """Fail with a bug of the compiler."""
    if is_culprit(specialisation, target):
        raise ZeroDivisionError("a bug")
    return compile_fake(kernel, specialisation, target)


def compile_refusing(kernel, specialisation, target):
    """Find an error in the kernel's body."""
    if is_culprit(specialisation, target):
        raise KernelError("no such op", fix="use another", position=Position("kernels/gelu.py", 13, 5, 9, "    pass"))
    return compile_fake(kernel, specialisation, target)


def compile_bad_ptx(kernel, specialisation, target):
    """Give PTX that ptxas refuses."""
    return compile_fake(kernel, specialisation, target, "bogus.op;" if is_culprit(specialisation, target) else "")


SPILLING = "\n    ".join(  # more numbers at a time than the directive below lets it have registers
    [".reg .f32 %f<60>;"]
    + [f"ld.global.f32 %f{i}, [%rd1+{4 * i}];" for i in range(60)]
    + ["bar.sync 0;"]
    + [f"fma.rn.f32 %f{(7 * i + 3) % 60}, %f{i}, %f{(13 * i + 5) % 60}, %f{(29 * i + 11) % 60};" for i in range(60)]
    + [f"st.global.f32 [%rd1+{4 * i}], %f{i};" for i in range(60)]
)


def compile_spilling(kernel, specialisation, target):
    """Give PTX of which one specialisation's code has too few registers."""
    made = compile_fake(kernel, specialisation, target)
    if is_culprit(specialisation, target):
        for artifact in made:
            artifact.code = artifact.code.replace(b"st.global.u32 [%rd1], 1;", SPILLING.encode())
            artifact.code = artifact.code.replace(b".maxntid 128", b".maxntid 128 .maxnreg 24")
    return made


def compile_slow(kernel, specialisation, target):
    """Give PTX of which one specialisation's code asks for registers that ptxas does not know it to have."""
    return compile_fake(kernel, specialisation, target, SLOW if is_culprit(specialisation, target) else "")


SLOW = "setmaxnreg.inc.sync.aligned.u32 240;"


def compile_crowded(kernel, specialisation, target):
    """Give PTX of which one specialisation's code has no registers for an instruction."""
    sums, numbers = ", ".join(f"%f{i}" for i in range(128)), "\n".join(f"mov.f32 %f{i}, 0f0;" for i in range(128))
    steps = [".reg .f32 %f<128>;", numbers.replace("0f0", "0f00000000"), "wgmma.fence.sync.aligned;"]
    shape = "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16"
    steps += [f"{shape} {{{sums}}}, %rd1, %rd1, 1, 1, 1, 0, 0;", "wgmma.commit_group.sync.aligned;"]
    steps += ["wgmma.wait_group.sync.aligned 0;", *(f"st.global.f32 [%rd1+{4 * i}], %f{i};" for i in range(128))]
    made = compile_fake(kernel, specialisation, target)
    if is_culprit(specialisation, target):
        for artifact in made:
            artifact.code = artifact.code.replace(b"st.global.u32 [%rd1], 1;", "\n".join(steps).encode())
            artifact.code = artifact.code.replace(b".maxntid 128", b".maxntid 1024")
    return made


def compile_large(kernel, specialisation, target):
    """Give code of which one specialisation's blocks have more threads than any device."""
    made = compile_fake(kernel, specialisation, target)
    for artifact in made if is_culprit(specialisation, target) else ():
        artifact.threads = 1056
    return made


def compile_wide(kernel, specialisation, target):
    """Give code of which one specialisation's blocks have more shared memory than the target."""
    made = compile_fake(kernel, specialisation, target)
    for artifact in made if is_culprit(specialisation, target) else ():
        artifact.shared_bytes = 232_449
    return made


def compile_mapped(kernel, specialisation, target):
    """Take more tensor maps than a launch has room for."""
    return compile_fake(kernel, specialisation, target, maps=(MAP,) * (9 if is_culprit(specialisation, target) else 8))


def compile_chatty(kernel, specialisation, target):
    """Print to standard output, which is the workers' channel."""
    print("hello from a kernel")
    os.write(1, b"and from C\n")
    return compile_fake(kernel, specialisation, target)
