import { describe, expect, it } from "vitest";
import type { KernelRow } from "../src/api/types";
import {
  above,
  decadesOf,
  dotsOf,
  freeShare,
  mainStage,
  ridgeOf,
  roofLines,
} from "../src/model/roofline";

function kernel(given: Partial<KernelRow>): KernelRow {
  const none = { tflops: null, gbytes: null, intensity: null, of_peak: null, limit: null };
  return { name: "k", total_ms: 1, stages: {}, ...none, ...given } as KernelRow;
}

const V100 = { device: "V100", gbytes: 900, tflops: { fp32: 15.7, half: 125 } };

describe("the dots of a roofline", () => {
  it("are kernels with known operations and bytes, the longest first", () => {
    const gemm = kernel({ tflops: 8, gbytes: 80, intensity: 100, total_ms: 2 });
    const add = kernel({ gbytes: 600, intensity: 0.5, total_ms: 3 });
    const copy = kernel({ gbytes: 600, intensity: 0 });
    const unknown = kernel({ tflops: 8 });
    const dots = dotsOf([copy, gemm, unknown, add]);
    expect(dots.map((dot) => dot.row)).toEqual([add, gemm]);
    expect(dots.map((dot) => dot.rate)).toEqual([0.3, 8]);
  });

  it("lie at or below the roof at their share of peak", () => {
    const gbytes = 450;
    const [dot] = dotsOf([kernel({ gbytes, intensity: 2, of_peak: 0.5, limit: "memory" })]);
    expect(dot!.rate / ((2 * V100.gbytes) / 1e3)).toBeCloseTo(0.5);
  });

  it("have the hue of the stage with most of their time", () => {
    expect(mainStage(kernel({ stages: { forward: 0.2, backward: 0.8 } }))).toBe("backward");
    expect(mainStage(kernel({}))).toBe("");
  });
});

describe("the roofs", () => {
  const dots = dotsOf([kernel({ gbytes: 100, intensity: 0.05 })]);

  it("are inside the decades, with the ridges and the peaks", () => {
    const { intensity, rate } = decadesOf(dots, V100);
    expect([intensity, rate]).toEqual([
      [-2, 3],
      [-3, 3],
    ]);
    for (const { from, to } of roofLines(V100, { intensity, rate })) {
      for (const [x, y] of [from, to]) {
        expect(Math.log10(x)).toBeGreaterThanOrEqual(intensity[0]);
        expect(Math.log10(x)).toBeLessThanOrEqual(intensity[1]);
        expect(Math.log10(y)).toBeGreaterThanOrEqual(rate[0] - 1e-9);
        expect(Math.log10(y)).toBeLessThanOrEqual(rate[1]);
      }
    }
  });

  it("meet at the ridge of each precision", () => {
    const [slope, fp32, half] = roofLines(V100, decadesOf(dots, V100));
    expect([slope!.name, fp32!.name, half!.name]).toEqual(["memory", "fp32", "half"]);
    expect(fp32!.from[0]).toBeCloseTo(ridgeOf(15.7, 900));
    expect(slope!.to).toEqual([ridgeOf(125, 900), 125].map((one) => expect.closeTo(one, 9)));
  });

  it("are those that are known", () => {
    expect(
      roofLines({ ...V100, gbytes: null }, decadesOf(dots, null)).map((one) => one.name),
    ).toEqual(["fp32", "half"]);
    expect(
      roofLines({ ...V100, tflops: {} }, decadesOf(dots, null)).map((one) => one.name),
    ).toEqual(["memory"]);
  });
});

describe("the names of roofs", () => {
  const disk = { x: 50, y: 100, r: 10 };

  it("move up until they are above every dot that they would cover", () => {
    expect(above([], 0, 60, 100)).toBe(100);
    expect(above([disk], 0, 60, 100)).toBe(88);
    expect(above([disk, { x: 20, y: 85, r: 6 }], 0, 60, 100)).toBe(77);
    expect(above([disk], 70, 90, 100)).toBe(100);
    expect(above([disk], 0, 60, 140)).toBe(140);
  });

  it("stay in the middle of a slope unless dots are there", () => {
    const along = (share: number): [number, number] => [500 * share, 300];
    expect(freeShare([], along, 80)).toBe(0.5);
    const dots = [210, 250, 290].map((x) => ({ x, y: 304, r: 4 }));
    const share = freeShare(dots, along, 80);
    for (const { x, r } of dots) expect(Math.abs(x - 500 * share)).toBeGreaterThanOrEqual(40 + r);
    expect(freeShare([{ x: 250, y: 320, r: 4 }], along, 80)).toBe(0.5);
  });
});
