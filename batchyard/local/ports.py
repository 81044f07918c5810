"""Listening sockets of the local stack, bound before anything else starts."""

import socket

from batchyard.errors import BatchyardError


def listen(host: str, port: int, option: str) -> socket.socket:
    """A bound socket (port 0: a free one); BatchyardError names the option that gives another port."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        # Connections wait in the backlog until the API accepts them; nobody else can take the port any more.
        bound.listen(1024)
    except OSError as error:
        bound.close()
        raise BatchyardError(
            f"port {port} on {host} cannot be used: {error.strerror}; give another with {option} (0 = any that is free)"
        ) from error
    return bound


def address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{host}:{port}"
