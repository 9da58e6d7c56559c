import type { ComponentChildren, JSX } from "preact";
import { grouped, plural } from "../../base/format";
import { saveText } from "../../base/save";
import { cellsOf, csv, tabs } from "../../model/table/text";
import { CopyButton } from "../copy";
import type { TableState } from "./use_table";

/** What can be done with a table, in a line above it. */
export function TableTools<Row>(props: {
  table: TableState<Row>;
  /** Name of an exported file. */
  file: string;
  children?: ComponentChildren;
}): JSX.Element {
  const { table, file } = props;
  const cells = () => cellsOf(table.columns, table.lines);
  return (
    <div class="pane-tools table-tools">
      <Filter table={table} />
      <Views table={table} />
      {table.opens && <OpenAll table={table} />}
      <Counted table={table} />
      {props.children}
      <span class="tool-group export">
        <CopyButton
          text={() => tabs(cells())}
          label="Copy the rows as shown, separated by tabs"
          instead="The browser refuses: save CSV"
        />
        <button
          type="button"
          data-action="csv"
          title="Save the rows as shown as comma-separated values"
          onClick={() => saveText(csv(cells()), `${file}.csv`, "text/csv")}
        >
          CSV
        </button>
      </span>
    </div>
  );
}

function Filter<Row>({ table }: { table: TableState<Row> }): JSX.Element {
  const [, several] = nounOf(table);
  return (
    <input
      type="search"
      placeholder={`Filter ${several}`}
      aria-label={`Filter ${several}`}
      value={table.filter}
      onInput={(event) => table.setFilter(event.currentTarget.value)}
    />
  );
}

function Views<Row>({ table }: { table: TableState<Row> }): JSX.Element | null {
  if (table.views.length < 2) return null;
  return (
    <span class="tool-group" role="group" aria-label={`How to list ${nounOf(table)[1]}`}>
      {table.views.map((one) => (
        <button
          key={one.id}
          type="button"
          data-view={one.id}
          title={one.hint}
          aria-pressed={one === table.view}
          onClick={() => table.setView(one)}
        >
          {one.title}
        </button>
      ))}
    </span>
  );
}

function OpenAll<Row>({ table }: { table: TableState<Row> }): JSX.Element {
  return (
    <span class="tool-group">
      <button type="button" onClick={() => table.openAll(true)}>
        Expand all
      </button>
      <button type="button" onClick={() => table.openAll(false)}>
        Collapse all
      </button>
    </span>
  );
}

/** How many rows the filter leaves, and how many there are that are not here. */
function Counted<Row>({ table }: { table: TableState<Row> }): JSX.Element {
  const [one, several] = nounOf(table);
  const { found, total } = table;
  const left = table.props.left ?? 0;
  const some = found.length < total ? `${grouped(found.length)} of ` : "";
  const more = left > 0 ? `, ${grouped(left)} more not listed` : "";
  return (
    <span class="dim" role="status">
      {`${some}${plural(total, one, several)}${more}`}
    </span>
  );
}

export function nounOf<Row>({ props }: TableState<Row>): [string, string] {
  return props.noun ?? ["row", "rows"];
}
