import type { JSX } from "preact";
import { duration } from "../../base/format";
import { spanOf } from "../../model/level";
import type { Span } from "../../model/span";
import { axisOf } from "../../state/axis";
import type { Store } from "../../state/store";
import { hover, hovered, pixelNs, pointerTime } from "./scene";

/** As near to an edge of what is below it, or to the marker, the pointer means that, px. */
const NEAR_PX = 5;

/**
 * Sets the marker at the pointer, or at the start of what is selected; takes it away where it is.
 * Times are shown with their difference to it.
 */
export function toggleMarker(store: Store): void {
  const { marker } = store.view.value;
  const near = NEAR_PX * pixelNs(axisOf(store).window.peek());
  const pointer = pointerTime.peek();
  const time = pointer === null ? chosenStart(store) : snapped(pointer, near);
  if (time === null && marker === null)
    store.notice.value = "Point at a moment of the timeline, or select an operation, to mark it.";
  const isThere = marker !== null && (time === null || Math.abs(time - marker) <= near);
  store.set({ marker: isThere || time === null ? null : Math.max(Math.round(time), 0) });
}

function chosenStart(store: Store): number | null {
  const { value } = store.details.value;
  if (value?.path === store.view.value.chosen && value.start_ns !== null) return value.start_ns;
  const place = store.place.value;
  return (place && spanOf(place.level, place.index)?.from) ?? null;
}

/** The edge of the bar below the pointer that is near. */
function snapped(time: number, near: number): number {
  const [slice, bar] = [hovered.peek()?.hit, hover.peek()];
  const span = bar && spanOf(bar.level, bar.operation);
  const edges = [slice?.start, slice?.end, span?.from, span?.to];
  return edges.find((edge) => edge !== undefined && Math.abs(edge - time) <= near) ?? time;
}

/** A line at the marker, in any strip that shows a part of the axis. */
export function MarkerLine(props: {
  store: Store;
  window: Span;
  width: number;
  /** Where the axis begins in the strip, px. */
  left?: number;
}): JSX.Element | null {
  const { store, window, width, left = 0 } = props;
  const { marker } = store.view.value;
  if (marker === null || marker < window.from || marker > window.to) return null;
  const x = left + ((marker - window.from) / (window.to - window.from)) * width;
  return (
    <div
      class="marker-line"
      role="img"
      aria-label={`Marker at ${duration(marker)}`}
      style={{ left: `${x}px` }}
    />
  );
}
