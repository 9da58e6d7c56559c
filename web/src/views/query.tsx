import { computed, signal, useSignal, type Signal } from "@preact/signals";
import type { JSX, RefObject } from "preact";
import { useMemo, useRef } from "preact/hooks";
import type { QueryResult, ResultColumn, TraceTables } from "../api/types";
import { duration } from "../base/format";
import { completions, eventColumn, spansOf, wordBefore } from "../model/sql";
import { latest } from "../state/latest";
import { perStore } from "../state/per_store";
import type { Store } from "../state/store";
import { keptTable } from "../state/tables";
import { WithAnswer } from "../widgets/answer";
import type { Column } from "../widgets/table/column";
import { Table } from "../widgets/table/table";
import { fileName } from "./file_name";
import type { Pane } from "./pane";
import { chooseEvent } from "./timeline/tracks";

type Row = { key: number; cells: QueryResult["rows"][number] };

const tablesOf = perStore((store) => store.follow((client) => client.ask<TraceTables>("schema")));

/** How often somebody ran a query: a refused one is asked again, answers are kept. */
const runsOf = perStore(() => signal(0));

/** The rows of the query that somebody ran, in the pane and as a track. */
export const resultOf = perStore((store) => {
  const asked = computed(() => store.view.value.sql);
  return latest(() => {
    void runsOf(store).value;
    const [client, sql] = [store.client.value, asked.value];
    return client && sql ? client.ask<QueryResult>("query", { sql }) : null;
  });
});

export const query: Pane = {
  id: "sql",
  title: "SQL",
  hint: "Queries over the tables of the trace",
  View: ({ store }) => <Live store={store} />,
};

/** A table that has rows in this trace. */
function firstTable(store: Store): string {
  const { facts, has } = store.overview.value.value ?? {};
  if (facts || !has) return "steps";
  return has.contexts ? "contexts" : "memory";
}

function Live({ store }: { store: Store }): JSX.Element {
  const text = useSignal(store.view.value.sql || `select * from ${firstTable(store)}`);
  const box = useRef<HTMLTextAreaElement>(null);
  const run = (): void => {
    store.set({ sql: text.value.trim() });
    runsOf(store).value++;
  };
  return (
    <div class="query">
      <div class="query-main">
        <textarea
          class="code"
          rows={6}
          spellcheck={false}
          aria-label="SQL, Ctrl+Enter runs it"
          ref={box}
          value={text.value}
          onInput={(event) => (text.value = event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
              event.preventDefault();
              run();
            }
          }}
        />
        <div class="pane-tools">
          <button type="button" data-action="run" title="Ctrl+Enter" onClick={run}>
            Run
          </button>
          <Examples store={store} onPick={(sql) => (text.value = sql)} />
          <Words store={store} text={text} box={box} />
        </div>
        {store.view.value.sql && (
          <WithAnswer answer={resultOf(store)} waiting="Running…">
            {(result) => <Result key={store.view.value.sql} store={store} result={result} />}
          </WithAnswer>
        )}
      </div>
      <Tables store={store} />
    </div>
  );
}

/** Names that go on with the word at the cursor; a click completes it. */
function Words(props: {
  store: Store;
  text: Signal<string>;
  box: RefObject<HTMLTextAreaElement>;
}): JSX.Element {
  const { store, text, box } = props;
  const tables = tablesOf(store).value.value?.tables ?? [];
  const at = Math.min(box.current?.selectionEnd ?? Infinity, text.value.length);
  const complete = (name: string): void => {
    const start = at - wordBefore(text.value, at).length;
    text.value = text.value.slice(0, start) + name + text.value.slice(at);
    box.current!.value = text.value;
    box.current!.focus();
    box.current!.setSelectionRange(start + name.length, start + name.length);
  };
  return (
    <span class="query-words">
      {completions(text.value, at, tables).map((name) => (
        <button key={name} type="button" class="chip" onClick={() => complete(name)}>
          {name}
        </button>
      ))}
    </span>
  );
}

function Examples(props: { store: Store; onPick: (sql: string) => void }): JSX.Element {
  const examples = tablesOf(props.store).value.value?.examples ?? [];
  return (
    <select
      aria-label="Example queries"
      value=""
      onChange={(event) => {
        const picked = examples[Number(event.currentTarget.value)];
        if (picked) props.onPick(picked.sql);
        event.currentTarget.value = "";
      }}
    >
      <option value="">Examples</option>
      {examples.map((one, number) => (
        <option key={one.title} value={number}>
          {one.title}
        </option>
      ))}
    </select>
  );
}

function Result({ store, result }: { store: Store; result: QueryResult }): JSX.Element {
  const rows = useMemo(() => result.rows.map((cells, key): Row => ({ key, cells })), [result]);
  const columns = useMemo(() => result.columns.map(columnOf), [result]);
  const event = eventColumn(store.view.value.sql, result.columns);
  const spans = useMemo(() => spansOf(store.view.value.sql, result), [result]);
  const { sqlTrack } = store.view.value;
  const first = result.more ? "the first of more, " : "";
  return (
    <div class="query-result">
      <Table
        caption="Result of the query"
        kept={keptTable(store, "query")}
        file={fileName(store, "query")}
        columns={columns}
        rows={rows}
        keyOf={keyOf}
        empty="No rows."
        {...(event >= 0 && { onChoose: ({ cells }: Row) => openEvent(store, cells[event]) })}
        tools={
          <>
            {spans && (
              <button
                type="button"
                data-action="track"
                aria-pressed={sqlTrack}
                title="The rows above the timeline, at their times"
                onClick={() => store.set({ sqlTrack: !sqlTrack })}
              >
                As a track
              </button>
            )}
            <span class="dim">{`${first}in ${duration(result.seconds * 1e9)}`}</span>
          </>
        }
      />
    </div>
  );
}

const keyOf = (row: Row): number => row.key;

function openEvent(store: Store, event: Row["cells"][number] | undefined): void {
  if (typeof event === "number" && event >= 0) chooseEvent(store, event);
}

function columnOf({ name, type, numeric }: ResultColumn, at: number): Column<Row> {
  return {
    id: String(at),
    title: name,
    hint: type,
    numeric,
    value: ({ cells }) => plain(cells[at] ?? null),
    cell: ({ cells }) => shown(cells[at] ?? null),
  };
}

function plain(value: Row["cells"][number]): string | number | null {
  return typeof value === "boolean" ? String(value) : value;
}

function shown(value: Row["cells"][number]): JSX.Element | string {
  if (value === null) return <span class="dim">null</span>;
  const text = String(value);
  return typeof value === "string" ? <span title={text}>{text}</span> : text;
}

/** The tables that a query reads; each opens to its columns. */
function Tables({ store }: { store: Store }): JSX.Element {
  return (
    <section class="query-tables" aria-label="Tables">
      <WithAnswer answer={tablesOf(store)}>
        {({ tables }) =>
          tables.map((table) => (
            <details key={table.name} open={table.name === firstTable(store)}>
              <summary title={table.meaning}>
                <code>{table.name}</code>
              </summary>
              <p class="dim">{table.meaning}</p>
              <dl>
                {table.columns.map((column) => (
                  <div key={column.name}>
                    <dt>
                      <code>{column.name}</code>{" "}
                      <span class="dim">
                        {[column.type, column.unit, column.nullable && "nullable"]
                          .filter(Boolean)
                          .join(", ")}
                      </span>
                    </dt>
                    <dd>{column.meaning}</dd>
                  </div>
                ))}
              </dl>
            </details>
          ))
        }
      </WithAnswer>
    </section>
  );
}
