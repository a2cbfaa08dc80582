"""A compilation's programs and plan as one Ascend C source: a class a kernel, one entry a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autofusion.dims import Dim
from autofusion.superkernel.options import SuperKernelOptions
from autofusion.superkernel.plan import Launch, Plan
from autofusion.target import Target
from autofusion.targets.ascend import kernel as classes
from autofusion.targets.ascend import prelude
from autofusion.targets.ascend.dimension import identifier
from autofusion.targets.ascend.entry import Entry
from autofusion.targets.ascend.kernel import Kernel as Kernel
from autofusion.targets.ascend.kernel import onchip_bytes as onchip_bytes


@dataclass(frozen=True)
class Source:
    """One launch as Ascend C. `arguments`: storages by position; `workspace`: bytes, as a dim of the symbols;
    `symbols`: the fields of the tiling data, in order; `blocks`: the most cores that have work; `checked`: whether the
    last pointer is to 32 bytes a vector core for the first failed check of each: (its number + 1, the position)."""

    text: str
    entry: str
    arguments: tuple[str, ...]
    symbols: tuple[str, ...]
    workspace: Dim
    blocks: int
    checked: bool = False


# -- the whole source ------------------------------------------------------------------------------------------------
def render(
    name: str,
    plan: Plan,
    launch: Launch,
    kernels: Mapping[str, Kernel],
    symbols: Mapping[str, str],
    target: Target,
    options: SuperKernelOptions | None = None,
) -> Source:
    """The source of one launch. `symbols`: the graph's open dimensions -> their names in kernels."""
    options = options or SuperKernelOptions()
    used = {call.kernel for phase in launch.body for call in phase.body}
    capacity, double = target.spaces["UB"].bytes, options.double_buffering
    body = Entry(plan, launch, kernels, symbols, target, options)
    written = {
        key: classes.write(kernel, capacity, double, body.early_of(key))
        for key, kernel in kernels.items()
        if key in used
    }
    entry = f"{identifier(name)}_launch"
    checked = any(each.checked for each in written.values())
    made = body.write(entry, checked)
    bodies = ["\n".join(each.lines) for each in written.values()]
    code = "\n\n".join([_tiling(tuple(symbols.values())), *bodies, "\n".join(body.w.lines)])
    many = f"{len(used)} kernel{'s' if len(used) != 1 else ''}"
    head = f"// {name} for {target.name}: {many}, one launch. Generated; not for editing."
    text = "\n\n".join([f"{head}\n{prelude.HEADER}", prelude.functions(code), code]) + "\n"
    return Source(text, entry, made.arguments, tuple(symbols.values()), made.workspace, made.blocks, checked)


def _tiling(symbols: Sequence[str]) -> str:
    fields = "".join(f"    int64_t {symbol};\n" for symbol in symbols) or "    int64_t unused;\n"
    return f"// The open dimensions of this launch.\nstruct Tiling {{\n{fields}}};"
