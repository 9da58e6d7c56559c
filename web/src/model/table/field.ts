import type { Value } from "../sort";

/** What a table knows of a column, apart from how it is drawn. */
export interface Field<Row> {
  id: string;
  title: string;
  /** Heading above several columns: `forward` above `CPU` and `device`. */
  over?: string;
  /** Unit of the values, for an export: `ms`. */
  unit?: string;
  numeric?: boolean;
  /** What rows are sorted by and filtered by; without it the column is neither, nor exported. */
  value?: (row: Row) => Value;
  /** What an export has in place of a shortened value. */
  full?: (row: Row) => Value;
  /** One value for many rows, such as their sum; without it they have none. */
  total?: (rows: readonly Row[]) => number | null;
}

type Numbers<Row> = (row: Row) => number | null;

function known<Row>(rows: readonly Row[], value: Numbers<Row>): number[] {
  return rows.map(value).filter((one) => one !== null);
}

/** The sum of a column, null if nothing is known of it. */
export function sum<Row>(value: Numbers<Row>): (rows: readonly Row[]) => number | null {
  return (rows) => {
    const found = known(rows, value);
    return found.length ? found.reduce((total, one) => total + one, 0) : null;
  };
}

export function least<Row>(value: Numbers<Row>): (rows: readonly Row[]) => number | null {
  return (rows) => known(rows, value).reduce<number | null>((a, b) => Math.min(a ?? b, b), null);
}

export function most<Row>(value: Numbers<Row>): (rows: readonly Row[]) => number | null {
  return (rows) => known(rows, value).reduce<number | null>((a, b) => Math.max(a ?? b, b), null);
}

/** The mean, each row as often as its weight says. */
export function mean<Row>(
  value: Numbers<Row>,
  weight: (row: Row) => number,
): (rows: readonly Row[]) => number | null {
  return (rows) => {
    const of = rows.filter((row) => value(row) !== null);
    const weights = of.reduce((total, row) => total + weight(row), 0);
    return weights
      ? of.reduce((total, row) => total + value(row)! * weight(row), 0) / weights
      : null;
  };
}

/**
 * Whether a row holds every word of a text in its columns of text, ignoring case.
 *
 * @returns null if the text has no words.
 */
export function matcher<Row>(
  fields: readonly Field<Row>[],
  text: string,
): ((row: Row) => boolean) | null {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const read = fields
    .filter((one) => !one.numeric)
    .flatMap((one) => [one.value, one.full].filter((of) => of !== undefined));
  if (!words.length) return null;
  return (row) => {
    const held = read
      .map((of) => of(row) ?? "")
      .join("\n")
      .toLowerCase();
    return words.every((word) => held.includes(word));
  };
}
