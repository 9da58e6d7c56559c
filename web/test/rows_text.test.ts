import { expect, it } from "vitest";
import type { QueryResult } from "../src/api/types";
import { csv, tabs } from "../src/model/rows_text";

const result = {
  columns: [{ name: "name" }, { name: "n, total" }],
  rows: [
    ['say "hi"\nthere\tnow', 2.5],
    [null, -1],
  ],
} as QueryResult;

it("a result is saved as CSV that keeps quotes, commas and lines", () => {
  expect(csv(result)).toBe('name,"n, total"\r\n"say ""hi""\nthere\tnow",2.5\r\n,-1\r\n');
});

it("a result is copied with tabs, a line for each row", () => {
  expect(tabs(result)).toBe('name\tn, total\nsay "hi" there now\t2.5\n\t-1');
});
