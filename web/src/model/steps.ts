import type { StepRow } from "../api/types";

/** Every step of every rank, in a grid: a row for each rank, a column for each number of a step. */
export interface StepGrid {
  ranks: number[];
  numbers: number[];
  cells: { row: number; column: number; step: StepRow }[];
  /** The length of the tallest bar: of the longest step that is no outlier. */
  longest: number;
}

/** Steps longer than so many times the median do not set the scale: the first often warms up. */
const OUTLIER = 4;

export function stepGrid(steps: readonly StepRow[]): StepGrid {
  const distinct = (of: (one: StepRow) => number): number[] =>
    [...new Set(steps.map(of))].sort((a, b) => a - b);
  const [ranks, numbers] = [distinct((one) => one.rank), distinct((one) => one.step)];
  const row = new Map(ranks.map((one, at) => [one, at]));
  const column = new Map(numbers.map((one, at) => [one, at]));
  const cells = steps.map((step) => ({
    row: row.get(step.rank)!,
    column: column.get(step.step)!,
    step,
  }));
  const lengths = steps.map((one) => one.runtime_ns).sort((a, b) => a - b);
  const usual = OUTLIER * (lengths[lengths.length >> 1] ?? 1);
  const longest = Math.max(...lengths.filter((length) => length <= usual), 1);
  return { ranks, numbers, cells, longest };
}

/** The step at a place of the strip; of a rank without it the nearest of the rank. */
export function stepAt(grid: StepGrid, row: number, column: number): StepRow | undefined {
  const mine = grid.cells.filter((one) => one.row === row);
  const nearest = mine.reduce<StepGrid["cells"][number] | undefined>(
    (best, one) =>
      best && Math.abs(best.column - column) <= Math.abs(one.column - column) ? best : one,
    undefined,
  );
  return nearest?.step;
}

/** The step nearest to the median length of those with some numbers, the first of two as near. */
export function typicalStep(
  steps: readonly StepRow[],
  rank: number,
  numbers: readonly number[],
): StepRow | undefined {
  const mine = steps.filter((one) => one.rank === rank && numbers.includes(one.step));
  const lengths = mine.map((one) => one.runtime_ns).sort((a, b) => a - b);
  const middle = (lengths.length - 1) / 2;
  const median = ((lengths[Math.floor(middle)] ?? 0) + (lengths[Math.ceil(middle)] ?? 0)) / 2;
  const off = (one: StepRow): number => Math.abs(one.runtime_ns - median);
  return mine.reduce<StepRow | undefined>(
    (best, one) => (best && off(best) <= off(one) ? best : one),
    undefined,
  );
}

/** The step so many steps later on the same rank; none beyond the ends. */
export function stepBeside(
  steps: readonly StepRow[],
  now: { rank: number; step: number },
  by: number,
): StepRow | undefined {
  const mine = steps.filter((one) => one.rank === now.rank).sort((a, b) => a.step - b.step);
  return mine[mine.findIndex((one) => one.step === now.step) + by];
}
