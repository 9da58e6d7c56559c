import { describe, expect, it } from "vitest";
import { NO_CHOICE } from "../src/model/table/choice";
import { fromHash, NO_FLAME, NO_VIEW, toHash, type View } from "../src/state/url";

const VIEWS: Record<string, Partial<View>> = {
  "an opened operation": { path: "s5.0/t3/m12.4071", chosen: "s5.0/t3/m12.4071" },
  "a chosen one beside it": { path: "s5.0/t3", chosen: "s5.0/t3/e4071" },
  "the trace itself": { path: "", chosen: "" },
  "a module": { path: "s5.0", chosen: "s5.0", subject: { module: 4 }, pane: "modules" },
  "a kernel with a hostile name": {
    path: "s5.0",
    chosen: "s5.0",
    subject: { kernel: `<a&b="1">#?%` },
  },
  "a line": { path: "s5.0", chosen: "s5.0", subject: { file: "/home/a b/é.py", line: 52 } },
  "a finding": { path: "s5.0", chosen: "s5.0", subject: { finding: 2 }, pane: "findings" },
  "a row of its evidence": { path: "s5.0", chosen: "s5.0", subject: { finding: 2, place: 1 } },
  "changes to try": { changes: ["amp", "scale:select=name=Memcpy HtoD (Pageable*,factor=0"] },
  "a flame graph": {
    pane: "flame",
    flame: {
      by: "cpu",
      up: true,
      against: "run-2",
      find: "conv2d & <b>",
      zoom: { tree: "0.5", start: 12, node: 40 },
    },
  },
  "memory at a moment": {
    pane: "memory",
    memory: { device: "device 0", by: "line", group: 3, moment: 138_070_000 },
  },
  "notes on a moment and on a row": {
    notes: [
      {
        trace: "run",
        time: 1_500_000,
        path: "",
        subject: null,
        row: null,
        label: "1.50 ms",
        text: "Why? & <b>",
      },
      {
        trace: "a b",
        time: 0,
        path: "s5.0/t3",
        subject: { kernel: "gemm<1, 2>" },
        row: null,
        label: "gemm",
        text: "50 %",
      },
      {
        trace: "run",
        time: -1,
        path: "",
        subject: null,
        row: { table: "collectives", key: "allreduce 0: a&b" },
        label: "allreduce",
        text: "why so small?",
      },
    ],
  },
  "tables, sorted and filtered": {
    tables: {
      kernels: { sorting: { column: "total", down: true }, view: "kind", filter: "conv, 2d & x" },
      modules: { sorting: { column: "name", down: false }, view: "", filter: "" },
      search: { sorting: null, view: "", filter: "aten::mm" },
    },
  },
  "collectives by rank": { pane: "collectives", byRank: true },
  "a comparison with a rank": { pane: "compare", againstRank: 3 },
  "a zoom in a recording without steps": {
    flame: { ...NO_FLAME, zoom: { tree: "", start: 0, node: 7 } },
  },
  "a part of the axis": { path: "s5.0", chosen: "", window: { from: 0, to: 1_500_000 } },
  "a marker at the start": { marker: 0 },
  "statistics of an area": {
    path: "s5.0",
    chosen: "",
    area: { from: 12, to: 900, tracks: ["t4", "i0.3"] },
  },
  "switches and a search": {
    text: "aten::mul_ #1",
    every: true,
    aligned: true,
    oneStep: true,
    asTable: true,
    sql: "select count(*) from events\nwhere step = 1",
    roofline: true,
    whole: true,
  },
};

describe("a view comes back from its URL", () => {
  it.each(Object.entries(VIEWS))("%s", (_, part) => {
    const view = { ...NO_VIEW, ...part };
    expect(fromHash(toHash(view))).toEqual(view);
  });
});

it("says nothing of what is as usual, and keeps paths readable", () => {
  expect(toHash(NO_VIEW)).toBe("#");
  expect(toHash({ ...NO_VIEW, path: "s5.0/t3", chosen: "s5.0/t3" })).toBe("#path=s5.0/t3");
});

it("says of a table in a few letters what is not as at first", () => {
  const sorting = { column: "total", down: true };
  const tables = { kernels: { sorting, view: "", filter: "" }, modules: NO_CHOICE };
  expect(toHash({ ...NO_VIEW, tables })).toBe("#t.kernels=-total");
});

it("passes over what it does not know, and what is broken", () => {
  const broken = fromHash("#subject=module:x&unknown=1&every=yes&path=s1.0&zoom=a:b");
  expect(broken).toEqual({ ...NO_VIEW, path: "s1.0", chosen: "s1.0" });
});

it("leaves notes without text out, and passes broken ones over", () => {
  const note = { trace: "a", time: 5, path: "", subject: null, row: null, label: "5 ns", text: "" };
  expect(toHash({ ...NO_VIEW, notes: [note] })).toBe("#");
  expect(fromHash("#notes=nothing%0Aa%09x%09%09%09%09b").notes).toEqual([]);
  const lines = { ...note, text: "two\nlines" };
  expect(fromHash(toHash({ ...NO_VIEW, notes: [lines] })).notes[0]?.text).toBe("two lines");
});
