import { describe, expect, it } from "vitest";
import {
  bytes,
  count,
  duration,
  grouped,
  markedMoment,
  milliseconds,
  percent,
  shellWord,
  signedPercent,
  plural,
  moment,
  tick,
} from "../src/base/format";

/** Narrow spaces as plain ones, so that what is expected can be read. */
const plain = (text: string): string => text.replaceAll("\u202f", " ");

describe("a duration has three significant digits and the unit that fits", () => {
  it.each([
    [0, "0 ns"],
    [7, "7 ns"],
    [999, "999 ns"],
    [1_000, "1.00 µs"],
    [12_345, "12.3 µs"],
    [69_307_333, "69.3 ms"],
    [999_960, "1.00 ms"],
    [181_327_000, "181 ms"],
    [1_960_000_000, "1,960 ms"],
    [12_360_000_000, "12.4 s"],
    [3_600_000_000_000, "3,600 s"],
  ])("%d ns is %s", (ns, text) => expect(plain(duration(ns))).toBe(text));
});

describe("tells means a step in the unit of the sentences beside them, and nothing as a dash", () => {
  it.each([
    [0, "–"],
    [0.0451, "45.1 µs"],
    [0.451, "0.45 ms"],
    [1_103.4, "1,103 ms"],
    [12_345, "12,345 ms"],
  ])("%d is %s", (ms, text) => expect(plain(milliseconds(ms))).toBe(text));
});

describe("a share keeps a digit where it is small", () => {
  it.each([
    [0, "0%"],
    [0.0004, "<0.1%"],
    [0.013, "1.3%"],
    [0.396, "40%"],
    [1, "100%"],
  ])("%d is %s", (share, text) => expect(plain(percent(share))).toBe(text));

  it.each([
    [0.39, "+39%"],
    [-0.021, "−2.1%"],
    [0.0002, "<0.1%"],
    [-0.0002, "<0.1%"],
    [0, "0%"],
  ])("a change of %d is %s", (change, text) => expect(signedPercent(change)).toBe(text));
});

it("shows moments with the digits that the zoom tells apart", () => {
  expect(plain(moment(94_053_400, 10))).toBe("94.05340 ms");
  expect(plain(moment(94_053_400, 10, 1000))).toBe("94,053.40 µs");
  expect(plain(moment(94_053_400, 1e6))).toBe("94.1 ms");
  expect(plain(moment(0, 1e6, 5e6))).toBe("0.00 ms");
  expect(plain(moment(1_234_567_890, 0.2))).toBe("1.234567890 s");
});

it.each([
  [null, 94_053_400, "94.0534 ms"],
  [94_000_000, 94_053_400, "94.0534 ms (+53.4 µs)"],
  [94_053_400, 94_053_400, "94.0534 ms (+0 ns)"],
  [95_000_000, 94_053_400, "94.0534 ms (−946.6 µs)"],
  [94_053_399.6, 94_053_400, "94.0534 ms (+0 ns)"],
])("with a marker at %d tells how far a moment is from it", (marker, at, text) =>
  expect(plain(markedMoment(at, marker, 100))).toBe(text),
);

it("tells the ticks of an axis in the unit of their distance, so that no two read alike", () => {
  const told = [0, 500e6, 1000e6].map((ns) => plain(tick(ns, 500e6)));
  expect(told).toEqual(["0", "500 ms", "1,000 ms"]);
  expect(plain(tick(123_457_000, 1000))).toBe("123,457 µs");
});

it("groups thousands, and tells counts, bytes and plurals", () => {
  expect(plain(grouped(1234567))).toBe("1,234,567");
  expect(count(27)).toBe("27");
  expect(count(2.5)).toBe("2.5");
  expect(plain(bytes(0))).toBe("0 B");
  expect(plural(1, "event")).toBe("1 event");
  expect(plural(2, "event")).toBe("2 events");
});

describe("a word of a command line", () => {
  it.each([
    ["runs/rank0.json.gz", "runs/rank0.json.gz"],
    ["my run.json", "'my run.json'"],
    ["it's; rm -r *", "'it'\\''s; rm -r *'"],
  ])("%s", (text, word) => expect(shellWord(text)).toBe(word));
});
