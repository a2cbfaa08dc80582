"""`python -m benchmarks COMMAND …`; each command says more with --help."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "run": ("measure:main", "measure workloads, by this package and by its peers"),
    "report": ("report:main", "print and draw results"),
    "compare": ("report:compare", "two results side by side"),
    "micro": ("micro:main", "products, vector math, launches, barriers, compile times"),
    "export": ("export:main", "write the workloads as ONNX models"),
    "ascend": ("ascend:main", "fused against op by op on the AI Core model"),
    "memory": ("memory:main", "what a call needs beside its inputs, and eager PyTorch"),
    "cost": ("cost:main", "what the cost model predicts beside what is measured"),
    "partition": ("partition:main", "how the partition's time grows"),
    "compile_time": ("compile_time:main", "what compiling costs"),
    "onnx_suite": ("onnx_suite:main", "the ONNX backend suite"),
    "op_db": ("op_db:main", "PyTorch's operator database"),
    "fit_series": ("fit_series:main", "the coefficients of special functions"),
    "fit_polynomials": ("fit_polynomials:main", "the coefficients of the vector math"),
}


def main() -> int:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__)
        print("\n".join(f"  {command:16s} {about}" for command, (_, about) in COMMANDS.items()))
        return 0
    if name not in COMMANDS:
        print(f"python -m benchmarks: error: command {name!r}: expected one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module, _, function = COMMANDS[name][0].partition(":")
    return int(getattr(importlib.import_module(f"benchmarks.{module}"), function)(arguments) or 0)


if __name__ == "__main__":
    raise SystemExit(main())
