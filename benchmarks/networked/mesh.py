"""Connections from each worker to each other, each with a queue of what is to be sent."""

from __future__ import annotations

import heapq
import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor, distributed

_HEADER = struct.Struct("<BII")
# What lies in a connection's buffer can no longer be overtaken.
_SEND_BUFFER = 256 << 10

Receive = Callable[[int, int, Tensor], None]
Room = Callable[[int, int, int], Tensor]


@dataclass(frozen=True)
class Message:
    """Values to send.

    Attributes:
        number: of the slice; the smallest goes first.
        kind: any small number.
        worker: the rank to send them to.
        values: float32, flat; they may not change before they are sent.
    """

    number: int
    kind: int
    worker: int
    values: Tensor


class Waiting:
    """Messages that wait, the smallest number first, then in the order in which they came."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Message]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, message: Message) -> None:
        """Add a message."""
        with self._changed:
            heapq.heappush(self._heap, (message.number, next(self._order), message))
            self._changed.notify()

    def get(self) -> Message | None:
        """Remove the first message, once there is one; None after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._heap or self._closed)
            return None if self._closed else heapq.heappop(self._heap)[-1]

    def close(self) -> None:
        """End all waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Mesh:
    """TCP connections between all workers of the process group.

    For each other worker a thread sends what waits, the smallest number first, and a thread
    receives. With one queue for all, a worker whose link is busy would hold up the others: all
    workers push the slices of one server at the same time. Addresses are those of
    `WORKER_ADDRESS`, by default of this machine.
    """

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.failure: BaseException | None = None
        self._connections = _connect(self.rank, self.size)
        self._waiting = {worker: Waiting() for worker in self._connections}

    def start(self, room: Room, receive: Receive) -> None:
        """Begin to send and receive.

        Args:
            room: where to receive values of a kind, number and count.
            receive: gets kind, number and values.
        """
        for worker, connection in self._connections.items():
            self._thread(lambda one=worker: self._send_all(one))
            self._thread(lambda one=connection: self._receive_all(one, room, receive))

    def send(self, message: Message) -> None:
        """Queue a message."""
        self._waiting[message.worker].put(message)

    def close(self) -> None:
        """Close the connections, which ends the threads."""
        for waiting in self._waiting.values():
            waiting.close()
        for connection in self._connections.values():
            with suppress(OSError):  # the other side has closed it
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def raise_failure(self) -> None:
        """Raise what ended a thread early."""
        if self.failure is not None:
            raise self.failure

    def _thread(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except OSError:
                pass  # closed
            except BaseException as error:
                self.failure = error

        threading.Thread(target=run, daemon=True).start()

    def _send_all(self, worker: int) -> None:
        connection = self._connections[worker]
        while (message := self._waiting[worker].get()) is not None:
            header = _HEADER.pack(message.kind, message.number, message.values.numel())
            connection.sendall(header)
            connection.sendall(message.values.numpy())

    def _receive_all(self, connection: socket.socket, room: Room, receive: Receive) -> None:
        header = bytearray(_HEADER.size)
        while _fill(connection, memoryview(header)):
            kind, number, count = _HEADER.unpack(header)
            values = room(kind, number, count)
            _fill(connection, memoryview(values.numpy()).cast("B"))
            receive(kind, number, values)


def _fill(connection: socket.socket, room: memoryview) -> bool:
    """Receive until a buffer is full; False if the other side has closed.

    The system waits for all of it: waking up for each part would take the interpreter's lock.
    """
    while len(room):
        count = connection.recv_into(room, len(room), socket.MSG_WAITALL)
        if not count:
            return False
        room = room[count:]
    return True


def _connect(rank: int, size: int) -> dict[int, socket.socket]:
    """A connection to each other worker: to those of lower rank, from those of higher rank."""
    listener = socket.create_server((os.environ.get("WORKER_ADDRESS", "127.0.0.1"), 0))
    addresses: list[tuple[str, int]] = [("", 0)] * size
    distributed.all_gather_object(addresses, listener.getsockname())
    result = {}
    for other in range(rank):
        result[other] = socket.create_connection(addresses[other])
        result[other].sendall(bytes([rank]))
    for _ in range(rank + 1, size):
        connection, _address = listener.accept()
        result[connection.recv(1)[0]] = connection
    listener.close()
    for connection in result.values():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    return result
