import { describe, expect, it } from "vitest";
import { PAD, placeLabels, type Label, type Wanted } from "../src/model/labels";
import { randomNumbers } from "./drawn";

const measure = (text: string): number => text.length * 7;
const space = { width: 1000, lanes: 2, measure };

function wanted(bar: number, from: number, to: number, ...texts: string[]): Wanted {
  return { bar, from, to, texts, weight: to - from, below: true };
}

const summary = (labels: Label[]): [number, string, number][] =>
  labels.map(({ bar, text, lane }) => [bar, text, lane]);

describe("a name stands", () => {
  it("inside its bar, with the time where that fits too", () => {
    const labels = placeLabels([wanted(0, 0, 400, "forward  12 ms", "forward")], space);
    expect(summary(labels)).toEqual([[0, "forward  12 ms", 0]]);
  });

  it("inside without the time where only the name fits", () => {
    const labels = placeLabels([wanted(0, 0, 65, "forward  12 ms", "forward")], space);
    expect(summary(labels)).toEqual([[0, "forward", 0]]);
  });

  it("below a bar that is too narrow, with a line from the bar's middle", () => {
    const [label] = placeLabels([wanted(0, 500, 504, "zero_grad")], space);
    expect(label).toMatchObject({ lane: 1, leader: 502, left: 502 - 63 / 2 });
  });

  it("in the second lane where the first is taken, if its line is free", () => {
    const two = [
      wanted(0, 500, 510, "a long name, not to be moved"),
      wanted(1, 612, 617, "another long name, to go below"),
    ];
    expect(summary(placeLabels(two, space)).map(([, , lane]) => lane)).toEqual([1, 2]);
  });

  it("nowhere where there is no room: it is never cut", () => {
    const crowd = Array.from({ length: 40 }, (_, i) =>
      wanted(i, 500 + i, 500.5 + i, `operation ${i}`),
    );
    const labels = placeLabels(crowd, space);
    expect(labels.length).toBeLessThan(8);
    expect(labels.every(({ bar, text }) => text === `operation ${bar}`)).toBe(true);
  });

  it("on screen at both edges", () => {
    const edges = [wanted(0, 0, 1, "at the very left"), wanted(1, 999, 1000, "at the very right")];
    for (const one of placeLabels(edges, space)) {
      expect(one.left).toBeGreaterThanOrEqual(0);
      expect(one.left + one.width).toBeLessThanOrEqual(space.width);
    }
  });
});

it("places the heavier first", () => {
  const light = { ...wanted(0, 500, 501, "the light one"), weight: 1 };
  const heavy = { ...wanted(1, 503, 504, "the heavy one"), weight: 2 };
  expect(placeLabels([light, heavy], { ...space, lanes: 1 }).map((one) => one.bar)).toEqual([1]);
});

describe("of many bars", () => {
  const random = randomNumbers(7);
  const cases = Array.from({ length: 30 }, () => {
    let at = 0;
    return Array.from({ length: 60 }, (_, bar) => {
      const from = at + random() * 20;
      at = from + random() ** 3 * 120;
      return wanted(bar, from, at, `op${bar}  1.2 ms`, `op${bar}`);
    }).filter((one) => one.to < 1000);
  });

  it.each(cases.map((one, i) => [i, one] as const))("no two names overlap (%d)", (_, bars) => {
    const labels = placeLabels(bars, space);
    expect(labels.length).toBeGreaterThan(3);
    for (const one of labels) {
      const bar = bars[one.bar]!;
      if (one.lane === 0) {
        expect(one.left).toBeGreaterThanOrEqual(bar.from + PAD - 0.01);
        expect(one.left + one.width).toBeLessThanOrEqual(bar.to - PAD + 0.01);
      }
      for (const other of labels) {
        if (one === other) continue;
        const apart = one.left + one.width <= other.left || other.left + other.width <= one.left;
        expect(one.lane !== other.lane || apart).toBe(true);
        // A line to the second lane passes no name of the first.
        const passes = one.lane === 2 && other.lane === 1;
        const on = one.leader > other.left && one.leader < other.left + other.width;
        expect(passes && on).toBe(false);
      }
    }
  });
});
