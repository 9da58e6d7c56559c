import type { JSX } from "preact";
import { startsOf } from "../../model/search_hits";
import type { Span } from "../../model/span";
import { hitsOnScreen } from "../../state/search";
import type { Store } from "../../state/store";

const TALL_PX = 5;

interface Strip {
  store: Store;
  window: Span;
  width: number;
  /** Only the hits of this track, by its id. */
  track?: string;
}

/** Where the hits of a search begin, at the foot of any strip that shows a part of the axis. */
export function HitMarks({ store, window, width, track }: Strip): JSX.Element | null {
  const hits = hitsOnScreen(store);
  if (!hits) return null;
  const scale = width / (window.to - window.from);
  const columns = new Set(
    startsOf(hits, track).map((ns) => Math.floor((ns - window.from) * scale) + 0.5),
  );
  const seen = [...columns].filter((x) => x >= 0 && x <= width);
  if (!seen.length) return null;
  return (
    <svg class="hit-marks" width={width} height={TALL_PX} aria-hidden="true">
      <path d={seen.map((x) => `M${x} 0v${TALL_PX}`).join("")} />
    </svg>
  );
}
