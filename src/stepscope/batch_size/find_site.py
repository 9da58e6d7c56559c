"""Find the number that sets the batch size, or the places it may be."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.batch_size.site import Site, SiteChoice
from stepscope.batch_size.site_evidence import group_sites
from stepscope.batch_size.source_facts import PROVIDERS
from stepscope.batch_size.source_text import ReadText
from stepscope.errors import AmbiguousBatchSize, BatchError


def find_sites(
    text: str,
    path: str,
    arguments: Sequence[str] = (),
    *,
    folder: str | None = None,
    read: ReadText | None = None,
) -> list[Site]:
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
    return [site for group in group_sites(text, path, arguments, folder, read) for site in group]


def find_site(
    text: str,
    path: str,
    arguments: Sequence[str] = (),
    choice: str | SiteChoice | None = None,
    *,
    folder: str | None = None,
    read: ReadText | None = None,
) -> Site:
    """The one place that sets the batch size.

    Args:
        text: the script.
        path: where it lies.
        arguments: its command line.
        choice: which one, if there are several: `LINE`, `FILE:LINE` or a name; or one that was
            chosen among the candidates, which counts while they are the same ones.
        folder: the working folder that relative names refer to.
        read: returns the text of a settings file.

    Returns:
        The place.

    Raises:
        AmbiguousBatchSize: there are several; it holds them all, and nothing was changed.
        BatchError: there is none, or the choice fits none.

    Example:
        >>> find_site("BATCH_SIZE = 32\\n", "train.py").value
        32
    """
    groups = group_sites(text, path, arguments, folder, read)
    if isinstance(choice, str):
        return _chosen([site for group in groups for site in group], choice, path)
    for group in groups:
        chosen = choice.among(group) if choice else None
        if len(group) == 1 or chosen:
            return chosen or group[0]
        if group:
            raise _ambiguous(group, path)
    raise BatchError(
        f"no batch size found in {path} (a DataLoader argument, a command line option, a "
        "keyword default, a dataclass or YAML field, or an input provider's batch_size=); write "
        "one, or add the three stepscope_ provider functions",
        path,
    )


def has_providers(text: str) -> bool:
    """Whether a file seems to have provider functions, without parsing it.

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
        f"{choice!r} does not name one batch size in {path}: {_listed(fitting or sites)}; "
        "name one by FILE:LINE",
        fitting or sites,
    )


def _ambiguous(sites: list[Site], path: str) -> AmbiguousBatchSize:
    return AmbiguousBatchSize(
        f"several batch sizes in {path}: {_listed(sites)}; choose with --site LINE",
        sites,
    )


def _listed(sites: Sequence[Site]) -> str:
    return f"{len(sites)} ({'; '.join(site.sentence for site in sites)})" if sites else "none"
