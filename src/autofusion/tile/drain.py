"""How the result of a contraction leaves its unit where everything behind it happens on the way to global memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from autofusion import dims
from autofusion.dims import Expr, symbols
from autofusion.dtypes import DType
from autofusion.kernel.ir import Access, Contract, Copy, Kernel, Literal, Map, Param, Statement, operands_of
from autofusion.kernel.schedule import Analysis
from autofusion.ops import Kind
from autofusion.target import GM, Target

BIAS = "BT"  # the space that accumulators can start from
SCALE_DIGITS = 11  # binary digits of a factor on the way out: the low 13 of float32's 24 are dropped
FLOAT16_MOST = 65504.0


@dataclass(frozen=True)
class Drain:
    """How a contraction's result leaves for global memory: the first value of its accumulator, a factor and ops on the
    way, and where to."""

    bias: Access | None
    through: tuple[str, ...]
    target: Access
    scale: float = 1.0


def drained(kernel: Kernel, analysis: Analysis, target: Target) -> Drain | None:
    """What follows the only contraction, where all of it happens on the way out: a row bias as the accumulator's
    first value, and then what the path from the results to global memory performs. None where there is more."""
    unit = target.unit_for(Kind.CONTRACT)
    path = target.paths.get((unit.result, GM)) if unit is not None else None
    if len(analysis.contractions) != 1 or path is None:
        return None
    (statement,) = analysis.contractions
    params = {p.name: p for p in kernel.params}
    value, bias, through = statement.target, None, []  # type: Access, Access | None, list[str]
    leaves, scale = statement.dtype, None  # type: DType, float | None
    for line in kernel.statements:
        if line is statement:
            continue
        reads = [o for o in operands_of(line) if isinstance(o, Access) and o.name == value.name]
        if len(reads) != 1 or reads[0] != value or _readers(kernel, value.name) != 1:
            return None
        if isinstance(line, Copy):
            fits = line.target.name in params and params[line.target.name].dtype is leaves
            if leaves is not statement.dtype and not statement.dtype.is_float:
                fits = fits and _is_exact(params, statement, scale or 1.0, leaves, bias is not None)
            return Drain(bias, tuple(through), line.target, scale or 1.0) if fits else None
        found = _way(params, line, value, leaves)
        if isinstance(found, Access):
            if bias is not None or through or leaves is not statement.dtype or target.route(GM, BIAS) is None:
                return None
            bias = found
        elif isinstance(found, float):
            if scale is not None or statement.dtype.is_float or found <= 0 or "scale" not in path.performs:
                return None
            scale = found
        elif found == "cast" and found in path.performs:
            leaves = cast(Map, line).dtype  # by the type of what it is copied to
        elif found in path.performs and not through:
            through.append(found)
        elif found != "":
            return None
        value = line.target
    return None


def _is_exact(params: Mapping[str, Param], statement: Contract, scale: float, leaves: DType, biased: bool) -> bool:
    """Whether an integer result that is multiplied by a number on its way out is what the graph asks for: the
    number has no more digits than the path keeps, and no result is beyond the range of float16, where the path
    stops at the greatest finite number."""
    if leaves is not DType.FLOAT16 or math.frexp(scale)[0] * 2**SCALE_DIGITS % 1 or scale < 2.0**-126:
        return False
    width = params[statement.left.name].dtype.size if statement.left.name in params else 4
    depth = dims.product(a.extent for a in statement.reduced)
    most = 2**31
    if isinstance(depth, int) and not biased and width == 1:
        most = min(most, depth << 14)
    return most * scale < FLOAT16_MOST


def _readers(kernel: Kernel, name: str) -> int:
    return sum(isinstance(o, Access) and o.name == name for s in kernel.statements for o in operands_of(s))


def _way(params: Mapping[str, Param], line: Statement, value: Access, now: DType) -> Access | float | str | None:
    """What a map does to a result that is of type `now` by then, as the copy path names it; a row bias as its
    operand; a factor as a number; "" for nothing."""
    if not isinstance(line, Map) or line.target.index != value.index:
        return None
    others = [o for o in line.operands if o != value]
    if line.op == "cast":
        if line.dtype is now:
            return ""
        narrow = now in (DType.FLOAT32, DType.INT32) and line.dtype.is_reduced
        return "cast" if narrow or (now, line.dtype) == (DType.INT32, DType.FLOAT32) else None
    if line.op == "mul" and len(others) == 1 and isinstance(others[0], Literal) and line.dtype is DType.FLOAT32:
        factor = others[0].value
        return None if isinstance(factor, Expr) or now is not DType.FLOAT32 else float(factor)
    if line.op == "maximum" and others == [Literal(line.dtype, 0.0)] and line.dtype is now:
        return "relu"
    if line.op == "add" and len(others) == 1 and isinstance(others[0], Access) and line.dtype is now:
        other: Access = others[0]
        columns = {str(i) for i in value.index[-1:]}
        outside = params.get(other.name)
        used = {n for i in other.index for n in symbols(i)}
        types = (now, *((DType.FLOAT16,) if now is DType.FLOAT32 else ()))
        return other if outside is not None and outside.dtype in types and used == columns else None
    return None
