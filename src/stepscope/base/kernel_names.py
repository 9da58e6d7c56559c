"""Shorten kernel names for display, and read those that C++ compilers mangle.

AMD's tools and cuDNN write some kernels as `_ZN7ck_tile6kentryI…`. The grammar is that of the
Itanium C++ ABI (https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling), as far as names are
shown; a system's demangler may not be trusted with names from files.
"""

import re

COPY_OF_ROCM = r"^__amd_rocclr_(copy|fill)Buffer"  # AMD's runtime copies and fills with kernels
_NAMESPACES = (
    r"at|native|c10|std|cuda|detail|internal|cutlass|cutlass_cudnn\w*|cub|thrust|ck|ck_tile"
    "|tensor_operation|device|kernel"
)
_OPERATOR = re.compile(r"^\w+::\w+$")
_NOISE = re.compile(rf"\(anonymous namespace\)::|\b({_NAMESPACES})::|^void ")


def short_kernel(name: str, width: int = 60) -> str:
    """Shorten a kernel's name: no return type, namespaces, parameters or nested template arguments.

    A name that is still too long loses its end; an operator's name loses its middle, because its
    end distinguishes backward operators.

    Example:
        >>> short_kernel("void at::native::reduce_kernel<512, at::native::ReduceOp<float>>(float)")
        'reduce_kernel<512, ReduceOp<>>'
    """
    text = _NOISE.sub("", without_parameters(readable(name)))
    text = _shallow(text)
    if len(text) <= width:
        return text
    kept = width // 3 if _OPERATOR.match(text) else 0
    return f"{text[: width - 1 - kept]}…{text[len(text) - kept :]}"


def _shallow(text: str) -> str:
    """Drop template arguments nested in template arguments."""
    out: list[str] = []
    depth = 0
    for char in text:
        depth -= char == ">"
        if depth < 2:
            out.append(char)
        depth += char == "<"
    return "".join(out)


def without_parameters(name: str) -> str:
    """A C++ name without its trailing parameter list.

    Example:
        >>> without_parameters("void fill<(anonymous namespace)::F>(float*, int)")
        'void fill<(anonymous namespace)::F>'
    """
    depth = 0
    for index in range(len(name) - 1, 0, -1) if name.endswith(")") else ():
        depth += (name[index] == ")") - (name[index] == "(")
        if depth == 0:
            return name[:index] if name[index - 1] not in " :" else name
    return name


_DEEPEST = 40  # levels of templates: Python's recursion limit is 1000 calls
_BUILTIN = (
    "v void, w wchar_t, b bool, c char, a signed char, h unsigned char, s short, t unsigned short, i int, "
    "j unsigned, l long, m unsigned long, x long long, y unsigned long long, f float, d double, "
    "e long double, Dh half, Di char32_t, DF16_ half, DF16b bfloat16, Dn nullptr_t, Da auto"
)
_TYPES = dict(pair.split(" ", 1) for pair in _BUILTIN.split(", "))
_TYPE = re.compile(r"(?:Dp|[PROKVr])*(DF16[_b]|D[hina]|[a-z])")
_MODIFIERS = re.compile(r"(?:Dp|[PROKVr])*")
_SUBSTITUTE = re.compile(r"S[tabsiod]|[ST][0-9A-Z]*_")
_LENGTH = re.compile(r"\d+")
_VALUE = re.compile(r"(n?)(\d+)E")


def readable(name: str) -> str:
    """The name of a template or function in a mangled name; other names stay as they are.

    Without parameters and return types. A type that the name repeats by number is `…`.

    Example:
        >>> readable("_ZN7ck_tile6kentryILi1ENS_3FwdIfEEEEvT_")
        'ck_tile::kentry<1, Fwd<float>>'
        >>> readable("aten::mm")
        'aten::mm'
    """
    if not name.startswith("_Z"):
        return name
    try:
        return _Reader(name).name(0)
    except (ValueError, IndexError):
        return name


class _Reader:
    """Reads a mangled name once, from left to right; `ValueError` at what it does not know."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 2

    def name(self, depth: int) -> str:
        """A nested name (`N…E`) or a plain one, with template arguments."""
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        if not self._skip("N"):
            return self._part(depth)
        self._match(_MODIFIERS)
        parts = []
        while not self._skip("E"):
            parts.append(self._part(depth))
        return "::".join(part for part in parts if part.strip("…"))

    def _part(self, depth: int) -> str:
        if self.text[self.at] in "ST":
            start = self._match(_SUBSTITUTE)[0]
            text = "std" if start == "St" else "…"
            if start == "St" and self.text[self.at].isdigit():
                text += "::" + self._identifier()
        else:
            text = self._identifier()
        return text + self._arguments(depth) if self._skip("I") else text

    def _identifier(self) -> str:
        length = int(self._match(_LENGTH)[0])
        start, self.at = self.at, self.at + length
        text = self.text[start : self.at]
        if not 0 < length == len(text):
            raise ValueError("cut off")
        return "" if text.startswith("_GLOBAL__N") else text

    def _arguments(self, depth: int) -> str:
        """Template arguments up to their `E`."""
        listed = []
        while not self._skip("E"):
            listed.append(self._argument(depth + 1))
        return f"<{', '.join(listed)}>"

    def _argument(self, depth: int) -> str:
        if self._skip("J"):
            return self._arguments(depth)[1:-1]
        if self._skip("L"):
            kind = self._type(depth)
            negative, digits = self._match(_VALUE).groups()
            if kind == "bool":
                return "true" if negative or digits != "0" else "false"
            return "-" * bool(negative) + digits
        return self._type(depth)

    def _type(self, depth: int) -> str:
        if match := _TYPE.match(self.text, self.at):
            self.at = match.end()
            return _TYPES.get(match[1], "…")
        self._match(_MODIFIERS)
        return self.name(depth)

    def _skip(self, char: str) -> bool:
        is_there = self.text[self.at] == char
        self.at += is_there
        return is_there

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self.text, self.at)
        if not match:
            raise ValueError(f"unknown at {self.at}")
        self.at = match.end()
        return match
