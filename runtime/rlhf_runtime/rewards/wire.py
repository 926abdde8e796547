"""What a maker and a reward function's process say to each other: JSON with its length before it, on one socket."""

import json
import socket
import struct
import time
from typing import Any

#: Longest message, bytes: a sanity limit on what a broken process may make the other end hold.
MAX_MESSAGE = 1 << 30

_LENGTH = struct.Struct(">Q")


def send(connection: socket.socket, message: dict[str, Any], deadline: float | None = None) -> None:
    """Send one message. Raises TimeoutError after ``deadline`` (time.monotonic), OSError if the other end is gone."""
    content = json.dumps(message).encode()
    connection.settimeout(_left(deadline))
    connection.sendall(_LENGTH.pack(len(content)) + content)


def receive(connection: socket.socket, deadline: float | None = None) -> dict[str, Any]:
    """Receive one message. Raises TimeoutError after ``deadline``, EOFError if the other end is gone."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, deadline))
    if length > MAX_MESSAGE:
        raise EOFError(f"a message of {length} bytes, expected at most {MAX_MESSAGE}")
    message = json.loads(_exactly(connection, length, deadline))
    if not isinstance(message, dict):
        raise EOFError(f"a message that is {type(message).__name__}, expected an object")
    return message


def _exactly(connection: socket.socket, length: int, deadline: float | None) -> bytes:
    content = bytearray()
    while len(content) < length:
        connection.settimeout(_left(deadline))
        try:
            part = connection.recv(min(length - len(content), 1 << 20))
        except ConnectionError as error:
            raise EOFError(str(error)) from error
        if not part:
            raise EOFError("the other end closed the connection")
        content += part
    return bytes(content)


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
