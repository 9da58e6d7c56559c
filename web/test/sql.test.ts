import { describe, expect, it } from "vitest";
import type { ResultColumn, TraceTable } from "../src/api/types";
import { completions, eventColumn } from "../src/model/sql";

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
