"""A hand-tuned kernel beside the generated code: a matrix product of few rows, written in LLVM IR, with an epilogue
slot.

The kernel walks the depth once per row and column pair in order. Autofuse keeps its result tile on-chip,
so the bias and the ReLU that follow still run before the only write to global memory.
"""

from __future__ import annotations

import numpy as np

import autofusion as af

SOURCE = """
define internal void @dot_rows(ptr %a, i64 %a_row, i64 %a_depth, ptr %b, i64 %b_depth, i64 %b_column,
                               ptr %c, i64 %c_row, i64 %c_column,
                               i64 %rows, i64 %columns, i64 %depth, i64 %accumulate) nounwind {
entry:
  br label %row.head
row.head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %row.latch ]
  %i.in = icmp slt i64 %i, %rows
  br i1 %i.in, label %column.head, label %done
column.head:
  %j = phi i64 [ 0, %row.head ], [ %j.next, %column.latch ]
  %j.in = icmp slt i64 %j, %columns
  br i1 %j.in, label %depth.start, label %row.latch
depth.start:
  %a.line = mul i64 %i, %a_row
  %b.line = mul i64 %j, %b_column
  %c.line = mul i64 %i, %c_row
  %c.step = mul i64 %j, %c_column
  %c.at = add i64 %c.line, %c.step
  %c.ptr = getelementptr float, ptr %c, i64 %c.at
  %held = load float, ptr %c.ptr
  %adds = icmp ne i64 %accumulate, 0
  %first = select i1 %adds, float %held, float 0.0
  br label %depth.head
depth.head:
  %k = phi i64 [ 0, %depth.start ], [ %k.next, %depth.body ]
  %sum = phi float [ %first, %depth.start ], [ %sum.next, %depth.body ]
  %k.in = icmp slt i64 %k, %depth
  br i1 %k.in, label %depth.body, label %column.latch
depth.body:
  %a.step = mul i64 %k, %a_depth
  %a.at = add i64 %a.line, %a.step
  %a.ptr = getelementptr float, ptr %a, i64 %a.at
  %x = load float, ptr %a.ptr
  %b.step = mul i64 %k, %b_depth
  %b.at = add i64 %b.line, %b.step
  %b.ptr = getelementptr float, ptr %b, i64 %b.at
  %y = load float, ptr %b.ptr
  %sum.next = call float @llvm.fmuladd.f32(float %x, float %y, float %sum)
  %k.next = add i64 %k, 1
  br label %depth.head
column.latch:
  store float %sum, ptr %c.ptr
  %j.next = add i64 %j, 1
  br label %column.head
row.latch:
  %i.next = add i64 %i, 1
  br label %row.head
done:
  ret void
}
declare float @llvm.fmuladd.f32(float, float, float)
"""


def few_rows(left: af.TensorType, right: af.TensorType) -> bool:
    """Float32 products of at most four rows."""
    return left.dtype == right.dtype == "float32" and isinstance(left.shape[-2], int) and left.shape[-2] <= 4


KERNEL = af.LibraryKernel("dot_rows", op="matmul", source=SOURCE, applies=few_rows, epilogue=True, prologue=True)


def model(x: af.Tensor, w: af.Tensor, b: af.Tensor) -> af.Tensor:
    return af.relu(x @ w + b)


def main() -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, 256), (256, 128), (128,)))
    af.register_library_kernel(KERNEL)
    compiled = af.compile(model, [x, w, b])
    print(compiled.source("kernel"))
    print(compiled.explain())
    error = np.abs(compiled(x, w, b) - np.maximum(x @ w + b, 0)).max()
    print(f"largest difference from NumPy: {error:.2e}")
    assert error < 1e-3


if __name__ == "__main__":
    main()
