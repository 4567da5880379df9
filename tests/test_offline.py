"""The suite's own guard: nothing reaches the network, and what stays on this computer may."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_connections_and_look_ups_are_refused_with_a_clear_message() -> None:
    message = "the test suite asked for the network"
    with socket.socket() as plain, pytest.raises(RuntimeError, match=message):
        plain.connect(("192.0.2.1", 80))
    with socket.socket() as plain, pytest.raises(RuntimeError, match=message):
        plain.connect_ex(("example.org", 80))
    with socket.socket(type=socket.SOCK_DGRAM) as plain, pytest.raises(RuntimeError, match=message):
        plain.sendto(b"x", ("192.0.2.1", 53))
    with pytest.raises(RuntimeError, match=message):
        socket.create_connection(("example.org", 80), timeout=1)
    for look_up in (socket.gethostbyname, lambda host: socket.getaddrinfo(host, 80)):
        with pytest.raises(RuntimeError, match=message):
            look_up("example.org")


def test_this_computer_may_be_reached(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=5) as one,
    ):
        assert one.getpeername() == server.getsockname()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))
    assert socket.getaddrinfo("localhost", 80)


def test_importing_every_module_asks_for_nothing() -> None:
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise SystemExit(f'asked for the network: {a}')\n"
        "socket.getaddrinfo = socket.gethostbyname = refuse\n"
        "socket.socket.connect = refuse\n"
        "import importlib, pathlib\n"
        "for f in ('configs', 'datasets', 'models', 'pipelines'):\n"
        "    for p in sorted(pathlib.Path(f).rglob('*.py')):\n"
        "        importlib.import_module('dubsar.' + p.with_suffix('').as_posix().replace('/', '.'))\n"
        "print('done')"
    )
    import os

    environment = {k: v for k, v in os.environ.items() if not k.startswith(("YOLO", "NO_ALB", "HF_"))}
    environment["PYTHONSAFEPATH"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().endswith("done"), done.stdout + done.stderr[-2000:]
