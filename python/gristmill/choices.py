"""Reads the decorator's dtypes, constants and configurations, and expands them into specialisations, in order."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gristmill.dtypes import Dtype, parse_dtype
from gristmill.errors import GristmillError, Position
from gristmill.positions import Site
from gristmill.signature import BOUNDS_FIX, DtypeVar, Signature, at, closest
from gristmill.specialisation import (
    DEFAULT_NUM_STAGES,
    DEFAULT_NUM_WARPS,
    EMPTY,
    NUM_STAGES,
    NUM_WARPS,
    VARIANTS,
    Config,
    Constants,
    Specialisation,
    allowed_fix,
    is_one_of,
)
from gristmill.tracing import call_by_name

DtypeSets = dict[str, tuple[Dtype, ...]]
Values = dict[str, tuple[object, ...]]


def read_dtype_sets(
    signature: Signature, shared: object, named: Mapping[str, object], site: Site
) -> dict[str, tuple[Dtype, ...]]:
    """Return the dtypes of each variable: those listed, else those of its bound.

    `shared` is the decorator's `dtypes=`, for kernels with one variable, or None; `named` are lists by variable.
    """
    variables = signature.dtype_vars
    if shared is not None:
        variable = _only_variable(variables, site)
        if variable.name in named:
            message = f"the dtypes of `{variable}` are listed twice"
            raise at(site.of_keyword(variable.name), message, f"remove `dtypes=` or `{variable}=`")
        return {variable.name: _read_list("dtypes", shared, variable, site)}
    return {
        v.name: _read_list(v.name, named[v.name], v, site) if v.name in named else _implied(v, signature, site)
        for v in variables
    }


def _only_variable(variables: tuple[DtypeVar, ...], site: Site) -> DtypeVar:
    if len(variables) == 1:
        return variables[0]
    if not variables:
        fix = 'remove it, or annotate an array with a dtype variable: `D = gm.dtype_var("D", gm.Float)`, `gm.ptr[D]`'
        raise at(site.of_keyword("dtypes"), "`dtypes` is given, but the kernel has no dtype variable", fix)
    names = [v.name for v in variables]
    message = f"`dtypes` does not say which variable it is for: the kernel has {', '.join(names)}"
    raise at(site.of_keyword("dtypes"), message, "write " + ", ".join(f"`{n}=[...]`" for n in names))


def _read_list(argument: str, given: object, variable: DtypeVar, site: Site) -> tuple[Dtype, ...]:
    if not isinstance(given, (list, tuple)):
        raise at(
            site.of_value(argument), f"`{argument}` must be a list of dtypes", f"write `{argument}=[gm.f32, gm.f64]`"
        )
    if not given:
        raise at(
            site.of_value(argument),
            f"`{argument}` lists no dtype",
            f"list one, or remove it to mean all of {variable.bound}",
        )
    found: list[Dtype] = []
    for index, item in enumerate(given):
        position = site.of_item(argument, index)
        try:
            dtype = parse_dtype(item)
        except GristmillError as error:
            raise at(position, error.message, error.fix) from None
        if dtype in found:
            raise at(position, f"duplicate dtype `{dtype}` in `{argument}`", "list it once")
        if variable.bound and dtype not in variable.bound:
            members = ", ".join(d.name for d in variable.bound.members)
            message = f"`{dtype}` is not within the bound of `{variable}`, {variable.bound}"
            raise at(position, message, f"use one of {members}, or widen the bound")
        found.append(dtype)
    return tuple(found)


def _implied(variable: DtypeVar, signature: Signature, site: Site) -> tuple[Dtype, ...]:
    if variable.bound is not None:
        return variable.bound.members
    user = next(p.name for p in signature.parameters if p.dtype == variable)
    message = f"cannot infer the dtypes of `{variable}`: it has neither a bound nor a list of dtypes"
    raise at(site.of_annotation(user), message, BOUNDS_FIX)


# ---- constants -----------------------------------------------------------------------------------------------------

_KINDS = {bool: "bool", int: "int", float: "float", str: "text"}
_TEXT = re.compile(r"[A-Za-z0-9_.+-]+")


@dataclass(frozen=True)
class ConstantChoices:
    """Lists of values, and configurations that set the constants without one.

    `derived` constants follow from the others: each is a function of their values by name.
    """

    lists: Values
    configs: tuple[Config, ...]
    names: tuple[str, ...]
    derived: Mapping[str, Callable[[Mapping[str, object]], object]] = field(default_factory=dict)

    def values(self) -> Values:
        """Return the values that each constant takes, in declaration order and without repetition."""
        found: Values = {}
        for name in self.names:
            if name in self.derived:
                given: Iterable[object] = [dict(constants)[name] for _, constants in self.combinations()]
            else:
                given = self.lists.get(name) or [c.constants[name] for c in self.configs]
            found[name] = tuple({_identity(v): v for v in given}.values())
        return found

    def combinations(self) -> Iterator[tuple[Config | None, Constants]]:
        """Yield every combination of listed values, the last constant varying fastest, with every configuration.

        Listed values come first: where a call names none, no configuration of a later one goes before all of the first.
        """
        listed = [[(name, value) for value in self.lists[name]] for name in self.names if name in self.lists]
        for chosen in itertools.product(*listed):
            for config in self.configs or (None,):
                together = tuple(config.constants.items()) if config else ()
                values = dict(together + chosen)
                for name, function in self.derived.items():
                    values[name] = function(values)
                yield config, tuple((name, values[name]) for name in self.names)


def _identity(value: object) -> tuple[type, object]:
    """Return a key that tells 1, 1.0 and True apart."""
    return type(value), value


def read_constants(
    signature: Signature,
    listed: Mapping[str, object],
    configs: object,
    site: Site,
    derived: Mapping[str, Callable[[Mapping[str, object]], object]] | None = None,
) -> ConstantChoices:
    """Return lists and configurations, after checking that together they set every constant once."""
    derived = derived or {}
    lists = {name: _read_values(name, values, site) for name, values in listed.items()}
    chosen = _read_configs(configs, lists, signature.constant_names, site)
    for name in (n for n in signature.constant_names if n not in derived):
        if name not in lists and not chosen:
            fix = f"list them in the decorator, as in `@gm.kernel({name}=[128, 256])`"
            raise at(site.of_parameter(name), f"constant `{name}` has no values", fix)
        for index, config in enumerate(chosen):
            if name not in lists and name not in config.constants:
                message = f"this configuration does not set `{name}`"
                raise at(site.of_config(index, name), message, f"add `{name}=...` to it")
    choices = ConstantChoices(lists, chosen, signature.constant_names, derived)
    _check_kinds(choices, site)
    return choices


def _read_values(name: str, values: object, site: Site) -> tuple[object, ...]:
    if not isinstance(values, (list, tuple, range)):
        example = repr(values) if type(values) in _KINDS else "128, 256"
        raise at(site.of_value(name), f"`{name}` must be a list of values", f"write `{name}=[{example}]`")
    if not values:
        raise at(site.of_value(name), f"`{name}` lists no value", f"list at least one, as in `{name}=[128]`")
    seen = set()
    for index, value in enumerate(values):
        _check_value(name, value, site.of_item(name, index))
        if _identity(value) in seen:
            raise at(site.of_item(name, index), f"duplicate value `{value!r}` of `{name}`", "list it once")
        seen.add(_identity(value))
    return tuple(values)


def _check_value(name: str, value: object, position: Position) -> None:
    if type(value) not in _KINDS or (isinstance(value, float) and not math.isfinite(value)):
        raise at(
            position, f"`{value!r}` cannot be a value of `{name}`", "write an int, a bool, a finite float or a text"
        )
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise at(position, f"`{value}` does not fit in 64 bits", "write a number from -2**63 to 2**63 - 1")
    if isinstance(value, str) and value and not _TEXT.fullmatch(value):
        raise at(position, f"`{value!r}` cannot be part of an id", "use letters, digits and _ . + - only")


def _read_configs(configs: object, lists: Values, names: tuple[str, ...], site: Site) -> tuple[Config, ...]:
    if configs is None:
        return ()
    example = "write `configs=[gm.Config(BLOCK=128, num_warps=4)]`"
    if not isinstance(configs, (list, tuple)) or not configs:
        raise at(site.of_value("configs"), "`configs` must be a list of gm.Config", example)
    seen: set[str] = set()
    for index, config in enumerate(configs):
        if not isinstance(config, Config):
            raise at(site.of_item("configs", index), f"`{config!r}` is not a gm.Config", example)
        if repr(config) in seen:
            raise at(site.of_item("configs", index), f"duplicate configuration `{config!r}`", "list it once")
        seen.add(repr(config))
        for name, value in config.constants.items():
            _check_config_constant(name, lists, names, site.of_config(index, name))
            _check_value(name, value, site.of_config(index, name))
    return tuple(configs)


def _check_config_constant(name: str, lists: Values, names: tuple[str, ...], position: Position) -> None:
    if name not in names:
        fix = closest(name, names) if names else f"annotate it in the signature, as in `{name}: gm.constexpr`"
        raise at(position, f"the kernel has no constant `{name}`", fix)
    if name in lists:
        raise at(
            position, f"`{name}` is set both by a list and by a configuration", f"remove `{name}` from one of them"
        )


def _check_kinds(choices: ConstantChoices, site: Site) -> None:
    for name, values in choices.values().items():
        kinds = list(dict.fromkeys(_KINDS[type(v)] for v in values))
        position = site.of_value(name if name in choices.lists else "configs")
        if {"", EMPTY} <= set(values):
            raise at(position, f"values `''` and `{EMPTY!r}` of `{name}` have one id", "give one of them another name")
        if len(kinds) > 1:
            raise at(
                position, f"values of `{name}` are of several kinds: {', '.join(kinds)}", "make them all of one kind"
            )


# ---- expansion -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """The decorator's `where=`, `num_warps=` and `num_stages=`; None where not given."""

    where: object = None
    num_warps: object = None
    num_stages: object = None


