import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { count, duration, percent } from "../../base/format";
import type { Level, Operation } from "../../model/level";
import { isOpened, type Store } from "../../state/store";
import type { Column } from "../../widgets/table/column";
import { BareTable } from "../../widgets/table/table";
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
    <BareTable
      caption={`Operations of ${level.title}, in order of time`}
      columns={shown}
      rows={rows}
      keyOf={(one) => one.path}
      marked={(one) => one.path === chosen || isOpened(one.path, path)}
      show={chosen ? { key: chosen, is: (one) => one.path === chosen } : null}
      onChoose={(one) => activate(store, level, one.index)}
    />
  );
}

function columns(level: Level, hits: readonly number[] | null): Column<Operation>[] {
  const time = (id: string, title: string, of: (one: Operation) => number): Column<Operation> => ({
    id,
    title,
    numeric: true,
    value: of,
    cell: (one) => (of(one) > 0 ? duration(of(one)) : "–"),
  });
  const share = (one: Operation): number => Math.max(one.cpu, one.device) / level.length;
  const found: Column<Operation>[] = hits
    ? [
        {
          id: "hits",
          title: "found",
          numeric: true,
          value: (one) => hits[one.index] ?? 0,
          cell: (one) => count(hits[one.index] ?? 0),
        },
      ]
    : [];
  return [
    {
      id: "name",
      title: "operation",
      value: (one) => one.name,
      cell: (one) => (
        <span class="name-text" title={one.name}>
          {one.name}
        </span>
      ),
      grows: true,
    },
    { id: "kind", title: "kind", minor: true, value: (one) => one.kind, cell: (one) => one.kind },
    ...found,
    time("cpu", "CPU", (one) => one.cpu),
    time("self", "self", (one) => one.self),
    time("device", "device", (one) => one.device),
    {
      id: "share",
      title: "share",
      numeric: true,
      value: share,
      cell: (one) => percent(share(one)),
    },
    {
      id: "bound",
      title: "bound by",
      value: (one) => one.boundBy,
      cell: (one) => <Bound by={one.boundBy} />,
    },
    {
      id: "count",
      title: "copies",
      numeric: true,
      value: (one) => one.count,
      cell: (one) => count(one.count),
    },
    {
      id: "events",
      title: "events",
      numeric: true,
      value: (one) => one.events,
      cell: (one) => count(one.events),
    },
    {
      id: "start",
      title: "start",
      hint: "since the level's start; empty if it has no CPU side",
      numeric: true,
      value: (one) => (one.start < 0 ? null : one.start),
      cell: (one) => (one.start < 0 ? "–" : duration(one.start)),
    },
  ];
}
