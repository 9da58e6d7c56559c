import { expect, it } from "vitest";
import type { StepRow } from "../src/api/types";
import { stepAt, stepBeside, stepGrid, typicalStep } from "../src/model/steps";

const row = (step: number, rank: number, runtime_ns: number): StepRow =>
  ({ id: `s${step}.${rank}`, step, rank, runtime_ns }) as StepRow;

/** Two ranks; the second has no step 3. */
const STEPS = [row(2, 0, 10), row(3, 0, 30), row(5, 0, 20), row(2, 4, 10), row(5, 4, 40)];

it("has a row for each rank and a column for each number of a step", () => {
  const grid = stepGrid(STEPS);
  expect([grid.ranks, grid.numbers, grid.longest]).toEqual([[0, 4], [2, 3, 5], 40]);
  expect(grid.cells.map(({ row, column }) => [row, column])).toEqual([
    [0, 0],
    [0, 1],
    [0, 2],
    [1, 0],
    [1, 2],
  ]);
});

it("leaves steps far longer than the others out of the scale", () => {
  expect(stepGrid([row(0, 0, 900), row(1, 0, 30), row(2, 0, 20)]).longest).toBe(30);
});

it("gives the step at a place, or the nearest of that rank", () => {
  const grid = stepGrid(STEPS);
  expect(stepAt(grid, 0, 1)?.id).toBe("s3.0");
  expect(stepAt(grid, 1, 2)?.id).toBe("s5.4");
  expect(stepAt(grid, 1, 1)?.id).toBe("s2.4");
  expect(stepAt(grid, 2, 0)).toBeUndefined();
});

it("walks along the steps of one rank, and stops at its ends", () => {
  expect(stepBeside(STEPS, { rank: 4, step: 2 }, 1)?.id).toBe("s5.4");
  expect(stepBeside(STEPS, { rank: 0, step: 5 }, -1)?.id).toBe("s3.0");
  expect(stepBeside(STEPS, { rank: 0, step: 5 }, 1)).toBeUndefined();
  expect(stepBeside(STEPS, { rank: 0, step: 2 }, -1)).toBeUndefined();
});

it.each([
  [[2, 3, 5], "s5.0"],
  [[2, 3], "s2.0"],
  [[3], "s3.0"],
  [[], undefined],
])("finds the step nearest to the median of steps %j", (numbers, id) =>
  expect(typicalStep(STEPS, 0, numbers)?.id).toBe(id),
);