def expand(
    kernel: str, dtypes: DtypeSets, choices: ConstantChoices, launch: Launch, site: Site
) -> tuple[Specialisation, ...]:
    """Return all specialisations that `where` keeps: dtypes vary slowest, constants fastest.

    Raises DeclarationError if none is left or two would have one symbol.
    """
    sets = [[(name, dtype) for dtype in members] for name, members in dtypes.items()]
    found: list[Specialisation] = []
    configs: list[Config | None] = []
    for chosen in itertools.product(*sets):
        for config, constants in choices.combinations():
            values = dict(chosen) | dict(constants) | _launch_options(config)
            if _is_kept(launch.where, values, site):
                found.append(_specialise(kernel, chosen, constants, config, launch, site))
                configs.append(config)
    if not found:
        raise at(
            site.of_keyword("where"), "`where` leaves no specialisation", "make it true for at least one combination"
        )
    _check_symbols(found, site)
    _check_alignment(found, configs, choices, site)
    return tuple(found)


def _launch_options(config: Config | None) -> dict[str, object]:
    """What a configuration says of the launch, which `where` may ask for, too."""
    options = {name: getattr(config, name, None) for name in ("num_warps", "num_stages", "num_ctas")}
    return {name: value for name, value in options.items() if value is not None}


def _is_kept(where: object, values: Mapping[str, object], site: Site) -> bool:
    if where is None:
        return True
    kept = call_by_name(where, values, "where", site)
    if not isinstance(kept, bool):
        fix = "compare, as in `where=lambda D, BLOCK: BLOCK * D.itemsize <= 65536`"
        raise at(site.of_value("where"), f"`where` must give True or False, found `{kept!r}`", fix)
    return kept


