import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { plural } from "../../base/format";
import { cellClass, totalOf } from "./column";
import { Headings } from "./heading";
import { indexOf, useWalk } from "./keys";
import { LineRow } from "./line";
import { inSight, ROW_PX, showRow } from "./sight";
import { nounOf } from "./tools";
import type { TableState } from "./use_table";

/** The rows of a table; of many only those in sight are in the document. */
export function TableBody<Row>({ table }: { table: TableState<Row> }): JSX.Element {
  const { props, lines, opens } = table;
  const scroll = useSignal(0);
  const frame = useRef<HTMLDivElement>(null);
  const part = inSight(lines.length, scroll.value, frame.current?.clientHeight ?? 800);
  const partly = part.to - part.from < lines.length;
  const walks = opens || props.onChoose !== undefined;
  const follow = (): void => void (scroll.value = frame.current!.scrollTop);
  const walk = useWalk(table, frame, follow);
  const { show } = table;

  // Once for each key: who scrolls or sorts afterwards is left alone.
  const shown = useRef<string | number | null>(null);
  useLayoutEffect(() => {
    if (!show || show.key === shown.current) return;
    const at = lines.findIndex((line) => line.group === null && show.is(line.rows[0]!));
    if (at < 0) return;
    shown.current = show.key;
    showRow(frame.current!, at);
  }, [show?.key, lines]);

  const at = indexOf(table);
  return (
    <div
      class="table-frame"
      ref={frame}
      tabIndex={-1}
      onScroll={() => partly && follow()}
      onKeyDown={walk.press}
      onFocusIn={walk.focused}
    >
      <table
        class="table"
        role={opens ? "treegrid" : walks ? "grid" : undefined}
        aria-label={props.caption}
        aria-rowcount={partly ? lines.length : undefined}
      >
        <Headings table={table} />
        <tbody>
          <Spacer rows={part.from} columns={table.columns.length} />
          {lines.slice(part.from, part.to).map((line, i) => (
            <LineRow
              key={line.key}
              table={table}
              line={line}
              at={part.from + i}
              partly={partly}
              tabIndex={walks ? (part.from + i === at ? 0 : -1) : undefined}
            />
          ))}
          <Spacer rows={lines.length - part.to} columns={table.columns.length} />
        </tbody>
        <Totals table={table} />
      </table>
      {lines.length === 0 && <p class="nothing">{emptyText(table)}</p>}
    </div>
  );
}

function emptyText<Row>(table: TableState<Row>): string {
  if (table.total > 0) return `No ${nounOf(table)[1]} with “${table.filter.trim()}”.`;
  return table.props.empty ?? "Nothing recorded.";
}

function Spacer({ rows, columns }: { rows: number; columns: number }): JSX.Element | null {
  if (rows <= 0) return null;
  return (
    <tr aria-hidden="true" class="spacer">
      <td colSpan={columns} style={{ height: `${rows * ROW_PX}px` }} />
    </tr>
  );
}

/** The totals of all rows that the filter leaves; in a tree the root has them. */
function Totals<Row>({ table }: { table: TableState<Row> }): JSX.Element | null {
  const { columns } = table;
  const { found, view } = table;
  if (view.childrenOf || found.length < 2 || !columns.some((one) => one.total)) return null;
  return (
    <tfoot>
      <tr>
        {columns.map((column, at) =>
          at === 0 ? (
            <th key={column.id} scope="row" class={cellClass(column)}>
              {table.props.totals ?? "Total"} of {plural(found.length, ...nounOf(table))}
            </th>
          ) : (
            <td key={column.id} class={cellClass(column)}>
              {totalOf(column, found)}
            </td>
          ),
        )}
      </tr>
    </tfoot>
  );
}
