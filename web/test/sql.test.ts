import { describe, expect, it } from "vitest";
import type { ResultColumn, TraceTable } from "../src/api/types";
import { completions, eventColumn, spansOf } from "../src/model/sql";

const columns = (...names: string[]): ResultColumn[] =>
  names.map((name) => ({ name, type: "int64", numeric: name !== "name" }));

describe("the column of a result that holds events", () => {
  it.each([
    ["select name, id from events", ["name", "id"], 1],
    ["select name, id from modules", ["name", "id"], -1],
    ["select e.id from events e join modules m on m.id = e.module", ["id"], -1],
    ["select time_ns, event from memory", ["time_ns", "event"], 1],
    ["select count(*) as n from events", ["n"], -1],
  ])("%s", (sql, names, expected) => {
    expect(eventColumn(sql, columns(...names))).toBe(expected);
  });
});

const table = (name: string, ...names: string[]): TraceTable => ({
  name,
  meaning: "",
  columns: names.map((one) => ({ name: one, type: "", unit: "", nullable: false, meaning: "" })),
});
const TABLES = [
  table("events", "id", "start_ns", "step"),
  table("steps", "step", "start_ns", "end_ns"),
];

describe("what goes on with a word", () => {
  it.each([
    ["select * from ste", ["steps", "step"]],
    ["select sta from events", ["start_ns"], 10],
    ["select en from steps", ["end_ns"], 9],
    ["select * from steps", []],
    ["select ", []],
  ])("%s", (sql, expected, at = sql.length) => {
    expect(completions(sql, at, TABLES)).toEqual(expected);
  });
});

describe("rows with a start and a length", () => {
  const column = (name: string, numeric = true) => ({ name, numeric, type: "" });
  const result = (columns: [string, boolean][], rows: (string | number | null)[][]) => ({
    columns: columns.map(([name, numeric]) => column(name, numeric)),
    rows,
    more: false,
    seconds: 0,
  });

  it("are a track, those that overlap on several lines", () => {
    const rows = [["b", 5, 10, 2], ["a", 0, 8, 1], ["c", 8, 1, 3], ["none", null, 1, 4]]; // prettier-ignore
    const columns: [string, boolean][] = [["name", false], ["start_ns", true], ["duration_ns", true], ["event", true]]; // prettier-ignore
    expect(spansOf("", result(columns, rows))).toEqual([
      { from: 0, to: 8, name: "a", event: 1, line: 0 },
      { from: 5, to: 15, name: "b", event: 2, line: 1 },
      { from: 8, to: 9, name: "c", event: 3, line: 0 },
    ]);
  });

  it("may have an end in place of a length", () => {
    const steps = result([["step", true], ["start_ns", true], ["end_ns", true]], [[5, 10, 30]]); // prettier-ignore
    expect(spansOf("select * from steps", steps)).toEqual([
      { from: 10, to: 30, name: "", event: null, line: 0 },
    ]);
  });

  it("are none without a start or an end", () => {
    expect(spansOf("", result([["start_ns", true]], [[1]]))).toBeNull();
    expect(spansOf("", result([["duration_ns", true]], [[1]]))).toBeNull();
  });
});