def _specialise(
    kernel: str,
    dtypes: tuple[tuple[str, Dtype], ...],
    constants: Constants,
    config: Config | None,
    launch: Launch,
    site: Site,
) -> Specialisation:
    warps = (
        config.num_warps if config and config.num_warps else _num_warps(launch, dict(dtypes) | dict(constants), site)
    )
    stages = config.num_stages if config and config.num_stages else _num_stages(launch, site)
    has_config = config is not None or launch.num_warps is not None or launch.num_stages is not None
    chosen = config or Config()
    rest = (chosen.aligned, chosen.blocks_per_sm or 1, chosen.narrow, chosen.device, chosen.warpgroups)
    return Specialisation(kernel, dtypes, constants, warps, stages, has_config, *rest, chosen.num_ctas or 1)


def _num_warps(launch: Launch, values: Mapping[str, object], site: Site) -> int:
    if launch.num_warps is None:
        return DEFAULT_NUM_WARPS
    warps = (
        call_by_name(launch.num_warps, values, "num_warps", site) if callable(launch.num_warps) else launch.num_warps
    )
    return _allowed("num_warps", warps, NUM_WARPS, site)


def _num_stages(launch: Launch, site: Site) -> int:
    if launch.num_stages is None:
        return DEFAULT_NUM_STAGES
    return _allowed("num_stages", launch.num_stages, NUM_STAGES, site)


