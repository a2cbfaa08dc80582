"""The workloads, a row each: what `benchmarks.modules` builds, and with which sizes.

The first letter of a name says what is looked at: t the cost of a call, a chains of elementwise operators, b
activations, c row reductions, d products with an epilogue, e a long tail of small operators, f an encoder block, g
blocks of a decoder, h convolutions and a recommendation model, i an optimizer's step, j a whole model. All are float32
and inference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Workload:
    """`build` names a function of `benchmarks.modules`; `small` are the sizes for the AI Core model and the tests."""

    name: str
    build: str
    full: Sizes
    small: Sizes

    def sizes(self, small: bool) -> Sizes:
        return self.small if small else self.full

    def label(self, small: bool) -> str:
        """The name, with the sizes where they are the reduced ones."""
        return f"{self.name} ({', '.join(f'{k}={v}' for k, v in self.small.items())})" if small else self.name


_ENCODER = {"width": 768, "heads": 12, "inner": 3072, "length": 128}
_SMALL_ENCODER = {"width": 128, "heads": 2, "inner": 256, "length": 32}
_DECODER = {"width": 512, "heads": 8, "shared": 2, "inner": 1408}
_SMALL_DECODER = {"width": 128, "heads": 4, "shared": 2, "inner": 256}

ROWS = (
    Workload("t_tiny_add16", "tiny_add", {"n": 16}, {"n": 16}),
    Workload("a_chain20_4M", "chain20", {"n": 4 << 20}, {"n": 1 << 16}),
    Workload("a_chain20_16K", "chain20", {"n": 16 << 10}, {"n": 16 << 10}),
    Workload("b_gelu_bias_mul", "gelu_bias_mul", {"rows": 2048, "width": 4096}, {"rows": 64, "width": 512}),
    Workload("b_silu_gate", "silu_gate", {"rows": 2048, "width": 4096}, {"rows": 64, "width": 512}),
    Workload("c_softmax", "softmax", {"rows": 4096, "width": 1024}, {"rows": 64, "width": 1024}),
    Workload("c_layernorm_gelu", "layernorm_gelu", {"rows": 4096, "width": 1024}, {"rows": 64, "width": 1024}),
    Workload("c_rmsnorm_residual", "rmsnorm_residual", {"rows": 4096, "width": 1024}, {"rows": 64, "width": 1024}),
    Workload("d_mm_add_relu_512", "mm_add_relu", {"m": 512, "k": 512, "n": 512}, {"m": 128, "k": 128, "n": 128}),
    Workload("d_mm_add_relu_1024", "mm_add_relu", {"m": 1024, "k": 1024, "n": 1024}, {"m": 256, "k": 256, "n": 256}),
    Workload("d_mm_add_relu_64x2048", "mm_add_relu", {"m": 64, "k": 2048, "n": 2048}, {"m": 64, "k": 512, "n": 512}),
    Workload("d_mlp4_b32_w512", "mlp4", {"batch": 32, "width": 512}, {"batch": 32, "width": 128}),
    Workload("e_longtail200", "longtail", {"rows": 32, "width": 64}, {"rows": 32, "width": 64}),
    Workload("f_bertbase_block_s128", "encoder", _ENCODER, _SMALL_ENCODER),
    Workload("g_llama_prefill_s128", "prefill", {**_DECODER, "length": 128}, {**_SMALL_DECODER, "length": 32}),
    Workload("g_llama_decode_s1_kv127", "decode", {**_DECODER, "past": 127}, {**_SMALL_DECODER, "past": 31}),
    Workload("h_resnet_block_56x56x64", "resnet_block", {"channels": 64, "side": 56}, {"channels": 16, "side": 14}),
    Workload(
        "h_convnet6_b8_32x32", "convnet6", {"batch": 8, "side": 32, "width": 32}, {"batch": 1, "side": 16, "width": 8}
    ),
    Workload(
        "h_dlrm_b128", "dlrm", {"batch": 128, "tables": 26, "rows": 1000}, {"batch": 16, "tables": 6, "rows": 100}
    ),
    Workload("i_adamw_8M", "adamw", {"n": 8 << 20}, {"n": 1 << 16}),
    Workload(
        "j_bert4_h256_s128",
        "bert",
        {"layers": 4, "width": 256, "heads": 4, "words": 8192, "length": 128},
        {"layers": 1, "width": 64, "heads": 2, "words": 256, "length": 32},
    ),
)
WORKLOADS = {row.name: row for row in ROWS}
