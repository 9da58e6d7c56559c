"""Find the number that sets the batch size, or the places it may be."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.errors import AmbiguousBatchSize, BatchError
from stepscope.predict.evidence import group_sites
from stepscope.predict.facts import PROVIDERS
from stepscope.predict.site import Site


def find_sites(text: str, path: str, arguments: Sequence[str] = ()) -> list[Site]:
    """Every place that may set the batch size of a training script, likely ones first.

    Args:
        text: the script, as an editor has it (without byte order mark).
        path: where it lies.
        arguments: its command line, which may name settings files.

    Returns:
        The places; the first ones share the best evidence.

    Raises:
        BatchError: the script does not parse.
    """
    return [site for group in group_sites(text, path, arguments) for site in group]


def find_site(
    text: str, path: str, arguments: Sequence[str] = (), choice: str | None = None
) -> Site:
    """The one place that sets the batch size.

    Args:
        text: the script.
        path: where it lies.
        arguments: its command line.
        choice: which one, where there are several: `LINE`, `FILE:LINE` or a name.

    Returns:
        The place.

    Raises:
        AmbiguousBatchSize: there are several; it holds them all, and nothing was changed.
        BatchError: there is none, or the choice fits none.

    Example:
        >>> find_site("BATCH_SIZE = 32\\n", "train.py").value
        32
    """
    groups = group_sites(text, path, arguments)
    if choice is not None:
        return _chosen([site for group in groups for site in group], choice, path)
    for group in groups:
        if len(group) == 1:
            return group[0]
        if group:
            raise _ambiguous(group, path)
    raise BatchError(
        f"expected a batch size in {path} (a DataLoader argument, a command line option, a "
        "keyword default, a dataclass or YAML field, or an input provider's batch_size=), found "
        "none; write one, or add the three stepscope_ provider functions",
        path,
    )


def has_providers(text: str) -> bool:
    """Whether a file seems to have provider functions; told without parsing it.

    Example:
        >>> has_providers("def stepscope_input_provider(batch_size=32): ...")
        True
    """
    return any(f"def {name}(" in text for name in PROVIDERS)


def _chosen(sites: list[Site], choice: str, path: str) -> Site:
    fitting = [site for site in sites if choice in (str(site.line), site.name, site.where)]
    fitting = fitting or [site for site in sites if site.where.endswith(f"/{choice}")]
    if len(fitting) == 1:
        return fitting[0]
    raise AmbiguousBatchSize(
        f"expected {choice!r} to name one batch size in {path}, found {_listed(fitting or sites)}; "
        "name one by FILE:LINE",
        fitting or sites,
    )


def _ambiguous(sites: list[Site], path: str) -> AmbiguousBatchSize:
    return AmbiguousBatchSize(
        f"expected one batch size in {path}, found {_listed(sites)}; choose with --site LINE",
        sites,
    )


def _listed(sites: Sequence[Site]) -> str:
    return f"{len(sites)} ({'; '.join(site.sentence for site in sites)})" if sites else "none"
