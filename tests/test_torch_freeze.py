"""Parameters and buffers that are compiled in are those of the call, whatever became of them since the compile."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: python -m pip install torch")

from autofusion.frontends.torch import freezing  # noqa: E402
from autofusion.torch import Backend  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
]


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class Block(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, finish: Callable[[Any], Any] = torch.relu) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.finish = finish

    def forward(self, x: Any) -> Any:
        return self.finish(self.linear(x))


FINISHES: dict[str, Callable[[Any], Any]] = {
    "one native call": torch.relu,
    "with a view": lambda y: (y.relu(), y.t()),
    "with PyTorch in between": lambda y: torch.sort(y)[0] + 1,
}


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted)


def inputs_of(backend: Backend) -> list[int]:
    """How many arguments each program reads."""
    return [len(program.launches[0].compiled.graph.inputs) for program in backend.programs]


@pytest.mark.parametrize("finish", FINISHES)
def test_each_instance_has_its_own_weights(finish: str) -> None:
    blocks, x, backend = [Block(FINISHES[finish]).eval() for _ in range(3)], torch.randn(2, 8), Backend(freeze=True)
    steps = [torch.compile(block, backend=backend) for block in blocks]
    for _ in range(2):
        for block, step in zip(blocks, steps, strict=True):
            same(step(x), block(x))
    assert inputs_of(backend) == [1, 1, 1]
    reasons = backend.explain().recompiles
    assert len(reasons) == 2 and all("_parameters['weight'] is another tensor" in reason for reason in reasons)


def test_a_module_is_an_argument_and_blocks_repeat() -> None:
    class Repeated(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, blocks: Any) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(blocks)

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
                torch._dynamo.graph_break()
            return x

    blocks, x = [Block().eval() for _ in range(3)], torch.randn(2, 8)
    call = torch.compile(lambda module, x: module(x), backend=Backend(freeze=True))
    for block in blocks:
        same(call(block, x), block(x))
    whole = Repeated(blocks)
    same(torch.compile(whole, backend=Backend(freeze=True))(x), whole(x))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "another parameter": lambda linear: setattr(linear, "weight", torch.nn.Parameter(torch.randn(8, 8))),
    "written": lambda linear: linear.weight.mul_(2),
    "loaded": lambda linear: linear.load_state_dict(torch.nn.Linear(8, 8).state_dict()),
    "assigned": lambda linear: linear.load_state_dict(torch.nn.Linear(8, 8).state_dict(), assign=True),
    "other data": lambda linear: setattr(linear.weight, "data", torch.randn(8, 8)),
}


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize("change", CHANGES)
def test_changed_parameters_are_seen(change: str, finish: str) -> None:
    block, x, backend = Block(FINISHES[finish]).eval(), torch.randn(2, 8), Backend(freeze=True)
    step = torch.compile(block, backend=backend)
    for _ in range(4):
        for _ in range(2):
            same(step(x), block(x))
        CHANGES[change](block.linear)
    reasons = backend.explain().recompiles
    if change in ("another parameter", "assigned"):
        assert all("is another tensor" in reason or "are gone" in reason for reason in reasons)
    else:
        assert inputs_of(backend)[-1] in (2, 3)  # what was written is an argument from the first time on
        assert len(reasons) == 1 and "written since" in reasons[0] and "['weight']" in reasons[0]


def test_an_optimisers_steps_are_seen() -> None:
    block, x, backend = Block(), torch.randn(2, 8), Backend(freeze=True)
    step = torch.compile(block, backend=backend)
    optimiser = torch.optim.Adam(block.parameters(), lr=0.1)
    for _ in range(3):
        same(step(x), block(x))
        with torch.enable_grad():
            step(x).sum().backward()
        optimiser.step()


def test_batch_norm_keeps_its_statistics() -> None:
    model, x, backend = torch.nn.BatchNorm1d(3), torch.randn(8, 3) * 3 + 1, Backend(freeze=True)
    other = copy.deepcopy(model)
    step = torch.compile(model, backend=backend)
    for training in (False, True, False, True, False):
        model.train(training)
        other.train(training)
        same(step(x), other(x))
    same(list(model.buffers()), list(other.buffers()))
    (reason,) = [each for each in backend.explain().recompiles if "written since" in each]
    assert "running_mean" in reason and "running_var" in reason and "weight" not in reason
    assert inputs_of(backend)[-1] == 3  # the parameters are compiled in as before


def test_buffers_that_another_graph_writes() -> None:
    class Counter(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.seen.add_(1)
            torch._dynamo.graph_break()
            return x + self.seen

    for mode, made in ((torch.no_grad, False), (torch.inference_mode, False), (torch.inference_mode, True)):
        with mode(), torch.inference_mode(made):
            model = Counter()
        with mode():
            step = torch.compile(model, backend=Backend(freeze=True))
            assert [float(step(torch.zeros(1))) for _ in range(4)] == [1, 2, 3, 4]


def test_other_tensors_are_not_frozen() -> None:
    class Held(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.plain = torch.ones(2)

        def forward(self, x: Any) -> Any:
            return x * self.plain

    given, held, backend = torch.ones(2), Held(), Backend(freeze=True)
    torch._dynamo.mark_static_address(given)
    torch.compile(lambda x, y: x * y, backend=backend)(torch.ones(2), given)
    torch.compile(held, backend=backend)(torch.ones(2))
    assert inputs_of(backend) == [2, 2]


def test_parameters_made_in_inference_mode() -> None:
    """Their writes are not counted; another tensor is seen."""
    with torch.inference_mode():
        first, second, x, backend = Block().eval(), Block().eval(), torch.randn(2, 8), Backend(freeze=True)
        steps = [torch.compile(block, backend=backend) for block in (first, second)]
        for _ in range(2):
            same([step(x) for step in steps], [first(x), second(x)])
    assert inputs_of(backend) == [1, 1]


def test_open_sizes() -> None:
    blocks, backend = [Block().eval() for _ in range(2)], Backend(freeze=True)
    steps = [torch.compile(block, backend=backend, dynamic=True) for block in blocks]
    for rows in (3, 5, 9):
        for block, step in zip(blocks, steps, strict=True):
            x = torch.randn(rows, 8)
            same(step(x), block(x))
    blocks[0].linear.bias.add_(1)
    same(steps[0](x), blocks[0](x))
    assert inputs_of(backend)[0] == 1


def test_there_are_only_so_many_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "MOST_SETS", 2)
    blocks, x, backend = [Block().eval() for _ in range(4)], torch.randn(2, 8), Backend(freeze=True)
    call = torch.compile(lambda module, x: module(x), backend=backend)
    for block in blocks * 2:
        same(call(block, x), block(x))
    assert inputs_of(backend) == [1, 1, 3]
    assert "programs for 2 sets are the most" in backend.explain().recompiles[-1]


def test_programs_end_with_their_weights() -> None:
    block, x, backend = Block().eval(), torch.randn(2, 8), Backend(freeze=True)
    call = torch.compile(lambda module, x: module(x), backend=backend)
    same(call(block, x), block(x))
    launch = weakref.ref(backend.programs[0].launches[0])
    del block
    gc.collect()
    assert not backend.programs and launch() is None
    other = Block().eval()
    same(call(other, x), other(x))
    assert inputs_of(backend) == [1]
