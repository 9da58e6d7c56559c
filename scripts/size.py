"""Print the size of the project: `python scripts/size.py [CHECKOUT]`."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SMALL_LINES = 40  # below it a file rarely holds a whole thought (style of the project)


def main(root: Path) -> None:
    """Print one row per measure."""
    package = root / "src" / "stepscope"
    texts = {path: path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    rows = {
        "files": len(texts),
        "lines": sum(len(text.splitlines()) for text in texts.values()),
        f"files below {SMALL_LINES} lines": sum(is_small(path, text) for path, text in texts.items()),
        "top-level packages": len(list(package.glob("*/__init__.py"))),
        "class names in several files": len(repeated_classes(trees)),
        "numeric constants": sum(1 for _ in constants(texts)),
        "of them without a reason": sum("#" not in line for line in constants(texts)),
        "words of documentation, without the reference": words(root / "docs"),
    }
    for name, value in rows.items():
        print(f"{value:>8,}  {name}")


def is_small(path: Path, text: str) -> bool:
    """Whether a file, unless it is a package's own, has too few lines."""
    return path.name != "__init__.py" and len(text.splitlines()) < SMALL_LINES


def repeated_classes(trees: dict[Path, ast.Module]) -> set[str]:
    """Names of classes that several files define."""
    homes: dict[str, set[Path]] = defaultdict(set)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(path)
    return {name for name, paths in homes.items() if len(paths) > 1}


def constants(texts: dict[Path, str]) -> Iterator[str]:
    """Lines that name a number other than 0 and 1 at the top of a module."""
    named = re.compile(r"^_?[A-Z][A-Z0-9_]* *(?:: *[\w\[\]., ]+)?= *\(?-?[\d.]")
    for text in texts.values():
        for line in text.splitlines():
            if named.match(line) and not re.search(r"= *-?[01](?:\.0)?$", line):
                yield line


def words(docs: Path) -> int:
    """Words of all pages outside of the reference."""
    pages = [page for page in docs.rglob("*.md") if "reference" not in page.relative_to(docs).parts]
    return sum(len(page.read_text("utf-8").split()) for page in pages)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1])
