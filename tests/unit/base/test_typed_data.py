"""Data of declared types in several threads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import stepscope
from stepscope.base.typed_data import convert, decode

_SOURCE = Path(stepscope.__file__).parent

# Structs that nobody has used yet, which four threads then use at once, again and again.
_AT_ONCE = """
import sys
from threading import Barrier, Thread
from types import ModuleType
from stepscope.base.typed_data import convert, decode

STRUCTS = '''
from __future__ import annotations
import msgspec
class Inner(msgspec.Struct):
    count: int
    name: str | None
class Outer(msgspec.Struct):
    one: Inner
    several: list[Inner]
    named: dict[str, Inner]
'''
inner = {"count": 1, "name": None}
value = {"one": inner, "several": [inner], "named": {"a": inner}}
sys.setswitchinterval(1e-6)

def first_use(number):
    module = sys.modules[f"structs{number}"] = ModuleType(f"structs{number}")
    exec(STRUCTS, module.__dict__)
    start = Barrier(4)
    def use():
        start.wait()
        made.append(convert(value, module.Outer))
        made.append(decode('[{"count": 2, "name": "b"}]', list[module.Inner])[0])
    threads = [Thread(target=use) for _ in range(4)]
    for one in threads: one.start()
    for one in threads: one.join()

made = []
for number in range(400):
    first_use(number)
print(len(made))
"""


class _Pair(msgspec.Struct):
    first: int
    second: str | None = None


def test_plain_values_and_json_become_the_declared_type() -> None:
    assert convert({"first": 1}, _Pair) == _Pair(1)
    assert decode(b'[{"first": 2, "second": "a"}]', list[_Pair]) == [_Pair(2, "a")]
    with pytest.raises(msgspec.ValidationError):
        decode('{"first": "one"}', _Pair)
    with pytest.raises(msgspec.DecodeError, match="nests too deeply"):
        decode(f'{{"first": 1, "other": {"[" * 50_000}{"]" * 50_000}}}', _Pair)


@pytest.mark.main
def test_threads_that_first_use_a_type_at_once_all_get_their_value() -> None:
    """Where two work out the fields of a Struct, msgspec reads a null pointer."""
    done = subprocess.run([sys.executable, "-c", _AT_ONCE], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "3200"), done.stderr


def test_nothing_else_lets_msgspec_work_out_fields_while_threads_run() -> None:
    """Decoders of a module are made when it is imported, by one thread."""
    found = [
        f"{file.relative_to(_SOURCE)}:{call.lineno}"
        for file in sorted(_SOURCE.rglob("*.py"))
        if file.name != "typed_data.py" and "msgspec" in (text := file.read_text())
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and _works_out_fields(call)
    ]
    assert found == []


def _works_out_fields(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    decodes = called.endswith("json.decode") and any(one.arg == "type" for one in call.keywords)
    return called == "msgspec.convert" or called.endswith("Decoder") or decodes
