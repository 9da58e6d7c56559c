import type { ComponentChildren, JSX } from "preact";
import { grouped } from "../../base/format";
import type { Line } from "../../model/table/lines";
import { cellClass, cellOf, totalOf } from "./column";
import { choose } from "./keys";
import type { TableState } from "./use_table";

const INDENT_PX = 16;

/** One line of a table: a row, or the totals of a group. */
export function LineRow<Row>(props: {
  table: TableState<Row>;
  line: Line<Row>;
  at: number;
  /** Whether other lines are not in the document. */
  partly: boolean;
  tabIndex: number | undefined;
}): JSX.Element {
  const { table, line, at } = props;
  const row = line.rows[0]!;
  const { columns } = table;
  const { keyOf, marked: isMarked } = table.props;
  const isShown = table.props.kept?.shown === String(keyOf(row));
  const marked = line.group === null && (isShown || isMarked?.(row));
  return (
    <tr
      data-at={at}
      data-key={line.group ?? keyOf(row)}
      tabIndex={props.tabIndex}
      class={marked ? "marked" : line.group === null ? undefined : "group"}
      aria-level={table.opens ? line.depth + 1 : undefined}
      aria-expanded={line.opens ? line.open : undefined}
      aria-selected={props.tabIndex === undefined ? undefined : Boolean(marked)}
      aria-rowindex={props.partly ? at + 1 : undefined}
      onClick={() => choose(table, line)}
    >
      {columns.map((column, i) => {
        const first = i === 0;
        const content = contentOf(table, line, i);
        return (
          <td key={column.id} class={cellClass(column)}>
            {first && table.opens ? (
              <Nested table={table} line={line} children={content} />
            ) : (
              content
            )}
            {first && line.group === null && <RowNote table={table} row={row} />}
          </td>
        );
      })}
    </tr>
  );
}

function contentOf<Row>(table: TableState<Row>, line: Line<Row>, at: number): ComponentChildren {
  const column = table.columns[at]!;
  if (line.group === null) return cellOf(column, line.rows[0]!, () => table.toggle(line, true));
  if (at > 0) return totalOf(column, line.rows);
  return (
    <>
      <span class="name-text">{line.group || "none"}</span>{" "}
      <span class="dim">×{grouped(line.rows.length)}</span>
    </>
  );
}

/** The first cell of a line that may hold others: indented, with what opens it. */
function Nested<Row>(props: {
  table: TableState<Row>;
  line: Line<Row>;
  children: ComponentChildren;
}): JSX.Element {
  const { table, line } = props;
  return (
    <span class="tree-name" style={{ paddingLeft: `${line.depth * INDENT_PX}px` }}>
      {line.opens ? <Twist table={table} line={line} /> : <span class="twist" />}
      {props.children}
    </span>
  );
}

function Twist<Row>({ table, line }: { table: TableState<Row>; line: Line<Row> }): JSX.Element {
  return (
    <button
      type="button"
      class="twist"
      tabIndex={-1}
      aria-label={`${line.open ? "Close" : "Open"} ${line.group ?? table.props.keyOf(line.rows[0]!)}`}
      onClick={(event) => {
        event.stopPropagation();
        table.toggle(line);
      }}
    >
      {line.open ? "▾" : "▸"}
    </button>
  );
}

/** The mark of a row with a note, else what begins one, there while the row is pointed at. */
function RowNote<Row>({ table, row }: { table: TableState<Row>; row: Row }): JSX.Element | null {
  const notes = table.props.kept?.notes;
  if (!notes) return null;
  const key = String(table.props.keyOf(row));
  const note = notes.of.get(key);
  const column = table.columns[0]!;
  const label = String(column.full?.(row) ?? column.value?.(row) ?? key);
  return (
    <button
      type="button"
      class={note ? "row-note noted" : "row-note"}
      tabIndex={-1}
      aria-label={note ? `Note on ${label}: ${note.text}` : `Write a note on ${label}`}
      title={note ? note.text : "Write a note on this row"}
      onClick={(event) => {
        event.stopPropagation();
        notes.pin(key, label);
      }}
    />
  );
}
