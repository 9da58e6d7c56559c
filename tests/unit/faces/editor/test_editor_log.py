"""The language server logs its own faults, and not what editors do wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from pygls.exceptions import JsonRpcInternalError, JsonRpcInvalidRequest

from stepscope.faces.editor.start import log_own_faults


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """pygls's logger, as the server sets it up; as before after the test."""
    parent = logging.getLogger("pygls")
    before = parent.handlers[:], parent.propagate
    log_own_faults()
    yield logging.getLogger("pygls.protocol.json_rpc")
    parent.handlers[:], parent.propagate = before


@pytest.mark.parametrize(
    "fault",
    [
        JsonRpcInvalidRequest("wrong token"),
        ConnectionResetError(),
        RecursionError(),
        json.JSONDecodeError("no value", "", 0),
    ],
)
def test_what_an_editor_does_wrong_is_not_logged(
    logger: logging.Logger, fault: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    log_own_faults()
    try:
        raise fault
    except Exception:
        logger.exception("Exception occurred for message")
    logger.error("%s", fault)
    logger.error("Unable to deserialize message\n%s", "Traceback")
    logger.warning("unknown method")
    assert capsys.readouterr().err == ""


def test_a_handler_that_fails_is_logged_with_its_traceback(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_own_faults()
    try:
        raise KeyError("site")
    except KeyError as error:
        logger.exception("Exception occurred for message")
        logger.error("%s", JsonRpcInternalError.of((KeyError, error, error.__traceback__)))
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "KeyError: 'site'" in shown


def test_a_notification_that_an_editor_got_wrong_is_not_logged(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_own_faults()
    try:
        raise JsonRpcInvalidRequest("no file can have the URI")
    except JsonRpcInvalidRequest as error:
        cause = type(error), error, error.__traceback__
        logger.error("%s", JsonRpcInternalError.of(cause))
    assert capsys.readouterr().err == ""
