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
