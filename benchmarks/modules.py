"""The workloads' computations as PyTorch modules, one function a row of `benchmarks.workloads`.

Each function takes sizes and returns the module and its inputs. Everything is drawn from PyTorch's generator, which
`make` seeds.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads import Workload

Built = tuple[nn.Module, tuple[Tensor, ...]]


def make(workload: Workload, small: bool = False, seed: int = 0) -> Built:
    """The module of a row, in inference mode, and its inputs."""
    torch.manual_seed(seed)
    build: Callable[..., Built] = globals()[workload.build]
    module, inputs = build(**workload.sizes(small))
    return module.eval(), inputs


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)


# -- t, a: elementwise -------------------------------------------------------------------------------------------------
def tiny_add(n: int) -> Built:
    return Function(lambda x, y: x + y), (torch.randn(n), torch.randn(n))


def chain20(n: int) -> Built:
    def chain(x: Tensor, y: Tensor) -> Tensor:
        t = (x + y) * 0.5 - y
        t = torch.abs(torch.relu(t) + x)
        t = torch.maximum(t, y) * x - 1.25
        t = torch.minimum(t, x) * y + 0.125
        t = -torch.relu(t) + x
        t = torch.abs(t * 0.75) - x
        return torch.maximum(t, y) + y

    return Function(chain), (torch.randn(n), torch.randn(n))


# -- b: activations ----------------------------------------------------------------------------------------------------
def gelu_bias_mul(rows: int, width: int) -> Built:
    def compute(x: Tensor, bias: Tensor, gate: Tensor) -> Tensor:
        return functional.gelu(x + bias, approximate="tanh") * gate

    return Function(compute), (torch.randn(rows, width), torch.randn(width), torch.randn(rows, width))


def silu_gate(rows: int, width: int) -> Built:
    return Function(lambda x, y: x * torch.sigmoid(x) * y), (torch.randn(rows, width), torch.randn(rows, width))


# -- c: row reductions -------------------------------------------------------------------------------------------------
def softmax(rows: int, width: int) -> Built:
    return Function(lambda x: torch.softmax(x, -1)), (torch.randn(rows, width),)


def layernorm_gelu(rows: int, width: int) -> Built:
    norm = nn.LayerNorm(width)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return nn.Sequential(norm, nn.GELU()), (torch.randn(rows, width),)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


class ResidualNorm(nn.Module):
    """The sum goes on as the next residual, so both are outputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = RMSNorm(width)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self.norm(total), total


def rmsnorm_residual(rows: int, width: int) -> Built:
    return ResidualNorm(width), (torch.randn(rows, width), torch.randn(rows, width))


# -- d: products -------------------------------------------------------------------------------------------------------
def mm_add_relu(m: int, k: int, n: int) -> Built:
    """All operands are known at run time only."""
    inputs = torch.randn(m, k), torch.randn(k, n) * k**-0.5, torch.randn(n)
    return Function(lambda a, b, c: torch.relu(torch.matmul(a, b) + c)), inputs


def mlp4(batch: int, width: int) -> Built:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), (torch.randn(batch, width),)


# -- e: a long tail ----------------------------------------------------------------------------------------------------
COSTS = {"meansub": 2, "maxsub": 2, "colmean": 2, "transposed": 2, "square": 2}  # operators a step; others are one
STEPS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "add": lambda u, v, row, column: u + v,
    "sub": lambda u, v, row, column: u - v,
    "mul": lambda u, v, row, column: u * v,
    "max": lambda u, v, row, column: torch.maximum(u, v),
    "min": lambda u, v, row, column: torch.minimum(u, v),
    "relu": lambda u, v, row, column: torch.relu(u),
    "abs": lambda u, v, row, column: torch.abs(u),
    "neg": lambda u, v, row, column: -u,
    "sigmoid": lambda u, v, row, column: torch.sigmoid(u),
    "tanh": lambda u, v, row, column: torch.tanh(u),
    "scale": lambda u, v, row, column: u * 0.5,
    "shift": lambda u, v, row, column: u + 0.25,
    "row": lambda u, v, row, column: u + row,
    "column": lambda u, v, row, column: u * column,
    "meansub": lambda u, v, row, column: u - u.mean(-1, keepdim=True),
    "maxsub": lambda u, v, row, column: u - u.amax(-1, keepdim=True),
    "colmean": lambda u, v, row, column: u - u.mean(0, keepdim=True),
    "transposed": lambda u, v, row, column: u + v.t().reshape(u.shape),
    "square": lambda u, v, row, column: torch.tanh(u * u),
}


