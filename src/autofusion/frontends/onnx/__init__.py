"""ONNX models: `read` a file, `from_model` a ModelProto, `compile_file` either way that its control flow asks for. The
onnx package is imported when it is first needed."""

from autofusion.frontends.onnx import backend
from autofusion.frontends.onnx.importer import from_model, read
from autofusion.frontends.onnx.program import Program, compile_file, read_program
from autofusion.frontends.onnx.values import Undecided

__all__ = ["Program", "Undecided", "backend", "compile_file", "from_model", "read", "read_program"]
