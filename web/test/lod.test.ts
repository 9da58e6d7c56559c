import { describe, expect, it } from "vitest";

import { columnsOf, partsOf, shadeOf, SHADES, WIDE_PX } from "../src/model/lod";
import { drawnLevel, randomNumbers, type Drawn } from "./drawn";

/** Many bars, most of them thinner than a pixel: `[start, end]` by a fixed seed. */
function bars(count: number, seed: number): Drawn[] {
  const random = randomNumbers(seed);
  let at = 0;
  return Array.from({ length: count }, (_, i) => {
    const start = at + Math.floor(random() * 40);
    at = start + 1 + Math.floor(random() ** 4 * 900);
    return { name: `op${i % 5}`, cpu: [start, at] };
  });
}

/** The same picture, bar by bar over every column: slow and plain. */
function naive(row: ReturnType<typeof drawnLevel>["rows"][0], length: number, width: number) {
  const sums = Array.from({ length: width }, () => new Float64Array(SHADES));
  row!.start.forEach((start, bar) => {
    const [from, to] = [(start * width) / length, (row!.end[bar]! * width) / length];
    if (to - from >= WIDE_PX) return;
    for (let column = 0; column < width; column++) {
      sums[column]![shadeOf(row!.stage[bar]!, row!.heat[bar]!, false)]! += Math.max(
        Math.min(to, column + 1) - Math.max(from, column),
        0,
      );
    }
  });
  return sums;
}

describe.each([200, 5_000, 20_000])("of %d bars, thin ones", (count) => {
  const level = drawnLevel(bars(count, count));
  const row = level.rows[0]!;
  const width = 700;
  const { shade, cover, wide } = columnsOf(row, { from: 0, to: level.length }, width);
  const expected = naive(row, level.length, width);

  it("take the shade that covers most of each column, as drawing all would", () => {
    expected.forEach((sums, column) => {
      const most = Math.max(...sums);
      if (most < 1e-3) return;
      expect(sums[shade[column]!]! / most).toBeCloseTo(1, 3);
    });
  });

  it("cover as much as they do together", () => {
    expected.forEach((sums, column) => {
      const total = sums.reduce((all, one) => all + one, 0);
      if (total > 0.4) expect(cover[column]).toBeCloseTo(Math.min(total, 1), 2);
      if (total === 0) expect(cover[column]).toBe(0);
    });
  });

  it("are all the bars that are not drawn by themselves", () => {
    const thick = [...row.start.keys()].filter(
      (bar) => ((row.end[bar]! - row.start[bar]!) * width) / level.length >= WIDE_PX,
    );
    expect(wide).toEqual(thick);
  });
});

it("keeps a lone bar of a thousandth of a pixel in sight", () => {
  const level = drawnLevel([{ name: "dot", cpu: [500_000, 500_001] }], { length_ns: 1_000_000 });
  const { cover } = columnsOf(level.rows[0]!, { from: 0, to: level.length }, 1000);
  expect(cover[500]).toBeGreaterThan(0.3);
});

it("tells a hit from what lies beside it in the same column", () => {
  const level = drawnLevel(
    [
      { name: "other", cpu: [0, 10] },
      { name: "found", cpu: [10, 60] },
    ],
    { length_ns: 100_000 },
  );
  const { shade } = columnsOf(
    level.rows[0]!,
    { from: 0, to: level.length },
    1000,
    (bar) => bar === 1,
  );
  expect(partsOf(shade[0]!).marked).toBe(true);
});
