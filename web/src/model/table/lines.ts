import { sorted, type Value } from "../sort";
import type { Field } from "./field";

/** The rows of a table: a list, a tree, or a list grouped by a name. */
export interface Shape<Row> {
  rows: readonly Row[];
  keyOf: (row: Row) => string | number;
  childrenOf?: ((row: Row) => readonly Row[]) | undefined;
  groupBy?: ((row: Row) => string) | undefined;
}

/** One line on screen: a row, or all rows of one name together. */
export interface Line<Row> {
  key: string;
  depth: number;
  opens: boolean;
  open: boolean;
  /** The row, or all rows of the group. */
  rows: readonly Row[];
  /** Name of the group, null for a row. */
  group: string | null;
}

export interface Order<Row> {
  field: Field<Row>;
  down: boolean;
}

/** What is wanted of the rows: their order, which of them, and which are open. */
export interface Wanted<Row> {
  order: Order<Row> | null;
  matches: ((row: Row) => boolean) | null;
  open: ReadonlySet<string>;
}

/** The lines on screen, from top to bottom. */
export function linesOf<Row>(shape: Shape<Row>, wanted: Wanted<Row>): Line<Row>[] {
  if (shape.groupBy) return groupLines(shape, shape.groupBy, wanted);
  const kept = wanted.matches ? keptOf(shape, wanted.matches) : null;
  const lines: Line<Row>[] = [];
  const walk = (rows: readonly Row[], depth: number, above: string): void => {
    const shown = kept ? rows.filter((row) => kept.has(row)) : rows;
    for (const row of inOrder(shown, wanted.order)) {
      const key = `${above}/${shape.keyOf(row)}`;
      const inside = shape.childrenOf?.(row) ?? [];
      const open = inside.length > 0 && wanted.open.has(key);
      lines.push({ key, depth, opens: inside.length > 0, open, rows: [row], group: null });
      if (open) walk(inside, depth + 1, key);
    }
  };
  walk(shape.rows, 0, "");
  return lines;
}

/** The keys of all lines that open. */
export function openable<Row>(shape: Shape<Row>): string[] {
  if (shape.groupBy) return [...grouped(shape.rows, shape.groupBy).keys()].map(groupKey);
  const keys: string[] = [];
  walkTree(shape, (_row, key, inside) => void (inside.length && keys.push(key)));
  return keys;
}

/** The keys of the lines that have to be open for those rows to be on screen. */
export function waysTo<Row>(shape: Shape<Row>, wanted: (row: Row) => boolean): string[] {
  if (shape.groupBy) {
    const groups = [...grouped(shape.rows, shape.groupBy)];
    return groups.filter(([, rows]) => rows.some(wanted)).map(([name]) => groupKey(name));
  }
  const ways = new Set<string>();
  walkTree(shape, (row, _key, _inside, way) => wanted(row) && way.forEach((one) => ways.add(one)));
  return [...ways];
}

/** The rows that a filter is about: all of them where it is off, without those that only lead there. */
export function matching<Row>(
  shape: Shape<Row>,
  matches: ((row: Row) => boolean) | null,
): readonly Row[] {
  if (!shape.childrenOf) return matches ? shape.rows.filter(matches) : shape.rows;
  const found: Row[] = [];
  walkTree(shape, (row) => void ((matches?.(row) ?? true) && found.push(row)));
  return found;
}

/** The rows that match, what leads to them, and what is inside them. */
function keptOf<Row>(shape: Shape<Row>, matches: (row: Row) => boolean): ReadonlySet<Row> {
  const kept = new Set<Row>();
  const walk = (rows: readonly Row[], within: boolean): boolean => {
    let some = false;
    for (const row of rows) {
      const here = within || matches(row);
      const below = walk(shape.childrenOf?.(row) ?? [], here);
      if (here || below) kept.add(row);
      some ||= here || below;
    }
    return some;
  };
  walk(shape.rows, false);
  return kept;
}

function groupLines<Row>(
  shape: Shape<Row>,
  groupBy: (row: Row) => string,
  { order, matches, open }: Wanted<Row>,
): Line<Row>[] {
  const groups = [...grouped(matches ? shape.rows.filter(matches) : shape.rows, groupBy)];
  const value = ([name, rows]: [string, Row[]]): Value =>
    order!.field.numeric ? (order!.field.total?.(rows) ?? null) : name;
  return (order ? sorted(groups, value, order.down) : groups).flatMap(([name, rows]) => {
    const key = groupKey(name);
    const line = { key, depth: 0, opens: true, open: open.has(key), rows, group: name };
    if (!line.open) return [line];
    const inside = inOrder(rows, order).map((row) => ({
      key: `${key}/${shape.keyOf(row)}`, depth: 1, opens: false, open: false, rows: [row], group: null,
    })); // prettier-ignore
    return [line, ...inside];
  });
}

function groupKey(name: string): string {
  return `group ${name}`;
}

function grouped<Row>(rows: readonly Row[], by: (row: Row) => string): Map<string, Row[]> {
  const groups = new Map<string, Row[]>();
  for (const row of rows) {
    const name = by(row);
    const group = groups.get(name);
    if (group) group.push(row);
    else groups.set(name, [row]);
  }
  return groups;
}

function inOrder<Row>(rows: readonly Row[], order: Order<Row> | null): readonly Row[] {
  const value = order?.field.value;
  return value ? sorted(rows, value, order.down) : rows;
}

/** Calls for every row of a tree, from the top down, with the keys of those above it. */
function walkTree<Row>(
  shape: Shape<Row>,
  visit: (row: Row, key: string, inside: readonly Row[], way: readonly string[]) => void,
): void {
  const walk = (rows: readonly Row[], above: string, way: readonly string[]): void => {
    for (const row of rows) {
      const key = `${above}/${shape.keyOf(row)}`;
      const inside = shape.childrenOf?.(row) ?? [];
      visit(row, key, inside, way);
      if (inside.length) walk(inside, key, [...way, key]);
    }
  };
  walk(shape.rows, "", []);
}