def _allowed(name: str, value: object, allowed: tuple[int, ...] | range, site: Site) -> int:
    if isinstance(value, int) and is_one_of(value, allowed):
        return value
    raise at(site.of_value(name), f"`{name}` cannot be `{value!r}`", allowed_fix(name, allowed))


def _check_symbols(found: list[Specialisation], site: Site) -> None:
    seen: dict[str, str] = {}
    for specialisation in found:
        symbol = specialisation.symbol(VARIANTS[0])
        if seen.get(symbol) == specialisation.id:
            message = f"`{specialisation.id}` is declared twice"
            raise at(site.of_value("configs"), message, "list it once; code for all calls has an aligned variant, too")
        if symbol in seen:
            message = f"`{seen[symbol]}` and `{specialisation.id}` would have one symbol, {symbol}"
            raise at(
                site.of(site.decorator()), message, "spell the constants so that letters or digits tell them apart"
            )
        seen[symbol] = specialisation.id


def _check_alignment(
    found: list[Specialisation], configs: list[Config | None], choices: ConstantChoices, site: Site
) -> None:
    """Raise unless what is only for aligned calls is followed by what serves the others, whatever they may ask for.

    A call asks for its dtypes, and may ask for the value of a listed constant.
    """
    asked = [(s.dtypes, tuple((n, v) for n, v in s.constants if n in choices.lists)) for s in found]
    for i, config in enumerate(configs):
        if config is None or not config.aligned:
            continue
        general = [(a, s) for a, s in zip(asked[i:], found[i:], strict=True) if not s.only_aligned]
        kinds = [kind for kind in ("cuda", "host") if found[i].serves(kind)]
        if not all(asked[i] in [a for a, s in general if s.serves(kind)] for kind in kinds):
            message = f"no configuration behind `{config!r}` serves {_calls(*asked[i])} that are not aligned"
            fix = "add one without `aligned=True` behind it, or remove `aligned=True`"
            raise at(site.of_config(choices.configs.index(config), "aligned"), message, fix)


def _calls(dtypes: Iterable[tuple[str, Dtype]], constants: Constants) -> str:
    types = ", ".join(str(d) for _, d in dtypes)
    values = ", ".join(f"{name}={value!r}" for name, value in constants)
    return "calls" + (f" in {types}" if types else "") + (f" with {values}" if values else "")
