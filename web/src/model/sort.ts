/** How a table is sorted: by a column, downwards first for numbers. */
export interface Sorting {
  column: string;
  down: boolean;
}

export type Value = string | number | null;

/** The same rows in order; nothing goes last either way, and equals keep their order. */
export function sorted<T>(rows: readonly T[], value: (row: T) => Value, down: boolean): T[] {
  const sign = down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [one, other] = [value(a), value(b)];
    if (one === null || other === null) return Number(one === null) - Number(other === null);
    if (typeof one === "string" || typeof other === "string") {
      return sign * String(one).localeCompare(String(other), "en", { numeric: true });
    }
    return sign * (one - other);
  });
}
