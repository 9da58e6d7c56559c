import type { JSX } from "preact";
import type { Flame, NodeFinding } from "../api/types";

const LEGEND = ["python", "module", "operator", "runtime", "kernel", "memcpy", "communication"];

/** The colors of what there is: of kinds, or of what changed, and of what findings mark. */
export function FlameLegend(props: {
  value: Flame;
  findings: readonly NodeFinding[];
}): JSX.Element {
  const { value, findings } = props;
  const kinds = LEGEND.filter((one) => value.strings.includes(one));
  const names = value.boxes.before ? ["more", "less"] : kinds;
  return (
    <span class="flame-legend">
      {names.map((one) => (
        <span key={one}>
          <span class={`flame-swatch flame-${one}`} aria-hidden="true" /> {one}
        </span>
      ))}
      {findings.some((one) => one.severity === "critical") && (
        <span>
          <span class="flame-swatch flame-critical" aria-hidden="true" /> critical finding
        </span>
      )}
    </span>
  );
}
