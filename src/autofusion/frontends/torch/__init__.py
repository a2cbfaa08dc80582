"""PyTorch models: a backend for `torch.compile`, modules through `torch.export`, FX graphs of ATen operators."""

from autofusion.frontends.torch.backend import Backend, fuse
from autofusion.frontends.torch.defects import DefectWarning
from autofusion.frontends.torch.exported import Module, is_module
from autofusion.frontends.torch.program import Program, Settings
from autofusion.frontends.torch.report import Report

__all__ = ["Backend", "DefectWarning", "Module", "Program", "Report", "Settings", "fuse", "is_module"]
