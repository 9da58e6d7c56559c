import { stepOf } from "../base/path";
import type { EmbeddedStep } from "./embedded_step";
import type { FoundName, Hits, SearchHits, WireLevel } from "./types";

/** An event found, and the smallest operation that holds it. */
export interface Match {
  event: number;
  name: string;
  short: string;
  duration_ns: number;
  step: number;
  rank: number;
  path: string;
}

/** The events of a step whose recorded or short name contains a text, in order of start. */
export function matchesIn(step: EmbeddedStep, text: string): Match[] {
  const { names, short, events, path } = step.answer;
  const wanted = text.toLowerCase();
  if (!wanted) return [];
  const has = names.map(
    (name, i) => name.toLowerCase().includes(wanted) || short[i]!.toLowerCase().includes(wanted),
  );
  const at = stepOf(path) ?? { step: 0, rank: 0 };
  const rows = events.name.flatMap((name, row) => (has[name] ? [row] : []));
  return rows.map((row) => ({
    event: events.event[row]!,
    name: names[events.name[row]!]!,
    short: short[events.name[row]!]!,
    duration_ns: events.duration_ns[row]!,
    ...at,
    path: step.paths[events.place[row]!]!,
  }));
}

/** How many of the events found lie in each operation of a level. */
export function hitsIn(level: WireLevel, found: readonly Match[]): Hits {
  const above = level.path ? `${level.path}/` : "";
  const counts = new Map<string, number>();
  for (const { path } of found) {
    if (!path.startsWith(above)) continue;
    const id = path.slice(above.length).split("/", 1)[0]!;
    counts.set(id, (counts.get(id) ?? 0) + 1);
  }
  return { path: level.path, hits: level.operations.id.map((id) => counts.get(id) ?? 0) };
}

/** Every event found, with totals by name. */
export function allHits(text: string, found: readonly Match[]): SearchHits {
  const groups = new Map<string, Match[]>();
  for (const one of found) {
    const group = groups.get(one.name);
    if (group) group.push(one);
    else groups.set(one.name, [one]);
  }
  const names = [...groups.values()].map(foundName).sort((a, b) => b.total_ns - a.total_ns);
  const positions = new Map(names.map(({ name }, at) => [name, at]));
  return {
    text,
    total: found.length,
    names,
    events: {
      event: found.map((one) => one.event),
      name: found.map((one) => positions.get(one.name)!),
      start_ns: [],
      duration_ns: found.map((one) => one.duration_ns),
      step: found.map((one) => one.step),
      rank: found.map((one) => one.rank),
      track: [],
    },
  };
}

function foundName(found: readonly Match[]): FoundName {
  const longest = found.reduce((a, b) => (b.duration_ns > a.duration_ns ? b : a));
  return {
    name: longest.name,
    short: longest.short,
    category: "",
    count: found.length,
    total_ns: found.reduce((sum, one) => sum + one.duration_ns, 0),
    least_ns: found.reduce((least, one) => Math.min(least, one.duration_ns), Infinity),
    most_ns: longest.duration_ns,
    longest_event: longest.event,
  };
}
