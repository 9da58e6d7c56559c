import type { ComponentChildren, JSX } from "preact";
import { TableBody } from "./body";
import { TableTools } from "./tools";
import { useTable, type TableProps } from "./use_table";

/** A table with its tools: filter, ways to show, copy and export. */
export function Table<Row>(
  props: TableProps<Row> & { tools?: ComponentChildren; file: string },
): JSX.Element {
  const table = useTable(props);
  return (
    <>
      <TableTools table={table} file={props.file}>
        {props.tools}
      </TableTools>
      <TableBody table={table} />
    </>
  );
}

/** A short table that is part of something larger: sorted, without tools. */
export function BareTable<Row>(props: TableProps<Row>): JSX.Element {
  return <TableBody table={useTable(props)} />;
}
