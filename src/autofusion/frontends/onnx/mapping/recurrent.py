"""RNN, GRU and LSTM: unrolled over a sequence of known length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autofusion.errors import GraphError
from autofusion.frontends.onnx.call import Call, maps
from autofusion.frontends.onnx.values import Unmapped

_ACTIVATIONS = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu", "softsign": "softsign", "softplus": "softplus"}


class Layer:
    """One direction of one node: its weights, its activations, its initial state."""

    def __init__(self, n: Call, direction: int, gates: int, activations: Sequence[str]) -> None:
        self.n, self.gates, self.activations = n, gates, activations
        self.size = n.attr("hidden_size") or int(n.static(2)[-1])
        self.w, self.r = (self._transposed(self._part(i, direction)) for i in (1, 2))
        self.bias = self._part(3, direction) if n.has(3) else None

    def _part(self, position: int, direction: int) -> Any:
        """An operand's slice for the direction, without that axis."""
        n = self.n
        return n.reshape(n.cut(n[position], 0, direction, direction + 1), n.shape(position)[1:])

    def _transposed(self, value: Any) -> Any:
        return self.n.F.transpose(value, axes=(1, 0))

    def columns(self, value: Any, number: int) -> Any:
        """The part of a gate along the last axis."""
        return self.n.cut(value, -1, number * self.size, (number + 1) * self.size)

    def biases(self, recurrent: bool) -> Any | None:
        if self.bias is None:
            return None
        width = self.gates * self.size
        return self.n.cut(self.bias, 0, width * recurrent, width * (recurrent + 1))

    def activation(self, number: int) -> Callable[[Any], Any]:
        name = self.activations[number].lower()
        if name not in _ACTIVATIONS:
            raise Unmapped(f"activation {self.activations[number]}")
        return self.n.row(_ACTIVATIONS[name])

    def initial(self, position: int, direction: int, batch: Any) -> Any:
        n = self.n
        if not n.has(position):
            return n.F.full(shape=(batch, self.size), value=0.0, dtype=n.dtype(0))
        state = n.F.transpose(n[position], axes=(1, 0, 2)) if n.attr("layout", 0) else n[position]
        shape = tuple(n.F.type_of(state).shape)
        return n.reshape(n.cut(state, 0, direction, direction + 1), shape[1:])

    def clipped(self, value: Any) -> Any:
        limit = self.n.attr("clip")
        if limit is None:
            return value
        F, n = self.n.F, self.n
        return F.minimum(F.maximum(value, n.scalar(-limit, value)), n.scalar(limit, value))


def _run(n: Call, gates: int, defaults: Sequence[str], states: Sequence[int], step: Any) -> Any:
    """`step(layer, projected, state) -> state`; the first of a state is what the sequence gives."""
    F = n.F
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[
        n.attr("direction", "forward")
    ]
    x = F.transpose(n[0], axes=(1, 0, 2)) if n.attr("layout", 0) else n[0]
    length, batch, width = tuple(F.type_of(x).shape)
    if not isinstance(length, int):
        raise Unmapped(f"a sequence of open length {length}")
    if n.has(4) and (n.known(4) != length).any():
        raise Unmapped("sequences of several lengths")
    if n.attr("activation_alpha") or n.attr("activation_beta"):
        raise Unmapped("activations with parameters")
    given = n.attr("activations") or tuple(defaults) * len(directions)
    per = len(given) // len(directions)
    outputs, lasts = [], []
    for number, backward in enumerate(directions):
        layer = Layer(n, number, gates, given[number * per : (number + 1) * per])
        state = [layer.initial(position, number, batch) for position in states]
        # The inputs of all steps in one product.
        projected = F.matmul(n.reshape(x, (-1, width)), layer.w)
        bias = layer.biases(recurrent=False)
        projected = projected if bias is None else F.add(projected, bias)
        projected = n.reshape(projected, (length, batch, gates * layer.size))
        made: list[Any] = [None] * length
        for time in reversed(range(length)) if backward else range(length):
            now = n.reshape(n.cut(projected, 0, time, time + 1), (batch, gates * layer.size))
            state = step(layer, now, state, number)
            made[time] = n.reshape(state[0], (1, 1, batch, layer.size))
        outputs.append(F.concat(*made, axis=0) if length > 1 else made[0])
        lasts.append([n.reshape(each, (1, batch, layer.size)) for each in state])
    joined = F.concat(*outputs, axis=1) if len(outputs) > 1 else outputs[0]
    ends = [F.concat(*each, axis=0) if len(each) > 1 else each[0] for each in zip(*lasts, strict=True)]
    if n.attr("layout", 0):
        joined = F.transpose(joined, axes=(2, 0, 1, 3))
        ends = [F.transpose(each, axes=(1, 0, 2)) for each in ends]
    return [joined, *ends]


