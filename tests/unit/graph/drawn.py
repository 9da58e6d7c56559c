"""Graphs of drawn traces, and the parts that tests compare."""

from __future__ import annotations

from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, breakdown, build_graph, critical_ms, simulate
from stepscope.graph.graph_schema import EDGE_KINDS
from stepscope.testing import drawn_trace

US = 1000


def graph_of(text: str) -> Graph:
    """The checked graph of a drawn trace."""
    return build_graph(annotate(drawn_trace(text))).check()


def links(graph: Graph, kind: str) -> list[tuple[str | None, str | None]]:
    """Names at both ends of each link of a kind."""
    assert kind in EDGE_KINDS
    names = graph.tasks.text("name")
    rows = zip(graph.links["source"], graph.links["target"], graph.links.text("kind"), strict=True)
    return [(names[source], names[target]) for source, target, one in rows if one == kind]


def tasks(graph: Graph, thread: str) -> list[tuple[str | None, float, float]]:
    """Name, length and gap (us) of each task of a thread, in order."""
    number = list(graph.threads.text("name")).index(thread)
    mine = graph.tasks.take(graph.tasks["thread"] == number)
    lengths = (mine[name] / US for name in ("duration_ns", "gap_ns"))
    return list(zip(mine.text("name"), *(column.tolist() for column in lengths), strict=True))


def starts(graph: Graph) -> dict[str | None, float]:
    """When the first task of each name starts in the simulation, us."""
    times = simulate(graph).start_ns
    names = list(graph.tasks.text("name"))
    return {name: times[names.index(name)] / US for name in names}


def step_us(graph: Graph) -> list[float]:
    """The simulated length of each step, us."""
    return [time / US for time in simulate(graph).step_ns.tolist()]


def whole(graph: Graph) -> str:
    """A graph in words: its steps, each thread with its tasks (start, length + gap), and the links."""
    tasks, threads, links = graph.tasks, graph.threads, graph.links
    times = (simulate(graph).start_ns, tasks["duration_ns"], tasks["gap_ns"], tasks["earliest_ns"])
    rows = zip(tasks["thread"], *((time / US).tolist() for time in times), tasks.rows(), strict=True)
    of_thread: dict[int, list[str]] = {number: [] for number in range(len(threads))}
    for thread, start, length, gap, earliest, row in rows:
        facts = (row[name] for name in ("category", "kind", "stage", "module", "bytes"))
        known = " ".join(str(fact) for fact in facts if fact not in (None, -1, ""))
        text = f"{start:g} {row['name'] or '-'} {length:g}+{gap:g} of {row['step']} {known}"
        text += f" from {earliest:g}" * (earliest != 0) + " mark" * row["mark"]
        of_thread[thread].append(text if row["event"] is None else f"{text} event {row['event']}")
    sides, stages = breakdown(simulate(graph)), critical_ms(simulate(graph))["stages"]
    busy = (sides.cpu_only_ms, sides.device_only_ms, sides.parallel_ms, sides.idle_ms)
    lines = ["steps " + " ".join(f"{us:g}" for us in step_us(graph))]
    lines += ["CPU, device, both, neither: " + ", ".join(f"{US * ms:.6g}" for ms in busy)]
    lines += ["path " + ", ".join(f"{stage} {US * ms:.6g}" for stage, ms in stages.items())]
    for thread, row in enumerate(threads.rows()):
        lines.append(f"{row['kind']} {row['name']}" + " main" * row["main"] + f" rank {row['rank']}")
        lines += [f"- {text}" for text in of_thread[thread]]
    names = tasks.text("name")
    for row in links.rows():
        source, target = (f"{names[row[end]] or '-'} ({row[end]})" for end in ("source", "target"))
        lines.append(f"{source} > {target} {row['kind']} {row['lag_ns'] / US:g}")
    return "\n".join(lines)
