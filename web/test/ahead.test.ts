import { describe, expect, it } from "vitest";
import { pathsAhead } from "../src/state/ahead";
import { drawnLevel, drawnWire } from "./drawn";

describe("what may be opened next", () => {
  const id = Array.from({ length: 40 }, (_, step) => `s${step}.0`);
  const all = drawnWire(id.map((name) => ({ name, cpu: [0, 1] })));
  const steps = drawnLevel([], { ...all, path: "", operations: { ...all.operations, id } });

  it("is inside the lowest level, then the steps and the stages of those nearby", () => {
    const paths = pathsAhead([steps, drawnLevel([], { path: "s20.0/t3" })]);
    expect(paths.slice(0, 5)).toEqual(["s20.0/t3", "", "s20.0", "s19.0", "s21.0"]);
    expect(paths).toHaveLength(2 + 16);
  });

  it("is asked for once where the lowest level is one of these", () => {
    expect(pathsAhead([steps])).toHaveLength(1 + 16);
    expect(pathsAhead([steps, drawnLevel([], { path: "s0.0" })])[0]).toBe("s0.0");
    expect(pathsAhead([])).toEqual([""]);
  });
});
