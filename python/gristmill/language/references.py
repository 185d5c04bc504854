"""What numpy lacks, in its long double: the meaning of the gamma functions, to be rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np

Wide = np.longdouble
# zeta(k) - 1 for k from 2 on.
ZETA = (
    "0.644934066848226436472415", "0.202056903159594285399738", "0.0823232337111381915160037",
    "0.0369277551433699263313655", "0.0173430619844491397145179", "0.00834927738192282683979755",
    "0.00407735619794433937868524", "0.00200839282608221441785277", "0.000994575127818085337145959",
    "0.000494188604119464558702283", "0.000246086553308048298637998", "0.000122713347578489146751837",
    "0.0000612481350587048292585451", "0.0000305882363070204935517285", "0.0000152822594086518717325715",
    "0.00000763719763789976227360029", "0.00000381729326499983985646164", "0.00000190821271655393892565696",
    "0.000000953962033872796113152039", "0.00000047693298678780646311672", "0.000000238450502727732990003648",
    "0.000000119219925965311073067789", "5.96081890512594796124402e-8", "2.98035035146522801860637e-8",
    "1.49015548283650412346585e-8", "7.450711789835429491981e-9", "3.7253340247884570548192e-9",
    "1.86265972351304900640391e-9", "9.31327432419668182871765e-10", "4.65662906503378407298923e-10",
    "2.32831183367650549200146e-10", "1.16415501727005197759297e-10", "5.82077208790270088924369e-11",
    "2.91038504449709968692943e-11", "1.45519218910419842359296e-11", "7.27595983505748101452087e-12",
    "3.63797954737865119023724e-12", "1.81898965030706594758483e-12",
)  # fmt: skip
EULER, LN_2PI = Wide("0.577215664901532860606512090082402431"), Wide("1.83787706640934548356065947281123527972")
PI = Wide("3.14159265358979323846264338327950288420")
# B(2k) / (2k (2k - 1)) of Stirling's series.
STIRLING = (
    (1, 12), (-1, 360), (1, 1260), (-1, 1680), (1, 1188), (-691, 360360), (1, 156), (-3617, 122400),
    (43867, 244188), (-174611, 125400),
)  # fmt: skip
FAR = 24  # from here on ten terms of Stirling's series are below 2^-64


def lgamma(x: Any) -> Any:
    """ln |gamma(x)|."""
    x = np.asarray(x, Wide)
    size = np.abs(x)
    positive = np.where(size < FAR, np.log(_factor(size)) + _near_two(size), _stirling(size))
    positive = np.where(np.isinf(size), size, np.where(np.isclose(size, 1, atol=0.5), _near_one(size), positive))
    sine = _sine(size)
    with np.errstate(all="ignore"):
        reflected = np.where(sine == 0, np.inf, np.log(PI) - np.log(size) - np.log(sine) - positive)
    return np.where((x < 0) & ~np.isinf(x), reflected, np.where(x == 0, np.inf, positive))


def tgamma(x: Any) -> Any:
    """gamma(x)."""
    x = np.asarray(x, Wide)
    size = np.abs(x)
    near = _factor(size) * np.exp(_near_two(size))
    positive = np.where(size < FAR, near, np.exp(_stirling(size)))
    sine = np.where(np.floor(size) % 2 == 0, -1, 1) * _sine(size)
    with np.errstate(all="ignore"):
        reflected = np.where(sine == 0, np.nan, PI / (size * sine * positive))
        result = np.where(x < 0, reflected, np.where(x == 0, 1 / x, positive))
    return np.where(np.isinf(x), np.where(x > 0, x, np.nan), result)


def _sine(size: Any) -> Any:
    """|sin(pi x)|."""
    with np.errstate(all="ignore"):
        rest = size - np.floor(size)
    return np.sin(PI * np.minimum(rest, 1 - rest))


def _steps(size: Any) -> Any:
    """How many steps down lead from x to [1.5, 2.5); those up count as negative."""
    return np.floor(np.clip(np.nan_to_num(size), 0, FAR) - Wide(1.5))


def _factor(size: Any) -> Any:
    """gamma(x) / gamma(y) for the y in [1.5, 2.5) that lies whole steps from x."""
    steps, factor = _steps(size), np.ones_like(size)
    with np.errstate(all="ignore"):
        for i in range(1, FAR):
            factor = np.where(steps >= i, factor * (size - i), factor)
        for i in range(2):
            factor = np.where(-steps > i, factor / (size + i), factor)
    return factor


def _series(t: Any, first: Any) -> Any:
    result = np.zeros_like(t)
    for k in reversed(range(2, 2 + len(ZETA))):
        result = (Wide(ZETA[k - 2]) * (-1) ** k / k + result) * t
    return (first + result) * t


def _near_two(size: Any) -> Any:
    """ln gamma(y) for y in [1.5, 2.5), whole steps from x (Abramowitz and Stegun 6.1.33)."""
    return _series(size - _steps(size) - 2, 1 - EULER)


def _near_one(size: Any) -> Any:
    with np.errstate(all="ignore"):
        return _series(size - 1, 1 - EULER) - np.log1p(size - 1)


def _stirling(size: Any) -> Any:
    with np.errstate(all="ignore"):
        size = np.maximum(size, FAR)
        tail = sum(Wide(p) / Wide(q) / size ** (2 * k + 1) for k, (p, q) in enumerate(STIRLING))
        return (size - Wide(0.5)) * np.log(size) - size + LN_2PI / 2 + tail
