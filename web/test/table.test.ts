import { describe, expect, it } from "vitest";
import { least, matcher, mean, most, sum, type Field } from "../src/model/table/field";
import {
  linesOf,
  matching,
  openable,
  waysTo,
  type Shape,
  type Wanted,
} from "../src/model/table/lines";
import { inSight } from "../src/widgets/table/sight";

interface Node {
  name: string;
  ms: number | null;
  children: Node[];
}

const node = (name: string, ms: number | null, children: Node[] = []): Node => ({
  name,
  ms,
  children,
});
const NAME: Field<Node> = { id: "name", title: "name", value: (row) => row.name };
const MS: Field<Node> = {
  id: "ms",
  title: "ms",
  numeric: true,
  value: (row) => row.ms,
  total: sum((row) => row.ms),
};

const tree = [
  node("model", 10, [
    node("stem", 1),
    node("layers", 8, [node("attention", 3), node("mlp", 5), node("norm", null)]),
  ]),
];
const TREE: Shape<Node> = {
  rows: tree,
  keyOf: (row) => row.name,
  childrenOf: (row) => row.children,
};
const NONE: Wanted<Node> = { order: null, matches: null, open: new Set() };

/** The lines as text: `..mlp` is two levels inside. */
function shown(shape: Shape<Node>, wanted: Partial<Wanted<Node>> = {}): string[] {
  const lines = linesOf(shape, { ...NONE, ...wanted });
  return lines.map((line) => ".".repeat(line.depth) + (line.group ?? line.rows[0]!.name));
}

describe("a tree", () => {
  const all = new Set(openable(TREE));

  it("shows what is open", () => {
    expect(shown(TREE)).toEqual(["model"]);
    expect(shown(TREE, { open: new Set(["/model"]) })).toEqual(["model", ".stem", ".layers"]);
  });

  it("is sorted within each row, and what is unknown comes last", () => {
    const order = { field: MS, down: true };
    expect(shown(TREE, { open: all, order })).toEqual([
      "model", ".layers", "..mlp", "..attention", "..norm", ".stem",
    ]); // prettier-ignore
  });

  it("is filtered to what matches, what leads there, and what is inside", () => {
    const mlp = matcher([NAME], "MLP");
    expect(shown(TREE, { open: all, matches: mlp })).toEqual(["model", ".layers", "..mlp"]);
    const layers = matcher([NAME], "layer");
    expect(shown(TREE, { open: all, matches: layers })).toHaveLength(5);
    expect(matching(TREE, mlp).map((row) => row.name)).toEqual(["mlp"]);
    expect(matching(TREE, null)).toHaveLength(6);
  });

  it("knows what to open for a row to be seen", () => {
    expect(waysTo(TREE, (row) => row.name === "mlp")).toEqual(["/model", "/model/layers"]);
    expect(waysTo(TREE, () => false)).toEqual([]);
  });
});

describe("totals by a name", () => {
  const rows = [node("a", 1), node("b", 5), node("a", 2), node("c", null)];
  const shape: Shape<Node> = {
    rows,
    keyOf: (row) => rows.indexOf(row),
    groupBy: (row) => row.name,
  };

  it("are ranked by the total, and open to the rows in them", () => {
    const order = { field: MS, down: true };
    expect(shown(shape, { order })).toEqual(["b", "a", "c"]);
    expect(shown(shape, { order, open: new Set(["group a"]) })).toEqual([
      "b",
      "a",
      ".a",
      ".a",
      "c",
    ]);
    const [, group] = linesOf(shape, { ...NONE, order });
    expect(MS.total!(group!.rows)).toBe(3);
  });

  it("are sorted by name, and made of the rows that a filter leaves", () => {
    expect(shown(shape, { order: { field: NAME, down: true } })).toEqual(["c", "b", "a"]);
    const matches = (row: Node): boolean => (row.ms ?? 0) > 1;
    const [, a] = linesOf(shape, { ...NONE, matches });
    expect(a!.rows).toEqual([rows[2]]);
  });

  it("open all at once", () => {
    expect(openable(shape)).toEqual(["group a", "group b", "group c"]);
    expect(waysTo(shape, (row) => row.ms === 2)).toEqual(["group a"]);
  });
});

describe("one value for many rows", () => {
  const rows = [
    { value: 2, weight: 3 },
    { value: null, weight: 9 },
    { value: 6, weight: 1 },
  ];
  const value = (row: (typeof rows)[number]): number | null => row.value;
  const averaged = mean(value, (row) => row.weight);

  it("leaves out what is unknown", () => {
    expect([sum(value)(rows), least(value)(rows), most(value)(rows)]).toEqual([8, 2, 6]);
    expect(averaged(rows)).toBe(3);
  });

  it("is unknown if all of them are", () => {
    const none = rows.slice(1, 2);
    expect([sum(value)(none), least(value)(none), averaged(none)]).toEqual([null, null, null]);
  });
});

describe("a filter", () => {
  const full: Field<Node> = { ...NAME, full: (row) => `void ${row.name}<float>` };

  it("wants every word, in any column of text, whether or not it is shortened", () => {
    const holds = (text: string): boolean => matcher([full, MS], text)!(node("gemm", 64));
    expect(holds("FLOAT gem")).toBe(true);
    expect(holds("gemm double")).toBe(false);
    expect(holds("64")).toBe(false);
  });

  it("of blanks is none", () => {
    expect(matcher([NAME], "  ")).toBeNull();
  });
});

describe("of many rows", () => {
  it("those around what is in sight are drawn", () => {
    expect(inSight(250, 0, 500)).toEqual({ from: 0, to: 250 });
    const { from, to } = inSight(10_000, 25 * 5000, 500);
    expect(from).toBeLessThan(5000);
    expect(to).toBeGreaterThan(5020);
    expect(to - from).toBeLessThan(60);
  });

  it("the last ones are drawn wherever the frame is thought to be", () => {
    expect(inSight(400, 1e9, 500).to).toBe(400);
  });
});
