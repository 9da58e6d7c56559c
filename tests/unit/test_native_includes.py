"""C++ that compiles only where one standard header happens to include another does not compile
everywhere: each file includes what it uses, itself or through the headers of this project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stepscope

PACKAGE = Path(stepscope.__file__).parent
FILES = sorted([*PACKAGE.rglob("*.cpp"), *PACKAGE.rglob("*.h")])
USES = {
    "algorithm": r"std::(sort|stable_sort|min|max|(lower|upper)_bound|find|reverse|fill|copy"
    r"|any_of|all_of|count|max_element|min_element)\b",
    "array": r"std::array\b",
    "atomic": r"std::atomic\b",
    "cerrno": r"\berrno\b",
    "chrono": r"std::chrono\b",
    "condition_variable": r"std::condition_variable\b",
    "cstdint": r"\bu?int(8|16|32|64|ptr)_t\b",
    "cstring": r"\bmem(cpy|set|cmp|move)\b|\bstr(len|cmp|ncmp|chr|rchr|str)\b",
    "functional": r"std::function\b",
    "limits": r"std::numeric_limits\b",
    "map": r"std::map\b",
    "memory": r"std::(unique_ptr|shared_ptr|make_unique)\b",
    "mutex": r"std::(mutex|lock_guard|unique_lock)\b",
    "optional": r"std::optional\b",
    "string": r"std::string\b",
    "string_view": r"std::string_view\b",
    "thread": r"std::thread\b",
    "tuple": r"std::tuple\b",
    "unordered_map": r"std::unordered_map\b",
    "unordered_set": r"std::unordered_set\b",
    "utility": r"std::(move|pair|swap|exchange)\b",
    "vector": r"std::vector\b",
}
IN_PYTHON = {"cerrno", "cstring"}  # <Python.h> is documented to include them


def included(file: Path, seen: set[Path]) -> set[str]:
    """The standard headers that a file includes, itself or through headers of this project."""
    if file in seen or not file.exists():
        return set()
    seen.add(file)
    text = file.read_text()
    found = set(re.findall(r"#include <([^>]+)>", text))
    for name in re.findall(r'#include "([^"]+)"', text):
        found |= included(file.parent / name, seen) | included(PACKAGE / "compiled" / name, seen)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_native_file_includes_what_it_uses(file: Path) -> None:
    headers = included(file, set())
    headers |= IN_PYTHON if "Python.h" in headers else set()
    code = re.sub(r"//.*", "", file.read_text())
    assert {name for name, use in USES.items() if re.search(use, code)} <= headers
