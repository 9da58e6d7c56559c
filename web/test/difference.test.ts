import { describe, expect, it } from "vitest";
import type { ComparedRow, Difference } from "../src/api/types";
import { change, changeShare, isCertain, partName, sentence } from "../src/model/difference";

const time = (median_ms: number) => ({
  median_ms,
  least_ms: median_ms,
  most_ms: median_ms,
  count: 1,
});

function row(before: number, after: number, rest: Partial<ComparedRow> = {}): ComparedRow {
  return {
    name: "step",
    short: "step",
    side: "",
    module: -1,
    before: before ? time(before) : null,
    after: after ? time(after) : null,
    change_ms: after - before,
    ratio: before ? after / before : null,
    verdict: "slower",
    ...rest,
  };
}

function difference(step: ComparedRow, cause: ComparedRow | null = null, steps = [6, 6]) {
  const [before, after] = [{ steps: steps[0] }, { steps: steps[1] }];
  return { step, evidence: "none", apart: [0, 6], cause, before, after } as Difference;
}

describe("a comparison in a sentence", () => {
  it.each([
    [row(10, 15), "The step takes 1.50 times as long: 10.0\u202fms → 15.0\u202fms."],
    [
      row(15, 10, { verdict: "faster" }),
      "The step is 1.50 times as fast: 15.0\u202fms → 10.0\u202fms.",
    ],
    [
      row(10, 11, { verdict: "unclear" }),
      "Within noise: the step takes 1.10 times as long (10.0\u202fms → 11.0\u202fms), but its times overlap.",
    ],
    [
      row(10, 10.01, { verdict: "one_step" }),
      "The step takes the same time: 10.0\u202fms → 10.0\u202fms.",
    ],
    [
      row(10, 10, { verdict: "same" }),
      "The step takes the same time: 10.0\u202fms → 10.0\u202fms.",
    ],
  ])("%#", (step, text) => {
    expect(sentence(difference(step))).toBe(text);
  });

  it("does not call noise what most steps show", () => {
    const faster = row(15, 10, { verdict: "faster" });
    expect(sentence({ ...difference(faster), evidence: "likely", apart: [5, 6] })).toBe(
      "Likely: the step is 1.50 times as fast (15.0\u202fms → 10.0\u202fms); the runs overlap in 1 of 6 steps.",
    );
  });

  it("says what changed in ranks whose steps last as long, since they wait for each other", () => {
    const step = row(37.2, 37.201, { verdict: "unclear" });
    const idle = row(0.3, 17.7, { short: "idle: data" });
    expect(sentence(difference(step, idle))).toBe(
      "The step takes the same time: 37.2\u202fms → 37.2\u202fms; the largest change: idle, waiting for data (+17.4\u202fms).",
    );
  });

  it("names what changed with the step", () => {
    const idle = row(0.5, 4.5, { short: "idle: host" });
    expect(sentence(difference(row(10, 15), idle))).toMatch(
      /, mostly idle, host bound \(\+4\.00\u202fms\)\.$/,
    );
  });

  it.each([
    [[1, 1], "both sides have only one step"],
    [[1, 6], "the other side has only one step"],
    [[6, 1], "this side has only one step"],
  ])("says who has a single step: %j", (steps, text) => {
    const step = row(10, 15, { verdict: "one_step" });
    expect(sentence(difference(step, null, steps))).toContain(text);
  });
});

it("changes have a sign, and shares of the time before", () => {
  expect([change(1.5), change(-0.0465), change(0)]).toEqual([
    "+1.50\u202fms",
    "−46.5\u202fµs",
    "0",
  ]);
  expect(changeShare(row(10, 15))).toBe("+50%");
  expect(changeShare(row(10, 9))).toBe("−10%");
  expect(changeShare(row(1, 12))).toBe("12.0 times");
  expect(changeShare(row(0, 12))).toBe("");
});

it("parts are named as elsewhere; noise is not certain", () => {
  expect(partName(row(1, 2, { short: "data_loading", side: "CPU" }))).toBe("data loading, CPU");
  expect(partName(row(1, 2, { short: "sgemm: fast" }))).toBe("sgemm: fast");
  const verdicts = ["slower", "faster", "new", "gone", "unclear", "one_step", "same"] as const;
  expect(verdicts.filter((verdict) => isCertain(row(1, 2, { verdict })))).toHaveLength(4);
});
