import type { ComparedRow, Difference } from "../api/types";
import { causeName } from "../base/causes";
import { milliseconds, signedPercent, significant } from "../base/format";

/** Whether a change is more than noise. */
export function isCertain({ verdict }: ComparedRow): boolean {
  return ["slower", "faster", "new", "gone"].includes(verdict);
}

/** `+1.23 ms`, `−46.5 µs`. */
export function change(ms: number): string {
  if (ms === 0) return "0";
  return `${ms > 0 ? "+" : "−"}${milliseconds(Math.abs(ms))}`;
}

/** `+52 %`, or `12 times` where a percentage says little; nothing where a side is missing. */
export function changeShare({ before, after, ratio }: ComparedRow): string {
  if (!before || !after || ratio === null) return "";
  if (ratio >= 10) return `${significant(ratio)} times`;
  return ratio === 1 ? "0" : signedPercent(ratio - 1);
}

/** What the comparison found, in a sentence. */
export function sentence({ step, evidence, apart, cause, before, after }: Difference): string {
  const times = `${milliseconds(step.before?.median_ms ?? 0)} → ${milliseconds(step.after?.median_ms ?? 0)}`;
  const ratio = step.ratio ?? 1;
  const factor =
    ratio >= 1
      ? `takes ${ratio.toFixed(2)} times as long`
      : `is ${(1 / ratio).toFixed(2)} times as fast`;
  const alike = ratio.toFixed(2) === "1.00";
  if (step.verdict === "same" || (alike && ["unclear", "one_step"].includes(step.verdict))) {
    const most = cause
      ? `; the largest change: ${partName(cause)} (${change(cause.change_ms)})`
      : "";
    return `The step takes the same time: ${times}${most}.`;
  }
  const mostly = cause ? `, mostly ${partName(cause)} (${change(cause.change_ms)})` : "";
  if (evidence === "likely")
    return `Likely: the step ${factor} (${times})${mostly}; the runs overlap in ${apart[1]! - apart[0]!} of ${apart[1]} steps.`;
  if (step.verdict === "unclear")
    return `Within noise: the step ${factor} (${times})${mostly}, but its times overlap.`;
  if (step.verdict === "one_step") {
    return `The step ${factor} (${times}), but ${alone(before.steps, after.steps)} only one step: this may be noise.`;
  }
  return `The step ${factor}: ${times}${mostly}.`;
}

/** Who has a single step: `both have`. */
function alone(before: number, after: number): string {
  if (before === 1 && after === 1) return "both sides have";
  return before === 1 ? "the other side has" : "this side has";
}

/** `idle, host bound`, or a part as it is named. */
export function partName({ short, side }: ComparedRow): string {
  if (side) return `${short.replaceAll("_", " ")}, ${side}`;
  const idle = /^idle: (.*)$/.exec(short);
  return idle ? `idle, ${causeName(idle[1]!)}` : short.replace(/^busy: /, "");
}
