"""A real Azurite, Microsoft's emulator of Azure Blob Storage, from npm into the cache of what tests download."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = "3.37.0"
#: The account that every Azurite has, and its published key.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def azurite() -> Iterator[str]:
    """The connection string of a server that runs for as long."""
    cache = Path(os.environ.get("RLHF_CACHE") or Path.home() / ".cache" / "rlhfjob") / f"azurite-{VERSION}"
    command = cache / "node_modules" / ".bin" / "azurite-blob"
    if not command.exists():
        install = ["npm", "install", "--silent", "--no-audit", "--prefix", str(cache), f"azurite@{VERSION}"]
        subprocess.run(install, check=True, timeout=240)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    server = subprocess.Popen([str(command), *options, "--blobPort", str(port)], stdout=subprocess.DEVNULL)
    try:
        _wait_for(port, server)
        yield (
            f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/{_ACCOUNT};"
        )
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Azurite does not listen (exit code {server.poll()})") from None
            time.sleep(0.1)
