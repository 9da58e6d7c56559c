import type { Sorting } from "../sort";

/** What somebody chose of a table; empty parts are as at first. */
export interface TableChoice {
  sorting: Sorting | null;
  /** Which of the ways to show the rows. */
  view: string;
  filter: string;
}

export const NO_CHOICE: TableChoice = { sorting: null, view: "", filter: "" };

/** A choice in few letters, for a URL: `-total,kind,gemm` sorts by `total` downwards. */
export function choiceText({ sorting, view, filter }: TableChoice): string {
  const order = sorting ? `${sorting.down ? "-" : ""}${sorting.column}` : "";
  return [order, view, filter].join(",").replace(/,{1,2}$/, "");
}

export function parseChoice(text: string): TableChoice {
  const [order = "", view = "", ...filter] = text.split(",");
  const found = /^(-?)(.+)$/.exec(order);
  const sorting = found && { column: found[2]!, down: found[1] === "-" };
  return { sorting, view, filter: filter.join(",") };
}
