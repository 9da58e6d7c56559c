import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { CounterRow } from "../../api/types";
import {
  columnExtremes,
  counterText,
  rangeText,
  scaleOf,
  type Extremes,
} from "../../model/counters";
import type { Span } from "../../model/span";
import { sideOf } from "../../model/tracks";
import { drawCounter, LANE_PX } from "../../render/counters";
import type { Palette } from "../../render/palette";
import type { AxisState } from "../../state/axis";
import { gutter, pointerTime } from "./scene";

export interface CounterProps {
  axis: AxisState;
  counter: CounterRow;
  width: number;
  palette: Palette;
  device: string;
}

/** The chip before a counter: its device, or the CPU. */
export function counterSide({ device }: CounterRow, name: string): string {
  return sideOf(device === null ? "cpu" : "device", device, name);
}

/** A value over time as a lane on the axis, with the value at the pointer. */
export function CounterLane({ axis, counter, width, palette, device }: CounterProps): JSX.Element {
  const scale = scaleOf(counter);
  const bounds = `${counterText(scale.from, counter.unit)} – ${counterText(scale.to, counter.unit)}`;
  return (
    <div class="counter" data-counter={counter.id} style={{ height: `${LANE_PX + 3}px` }}>
      <div
        class="counter-name"
        style={{ width: `${gutter.value - 4}px` }}
        title={`${counter.name}; the lane reaches from ${bounds}`}
      >
        <span>
          <span class="side">{counterSide(counter, device)}</span>
          <span class="row-which">{counter.short}</span>
        </span>
        <span class="counter-scale">{bounds}</span>
      </div>
      <div
        class="counter-bars"
        style={{ left: `${gutter.value}px`, width: `${width}px`, height: `${LANE_PX}px` }}
      >
        <CounterCanvas {...{ axis, counter, width, palette }} />
      </div>
    </div>
  );
}

/** The values of a counter: all of its lane that changes while the axis moves. */
function CounterCanvas(props: Omit<CounterProps, "device">): JSX.Element {
  const { axis, counter, width, palette } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const columns = useRef<Extremes | null>(null);
  const window = axis.window.value;
  const arrived = axis.arrived.value;
  useLayoutEffect(() => {
    const pixels = Math.max(Math.round(width * devicePixelRatio), 1);
    const pieces = axis.counterPieces(counter.id, window, pixels);
    columns.current = columnExtremes(pieces, window, pixels, counter.unit === "share");
    drawCounter(canvas.current!, { columns: columns.current, width, scale: scaleOf(counter), palette }); // prettier-ignore
  }, [window.from, window.to, width, palette, arrived, counter]);
  return (
    <>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${counter.name}: ${rangeText(counter.least, counter.most, counter.unit)}`}
        style={{ width: `${width}px`, height: `${LANE_PX}px` }}
      />
      <PointerValue {...{ columns, window, width }} unit={counter.unit} />
    </>
  );
}

/** The value where the pointer is, whichever lane or track it is on. */
function PointerValue(props: {
  columns: { current: Extremes | null };
  window: Span;
  width: number;
  unit: string;
}): JSX.Element | null {
  const { columns, window, width, unit } = props;
  const time = pointerTime.value;
  const found = columns.current;
  if (time === null || !found || time < window.from || time >= window.to) return null;
  const share = (time - window.from) / (window.to - window.from);
  const at = Math.floor(share * found.least.length);
  const [least, most] = [found.least[at]!, found.most[at]!];
  if (Number.isNaN(least)) return null;
  const left = share < 0.5;
  const x = share * width;
  return (
    <span
      class={`counter-value ${left ? "" : "left"}`}
      style={left ? { left: `${x}px` } : { right: `${width - x}px` }}
    >
      {rangeText(least, most, unit)}
    </span>
  );
}
