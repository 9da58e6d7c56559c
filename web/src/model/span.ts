/** The part of a timeline that fills the width, in its unit of time. */
export interface Span {
  from: number;
  to: number;
}

/** To whole units of time, at least one long. */
export function rounded({ from, to }: Span): Span {
  const begin = Math.round(from);
  return { from: begin, to: Math.max(Math.round(to), begin + 1) };
}

/** Closer than this there is nothing more to see, in units of time. */
const LEAST = 1;

/** Nearer (a factor above 1) or further, around a time that stays where it is. */
export function zoomed(span: Span, at: number, factor: number, length: number): Span {
  const size = Math.min(Math.max((span.to - span.from) / factor, LEAST), length);
  const share = (at - span.from) / (span.to - span.from);
  return within({ from: at - share * size, to: at + (1 - share) * size }, length);
}

/** Earlier or later by some time, as far as the timeline goes. */
export function shifted(span: Span, by: number, length: number): Span {
  return within({ from: span.from + by, to: span.to + by }, length);
}

/** Moved just so far that something is in sight, with a little around it. */
export function showing(span: Span, from: number, to: number, length: number): Span {
  if (from >= span.from && to <= span.to) return span;
  const rim = (span.to - span.from) / 10;
  const by =
    from < span.from ? from - rim - span.from : Math.min(to + rim - span.to, from - span.from);
  return shifted(span, by, length);
}

/** The span between two times, whichever comes first. */
export function between(one: number, other: number, length: number): Span {
  const inside = (us: number): number => Math.min(Math.max(us, 0), length);
  const [from, to] = [inside(Math.min(one, other)), inside(Math.max(one, other))];
  return within({ from, to: Math.max(to, from + LEAST) }, length);
}

export type Edge = "from" | "to";

/** With one edge elsewhere, never beyond the other one. */
export function moved(span: Span, edge: Edge, time: number, length: number): Span {
  return edge === "from"
    ? { from: Math.min(Math.max(time, 0), span.to - LEAST), to: span.to }
    : { from: span.from, to: Math.max(Math.min(time, length), span.from + LEAST) };
}

/** Moved, and if need be cut, to lie between the beginning and the end of the timeline. */
export function within({ from, to }: Span, length: number): Span {
  const size = Math.min(to - from, length);
  const begin = Math.min(Math.max(from, 0), length - size);
  return { from: begin, to: begin + size };
}

/** Round times for an axis: 1, 2 or 5 times a power of ten apart, at most `most` of these gaps. */
export function ticks({ from, to }: Span, most: number): { at: number[]; step: number } {
  const length = to - from;
  const power = 10 ** Math.floor(Math.log10(length / most));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => length / one <= most)!;
  const first = Math.ceil(from / step);
  const count = Math.floor(to / step) - first + 1;
  return { at: Array.from({ length: count }, (_, i) => (first + i) * step), step };
}
