import { describe, expect, it } from "vitest";
import { between, moved, shifted, showing, ticks, within, zoomed } from "../src/model/span";

const whole = { from: 0, to: 1000 };

describe("the part of a timeline on screen", () => {
  it("is zoomed around a time that stays where it is", () => {
    expect(zoomed(whole, 250, 2, 1000)).toEqual({ from: 125, to: 625 });
    expect(zoomed({ from: 125, to: 625 }, 250, 1 / 2, 1000)).toEqual(whole);
  });

  it("never goes beyond the timeline, nor closer than there is anything to see", () => {
    expect(zoomed({ from: 800, to: 1000 }, 1000, 1 / 2, 1000)).toEqual({ from: 600, to: 1000 });
    expect(zoomed(whole, 500, 1 / 4, 1000)).toEqual(whole);
    const close = zoomed(whole, 500, 1e9, 1000);
    expect(close.to - close.from).toBe(1);
    expect(shifted({ from: 100, to: 200 }, -500, 1000)).toEqual({ from: 0, to: 100 });
    expect(shifted({ from: 100, to: 200 }, 5000, 1000)).toEqual({ from: 900, to: 1000 });
  });

  it("stays within another timeline that is shorter", () => {
    expect(within({ from: 700, to: 900 }, 500)).toEqual({ from: 300, to: 500 });
    expect(within({ from: 100, to: 900 }, 500)).toEqual({ from: 0, to: 500 });
  });

  it("follows what is walked to, and stays where that is in sight", () => {
    const span = { from: 400, to: 500 };
    expect(showing(span, 410, 420, 1000)).toBe(span);
    expect(showing(span, 300, 310, 1000)).toEqual({ from: 290, to: 390 });
    expect(showing(span, 505, 515, 1000)).toEqual({ from: 425, to: 525 });
    expect(showing(span, 600, 900, 1000)).toEqual({ from: 600, to: 700 });
  });

  it("is what was dragged over, in either direction", () => {
    expect(between(30, 10, 1000)).toEqual({ from: 10, to: 30 });
    expect(between(1200, 900, 1000)).toEqual({ from: 900, to: 1000 });
  });

  it.each([
    ["from", 150, { from: 150, to: 300 }],
    ["from", -5, { from: 0, to: 300 }],
    ["from", 400, { from: 299, to: 300 }],
    ["to", 50, { from: 100, to: 101 }],
    ["to", 2000, { from: 100, to: 1000 }],
  ] as const)("has an edge %s that goes to %d, never beyond the other", (edge, time, expected) =>
    expect(moved({ from: 100, to: 300 }, edge, time, 1000)).toEqual(expected),
  );
});

describe("ticks", () => {
  it("are round times within the part, at most so many gaps", () => {
    expect(ticks({ from: 0, to: 100 }, 5)).toEqual({ at: [0, 20, 40, 60, 80, 100], step: 20 });
    expect(ticks({ from: 0, to: 1065 }, 4).at).toEqual([0, 500, 1000]);
    expect(ticks({ from: 0, to: 0.9 }, 10).at).toHaveLength(10);
    expect(ticks({ from: 123_456, to: 123_462 }, 6)).toEqual({
      at: [123_456, 123_457, 123_458, 123_459, 123_460, 123_461, 123_462],
      step: 1,
    });
  });
});
