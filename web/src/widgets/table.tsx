import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { sorted, type Sorting, type Value } from "../model/sort";

/** A column: what is shown, what it is sorted by. */
export interface Column<Row> {
  id: string;
  title: string;
  hint?: string;
  numeric?: boolean;
  /** Left out where the window is narrow. */
  minor?: boolean;
  /** Takes the room that the others leave, and is cut where that is not enough. */
  grows?: boolean;
  /** What rows are sorted by; without it the column is not sorted. */
  value?: (row: Row) => Value;
  cell: (row: Row) => ComponentChildren;
}

export interface TableProps<Row> {
  caption: string;
  columns: Column<Row>[];
  rows: readonly Row[];
  keyOf: (row: Row) => string | number;
  sorting?: Sorting;
  /** Rows that belong to what is chosen elsewhere. */
  marked?: (row: Row) => boolean;
  onChoose?: (row: Row) => void;
  /** Scrolled into view when it changes. */
  showKey?: string | number | undefined;
  empty?: string;
}

const ROW_PX = 25;
const SPARE_ROWS = 12;
/** Tables up to this size are drawn whole, so that finding in the page works. */
const DRAWN_WHOLE = 300;

/** A table that can be sorted; of many rows only those in sight are in the document. */
export function Table<Row>(props: TableProps<Row>): JSX.Element {
  const { columns, rows, keyOf } = props;
  const sorting = useSignal<Sorting | null>(props.sorting ?? null);
  const scroll = useSignal(0);
  const frame = useRef<HTMLDivElement>(null);
  const by = columns.find((one) => one.id === sorting.value?.column)?.value;
  const down = sorting.value?.down ?? false;
  const ordered = useMemo(() => (by ? sorted(rows, by, down) : rows), [rows, by, down]);
  const part = inSight(ordered.length, scroll.value, frame.current?.clientHeight ?? 800);

  useLayoutEffect(() => {
    if (props.showKey === undefined || !frame.current) return;
    const at = ordered.findIndex((row) => keyOf(row) === props.showKey);
    if (at >= 0) showRow(frame.current, at);
  }, [props.showKey, ordered]);

  const sortBy = (column: Column<Row>): void => {
    const same = sorting.value?.column === column.id;
    const next = same ? !sorting.value!.down : (column.numeric ?? false);
    sorting.value = { column: column.id, down: next };
  };

  return (
    <div
      class="table-frame"
      ref={frame}
      onScroll={() => ordered.length > DRAWN_WHOLE && (scroll.value = frame.current!.scrollTop)}
      onKeyDown={walkRows}
    >
      <table class="table" aria-rowcount={ordered.length}>
        <caption class="unseen">{props.caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <Heading key={column.id} column={column} sorting={sorting.value} onSort={sortBy} />
            ))}
          </tr>
        </thead>
        <tbody>
          {part.from > 0 && <Spacer rows={part.from} columns={columns.length} />}
          {ordered.slice(part.from, part.to).map((row) => (
            <tr
              key={keyOf(row)}
              class={props.marked?.(row) ? "marked" : undefined}
              aria-selected={props.marked?.(row)}
              tabIndex={props.onChoose ? 0 : undefined}
              onClick={() => props.onChoose?.(row)}
            >
              {columns.map((column) => (
                <td key={column.id} class={cellClass(column)}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
          {part.to < ordered.length && (
            <Spacer rows={ordered.length - part.to} columns={columns.length} />
          )}
        </tbody>
      </table>
      {ordered.length === 0 && <p class="nothing">{props.empty ?? "Nothing recorded."}</p>}
    </div>
  );
}

function cellClass<Row>(column: Column<Row>): string | undefined {
  const names = { number: column.numeric, grows: column.grows, minor: column.minor };
  const on = Object.entries(names).flatMap(([name, is]) => (is ? [name] : []));
  return on.join(" ") || undefined;
}

function Heading<Row>(props: {
  column: Column<Row>;
  sorting: Sorting | null;
  onSort: (column: Column<Row>) => void;
}): JSX.Element {
  const { column, sorting } = props;
  const on = sorting?.column === column.id;
  const order = on ? (sorting.down ? "descending" : "ascending") : undefined;
  return (
    <th class={cellClass(column)} aria-sort={order} scope="col" title={column.hint}>
      {column.value ? (
        <button type="button" onClick={() => props.onSort(column)}>
          {column.title}
          <span class="sort-arrow" aria-hidden="true">
            {on ? (sorting.down ? "▾" : "▴") : ""}
          </span>
        </button>
      ) : (
        column.title
      )}
    </th>
  );
}

function Spacer({ rows, columns }: { rows: number; columns: number }): JSX.Element {
  return (
    <tr aria-hidden="true" class="spacer">
      <td colSpan={columns} style={{ height: `${rows * ROW_PX}px` }} />
    </tr>
  );
}

function inSight(rows: number, scroll: number, height: number): { from: number; to: number } {
  if (rows <= DRAWN_WHOLE) return { from: 0, to: rows };
  const from = Math.max(Math.floor(scroll / ROW_PX) - SPARE_ROWS, 0);
  return { from, to: Math.min(from + Math.ceil(height / ROW_PX) + 2 * SPARE_ROWS, rows) };
}

function showRow(frame: HTMLElement, at: number): void {
  const top = (at + 1) * ROW_PX;
  const { scrollTop, clientHeight } = frame;
  if (top < scrollTop + ROW_PX || top + ROW_PX > scrollTop + clientHeight) {
    frame.scrollTop = top - clientHeight / 2;
  }
}

/** Up and down move between the rows that can be chosen, Enter and the space bar choose one. */
export function walkRows(event: KeyboardEvent): void {
  const row = event.target as HTMLElement;
  if (!row.matches("tr[tabindex]")) return;
  if (event.key === "Enter" || event.key === " ") row.click();
  else if (event.key === "ArrowDown") focusNext(row, "nextElementSibling");
  else if (event.key === "ArrowUp") focusNext(row, "previousElementSibling");
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function focusNext(row: Element, way: "nextElementSibling" | "previousElementSibling"): void {
  let next = row[way];
  while (next && !next.matches("[tabindex]")) next = next[way];
  (next as HTMLElement | null)?.focus();
}
