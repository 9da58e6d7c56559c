import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { duration, markedMoment, tick } from "../../base/format";
import { ticks, zoomed, type Span } from "../../model/span";
import type { AxisState } from "../../state/axis";
import type { Store } from "../../state/store";
import { HitMarks } from "./hit_marks";
import { MarkerLine } from "./marker";
import { gutter, pointerTime } from "./scene";

const TICK_PX = 80;
const TICK_TEXT_PX = 70;
/** A letter of the time at the pointer, and the room around it. */
const LETTER_PX = 6.6;
const RIM_PX = 12;

/** The times of the axis; a drag moves it, the wheel zooms. */
export function Ruler(props: { store: Store; axis: AxisState; width: number }): JSX.Element {
  const { store, axis, width } = props;
  const { marker } = store.view.value;
  const window = axis.window.value;
  const { at, step } = ticks(window, Math.max(Math.floor(width / TICK_PX), 4));
  const scale = width / (window.to - window.from);
  const begun = useRef<{ x: number; window: Span } | null>(null);
  const pointer = pointerTime.value === null ? null : placed(pointerTime.value);
  /** The pointer's time, and the room of its label: left of it at the right edge. */
  function placed(time: number): { x: number; text: string; from: number; to: number } {
    const x = (time - window.from) * scale;
    const text = markedMoment(time, marker, 1 / scale, step);
    const size = text.length * LETTER_PX + RIM_PX;
    return x + size > width
      ? { x, text, from: x - size, to: x }
      : { x, text, from: x, to: x + size };
  }
  const covered = (x: number): boolean =>
    pointer !== null && x < pointer.to && x + TICK_TEXT_PX > pointer.from;
  return (
    <div class="ruler">
      <span class="ruler-length dim" style={{ width: `${gutter.value}px` }} title="Visible time">
        {duration(window.to - window.from)}
      </span>
      <div
        class="ruler-times"
        title="Drag to move, turn the wheel to zoom, double-click for the whole level"
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          begun.current = { x: event.clientX, window: axis.window.peek() };
        }}
        onPointerMove={(event) => {
          const from = begun.current;
          if (!from) return;
          const by = ((from.x - event.clientX) / width) * (from.window.to - from.window.from);
          axis.show({ from: from.window.from + by, to: from.window.to + by });
        }}
        onPointerUp={() => (begun.current = null)}
        onPointerCancel={() => (begun.current = null)}
        onDblClick={() => axis.showAll()}
        onWheel={(event) => {
          event.preventDefault();
          const time = window.from + event.offsetX / scale;
          axis.show(zoomed(window, time, 1.2 ** (-event.deltaY / 50), axis.end));
        }}
      >
        <div class="ruler-ticks" aria-hidden="true">
          {at
            .filter((ns) => (ns - window.from) * scale <= width - TICK_TEXT_PX)
            .map((ns) => (
              <span key={ns} style={{ left: `${(ns - window.from) * scale}px` }}>
                {!covered((ns - window.from) * scale) && tick(ns, step)}
              </span>
            ))}
        </div>
        <HitMarks {...{ store, window, width }} />
        <MarkerLine {...{ store, window, width }} />
        {pointer !== null && (
          <span
            class={pointer.to === pointer.x ? "ruler-pointer before" : "ruler-pointer"}
            style={{ left: `${pointer.x}px` }}
          >
            {pointer.text}
          </span>
        )}
      </div>
    </div>
  );
}
