/** A table of how much longer each rank takes, drawn as columns that may hold several ranks. */
export interface Heat {
  /** Of each row, top to bottom. */
  names: readonly string[];
  /**
   * How much longer than the median rank, as a share of the step: of each row, for each rank; NaN
   * for a rank that takes no part.
   */
  excess: readonly (readonly number[])[];
  /** The largest share, at which colors are strongest. */
  most: number;
}

/** Below this share of the step nothing is drawn strongly: it would show noise. */
const LEAST_MOST = 0.03;

/**
 * The excess of each rank over the median rank.
 *
 * @param rows times by row and rank.
 * @param whole the time that shares are of.
 */
export function heatOf(names: readonly string[], rows: readonly number[][], whole: number): Heat {
  const excess = rows.map((row) => {
    const usual = median(row);
    return row.map((value) => (value - usual) / (whole || 1));
  });
  return heatOfExcess(names, excess);
}

/** The same where the excess over the median rank is known. */
export function heatOfExcess(names: readonly string[], excess: readonly number[][]): Heat {
  const most = excess.reduce((all, row) => row.reduce(largest, all), LEAST_MOST);
  return { names, excess, most };
}

function largest(most: number, value: number): number {
  return Math.max(most, sizeOf(value));
}

function sizeOf(value: number): number {
  return Number.isNaN(value) ? 0 : Math.abs(value);
}

export function median(values: readonly number[]): number {
  if (!values.length) return 0;
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/**
 * What each column of a row shows: of the ranks in it the one that differs most.
 *
 * So one slow rank among thousands is seen on a narrow screen, too.
 */
export function columnsOf(
  excess: readonly number[],
  order: readonly number[],
  columns: number,
): number[] {
  return Array.from({ length: columns }, (_, column) => {
    const [from, to] = bounds(column, columns, order.length);
    let most = 0;
    for (let place = from; place < to; place++) {
      const value = excess[order[place]!]!;
      if (sizeOf(value) > Math.abs(most)) most = value;
    }
    return most;
  });
}

/** The places in the order that a column shows. */
export function bounds(column: number, columns: number, ranks: number): [number, number] {
  const from = Math.floor((column * ranks) / columns);
  return [from, Math.max(Math.floor(((column + 1) * ranks) / columns), from + 1)];
}

/** The place of the rank that a column is about: the one that differs most, in any row. */
export function placeIn(heat: Heat, order: readonly number[], from: number, to: number): number {
  let [best, most] = [from, -1];
  for (let place = from; place < to; place++) {
    const value = Math.max(...heat.excess.map((row) => sizeOf(row[order[place]!]!)));
    if (value > most) [best, most] = [place, value];
  }
  return best;
}

/**
 * The rank that is latest in all rows together.
 *
 * @param rows how much later than the median rank, by row and rank.
 */
export function latestRank(
  rows: readonly (readonly number[])[],
): { place: number; ms: number } | undefined {
  const total = (rows[0] ?? []).map((_, place) => rows.reduce((sum, row) => sum + row[place]!, 0));
  const ms = total.reduce((most, one) => Math.max(most, one), -Infinity);
  return total.length ? { place: total.indexOf(ms), ms } : undefined;
}

/** Neighbors of one group: a machine, or a group of a parallel axis. */
export interface Run {
  name: string;
  from: number;
  to: number;
}

/** Stretches of ranks of the same name in an order. */
export function runsOf(names: readonly string[]): Run[] {
  const runs: Run[] = [];
  names.forEach((name, place) => {
    const last = runs[runs.length - 1];
    if (last?.name === name) last.to = place + 1;
    else runs.push({ name, from: place, to: place + 1 });
  });
  return runs;
}

/** All of a list, or of a long one half of `most` at its start and a quarter at its end. */
export function ends<T>(
  list: readonly T[],
  most: number,
): [start: readonly T[], end: readonly T[]] {
  if (list.length <= most) return [list, []];
  return [list.slice(0, most / 2), list.slice(-most / 4)];
}
