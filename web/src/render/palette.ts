import { HEATS } from "../model/level";
import { STAGES } from "../model/stages";

export type Rgb = [number, number, number];

/** Intensities of one hue, from the palest to the strongest. */
export interface Hue {
  heat: string[];
  /** The same as red, green, blue. */
  rgb: Rgb[];
  /** Text that can be read on each. */
  on: string[];
}

/** The colors of the timeline, read once a theme from the page's style sheet. */
export interface Palette {
  /** The hue of each stage; the one at -1, of what has no stage, is `none`. */
  stages: Hue[];
  none: Hue;
  background: string;
  rowBackground: string;
  text: string;
  dim: string;
  line: string;
  accent: string;
  /** Of what takes longer, or is new; and of what takes shorter, or is gone. */
  more: string;
  less: string;
}

export function readPalette(element: HTMLElement): Palette {
  const style = getComputedStyle(element);
  const color = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  const lane = parseHex(color("lane"));
  const hue = (name: string): Hue => hueOf(parseHex(color(name)), lane);
  return {
    stages: STAGES.map((stage) => hue(`stage-${stage}`)),
    none: hue("stage-none"),
    background: color("surface"),
    rowBackground: color("lane"),
    text: color("text"),
    dim: color("text-dim"),
    line: color("line-strong"),
    accent: color("accent"),
    more: color("more"),
    less: color("less"),
  };
}

/** The palest intensity keeps so much of its hue. */
const PALEST = 0.3;

/** A hue from pale, close to the ground that it is drawn on, to the color itself. */
export function hueOf(color: Rgb, ground: Rgb): Hue {
  const rgb = Array.from({ length: HEATS }, (_, i) =>
    mix([ground, color], PALEST + ((1 - PALEST) * i) / (HEATS - 1)),
  );
  return { heat: rgb.map(css), rgb, on: rgb.map(readableOn) };
}

/** The hue of a stage's number. */
export function hueOfStage(palette: Palette, stage: number): Hue {
  return palette.stages[stage] ?? palette.none;
}

/** `#cf3a1d`, or `#fff`, as a style sheet may be packed. */
export function parseHex(text: string): Rgb {
  const digits = text.replace("#", "");
  const value = Number.parseInt(digits.length === 3 ? digits.replace(/./g, "$&$&") : digits, 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

function css([red, green, blue]: Rgb): string {
  return `rgb(${red} ${green} ${blue})`;
}

/** The color at a place, 0 to 1, among stops at equal distances. */
export function mix(stops: Rgb[], at: number): Rgb {
  const place = at * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const [one, other] = [stops[low]!, stops[low + 1]!];
  return [0, 1, 2].map((i) => Math.round(one[i]! + (other[i]! - one[i]!) * (place - low))) as Rgb;
}

/** Black or white, whichever has more contrast (WCAG 2.2, relative luminance). */
export function readableOn(color: Rgb): string {
  // Of luminance L the contrast with black is (L + 0.05) / 0.05, with white 1.05 / (L + 0.05).
  return (luminance(color) + 0.05) ** 2 >= 0.05 * 1.05 ? "#000000" : "#ffffff";
}

/** The ratio of contrast of two colors, 1 to 21. */
export function contrast(one: Rgb, other: Rgb): number {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

function luminance(color: Rgb): number {
  const [red, green, blue] = color.map((one) => {
    const part = one / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  }) as Rgb;
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
