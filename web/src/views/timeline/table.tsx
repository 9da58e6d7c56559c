import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { count, duration, percent } from "../../base/format";
import { prefixes } from "../../base/path";
import type { Level, Operation } from "../../model/level";
import { sum } from "../../model/table/field";
import { isOpened, type Store } from "../../state/store";
import { keptTable } from "../../state/tables";
import { nameColumn, numberColumn, textColumn, type Column } from "../../widgets/table/column";
import { Table } from "../../widgets/table/table";
import { fileName } from "../file_name";
import { Bound } from "../overview";
import { activate } from "./level";

/** The timeline as tables: the same operations and figures, to be read, sorted and heard. */
export function LevelTables({ store }: { store: Store }): JSX.Element {
  const levels = store.levels.value.value ?? [];
  return (
    <div class="level-tables">
      {[...levels].reverse().map((level) => (
        <section key={level.path} aria-label={`Inside ${level.title}`} data-level={level.path}>
          <h2 class="pane-heading">
            {level.title} <span class="dim">{duration(level.length)}</span>
          </h2>
          <LevelTable store={store} level={level} />
        </section>
      ))}
    </div>
  );
}

function LevelTable({ store, level }: { store: Store; level: Level }): JSX.Element {
  const { chosen, path } = store.view.value;
  const hits = store.hits.value?.get(level.path) ?? null;
  const rows = useMemo(() => level.inOrder().map((index) => level.operation(index)), [level]);
  const shown = useMemo(() => columns(level, hits), [level, hits]);
  return (
    <Table
      caption={`Operations of ${level.title}, in order of time`}
      kept={keptTable(store, `level${prefixes(level.path).length - 1}`)}
      file={fileName(store, level.title)}
      columns={shown}
      rows={rows}
      keyOf={keyOf}
      views={VIEWS}
      noun={NOUN}
      marked={(one) => one.path === chosen || isOpened(one.path, path)}
      show={chosen ? { key: chosen, is: (one) => one.path === chosen } : null}
      onChoose={(one) => activate(store, level, one.index)}
    />
  );
}

const keyOf = (one: Operation): string => one.path;
const NOUN: [string, string] = ["operation", "operations"];
const VIEWS = [
  { id: "rows", title: "In order" },
  {
    id: "name",
    title: "By name",
    hint: "Totals by name",
    groupBy: (one: Operation) => one.name,
    sorting: { column: "cpu", down: true },
  },
];

function columns(level: Level, hits: readonly number[] | null): Column<Operation>[] {
  const share = (one: Operation): number => Math.max(one.cpu, one.device) / level.length;
  const hitsOf = (one: Operation): number => hits?.[one.index] ?? 0;
  return [
    nameColumn("name", "operation", (one) => one.name, { grows: true }),
    textColumn("kind", "kind", (one) => one.kind, { minor: true }),
    ...(hits ? [counted("hits", "found", hitsOf)] : []),
    time("cpu", "CPU", (one) => one.cpu),
    time("self", "self", (one) => one.self),
    time("device", "device", (one) => one.device),
    numberColumn("share", "share", share, percent),
    textColumn("bound", "bound by", (one) => one.boundBy, {
      cell: (one) => <Bound by={one.boundBy} />,
    }),
    counted("count", "copies", (one) => one.count),
    counted("events", "events", (one) => one.events),
    numberColumn("start", "start", (one) => (one.start < 0 ? null : one.start), duration, {
      hint: "since the level's start; empty if it has no CPU side",
      unit: "ns",
    }),
  ];
}

function time(id: string, title: string, of: (one: Operation) => number): Column<Operation> {
  const text = (ns: number): string => (ns > 0 ? duration(ns) : "–");
  return numberColumn(id, title, of, text, { unit: "ns", total: sum(of) });
}

function counted(id: string, title: string, of: (one: Operation) => number): Column<Operation> {
  return numberColumn(id, title, of, count, { total: sum(of) });
}