def _recurrent(layer: Layer, value: Any) -> Any:
    made = layer.n.F.matmul(value, layer.r)
    bias = layer.biases(recurrent=True)
    return made if bias is None else layer.n.F.add(made, bias)


@maps("RNN")
def rnn(n: Call) -> Any:
    def step(layer: Layer, now: Any, state: list[Any], direction: int) -> list[Any]:
        return [layer.activation(0)(layer.clipped(n.F.add(now, _recurrent(layer, state[0]))))]

    return _run(n, 1, ("Tanh",), (5,), step)


@maps("GRU")
def gru(n: Call) -> Any:
    """Gates z, r, h; `linear_before_reset` says whether the reset gate works on the product or on the state."""
    F = n.F

    def step(layer: Layer, now: Any, state: list[Any], direction: int) -> list[Any]:
        hidden = state[0]
        f, g = layer.activation(0), layer.activation(1)
        product = _recurrent(layer, hidden)
        update = f(layer.clipped(F.add(layer.columns(now, 0), layer.columns(product, 0))))
        reset = f(layer.clipped(F.add(layer.columns(now, 1), layer.columns(product, 1))))
        if n.attr("linear_before_reset", 0):
            inner = F.mul(reset, layer.columns(product, 2))
        else:
            inner = F.matmul(F.mul(reset, hidden), layer.columns(layer.r, 2))
            bias = layer.biases(recurrent=True)
            inner = inner if bias is None else F.add(inner, layer.columns(bias, 2))
        new = g(layer.clipped(F.add(layer.columns(now, 2), inner)))
        return [F.add(F.mul(F.sub(n.scalar(1.0, update), update), new), F.mul(update, hidden))]

    return _run(n, 3, ("Sigmoid", "Tanh"), (5,), step)


@maps("LSTM")
def lstm(n: Call) -> Any:
    """Gates i, o, f, c, with peepholes where given."""
    F = n.F
    if n.attr("input_forget", 0):
        raise GraphError("coupled input and forget gates are not supported")

    def step(layer: Layer, now: Any, state: list[Any], direction: int) -> list[Any]:
        hidden, cell = state
        f, g, h = (layer.activation(i) for i in range(3))
        gates = F.add(now, _recurrent(layer, hidden))
        i, o, forget, c = (layer.columns(gates, k) for k in range(4))
        if n.has(7):
            peep = layer._part(7, direction)
            i = F.add(i, F.mul(layer.columns(peep, 0), cell))
            forget = F.add(forget, F.mul(layer.columns(peep, 2), cell))
        i, forget, c = f(layer.clipped(i)), f(layer.clipped(forget)), g(layer.clipped(c))
        cell = F.add(F.mul(forget, cell), F.mul(i, c))
        if n.has(7):
            o = F.add(o, F.mul(layer.columns(peep, 1), cell))
        return [F.mul(f(layer.clipped(o)), h(cell)), cell]

    return _run(n, 4, ("Sigmoid", "Tanh", "Tanh"), (5, 6), step)
