import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { contrast, parseHex } from "../src/render/palette";

const sheet = readFileSync(join(import.meta.dirname, "../src/styles/colours.css"), "utf-8");

function colours(block: string): Record<string, string> {
  const text = sheet.slice(sheet.indexOf(block));
  const inside = text.slice(text.indexOf("{"), text.indexOf("}"));
  return Object.fromEntries(
    [...inside.matchAll(/--([\w-]+):\s*(#[0-9a-f]{6})/g)].map(([, name, value]) => [name, value]),
  );
}

const light = colours(":root {");
const dark = { ...light, ...colours(':root[data-theme="dark"]') };

/** WCAG 2.2: 4.5 for text, 3 for what must be seen. */
const PAIRS: [string, string, number][] = [
  ["text", "surface", 4.5],
  ["text", "raised", 4.5],
  ["text-dim", "surface", 4.5],
  ["text-dim", "raised", 4.5],
  ["text-dim", "lane", 4.5],
  ["text", "accent-soft", 4.5],
  ["accent", "surface", 4.5],
  ["error", "error-soft", 4.5],
  ["accent", "lane", 3],
  ["hit", "lane", 3],
  ["heat-3", "lane", 3],
];

it("reads colours of six digits and of three, as a style sheet may be packed", () => {
  expect(parseHex("#cf3a1d")).toEqual([0xcf, 0x3a, 0x1d]);
  expect(parseHex("#fff")).toEqual([255, 255, 255]);
  expect(parseHex("#0a4")).toEqual([0, 0xaa, 0x44]);
});

describe.each([
  ["light", light],
  ["dark", dark],
] as const)("in the %s theme", (_, all) => {
  it.each(PAIRS)("%s on %s has a contrast of %d or more", (front, back, least) => {
    expect(contrast(parseHex(all[front]!), parseHex(all[back]!))).toBeGreaterThanOrEqual(least);
  });
});
