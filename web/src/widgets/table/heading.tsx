import type { JSX } from "preact";
import type { Sorting } from "../../model/sort";
import { cellClass, type Column } from "./column";
import type { TableState } from "./use_table";

/** The names of the columns, in two rows where one name is above several columns. */
export function Headings<Row>({ table }: { table: TableState<Row> }): JSX.Element {
  const { columns } = table;
  const two = columns.some((one) => one.over);
  const heading = (column: Column<Row>, rows: number): JSX.Element => (
    <Heading
      key={column.id}
      column={column}
      rows={rows}
      sorting={table.sorting}
      onSort={() => table.sortBy(column)}
    />
  );
  return (
    <thead>
      <tr>
        {columns.map((column, at) => {
          if (!column.over) return heading(column, two ? 2 : 1);
          if (columns[at - 1]?.over === column.over) return null;
          const below = columns.filter((one) => one.over === column.over).length;
          return (
            <th key={column.over} scope="colgroup" colSpan={below}>
              {column.over}
            </th>
          );
        })}
      </tr>
      {two && (
        <tr class="second">{columns.filter((one) => one.over).map((one) => heading(one, 1))}</tr>
      )}
    </thead>
  );
}

function Heading<Row>(props: {
  column: Column<Row>;
  rows: number;
  sorting: Sorting | null;
  onSort: () => void;
}): JSX.Element {
  const { column, sorting, rows } = props;
  const on = sorting?.column === column.id;
  const order = on ? (sorting.down ? "descending" : "ascending") : undefined;
  return (
    <th
      class={cellClass(column)}
      aria-sort={order}
      scope="col"
      rowSpan={rows > 1 ? rows : undefined}
      title={column.hint}
    >
      {column.value ? (
        <button type="button" onClick={props.onSort}>
          {column.over && <span class="unseen">{column.over} </span>}
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
