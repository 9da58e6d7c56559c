"""The protocol of pygls, with an answer to every request, also to those that it cannot read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from cattrs import Converter
from lsprotocol.types import EXIT, METHOD_TO_TYPES
from pygls.exceptions import JsonRpcException, JsonRpcInvalidRequest
from pygls.protocol import LanguageServerProtocol, default_converter


@cache
def shared_converter() -> Converter:
    """Between messages and objects: it compiles functions for each type, once for all editors."""
    result: Converter = default_converter()  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True)
class Unreadable:
    """A request whose parameters are not those of its method, or whose id cannot be answered."""

    id: int | str | None
    error: JsonRpcException


class AnsweringProtocol(LanguageServerProtocol):
    """A client that waits for an answer must get one: pygls only logs what it cannot read."""

    def get_message_type(self, method: str) -> type[Any] | None:  # type: ignore[override]
        """The type of a method's messages; pygls keeps 128 editors that have gone in its cache."""
        return METHOD_TO_TYPES.get(method, (None,))[0]

    def get_result_type(self, method: str) -> type[Any] | None:  # type: ignore[override]
        """The type of the answers to a method; without a cache too."""
        return METHOD_TO_TYPES.get(method, (None, None))[1]

    def structure_message(self, data: dict[str, Any]) -> Any:
        """A message as an object; an `Unreadable` for a request that does not fit its method."""
        is_request = {"jsonrpc", "id", "method"} <= data.keys()
        if is_request and not isinstance(data["id"], int | str):  # pygls keeps requests by their id
            message = f"expected a number or text as a request's id, found {data['id']!r}"
            return Unreadable(None, JsonRpcInvalidRequest(message))
        try:
            return super().structure_message(data)
        except JsonRpcException as error:
            if is_request:
                return Unreadable(data["id"], error)
            raise

    def handle_message(self, message: Any) -> None:
        refusal = self._refusal(message)
        if refusal is None:
            super().handle_message(message)
        else:
            # By hand: pygls leaves out an id that is null.
            error = refusal.to_response_error()
            self._send_data({"jsonrpc": self.VERSION, "id": message.id, "error": error})

    def abandon_requests(self) -> None:
        """The client has gone: what waits for its answers ends."""
        for identifier in self._result_types.keys() & self._request_futures.keys():
            self._request_futures.pop(identifier).cancel()
        self._result_types.clear()

    def _refusal(self, message: Any) -> JsonRpcException | None:
        if isinstance(message, Unreadable):
            return message.error
        is_request = hasattr(message, "method") and hasattr(message, "id")
        if self._shutdown and is_request and message.method != EXIT:
            return JsonRpcInvalidRequest("the server is shutting down")
        return None
