import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { moved, type Edge, type Span } from "../../model/span";
import { axisOf } from "../../state/axis";
import type { Store } from "../../state/store";
import { choose } from "./gestures";
import { gutter } from "./scene";
import { timeText } from "./tooltip";

const EDGES: [Edge, string][] = [
  ["from", "Start of the area"],
  ["to", "End of the area"],
];
/** How far the arrow keys move an edge, px; with Shift the larger. */
const KEY_PX = [1, 20] as const;

/** The area that is dragged over, or whose statistics are shown; that one has edges to move. */
export function AreaBand({ store, width }: { store: Store; width: number }): JSX.Element | null {
  const axis = axisOf(store);
  const { area } = store.view.value;
  const shown = axis.marked.value ?? area;
  const window = axis.window.value;
  if (!shown || shown.to < window.from || shown.from > window.to) return null;
  const scale = width / (window.to - window.from);
  const left = Math.max((shown.from - window.from) * scale, 0);
  const right = Math.min((shown.to - window.from) * scale, width);
  const style = { left: `${gutter.value + left}px`, width: `${Math.max(right - left, 1)}px` };
  const edges = EDGES.filter(([edge]) => shown[edge] >= window.from && shown[edge] <= window.to);
  return (
    <>
      <div class="area-band" aria-hidden="true" style={style} />
      {area &&
        edges.map(([edge, name]) => (
          <AreaEdge key={edge} {...{ store, edge, name, shown }} x={edge === "from" ? left : right} perPx={1 / scale} />
        ))}
    </>
  ); // prettier-ignore
}

/** An edge to drag, or to move by the arrow keys. */
function AreaEdge(props: {
  store: Store;
  edge: Edge;
  name: string;
  shown: Span;
  /** Where it is, px, and how much time a pixel is, ns. */
  x: number;
  perPx: number;
}): JSX.Element {
  const { store, edge, name, shown, x, perPx } = props;
  const axis = axisOf(store);
  const begun = useRef<{ x: number; time: number } | null>(null);
  const tracks = store.view.value.area?.tracks ?? [];
  const to = (time: number): Span => moved(shown, edge, time, axis.end);
  const end = (): void => {
    const marked = axis.marked.peek();
    begun.current = axis.marked.value = null;
    if (marked) choose(store, marked, tracks);
  };
  return (
    <div
      class="area-edge"
      role="slider"
      tabIndex={0}
      aria-label={name}
      aria-valuemin={0}
      aria-valuemax={Math.round(axis.end)}
      aria-valuenow={Math.round(shown[edge])}
      aria-valuetext={timeText(store, shown[edge], shown.to - shown.from)}
      data-edge={edge}
      title={`${name}: drag it, or move it by the arrow keys`}
      style={{ left: `${gutter.value + x}px` }}
      onPointerDown={(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        begun.current = { x: event.clientX, time: shown[edge] };
      }}
      onPointerMove={(event) => {
        const from = begun.current;
        if (from) axis.marked.value = to(from.time + (event.clientX - from.x) * perPx);
      }}
      onPointerUp={end}
      onPointerCancel={end}
      onKeyDown={(event) => {
        const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!way) return;
        const by = Math.max(KEY_PX[Number(event.shiftKey) as 0 | 1] * perPx, 1);
        choose(store, to(shown[edge] + way * by), tracks);
        event.preventDefault();
        event.stopPropagation();
      }}
    />
  );
}
