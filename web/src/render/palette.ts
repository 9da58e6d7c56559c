import { HEATS } from "../model/level";

/** The colours of the timeline, read once a theme from the page's style sheet. */
export interface Palette {
  heat: string[];
  /** The same as red, green, blue. */
  heatRgb: [number, number, number][];
  /** Text that can be read on each heat. */
  onHeat: string[];
  background: string;
  rowBackground: string;
  backgroundRgb: [number, number, number];
  hit: string;
  hitRgb: [number, number, number];
  onHit: string;
  text: string;
  dim: string;
  line: string;
  accent: string;
}

type Rgb = [number, number, number];

export function readPalette(element: HTMLElement): Palette {
  const style = getComputedStyle(element);
  const colour = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  const stops = [0, 1, 2, 3].map((i) => parseHex(colour(`heat-${i}`)));
  const heatRgb = Array.from({ length: HEATS }, (_, i) => mix(stops, i / (HEATS - 1)));
  return {
    heat: heatRgb.map(css),
    heatRgb,
    onHeat: heatRgb.map(readableOn),
    background: colour("surface"),
    rowBackground: colour("lane"),
    backgroundRgb: parseHex(colour("lane")),
    hit: colour("hit"),
    hitRgb: parseHex(colour("hit")),
    onHit: readableOn(parseHex(colour("hit"))),
    text: colour("text"),
    dim: colour("text-dim"),
    line: colour("line-strong"),
    accent: colour("accent"),
  };
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

function mix(stops: Rgb[], at: number): Rgb {
  const place = at * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const [one, other] = [stops[low]!, stops[low + 1]!];
  return [0, 1, 2].map((i) => Math.round(one[i]! + (other[i]! - one[i]!) * (place - low))) as Rgb;
}

/** Black or white, whichever has more contrast (WCAG 2.2, relative luminance). */
export function readableOn(colour: Rgb): string {
  return contrast(colour, [16, 18, 22]) >= contrast(colour, [255, 255, 255])
    ? "#101216"
    : "#ffffff";
}

/** The ratio of contrast of two colours, 1 to 21. */
export function contrast(one: Rgb, other: Rgb): number {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

function luminance(colour: Rgb): number {
  const [red, green, blue] = colour.map((one) => {
    const part = one / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  }) as Rgb;
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
