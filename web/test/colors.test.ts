import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { memoryColor, STACKING as MEMORY_KINDS } from "../src/model/memory";
import { STAGES, TOGETHER } from "../src/model/stages";
import { contrast, hueOf, parseHex, readableOn, type Rgb } from "../src/render/palette";

const root = join(import.meta.dirname, "..");
const sheet = readFileSync(join(root, "src/styles/colors.css"), "utf-8");

function colors(block: string): Record<string, string> {
  const text = sheet.slice(sheet.indexOf(block));
  const inside = text.slice(text.indexOf("{"), text.indexOf("}"));
  return Object.fromEntries(
    [...inside.matchAll(/--([\w-]+):\s*(#[0-9a-f]{6})/g)].map(([, name, value]) => [name, value]),
  );
}

const light = colors(":root {");
const dark = { ...light, ...colors(':root[data-theme="dark"]') };

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
  ["more", "surface", 3],
  ["less", "surface", 3],
];

it("reads colors of six digits and of three, as a style sheet may be packed", () => {
  expect(parseHex("#cf3a1d")).toEqual([0xcf, 0x3a, 0x1d]);
  expect(parseHex("#fff")).toEqual([255, 255, 255]);
  expect(parseHex("#0a4")).toEqual([0, 0xaa, 0x44]);
});

type Matrix = [number[], number[], number[]];

/** Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB. */
const VISIONS: Record<string, Matrix> = {
  "full color vision": [
    [1, 0, 0],
    [0, 1, 0],
    [0, 0, 1],
  ],
  protanopia: [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
  ],
  deuteranopia: [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881],
  ],
  tritanopia: [
    [1.255528, -0.076749, -0.178779],
    [-0.078411, 0.930809, 0.147602],
    [0.004733, 0.691367, 0.3039],
  ],
};

function linear(color: Rgb): number[] {
  return color.map((one) => {
    const part = one / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
}

function times(matrix: Matrix, vector: number[]): number[] {
  return matrix.map((row) => row.reduce((sum, one, i) => sum + one * vector[i]!, 0));
}

/** Oklab (Ottosson 2020) of a color as somebody sees it: distances are about what they look like. */
function seen(color: Rgb, vision: Matrix): number[] {
  const rgb = times(vision, linear(color)).map((one) => Math.min(Math.max(one, 0), 1));
  const cones = times(
    [
      [0.4122214708, 0.5363325363, 0.0514459929],
      [0.2119034982, 0.6806995451, 0.1073969566],
      [0.0883024619, 0.2817188376, 0.6299787005],
    ],
    rgb,
  ).map(Math.cbrt);
  return times(
    [
      [0.2104542553, 0.793617785, -0.0040720468],
      [1.9779984951, -2.428592205, 0.4505937099],
      [0.0259040371, 0.7827717662, -0.808675766],
    ],
    cones,
  );
}

function distance(one: Rgb, other: Rgb, vision: Matrix): number {
  const [a, b] = [seen(one, vision), seen(other, vision)];
  return Math.hypot(...a.map((part, i) => part - b[i]!));
}

/** Four to five times what can just be noticed side by side. */
const APART = 0.09;
const STAGE_NAMES = [...STAGES, "none"].map((one) => `stage-${one}`);
const MEMORY_COLORS = MEMORY_KINDS.map((one) => memoryColor("kind", one, 0));
const namesOf = (stages: string[]): string[] => [...stages, "none"].map((one) => `stage-${one}`);
const KINDS = ["python", "module", "operator", "copy", "kernel"].map((one) => `kind-${one}`);
const SHADES = [1, 2, 3, 4, 5].map((one) => `shade-${one}`);

function closest(names: string[], all: Record<string, string>, vision: Matrix): [number, string] {
  let least: [number, string] = [Infinity, ""];
  names.forEach((one, i) => {
    for (const other of names.slice(i + 1)) {
      const apart = distance(parseHex(all[one]!), parseHex(all[other]!), vision);
      if (apart < least[0]) least = [apart, `${one} and ${other}`];
    }
  });
  return least;
}

describe.each([
  ["light", light],
  ["dark", dark],
] as const)("in the %s theme", (_, all) => {
  it.each(PAIRS)("%s on %s has a contrast of %d or more", (front, back, least) => {
    expect(contrast(parseHex(all[front]!), parseHex(all[back]!))).toBeGreaterThanOrEqual(least);
  });

  describe.each(Object.entries(VISIONS))("with %s", (_, vision) => {
    it.each([
      ["stages of training", namesOf(TOGETHER[0]!), APART],
      ["stages of inference", namesOf(TOGETHER[1]!), APART],
      ["shades of parts", SHADES, APART],
      ["kinds of boxes in a flame graph", KINDS, APART],
      ["more and less", ["more", "less", "lane"], APART],
      ["kinds of memory", MEMORY_COLORS, APART],
      ["an error and what is as usual", ["error", "text", "surface"], APART],
    ] as const)("%s are told apart", (_, names, least) => {
      const [apart, pair] = closest([...names], all, vision);
      expect(apart, pair).toBeGreaterThanOrEqual(least);
    });
  });

  it.each(STAGE_NAMES)("%s stands out from its lane, and its name can be read on it", (name) => {
    const [color, lane] = [parseHex(all[name]!), parseHex(all["lane"]!)];
    expect(contrast(color, lane)).toBeGreaterThanOrEqual(1.6);
    const { rgb, on } = hueOf(color, lane);
    rgb.forEach((one, i) => expect(contrast(one, parseHex(on[i]!))).toBeGreaterThanOrEqual(4.5));
    expect(on[0]).toBe(readableOn(rgb[0]!));
  });

  it.each(["more", "less"])("%s is no stage's color", (name) => {
    const apart = STAGE_NAMES.map((stage) =>
      distance(parseHex(all[name]!), parseHex(all[stage]!), VISIONS["full color vision"]!),
    );
    expect(Math.min(...apart)).toBeGreaterThanOrEqual(APART);
  });

  it("a stage is the more intense the hotter it is", () => {
    const lane = parseHex(all["lane"]!);
    for (const name of STAGE_NAMES) {
      const { rgb } = hueOf(parseHex(all[name]!), lane);
      const apart = rgb.map((one) => distance(one, lane, VISIONS["full color vision"]!));
      expect([...apart].sort((a, b) => a - b)).toEqual(apart);
    }
  });
});

/** The hue in degrees, 0 of red; null of what is nearly gray. */
function hueAngle(color: Rgb): number | null {
  const [red, green, blue] = color;
  const most = Math.max(...color);
  const spread = most - Math.min(...color);
  if (spread < 40) return null;
  if (most === red) return (60 * (green - blue)) / spread;
  return most === green ? 120 + (60 * (blue - red)) / spread : 240 + (60 * (red - green)) / spread;
}

describe.each([
  ["light", light],
  ["dark", dark],
] as const)("red says error: in the %s theme", (_, all) => {
  it.each(STAGE_NAMES)("%s is another hue", (name) => {
    expect(Math.abs(hueAngle(parseHex(all[name]!)) ?? 180)).toBeGreaterThanOrEqual(25);
  });
});

it("a kind of memory has one color, in its pane and on the page about batch sizes", () => {
  const text = readFileSync(join(root, "src/styles/batch.css"), "utf-8");
  const found = [...text.matchAll(/\.c-memory-(\w+) \{\s*background: var\(--([\w-]+)\)/g)];
  for (const [, kind, color] of found)
    expect([kind, color]).toEqual([kind, memoryColor("kind", kind!.replace("_", " "), 0)]);
  expect(found.length).toBe(MEMORY_KINDS.length);
});

it("the stages are those of the server, in its order", () => {
  const vocabulary = readFileSync(join(root, "../src/stepscope/trace/declaration.py"), "utf-8");
  const named = /^STAGES = \(\n([\s\S]*?)\n\)/m.exec(vocabulary)![1]!;
  expect([...named.matchAll(/"(\w+)"/g)].map((one) => one[1])).toEqual([...STAGES]);
});

it("no style sheet names a color of its own, so that hue says the stage everywhere", () => {
  const folder = join(root, "src/styles");
  for (const file of readdirSync(folder).filter((one) => one !== "colors.css")) {
    const text = readFileSync(join(folder, file), "utf-8");
    expect([file, text.match(/#[0-9a-f]{3,8}\b|--cat-|--heat-/g)]).toEqual([file, null]);
  }
});
