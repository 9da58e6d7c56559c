import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { FoundName, ModuleNode, SearchHits } from "../api/types";
import { categoryName, duration, grouped, plural } from "../base/format";
import { NO_CHOICE } from "../model/table/choice";
import { sum } from "../model/table/field";
import { searchOf } from "../state/search";
import type { Store } from "../state/store";
import { keptTable } from "../state/tables";
import { WithAnswer } from "../widgets/answer";
import { nameColumn, numberColumn, textColumn, type Column } from "../widgets/table/column";
import { Table } from "../widgets/table/table";
import type { TableView } from "../widgets/table/use_table";
import { fileName } from "./file_name";
import { modulesOf } from "./modules";
import type { Pane } from "./pane";

/** All events of one name, or one of them. */
interface Row {
  name: FoundName;
  /** The event, or the longest one of the name. */
  event: number;
  count: number;
  total: number;
  least: number;
  most: number;
  start: number | null;
  step: number | null;
  rank: number | null;
  hits: Row[];
  isHit: boolean;
}

export const search: Pane = {
  id: "search",
  title: "Search",
  hint: "Every event found, with totals by name",
  View: ({ store }) => (
    <WithAnswer answer={searchOf(store).hits} waiting="Searching…">
      {(value) => <Found key={value.text} store={store} value={value} />}
    </WithAnswer>
  ),
};

function Found({ store, value }: { store: Store; value: SearchHits }): JSX.Element {
  const { current, goTo } = searchOf(store);
  const at = current.value;
  const views = useMemo(() => viewsOf(value), [value]);
  const listed = value.events.event.length;
  const isCurrent = (row: Row): boolean => row.isHit && row.event === at;
  return (
    <div class="pane-column">
      <Table
        caption={`Events with “${value.text}” in their name`}
        kept={keptTable(store, "search")}
        file={fileName(store, `search ${value.text}`)}
        columns={BY_NAME}
        rows={views[0]!.rows!}
        views={views}
        keyOf={keyOf}
        noun={NOUN}
        left={value.total - listed}
        marked={isCurrent}
        show={at === null ? null : { key: at, is: isCurrent }}
        onChoose={(row) => goTo(row.event)}
        empty={`No event has “${value.text}” in its name.`}
        tools={
          <>
            <span class="dim">{namesText(value)}</span>
            <InModel store={store} text={value.text} />
          </>
        }
      />
    </div>
  );
}

/** The way to modules with the text in their path or class: no event need have it in its name. */
function InModel({ store, text }: { store: Store; text: string }): JSX.Element | null {
  const tree = modulesOf(store).value.value?.tree ?? [];
  if (!tree.some((node) => isNamed(node, text.toLowerCase()))) return null;
  const filter = { ...NO_CHOICE, filter: text };
  const open = (): void =>
    store.set({ pane: "modules", tables: { ...store.view.peek().tables, modules: filter } });
  return (
    <button type="button" class="link" onClick={open}>
      Modules with “{text}”
    </button>
  );
}

function isNamed({ path, name, kind, children }: ModuleNode, text: string): boolean {
  const held = [path, name, kind].join("\n").toLowerCase();
  return held.includes(text) || children.some((child) => isNamed(child, text));
}

/** `12 names`; where not all events are listed, that their totals are of all. */
function namesText({ names, total, events }: SearchHits): string {
  const of = total > events.event.length ? `, totals of all ${grouped(total)} events` : "";
  return plural(names.length, "name") + of;
}

const NOUN: [string, string] = ["event", "events"];
const keyOf = (row: Row): string | number => (row.isHit ? row.event : row.name.name);

function viewsOf(value: SearchHits): TableView<Row>[] {
  const hits = hitsOf(value);
  const byName = new Map<FoundName, Row[]>(value.names.map((name) => [name, []]));
  for (const hit of hits) byName.get(hit.name)!.push(hit);
  const ranks = new Set(value.events.rank).size > 1;
  return [
    {
      id: "name",
      title: "By name",
      hint: "Totals by name",
      rows: value.names.map((name) => nameRow(name, byName.get(name)!)),
      childrenOf: (row) => row.hits,
      counts: (row) => row.isHit,
      sorting: { column: "total", down: true },
    },
    {
      id: "order",
      title: "In order",
      hint: "Every event, by its start",
      rows: hits,
      columns: [NAME, CATEGORY, ...(ranks ? [RANK] : []), STEP, START, DURATION],
    },
  ];
}

function hitsOf({ names, events }: SearchHits): Row[] {
  return events.event.map((event, row) => {
    const ns = events.duration_ns[row]!;
    return {
      name: names[events.name[row]!]!, event, hits: [], isHit: true, count: 1, total: ns,
      least: ns, most: ns, start: events.start_ns[row] ?? null, step: events.step[row]!,
      rank: events.rank[row]!,
    }; // prettier-ignore
  });
}

function nameRow(name: FoundName, hits: Row[]): Row {
  return {
    name, event: name.longest_event, hits, isHit: false, count: name.count, total: name.total_ns,
    least: name.least_ns, most: name.most_ns, start: null, step: null, rank: null,
  }; // prettier-ignore
}

const NAME = nameColumn<Row>("name", "name", (row) => row.name.short, {
  grows: true,
  full: (row) => row.name.name,
});
const CATEGORY = textColumn<Row>("category", "category", (row) => categoryName(row.name.category), {
  minor: true,
});
const RANK = numberColumn<Row>("rank", "rank", (row) => row.rank, String);
const STEP = numberColumn<Row>("step", "step", (row) => row.step, String, { none: "" });
const START = time("start", "start", (row) => row.start, { hint: "since the trace's start" });
const DURATION = time("total", "time", (row) => row.total, { total: sum((row) => row.total) });

const BY_NAME: Column<Row>[] = [
  NAME,
  CATEGORY,
  STEP,
  START,
  numberColumn(
    "count",
    "count",
    ofName((row) => row.count),
    grouped,
    { none: "" },
  ),
  time("total", "total", (row) => row.total, {
    hint: "where one is inside another of the same name, both count",
  }),
  time(
    "mean",
    "mean",
    ofName((row) => row.total / row.count),
  ),
  time(
    "least",
    "least",
    ofName((row) => row.least),
  ),
  time(
    "most",
    "most",
    ofName((row) => row.most),
  ),
];

/** What says nothing of a single event. */
function ofName(value: (row: Row) => number): (row: Row) => number | null {
  return (row) => (row.isHit ? null : value(row));
}

function time(
  id: string,
  title: string,
  value: (row: Row) => number | null,
  rest: Partial<Column<Row>> = {},
): Column<Row> {
  return numberColumn(id, title, value, duration, { unit: "ns", none: "", ...rest });
}
