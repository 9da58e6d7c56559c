import type { PanelPrediction as Prediction } from "../api/batch_types";

/** The choice of a batch size by what it gives; `curve` is sorted by batch size and not empty. */

export function at(curve: readonly Prediction[], batch: number): Prediction {
  return curve.reduce((best, one) =>
    Math.abs(one.batch - batch) < Math.abs(best.batch - batch) ? one : best,
  );
}

/** The smallest batch size that reaches a throughput, else the one that gives most. */
export function forThroughput(curve: readonly Prediction[], wanted: number): Prediction {
  return (
    curve.find((one) => one.throughput >= wanted) ??
    curve.reduce((best, one) => (one.throughput > best.throughput ? one : best))
  );
}

/** The largest batch size that takes no more memory, else the smallest there is. */
export function forBytes(curve: readonly Prediction[], wanted: number): Prediction {
  return curve.reduce((best, one) => ((one.bytes ?? 0) <= wanted ? one : best), curve[0]!);
}

/** The choice so many places further, within the ends. */
export function step(curve: readonly Prediction[], from: Prediction, places: number): Prediction {
  const index = curve.indexOf(at(curve, from.batch)) + places;
  return curve[Math.min(Math.max(index, 0), curve.length - 1)]!;
}

/** The most of a quantity over the curve. */
export function most(curve: readonly Prediction[], of: (one: Prediction) => number): number {
  return Math.max(...curve.map(of), 0);
}
