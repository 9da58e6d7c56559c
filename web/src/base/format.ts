/** Numbers as a reader wants them: three significant digits, a sensible unit, a narrow space. */

const SPACE = "\u202f";
const UNITS: [number, string][] = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
  [1, "ns"],
];

/** Three significant digits, without an exponent and without trailing noise. */
export function significant(value: number): string {
  const size = Math.abs(value);
  if (size >= 99.95 || value === 0) return grouped(Math.round(value));
  return value.toFixed(size >= 9.995 ? 1 : 2);
}

/** A whole number with its thousands apart. */
export function grouped(value: number): string {
  return Math.round(value)
    .toString()
    .replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** Seconds from so many ns on: below, texts and tables tell a step in ms. */
const SECONDS_NS = 1e10;

/** A time in nanoseconds: `69.3 ms`. */
export function duration(ns: number): string {
  const size = Math.abs(ns);
  if (size < 1) return ns === 0 ? `0${SPACE}ns` : `${significant(ns)}${SPACE}ns`;
  // 999.96 µs reads as 1.00 ms: the unit follows the rounded figure.
  const known = UNITS.slice(size * 1.0005 >= SECONDS_NS ? 0 : 1);
  const [scale, unit] = known.find(([one]) => size * 1.0005 >= one) ?? [1, "ns"];
  const text = unit === "ns" ? String(Math.round(ns)) : significant(ns / scale);
  return `${text}${SPACE}${unit}`;
}

/** A time as people say it: `1.23 s`, `71.2 min`, `4.50 h`. */
export function spoken(seconds: number): string {
  const [size, unit] = seconds < 60 ? [1, "s"] : seconds < 7200 ? [60, "min"] : [3600, "h"];
  return `${significant(seconds / size)}${SPACE}${unit}`;
}

/** A time on an axis in the unit of its ticks, so that two of them never read alike. */
export function tick(ns: number, step: number): string {
  const [scale, unit] = UNITS.find(([one]) => step >= one * 0.999) ?? [1, "ns"];
  return ns === 0 ? "0" : `${grouped(ns / scale)}${SPACE}${unit}`;
}

/**
 * A moment with the digits that tell `apart` ns, at least as many as a duration has.
 *
 * @param like a time in whose unit it is, such as the distance of ticks.
 */
export function moment(ns: number, apart: number, like = ns): string {
  const [scale, unit] = UNITS.find(([one]) => Math.abs(like) >= one * 0.999) ?? [1, "ns"];
  const usual = Math.ceil(2 - Math.log10(Math.max(Math.abs(ns) / scale, 1)));
  const digits = Math.ceil(Math.log10(scale / Math.max(apart, 1)) - 1e-9);
  const shown = Math.min(Math.max(usual, digits, 0), Math.round(Math.log10(scale)));
  const [whole, part] = (Math.abs(ns) / scale).toFixed(shown).split(".");
  const text = grouped(Number(whole)) + (part ? `.${part}` : "");
  return `${ns < 0 ? "−" : ""}${text}${SPACE}${unit}`;
}

/** A moment and, where there is a marker, how long after (`+`) or before it that is. */
export function markedMoment(
  ns: number,
  marker: number | null,
  apart: number,
  like: number = ns,
): string {
  if (marker === null) return moment(ns, apart, like);
  const after = Math.round(ns - marker);
  return `${moment(ns, apart, like)} (${after < 0 ? "" : "+"}${moment(after, apart)})`;
}

/** A time in milliseconds, as the command line's sentences tell it too; a dash for none. */
export function milliseconds(ms: number): string {
  if (ms === 0) return "–";
  return Math.abs(ms) < 0.0995 ? duration(ms * 1e6) : `${significant(ms)}${SPACE}ms`;
}

/** A share of one, as in sentences: `39%`; small ones keep a digit. */
export function percent(share: number): string {
  if (share > 0 && share < 0.001) return "<0.1%";
  const value = share * 100;
  return `${value > 0 && value < 9.95 ? value.toFixed(1) : Math.round(value)}%`;
}

/** A change as a share of one: `+39%`, `−2.1%`; of one that is hardly any, `<0.1%` without a sign. */
export function signedPercent(change: number): string {
  const share = percent(Math.abs(change));
  return change === 0 || share.startsWith("<") ? share : `${change > 0 ? "+" : "−"}${share}`;
}

/** A word of a command line, quoted where a shell would read it otherwise. */
export function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A mean count: whole where it is. */
export function count(value: number): string {
  return Number.isInteger(value) || value >= 100 ? grouped(value) : value.toFixed(1);
}

/** Bytes in powers of 1000, as the command line tells them. */
export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = value;
  let unit = 0;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? grouped(size) : significant(size)}${SPACE}${units[unit]}`;
}

/** Operations a second in the unit that fits: `1.23 TFLOP/s`. */
export function operationRate(flops: number): string {
  const [scale, unit] = flops >= 1e12 ? [1e12, "TFLOP/s"] : [1e9, "GFLOP/s"];
  return `${significant(flops / scale)}${SPACE}${unit}`;
}

/** `1 event`, `2 events`. */
export function plural(value: number, noun: string, several = `${noun}s`): string {
  return `${count(value)} ${value === 1 ? noun : several}`;
}

/** `CPU`, or else as it is: `device`, `data`, `cuda:0`. */
export function sideName(side: string): string {
  return side === "cpu" ? "CPU" : words(side);
}

/** A kind of events in the words of a reader. */
export function categoryName(category: string | null): string {
  return category === "cpu_op" ? "operator" : words(category ?? "event");
}

/** A stage's or a cause's name in the words of a reader. */
export function words(name: string): string {
  return name === "prefill_decode" ? "prefill + decode" : name.replaceAll("_", " ");
}
