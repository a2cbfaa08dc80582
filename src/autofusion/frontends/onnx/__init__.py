"""ONNX models: `read` a file, `from_model` a ModelProto. The onnx package is imported when it is first needed."""

from autofusion.frontends.onnx import backend
from autofusion.frontends.onnx.importer import from_model, read

__all__ = ["backend", "from_model", "read"]
