"""Find the number that sets the batch size, or the places it may be, by what speaks for each.

First the provider functions; then what the training loaders are given, followed back to where it
is written; then whatever is named like a batch size. Numbers for evaluation are recognized
by the names of loaders, data sets and variables.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stepscope.errors import AmbiguousBatchSize, BatchError
from stepscope.models.batch_size.resolve_number import (
    NumberOrigin,
    Resolver,
    is_batch_size,
    is_evaluation,
    is_training,
    words,
)
from stepscope.models.batch_size.site import Site, SiteChoice
from stepscope.models.batch_size.source_facts import (
    PROVIDERS,
    Definition,
    SourceCall,
    SourceFacts,
    keyword,
    last_name,
    positional,
    read_facts,
    written_number,
)
from stepscope.models.batch_size.source_files import ReadText, find_settings, read_text, settings_files

_LISTED = 20  # candidates in a message


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
        choice: which one, if there are several: `LINE`, `FILE:LINE` or a name; or one that was
            chosen among the candidates, which counts while they are the same ones.

    Raises:
        AmbiguousBatchSize: there are several; it holds them all, and nothing was changed.
        BatchError: there is none, or the choice fits none.
    """
    groups = _group_sites(text, path, arguments, folder, read)
    if isinstance(choice, str):
        return _chosen([site for group in groups for site in group], choice, path)
    for group in groups:
        chosen = choice.among(group) if choice else None
        if len(group) == 1 or chosen:
            return chosen or group[0]
        if group:
            several = f"several batch sizes in {path}: {_listed(group)}"
            raise AmbiguousBatchSize(f"{several}; choose with --site LINE", group)
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


def _listed(sites: Sequence[Site]) -> str:
    if not sites:
        return "none"
    more = f"; and {len(sites) - _LISTED} more" if len(sites) > _LISTED else ""
    return f"{len(sites)} ({'; '.join(site.sentence for site in sites[:_LISTED])}{more})"


def _group_sites(
    text: str, path: str, arguments: Sequence[str], folder: str | None, read: ReadText | None
) -> list[list[Site]]:
    """Groups of candidate sites: best evidence first, sites for evaluation last."""
    facts = read_facts(text, path)
    files = settings_files(path, arguments, facts.strings, folder)
    settings = [site for file in files for site in _settings_in(file, read or read_text)]
    try:
        return _Finder(facts, path, settings).groups()
    except RecursionError as error:
        raise BatchError(
            f"{path} passes its batch size through too many calls or places to follow", path
        ) from error


