import type { JSX } from "preact";
import type { Flame, NodeFinding } from "../api/types";

const LEGEND = ["python", "module", "operator", "runtime", "kernel"];
const COPIES = ["memcpy", "communication"]; // have one color

/** The colors of what there is: of kinds, or of what changed, and of what findings mark. */
export function FlameLegend(props: {
  value: Flame;
  findings: readonly NodeFinding[];
}): JSX.Element {
  const { value, findings } = props;
  const has = (one: string): boolean => value.strings.includes(one);
  const kinds = [...LEGEND.filter(has), COPIES.filter(has).join(", ")].filter(Boolean);
  const names = value.boxes.before ? ["more", "less"] : kinds;
  return (
    <span class="flame-legend">
      {names.map((one) => (
        <span key={one}>
          <span class={`flame-swatch flame-${one.split(",")[0]}`} aria-hidden="true" /> {one}
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
