import { describe, expect, it } from "vitest";
import type { Best, Prediction, ListedChange, Parameter } from "../src/api/types";
import { milliseconds } from "../src/base/format";
import {
  compared,
  missing,
  moved,
  parseRequest,
  speed,
  valueOf,
  withValue,
} from "../src/model/changes";
import { sentence } from "../src/views/whatif/best";

const parameter = (name: string, usual: Parameter["default"]): Parameter => ({
  name,
  type: "str",
  default: usual,
  meaning: "",
});
const factor = parameter("factor", 2);

describe("a change as text", () => {
  it("is read as on the command line, values with further equals signs too", () => {
    expect(parseRequest("amp")).toEqual({ name: "amp", values: {} });
    expect(parseRequest("scale:select=kind=gemm,factor=0.5")).toEqual({
      name: "scale",
      values: { select: "kind=gemm", factor: "0.5" },
    });
  });

  it("leaves out what is as by default, or empty", () => {
    expect(withValue("bandwidth", factor, "4")).toBe("bandwidth:factor=4");
    expect(withValue("bandwidth:factor=4", factor, "8")).toBe("bandwidth:factor=8");
    expect(withValue("bandwidth:factor=4", factor, "2")).toBe("bandwidth");
    expect(withValue("bandwidth:factor=4", factor, " ")).toBe("bandwidth");
    expect(withValue("gist:lossy=true", parameter("lossy", false), "false")).toBe("gist");
  });

  it("shows what it says, else the default, else nothing", () => {
    expect(valueOf("bandwidth:factor=4", factor)).toBe("4");
    expect(valueOf("bandwidth", factor)).toBe("2");
    expect(valueOf("scale", parameter("select", null))).toBe("");
  });

  it("waits for parameters that have to be given", () => {
    const parameters = [parameter("select", null), parameter("factor", null), factor];
    const change = { name: "scale", parameters } as ListedChange;
    expect(missing("scale:factor=2", change)).toEqual(["select"]);
    expect(missing("scale:factor=2,select=name=x", change)).toEqual([]);
    expect(missing("unknown", undefined)).toEqual([]);
  });
});

describe("changes in their order", () => {
  it("move as far as there is room", () => {
    expect(moved(["a", "b", "c"], 2, -1)).toEqual(["a", "c", "b"]);
    expect(moved(["a", "b"], 0, -1)).toEqual(["a", "b"]);
    expect(moved(["a", "b"], 1, 1)).toEqual(["a", "b"]);
  });
});

describe("the answer", () => {
  it("compares the parts of both sides, the largest first", () => {
    expect(compared({ forward: 2, loss: 0 }, { backward: 5, loss: 0 })).toEqual([
      { name: "backward", before: 0, after: 5 },
      { name: "forward", before: 2, after: 0 },
    ]);
  });

  it("says how fast in words", () => {
    const of = (speedup: number | null): string => speed({ speedup } as Prediction);
    expect([of(1.4974), of(1.001), of(0.5), of(null)]).toEqual([
      "1.50× as fast",
      "as fast as now",
      "0.50× as fast",
      "no work is left",
    ]);
  });

  it("says of the best changes what they give, and whether they reach the goal", () => {
    const times = { predicted_step_ms: 20, replayed_step_ms: 30 } as Prediction;
    const of = (changes: string[], reached: boolean | null, same_samples_ms = 20): string =>
      sentence({
        prediction: { ...times, changes },
        reached,
        tried: 21,
        same_samples_ms,
      } as unknown as Best);
    const [faster, now, alike] = [20, 30, 40].map(milliseconds);
    const gain = `amp + tf32: ${faster} instead of ${now}, of 21 combinations.`;
    expect(of(["amp", "tf32"], null)).toBe(gain);
    expect(of(["amp", "tf32"], false)).toBe(`Nothing that was tried reaches the goal. ${gain}`);
    expect(of([], null)).toBe("No change saves more than its error.");
    expect(of([], false)).toBe(
      "Nothing that was tried reaches the goal. No change saves more than its error.",
    );
    expect(of(["batch_size"], null, 40)).toBe(
      `batch_size: ${faster} instead of ${now}, ${alike} for as many samples as before, of 21 combinations.`,
    );
  });
});
