"""Every test run compiles into a cache folder of its own, and puts nothing into the user's. Defects are raised, not
survived."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`AUTOFUSION_CACHE_DIR` is a new folder for the session, `AUTOFUSION_RAISE` is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFUSION_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("AUTOFUSION_RAISE", "1")
        yield


@pytest.fixture
def fresh() -> Iterator[None]:
    """No code that PyTorch compiled for an earlier test, and the same random numbers."""
    torch = pytest.importorskip("torch", reason="the frontend is PyTorch's; extra `torch`")
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
