import { signal, useSignal, type Signal } from "@preact/signals";
import { useLayoutEffect, useMemo } from "preact/hooks";
import type { Sorting } from "../../model/sort";
import { NO_CHOICE, type TableChoice } from "../../model/table/choice";
import { matcher } from "../../model/table/field";
import {
  linesOf,
  matching,
  openable,
  waysTo,
  type Line,
  type Shape,
} from "../../model/table/lines";
import type { Column } from "./column";

/** One way to show the rows: a list, a tree, or totals by a name. */
export interface TableView<Row> {
  id: string;
  title: string;
  hint?: string;
  /** Where they are not those of the table. */
  rows?: readonly Row[];
  childrenOf?: (row: Row) => readonly Row[];
  /** Whether a tree is open at its roots at first. */
  open?: boolean;
  groupBy?: (row: Row) => string;
  sorting?: Sorting;
  columns?: Column<Row>[];
  /** Whether a row is one that is counted; all are by default. */
  counts?: (row: Row) => boolean;
}

/** Where the choice of a table lies: by default with the table alone. */
export interface KeptChoice {
  choice: TableChoice;
  choose: (to: TableChoice) => void;
  /** Texts of notes by the keys of rows, and how to write one. */
  notes?: {
    of: ReadonlyMap<string, { text: string }>;
    pin: (key: string, label: string) => void;
  } | null;
  /** The row that somebody came to see. */
  shown?: string | null;
}

export interface TableProps<Row> {
  caption: string;
  kept?: KeptChoice;
  columns: Column<Row>[];
  rows: readonly Row[];
  keyOf: (row: Row) => string | number;
  /** Ways to show the rows, the first at first; by default a list. */
  views?: TableView<Row>[];
  sorting?: Sorting;
  /** One row, and several: `kernel`, `kernels`. */
  noun?: [string, string];
  /** What the last line has of all rows: `Total` by default. */
  totals?: string;
  /** How many rows there are beyond these. */
  left?: number;
  /** Rows that belong to what is chosen elsewhere. */
  marked?: (row: Row) => boolean;
  onChoose?: (row: Row) => void;
  /** Opened to and scrolled into view whenever the key changes. */
  show?: { key: string | number; is: (row: Row) => boolean } | null;
  empty?: string;
}

/** A table with what somebody chose of it. */
export interface TableState<Row> {
  props: TableProps<Row>;
  views: readonly TableView<Row>[];
  view: TableView<Row>;
  columns: Column<Row>[];
  filter: string;
  sorting: Sorting | null;
  /** The line that the keys are at. */
  current: Signal<string>;
  /** Whether any row holds others. */
  opens: boolean;
  lines: readonly Line<Row>[];
  /** The rows that the filter leaves. */
  found: readonly Row[];
  total: number;
  setView: (view: TableView<Row>) => void;
  setFilter: (text: string) => void;
  sortBy: (column: Column<Row>) => void;
  /** What is opened to and scrolled into view. */
  show: TableProps<Row>["show"];
  toggle: (line: Line<Row>, open?: boolean) => void;
  openAll: (open: boolean) => void;
}

const LIST = { id: "rows", title: "Rows" };
type Keys = ReadonlySet<string>;

/** The state of a table, and the lines that follow from it. */
export function useTable<Row>(props: TableProps<Row>): TableState<Row> {
  const views: TableView<Row>[] = props.views ?? [LIST];
  const { choice, choose } = useChoice(props.kept);
  const { filter } = choice;
  const current = useSignal("");
  const view = views.find((one) => one.id === choice.view) ?? views[0]!;
  const columns = view.columns ?? props.columns;
  const shape = useShape(props, view);
  const matches = useMemo(() => matcher(columns, filter), [columns, filter]);
  const opened = useSignal<Keys>(useMemo(() => atFirst(views[0]!, shape), []));
  // What a filter opens is forgotten with it.
  const openFound = useMemo(
    () => signal<Keys>(new Set(matches && shape.childrenOf ? waysTo(shape, matches) : [])),
    [filter, shape],
  );
  const open = matches ? openFound : opened;
  const known = columns.some((one) => one.id === choice.sorting?.column);
  const sorting = (known ? choice.sorting : null) ?? view.sorting ?? props.sorting ?? null;
  const field = columns.find((one) => one.id === sorting?.column);
  const lines = useMemo(() => {
    const order = field && sorting ? { field, down: sorting.down } : null;
    return linesOf(shape, { order, matches, open: open.value });
  }, [shape, field, sorting?.down, matches, open.value]);
  const counted = (wanted: typeof matches): readonly Row[] => {
    const rows = matching(shape, wanted);
    return view.counts ? rows.filter(view.counts) : rows;
  };
  const found = useMemo(() => counted(matches), [shape, matches]);
  const all = useMemo(() => (matches ? counted(null).length : found.length), [shape, found]);

  const shown = props.kept?.shown ?? null;
  const isShown = (row: Row): boolean => String(props.keyOf(row)) === shown;
  const show = shown === null ? props.show : { key: `note ${shown}`, is: isShown };
  useLayoutEffect(() => {
    if (!show) return;
    open.value = new Set([...open.value, ...waysTo(shape, show.is)]);
  }, [show?.key, shape]);

  return {
    props, views, view,
    columns, filter, sorting, current, lines, found, total: all,
    show,
    opens: Boolean(shape.groupBy || shape.childrenOf),
    setView: (to) => choose({ ...choice, view: to === views[0] ? "" : to.id, sorting: null }),
    setFilter: (text) => choose({ ...choice, filter: text }),
    sortBy: (column) => choose({ ...choice, sorting: nextSorting(sorting, column) }),
    toggle: (line, to = !line.open) => {
      const next = new Set(open.value);
      if (to) next.add(line.key);
      else next.delete(line.key);
      open.value = next;
    },
    openAll: (to) => (open.value = to ? new Set(openable(shape)) : new Set()),
  }; // prettier-ignore
}

function useChoice(kept: KeptChoice | undefined): KeptChoice {
  const own = useSignal(NO_CHOICE);
  return kept ?? { choice: own.value, choose: (to) => (own.value = to) };
}

function useShape<Row>(props: TableProps<Row>, view: TableView<Row>): Shape<Row> {
  const { keyOf } = props;
  const rows = view.rows ?? props.rows;
  const { childrenOf, groupBy } = view;
  return useMemo(() => ({ rows, keyOf, childrenOf, groupBy }), [rows, view.id, childrenOf]);
}

/** One way, then the other, then as at first. */
function nextSorting<Row>(now: Sorting | null, { id, numeric }: Column<Row>): Sorting | null {
  const first = numeric ?? false;
  if (now?.column !== id) return { column: id, down: first };
  return now.down === first ? { column: id, down: !first } : null;
}

function atFirst<Row>({ open }: TableView<Row>, shape: Shape<Row>): Keys {
  return new Set(open ? shape.rows.map((row) => `/${shape.keyOf(row)}`) : []);
}
