import { expect, it } from "vitest";
import { sum, type Field } from "../src/model/table/field";
import { linesOf } from "../src/model/table/lines";
import { cellsOf, csv, tabs } from "../src/model/table/text";

const CELLS = [
  ["name", "n, total"],
  ['say "hi"\nthere\tnow', 2.5],
  [null, -1],
];

it("is saved as CSV that keeps quotes, commas and lines", () => {
  expect(csv(CELLS)).toBe('name,"n, total"\r\n"say ""hi""\nthere\tnow",2.5\r\n,-1\r\n');
});

it("is copied with tabs, a line for each row", () => {
  expect(tabs(CELLS)).toBe('name\tn, total\nsay "hi" there now\t2.5\n\t-1');
});

interface Kernel {
  name: string;
  ms: number;
}

const FIELDS: Field<Kernel>[] = [
  { id: "name", title: "name", value: (row) => row.name.slice(0, 3), full: (row) => row.name },
  { id: "bar", title: "bar" },
  { id: "ms", title: "CPU", over: "forward", unit: "ms", numeric: true, value: (row) => row.ms, total: sum((row) => row.ms) },
]; // prettier-ignore
const ROWS = [
  { name: "gemm_nt", ms: 2 },
  { name: "gemm_tn", ms: 3 },
];
const ALL = { order: null, matches: null, open: new Set(["group gemm"]) };

it("has full names and exact numbers under headings with units, without what is only drawn", () => {
  const lines = linesOf({ rows: ROWS, keyOf: (row) => row.name }, ALL);
  expect(cellsOf(FIELDS, lines)).toEqual([
    ["name", "forward CPU (ms)"],
    ["gemm_nt", 2],
    ["gemm_tn", 3],
  ]);
});

it("tells totals from the rows in them by a level", () => {
  const lines = linesOf({ rows: ROWS, keyOf: (row) => row.name, groupBy: () => "gemm" }, ALL);
  expect(cellsOf(FIELDS, lines)).toEqual([
    ["level", "name", "forward CPU (ms)"],
    [1, "gemm", 5],
    [2, "gemm_nt", 2],
    [2, "gemm_tn", 3],
  ]);
});
