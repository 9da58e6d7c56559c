import type { RefObject } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { pageOf, showRow } from "./sight";
import type { TableState } from "./use_table";

/**
 * The keys of a table, as in a file tree: up, down, a page, to either end; right opens a row and
 * left closes it or goes to the one that holds it; Enter and the space bar choose.
 */
export function useWalk<Row>(
  table: TableState<Row>,
  frame: RefObject<HTMLDivElement>,
  onMoved: () => void,
): { press: (event: KeyboardEvent) => void; focused: (event: FocusEvent) => void } {
  const { lines, current } = table;
  const wanted = useRef(false);

  // A row that was not drawn gets the focus once it is; meanwhile the frame has it.
  useLayoutEffect(() => {
    const row = wanted.current && rowOf(frame.current!, indexOf(table));
    if (!row) return;
    wanted.current = false;
    row.focus({ preventScroll: true });
  });

  const moveTo = (at: number): void => {
    const to = Math.min(Math.max(at, 0), lines.length - 1);
    const line = lines[to];
    if (!line || !frame.current) return;
    showRow(frame.current, to);
    onMoved();
    current.value = line.key;
    const row = rowOf(frame.current, to);
    wanted.current = !row;
    (row ?? frame.current).focus({ preventScroll: true });
  };

  const press = (event: KeyboardEvent): void => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target !== frame.current && !target.matches("tbody tr")) return; // a button has the key
    const act = actionOf(table, event.key, pageOf(frame.current!), moveTo);
    if (!act) return;
    act();
    event.preventDefault();
    event.stopPropagation();
  };

  const focused = (event: FocusEvent): void => {
    const row = (event.target as HTMLElement).closest<HTMLElement>("tr[data-at]");
    const line = row && lines[Number(row.dataset.at)];
    if (line) current.value = line.key;
  };
  return { press, focused };
}

function actionOf<Row>(
  table: TableState<Row>,
  key: string,
  page: number,
  moveTo: (at: number) => void,
): (() => void) | undefined {
  const { lines, toggle } = table;
  const at = indexOf(table);
  const line = lines[at];
  if (!line) return undefined;
  let holder = at - 1;
  while (holder >= 0 && lines[holder]!.depth >= line.depth) holder--;
  const actions: Record<string, () => void> = {
    ArrowDown: () => moveTo(at + 1),
    ArrowUp: () => moveTo(at - 1),
    PageDown: () => moveTo(at + page),
    PageUp: () => moveTo(at - page),
    Home: () => moveTo(0),
    End: () => moveTo(lines.length - 1),
    ArrowRight: () => (line.opens && !line.open ? toggle(line, true) : line.open && moveTo(at + 1)),
    ArrowLeft: () => (line.open ? toggle(line, false) : holder >= 0 && moveTo(holder)),
    Enter: () => choose(table, line),
    " ": () => choose(table, line),
  };
  return actions[key];
}

/** A group opens, a row is chosen where that means something. */
export function choose<Row>(table: TableState<Row>, line: TableState<Row>["lines"][number]): void {
  if (line.group === null && table.props.onChoose) table.props.onChoose(line.rows[0]!);
  else if (line.opens) table.toggle(line);
}

/** The line that the keys are at, at first the first one. */
export function indexOf<Row>({ lines, current }: TableState<Row>): number {
  const at = lines.findIndex((line) => line.key === current.value);
  return Math.max(at, 0);
}

function rowOf(frame: HTMLElement, at: number): HTMLElement | null {
  return frame.querySelector<HTMLElement>(`tr[data-at="${at}"]`);
}
