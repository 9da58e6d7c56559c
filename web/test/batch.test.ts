import { describe, expect, it } from "vitest";
import type { CostNode, PanelPrediction as Prediction } from "../src/api/batch_types";
import { at, forBytes, forThroughput, most, step } from "../src/model/choice";
import { amount, follow, keyOf, lineShares, parts } from "../src/model/costs";

const predicted = (batch: number): Prediction => ({
  batch,
  ms: batch + 9,
  ms_range: [batch, batch + 18],
  throughput: (1000 * batch) / (batch + 9),
  throughput_range: [0, null],
  bytes: 100 + 10 * batch,
});
const CURVE = [1, 8, 16, 32, 64].map(predicted);

describe("a choice", () => {
  it("is the smallest batch size that reaches a throughput, else the fastest", () => {
    expect(forThroughput(CURVE, 0).batch).toBe(1);
    expect(forThroughput(CURVE, 600).batch).toBe(16);
    expect(forThroughput(CURVE, 1e6).batch).toBe(64);
  });

  it("is the largest batch size within a memory, else the smallest", () => {
    expect(forBytes(CURVE, 260).batch).toBe(16);
    expect(forBytes(CURVE, 1e9).batch).toBe(64);
    expect(forBytes(CURVE, 0).batch).toBe(1);
  });

  it("is the nearest to a batch size that is not on the curve", () => {
    expect(at(CURVE, 30).batch).toBe(32);
  });

  it("goes step by step and stops at the ends", () => {
    expect(step(CURVE, CURVE[1]!, 1).batch).toBe(16);
    expect(step(CURVE, CURVE[1]!, Infinity).batch).toBe(64);
    expect(step(CURVE, CURVE[1]!, -Infinity).batch).toBe(1);
    expect(most(CURVE, (one) => one.bytes ?? 0)).toBe(740);
  });
});

const node = (name: string, ms: number, bytes: number, children: CostNode[] = []): CostNode => ({
  name,
  kind: children.length ? "module" : "operator",
  ms,
  bytes,
  forward_ms: ms,
  backward_ms: 0,
  self_ms: 0,
  self_bytes: 0,
  calls: 1,
  weights_bytes: 0,
  buffers_bytes: 0,
  gradients_bytes: 0,
  optimizer_state_bytes: 0,
  activations_bytes: 0,
  inputs_bytes: 0,
  temporaries_bytes: 0,
  untracked_bytes: 0,
  cpu_ms: 0,
  children,
});

describe("a breakdown", () => {
  const leaf = node("conv", 4, 10);
  const tree = node("step", 10, 40, [node("b", 2, 30), node("a", 8, 10, [leaf]), node("c", 0, 0)]);

  it("lists the most first, by time or by memory, and nothing that takes nothing", () => {
    expect(parts(tree, "time").map((one) => one.name)).toEqual(["a", "b"]);
    expect(parts(tree, "memory").map((one) => one.name)).toEqual(["b", "a"]);
    expect(amount(tree, "memory")).toBe(40);
  });

  it("has the share of each line that calls its parts", () => {
    const at = (line: number | null, ms: number) =>
      ({ file: line && "/p/net.py", line, ms }) as unknown as CostNode;
    const module = { ms: 10, children: [at(3, 4), at(3, 1), at(5, 2), at(null, 3)] } as CostNode;
    expect(lineShares(module)).toEqual([
      { file: "/p/net.py", line: 3, share: 0.5 },
      { file: "/p/net.py", line: 5, share: 0.2 },
    ]);
  });

  it("is followed as far as it leads, also when it was measured anew", () => {
    const trail = [keyOf(tree.children[1]!), keyOf(leaf)];
    expect(follow(tree, trail).map((one) => one.name)).toEqual(["step", "a", "conv"]);
    expect(follow(tree, ["gone", "conv"]).map((one) => one.name)).toEqual(["step"]);
  });
});