class LongTail(nn.Module):
    """Some 200 small operators on a pool of six live tensors, drawn with a fixed seed. Each result replaces its own
    first operand, so nothing is dead."""

    def __init__(self, operators: int = 194, seed: int = 7) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.steps: list[tuple[str, int, int]] = []
        count = 0
        while count < operators:
            kind, first = draw.choice(list(STEPS)), draw.randrange(6)
            second = (first + draw.randrange(1, 6)) % 6
            cost = COSTS.get(kind, 1)
            if count + cost <= operators:
                self.steps.append((kind, first, second))
                count += cost

    def forward(self, x: Tensor, y: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, ...]:
        pool = [x, y, x + row, y * column, x - y, x * 0.3]
        for kind, first, second in self.steps:
            pool[first] = STEPS[kind](pool[first], pool[second], row, column)
        last = torch.sigmoid(pool[4] - pool[5])
        return torch.tanh(pool[0] + pool[1]), torch.tanh(pool[2]), pool[3].mean(-1), last


def longtail(rows: int, width: int) -> Built:
    inputs = torch.randn(rows, width), torch.randn(rows, width), torch.randn(width), torch.randn(rows, 1)
    return LongTail(), inputs


# -- f, g: transformer blocks ------------------------------------------------------------------------------------------
class Encoder(nn.Module):
    """An encoder block in the manner of BERT, attention from its plain formula."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        depth = width // self.heads

        def split(t: Tensor) -> Tensor:
            return t.view(batch, length, self.heads, depth).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * depth**-0.5, -1)
        attended = torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width)
        x = self.norm1(x + self.out(attended))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


def encoder(width: int, heads: int, inner: int, length: int) -> Built:
    return Encoder(width, heads, inner), (torch.randn(1, length, width),)


class Decoder(nn.Module):
    """A decoder block in the manner of Llama: rotary positions, `shared` heads of keys and values, a gated MLP. With
    `past` it decodes one token and returns the longer keys and values."""

    def __init__(self, width: int, heads: int, shared: int, inner: int, length: int) -> None:
        super().__init__()
        self.heads, self.shared, self.depth = heads, shared, width // heads
        narrow = shared * self.depth

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        self.query, self.key, self.value = linear(width, width), linear(width, narrow), linear(width, narrow)
        self.out, self.gate, self.up = linear(width, width), linear(width, inner), linear(width, inner)
        self.down = linear(inner, width)
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.register_buffer("mask", torch.triu(torch.full((length, length), -1e9), 1))

    def rotate(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        low, high = x[..., : self.depth // 2], x[..., self.depth // 2 :]
        return x * cosine + torch.cat((-high, low), -1) * sine

    def forward(
        self, x: Tensor, cosine: Tensor, sine: Tensor, keys: Tensor | None = None, values: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        batch, length, width = x.shape

        def split(t: Tensor, heads: int) -> Tensor:
            return t.view(batch, length, heads, self.depth).transpose(1, 2)

        normed = self.norm1(x)
        q, k = split(self.query(normed), self.heads), split(self.key(normed), self.shared)
        v = split(self.value(normed), self.shared)
        q, k = self.rotate(q, cosine, sine), self.rotate(k, cosine, sine)
        if keys is not None and values is not None:
            k, v = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        span, group = k.shape[2], self.heads // self.shared

        def repeat(t: Tensor) -> Tensor:
            wide = t[:, :, None].expand(batch, self.shared, group, span, self.depth)
            return wide.reshape(batch, self.heads, span, self.depth)

        scores = torch.matmul(q, repeat(k).transpose(-1, -2)) * self.depth**-0.5
        if keys is None:
            scores = scores + self.mask
        attended = torch.matmul(torch.softmax(scores, -1), repeat(v)).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(attended)
        normed = self.norm2(x)
        x = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return x if keys is None else (x, k, v)


def rotary(positions: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary position embedding, [positions, depth]."""
    angles = torch.outer(positions.float(), 1e4 ** (-torch.arange(0, depth, 2).float() / depth))
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def prefill(width: int, heads: int, shared: int, inner: int, length: int) -> Built:
    module = Decoder(width, heads, shared, inner, length)
    return module, (torch.randn(1, length, width), *rotary(torch.arange(length), width // heads))


def decode(width: int, heads: int, shared: int, inner: int, past: int) -> Built:
    module, depth = Decoder(width, heads, shared, inner, past + 1), width // heads
    cache = torch.randn(1, shared, past, depth), torch.randn(1, shared, past, depth)
    return module, (torch.randn(1, 1, width), *rotary(torch.tensor([past]), depth), *cache)


# -- h: convolutions, recommendation -----------------------------------------------------------------------------------
def trained(module: nn.Module) -> nn.Module:
    """Batch norms with statistics that are not those of a fresh module."""
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            nn.init.uniform_(each.weight, 0.5, 1.5)
            nn.init.normal_(each.bias, 0, 0.2)
            nn.init.normal_(each.running_mean, 0, 0.2)
            nn.init.uniform_(each.running_var, 0.5, 1.5)
    return module


def convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)]


