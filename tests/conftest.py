"""What every test runs under: no network, no writing outside temporary folders, one thread, and markers that skip."""

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

_CACHE = Path(tempfile.gettempdir()) / f"dubsar-tests-{os.getuid()}"
_CACHE.mkdir(exist_ok=True)
os.environ["XDG_CACHE_HOME"] = str(_CACHE)
os.environ["YOLO_CONFIG_DIR"] = str(_CACHE / "ultralytics")
os.environ["MPLCONFIGDIR"] = str(_CACHE / "matplotlib")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = str(_CACHE / "huggingface")
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"

import pytest  # noqa: E402

_LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")


class NetworkError(RuntimeError):
    """A test asked for the network: dubsar works offline."""


def _guard(address: Any) -> None:
    host = address[0] if isinstance(address, tuple) else address
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if isinstance(host, str) and host and not host.startswith(_LOOPBACK):
        raise NetworkError(f"the test suite asked for the network ({address!r}); nothing in dubsar may do so unasked")


class _GuardedSocket(socket.socket):
    def connect(self, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            _guard(address)
        super().connect(address)

    def connect_ex(self, address: Any) -> int:
        if self.family != socket.AF_UNIX:
            _guard(address)
        return super().connect_ex(address)

    def sendto(self, data: Any, *rest: Any) -> int:
        if self.family != socket.AF_UNIX:
            _guard(rest[-1])
        return super().sendto(data, *rest)


def _guarded_look_up(name: str) -> Any:
    real = getattr(socket, name)

    def look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        _guard(host)
        return real(host, *args, **kwargs)

    return look_up


# from the first import of a test module on: libraries that look up a name when they are imported are caught as well
socket.socket = _GuardedSocket  # type: ignore[misc]
for _name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):
    setattr(socket, _name, _guarded_look_up(_name))


def _data_root() -> Path:
    return Path(os.environ.get("DUBSAR_DATA") or "../shared/data")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what needs data or a device that is not here."""
    if not _data_root().is_dir():
        for item in items:
            if item.get_closest_marker("data"):
                item.add_marker(pytest.mark.skip(reason="the shared data folder is not here (DUBSAR_DATA)"))
    wants_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if wants_gpu:
        import torch

        if not torch.cuda.is_available():
            for item in wants_gpu:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The shared data folder."""
    root = _data_root()
    if not root.is_dir():
        pytest.skip("the shared data folder is not here (DUBSAR_DATA)")
    return root.resolve()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _one_thread(request: pytest.FixtureRequest) -> None:
    import sys

    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
