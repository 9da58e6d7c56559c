import { describe, expect, it } from "vitest";
import { pathsAhead } from "../src/state/ahead";
import { drawnLevel, drawnWire } from "./drawn";

describe("what may be opened next", () => {
  const id = Array.from({ length: 40 }, (_, step) => `s${step}.0`);
  const all = drawnWire(id.map((name) => ({ name, cpu: [0, 1] })));
  const steps = drawnLevel([], { ...all, path: "", operations: { ...all.operations, id } });

  it("is inside the lowest level and its longest operations, then in the steps nearby", () => {
    const lowest = drawnLevel(
      [
        { name: "mm", cpu: [0, 10] },
        { name: "linear", cpu: [10, 90] },
      ],
      { path: "s20.0/t3" },
    );
    const paths = pathsAhead([steps, lowest]);
    expect(paths.slice(0, 3)).toEqual(["s20.0/t3", "s20.0/t3/e1", "s20.0/t3/e0"]);
    expect(paths.slice(3, 7)).toEqual(["", "s20.0", "s19.0", "s21.0"]);
    expect(paths).toHaveLength(3 + 1 + 8);
  });

  it("is asked for once where the lowest level is one of these", () => {
    expect(pathsAhead([steps])).toHaveLength(1 + 8);
    expect(pathsAhead([steps, drawnLevel([], { path: "s0.0" })])).toHaveLength(1 + 8);
    expect(pathsAhead([])).toEqual([""]);
  });
});
