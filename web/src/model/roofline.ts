import type { KernelRow, Roofs } from "../api/types";

/** A kernel in a roofline plot. */
export interface Dot {
  row: KernelRow;
  /** Operations per byte moved. */
  intensity: number;
  /** Achieved operations per second, TFLOP/s. */
  rate: number;
}

/** The kernels whose operations and bytes are known and not zero, the longest first. */
export function dotsOf(rows: readonly KernelRow[]): Dot[] {
  const dots = rows.map((row) => ({ row, intensity: row.intensity ?? 0, rate: rateOf(row) ?? 0 }));
  return dots
    .filter(({ intensity, rate }) => intensity > 0 && rate > 0)
    .sort((a, b) => b.row.total_ms - a.row.total_ms);
}

/** Achieved TFLOP/s; of what is not a product it follows from the bytes that it moves. */
export function rateOf({ tflops, gbytes, intensity }: KernelRow): number | null {
  if (tflops !== null) return tflops;
  return gbytes === null || intensity === null ? null : (gbytes * intensity) / 1e3;
}

/** The stage that has most of a row's time; empty if none is known. */
export function mainStage(row: { stages: Record<string, number> }): string {
  const most = Object.entries(row.stages).sort((a, b) => b[1] - a[1])[0];
  return most?.[0] ?? "";
}

/** Height of a text, and how far dots should be from its middle line, px. */
const TEXT_PX = 11;
const FREE_PX = 8;

/** Powers of ten around both axes: operations per byte, and TFLOP/s. */
export interface Decades {
  intensity: [number, number];
  rate: [number, number];
}

/** Dots are so far from the edges, decades. */
const RIM = 0.08;

/** Whole decades that hold all dots, the peaks, and the ridges where bandwidth meets a peak. */
export function decadesOf(dots: readonly Dot[], roofs: Roofs | null): Decades {
  const peaks = Object.values(roofs?.tflops ?? {});
  const ridges = roofs?.gbytes ? peaks.map((peak) => ridgeOf(peak, roofs.gbytes!)) : [];
  return {
    intensity: decades([...dots.flatMap((one) => around(one.intensity)), ...ridges]),
    rate: decades([...dots.flatMap((one) => around(one.rate)), ...peaks]),
  };
}

function around(value: number): number[] {
  return [value / 10 ** RIM, value * 10 ** RIM];
}

function decades(values: number[]): [number, number] {
  const exponents = values.map(Math.log10);
  const low = Math.floor(exponents.reduce((least, one) => Math.min(least, one), Infinity));
  const high = Math.ceil(exponents.reduce((most, one) => Math.max(most, one), -Infinity));
  return [low, Math.max(high, low + 1)];
}

/** Operations per byte from which on the peak rate, not the bandwidth, is the limit. */
export function ridgeOf(tflops: number, gbytes: number): number {
  return (tflops * 1e3) / gbytes;
}

/** A line of a plot, from one point to the next: operations per byte, and TFLOP/s. */
export interface Roof {
  name: string;
  from: [number, number];
  to: [number, number];
}

/** A dot as it is drawn, px. */
export interface Disk {
  x: number;
  y: number;
  r: number;
}

/** The baseline of a text between two places, moved up until it is above all dots there. */
export function above(disks: readonly Disk[], from: number, to: number, baseline: number): number {
  const there = disks.filter(({ x, r }) => x + r > from && x - r < to);
  const byHeight = there.sort((a, b) => b.y - a.y);
  return byHeight.reduce((at, { y, r }) => {
    const covers = y + r > at - TEXT_PX && y - r < at + 1;
    return covers ? y - r - 2 : at;
  }, baseline);
}

/**
 * The share along a slope where a text that is so long covers the fewest dots, nearest the middle of
 * equals.
 */
export function freeShare(
  disks: readonly Disk[],
  at: (share: number) => [number, number],
  length: number,
): number {
  const [[x1, y1], [x2, y2]] = [at(0), at(1)];
  const long = Math.hypot(x2 - x1, y2 - y1) || 1;
  const covered = (share: number): number =>
    disks.filter(({ x, y, r }) => {
      const along = ((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / long;
      const aside = Math.abs((x - x1) * (y2 - y1) - (y - y1) * (x2 - x1)) / long;
      return Math.abs(along - share * long) < length / 2 + r && aside < r + FREE_PX;
    }).length;
  const most = Math.max(0.5 - length / 2 / long, 0);
  const shares = Array.from(
    { length: 17 },
    (_, n) => 0.5 + (n % 2 ? -1 : 1) * (Math.ceil(n / 2) / 8) * most,
  );
  return shares.reduce((best, one) => (covered(one) < covered(best) ? one : best));
}

/** The roofs inside the decades: the bandwidth as a slope, each peak as a level right of it. */
export function roofLines({ gbytes, tflops }: Roofs, { intensity, rate }: Decades): Roof[] {
  const [left, right] = intensity.map((one) => 10 ** one) as [number, number];
  const bottom = 10 ** rate[0];
  const peaks = Object.entries(tflops);
  const top = Math.max(...peaks.map(([, peak]) => peak), peaks.length ? 0 : 10 ** rate[1]);
  const levels = peaks.map(([name, peak]): Roof => {
    const start = gbytes === null ? left : Math.max(ridgeOf(peak, gbytes), left);
    return { name, from: [start, peak], to: [right, peak] };
  });
  if (gbytes === null) return levels;
  const [start, end] = [ridgeOf(bottom, gbytes), ridgeOf(top, gbytes)];
  const [low, high] = [Math.max(start, left), Math.min(end, right)];
  const slope: Roof = {
    name: "memory",
    from: [low, (low * gbytes) / 1e3],
    to: [high, (high * gbytes) / 1e3],
  };
  return low < high ? [slope, ...levels] : levels;
}