class BasicBlock(nn.Module):
    """The block of ResNet-18 and -34."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        body = [*convolution(channels, channels), nn.ReLU(), *convolution(channels, channels)]
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + x)


def resnet_block(channels: int, side: int) -> Built:
    return trained(BasicBlock(channels)), (torch.randn(1, channels, side, side),)


class ConvNet(nn.Module):
    """Six convolutions, a mean over what is left of the image, and a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers, channels = [], 3
        for factor, stride in ((1, 1), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1)):
            layers += [*convolution(channels, factor * width, stride), nn.ReLU()]
            channels = factor * width
        self.features, self.head = nn.Sequential(*layers), nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


def convnet6(batch: int, side: int, width: int) -> Built:
    return trained(ConvNet(width)), (torch.randn(batch, 3, side, side),)


class DLRM(nn.Module):
    """Embeddings, an MLP of the dense features, their pairwise products, and an MLP on top."""

    def __init__(self, tables: int, rows: int, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(tables)])
        vectors = tables + 1
        self.bottom = self.mlp(13, 512, 256, width)
        top = self.mlp(width + vectors * (vectors - 1) // 2, 512, 256)
        self.top = nn.Sequential(top, nn.Linear(256, 1))
        i, j = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("pairs", i * vectors + j)

    @staticmethod
    def mlp(*widths: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, dense: Tensor, words: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom] + [table(words[:, i]) for i, table in enumerate(self.tables)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.top(torch.cat((bottom, products.index_select(1, self.pairs)), 1)))


def dlrm(batch: int, tables: int, rows: int) -> Built:
    return DLRM(tables, rows), (torch.randn(batch, 13), torch.randint(0, rows, (batch, tables)))


# -- i: an optimizer ---------------------------------------------------------------------------------------------------
def adamw(n: int) -> Built:
    """The tenth step, as a function: parameters and both moments are returned."""
    rate, beta1, beta2, epsilon, decay, step = 1e-3, 0.9, 0.999, 1e-8, 0.01, 10

    def update(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m = m * beta1 + g * (1 - beta1)
        v = v * beta2 + g * g * (1 - beta2)
        root = torch.sqrt(v) / math.sqrt(1 - beta2**step) + epsilon
        return p * (1 - rate * decay) - (rate / (1 - beta1**step)) * m / root, m, v

    return Function(update), (torch.randn(n), torch.randn(n), torch.randn(n), torch.randn(n).abs())


# -- j: a whole model --------------------------------------------------------------------------------------------------
class Bert(nn.Module):
    """The last hidden state of a BERT encoder of the package `transformers`, with weights drawn at random."""

    def __init__(self, layers: int, width: int, heads: int, words: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            vocab_size=words,
            attn_implementation="eager",
        )
        self.model = BertModel(config, add_pooling_layer=False)

    def forward(self, words: Tensor) -> Tensor:
        return self.model(input_ids=words).last_hidden_state


def bert(layers: int, width: int, heads: int, words: int, length: int) -> Built:
    return Bert(layers, width, heads, words), (torch.randint(0, words, (1, length)),)