class _Finder:
    def __init__(self, facts: SourceFacts, path: str, settings: list[Site]) -> None:
        self.facts = facts
        self.path = path
        self.settings = settings
        self.resolver = Resolver(facts)

    def groups(self) -> list[list[Site]]:
        """Places by strength of evidence; evaluation comes last."""
        loaded, sure = self._loaded()
        # Settings whose key the script reads and does not define, and other ones.
        read = [site for site in self.settings if site.name.rpartition(".")[2] in self.resolver.missing]
        named = [*(site for site in self.settings if site not in read), *self._named()]
        groups = [self._provider_group(), sure]
        for group in (loaded, read, named):  # those that say by their name that they are for training first
            groups += [[site for site in group if is_training(site.name)], group]
        # First those whose name is not of the most that a batch may have, as `MAX_GPU_BATCH_SIZE`.
        sizes = ([site for site in group if "max" not in words(site.name)] for group in groups)
        surest = [part for parts in zip(sizes, groups, strict=True) for part in parts]
        training = [[site for site in group if site.role == "train"] for group in surest]
        return _each_once([*training, [site for group in groups for site in group if site.role != "train"]])

    def _batch_sizes(self, kind: str) -> Iterator[Definition]:
        """Definitions of a kind with the very name `batch_size`."""
        return (size for size in self.facts.definitions if (size.kind, size.name) == (kind, "batch_size"))

    def _provider_group(self) -> list[Site]:
        sizes = [*self._batch_sizes("provider")]
        for provider in PROVIDERS:
            for size in sizes:
                if size.scope[-1] == provider and written_number(size.value) is not None:
                    return [self._site(NumberOrigin(size.value, size)).at(provider=provider)]
        return []

    def _loaded(self) -> tuple[list[Site], list[Site]]:
        """What loaders are given, and of that what goes to loaders that are surely training's."""
        sites, sure = [], []
        for call in self.facts.loaders:
            at = self._given(call)
            if at is None or at.value is None:
                continue
            role = _role_of_loader(call, at.holder)
            for origin in self.resolver.follow(at.value, at):
                site = self._site(origin)
                evaluates = role == "evaluate" or is_evaluation(origin.definition.name)
                sites.append(site.at(role="evaluate" if evaluates else site.role))
                sure += [sites[-1]] if role == "train" and not evaluates else []
        return _of_best_role(sites), _of_best_role(sure)

    def _given(self, call: SourceCall) -> Definition | None:
        """The source of a loader's batch size: an argument, or an entry of `**options`."""
        value = keyword(call.node, "batch_size") or keyword(call.node, "train_batch_size")
        value = value or next(iter(positional(call.node)[1:2]), None)
        if value is not None:
            return Definition("loader", "batch_size", call.scope, value)
        spread = {last_name(given.value) for given in call.node.keywords if given.arg is None} - {""}
        return next((size for size in self._batch_sizes("entry") if size.holder in spread), None)

    def _named(self) -> list[Site]:
        sites = []
        for definition in self.facts.definitions:
            if is_batch_size(definition.name):
                around = f"{definition.name} {definition.holder} {'_'.join(definition.scope)}"
                value, resolver = definition.value, self.resolver  # none of a parameter: what callers pass
                for origin in resolver.follow(value, definition) if value else resolver.origins(definition):
                    evaluates = is_evaluation(around) or is_evaluation(origin.definition.name)
                    sites.append(self._site(origin).at(role="evaluate" if evaluates else "train"))
        return _of_best_role(sites)

    def _site(self, origin: NumberOrigin) -> Site:
        node, definition = origin.node, origin.definition
        assert node is not None
        start, end = self.facts.span(node)
        written = self.facts.text[start:end]
        line = bisect_right(self.facts.line_starts, start)
        named = definition.option if definition.kind == "option" else None
        option = origin.option if (origin.option or "").startswith("-") else None
        return Site(
            kind=definition.kind,
            path=self.path,
            name=named or definition.name,
            value=written_number(node) or 0,
            text=written,
            start=start,
            end=end,
            line=line,
            column=start - self.facts.line_starts[line - 1],
            option=option,
        )


def _role_of_loader(call: SourceCall, holder: str) -> str:
    names = [call.bound_to, holder, *(last_name(value) for value in positional(call.node)[:1])]
    names.append(last_name(keyword(call.node, "dataset") or call.node.func))
    if any(map(is_training, names)):
        return "train"
    return "evaluate" if any(map(is_evaluation, [*names, *call.scope])) else "unknown"


def _of_best_role(sites: Iterable[Site]) -> list[Site]:
    """One number may serve training and evaluation: then it is the training's."""
    best: dict[tuple[str, int], Site] = {}
    for site in sites:
        key = (site.path, site.start)
        old = best.get(key)
        if old is None or (old.role != "train" and site.role == "train"):
            best[key] = site if old is None else old.at(role="train")
        if best[key].option is None and site.option:
            best[key] = best[key].at(option=site.option)
    return list(best.values())


def _each_once(groups: list[list[Site]]) -> list[list[Site]]:
    seen: set[tuple[str, int]] = set()
    result = []
    for group in groups:
        fresh = {(site.path, site.start): site for site in group if (site.path, site.start) not in seen}
        seen.update(fresh)
        result.append(list(fresh.values()))
    return [group for group in result if group]


def _settings_in(file: Path, read: ReadText) -> list[Site]:
    try:
        text = read(str(file))
    except BatchError:
        return []
    return find_settings(text, str(file))
