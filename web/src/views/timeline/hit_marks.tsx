import type { JSX } from "preact";
import type { Span } from "../../model/span";
import { searchOf } from "../../state/search";
import type { Store } from "../../state/store";

const TALL_PX = 5;

/** Where the hits of a search begin, at the foot of any strip that shows a part of the axis. */
export function HitMarks(props: { store: Store; window: Span; width: number }): JSX.Element | null {
  const { store, window, width } = props;
  const { value } = searchOf(store).hits.value;
  if (!store.view.value.text || !value) return null;
  const scale = width / (window.to - window.from);
  const columns = new Set(
    value.events.start_ns.map((ns) => Math.floor((ns - window.from) * scale) + 0.5),
  );
  const seen = [...columns].filter((x) => x >= 0 && x <= width);
  return (
    <svg class="hit-marks" width={width} height={TALL_PX} aria-hidden="true">
      <path d={seen.map((x) => `M${x} 0v${TALL_PX}`).join("")} />
    </svg>
  );
}
