import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { MemoryDevice, MemoryGroups } from "../../api/types";
import { bytes, duration, percent, tick } from "../../base/format";
import {
  memoryColor,
  memoryColumns,
  shortLine,
  stackingOf,
  type MemoryColumns,
} from "../../model/memory";
import { shifted, ticks, zoomed, type Span } from "../../model/span";
import { AREAS_PX, drawMemory } from "../../render/memory";
import type { MemoryState } from "../../state/memory";
import type { Store } from "../../state/store";
import { theme } from "../../state/theme";
import { ZOOM_STEP } from "../timeline/gestures";
import { pointerTime } from "../timeline/scene";

const TICK_PX = 90;
const TICK_TEXT_PX = 64;
/** A drag shorter than this is a click. */
const DRAG_PX = 4;
/** An arrow key moves the moment by this share of what is visible; with Shift by ten of them. */
const STEP = 0.005;

/** A group as people read it. */
export function groupName(by: string, name: string): string {
  if (!name) return `no ${by} known`;
  return by === "line" ? shortLine(name) : name;
}

/** Memory over time as stacked areas; a click chooses the moment whose contents are shown. */
export function Areas(props: {
  store: Store;
  state: MemoryState;
  device: MemoryDevice;
}): JSX.Element | null {
  const { state, device } = props;
  const grouping = state.grouping.value;
  const room = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setWidth(Math.floor(room.current!.clientWidth)));
    observer.observe(room.current!);
    return () => observer.disconnect();
  }, []);
  if (!grouping) return null;
  return (
    <section class="memory-areas" aria-label="Memory over time">
      <Scale top={topOf(device)} />
      <div class="memory-room" ref={room}>
        {width > 0 && <Drawing {...{ ...props, grouping, width }} />}
      </div>
      <Legend state={state} device={device} grouping={grouping} />
    </section>
  );
}

/** Bytes at the top of the areas, the same at every zoom so that heights can be compared. */
function topOf(device: MemoryDevice): number {
  return Math.max(device.peak_bytes, device.reserved_bytes ?? 0, 1) * 1.04;
}

function Scale({ top }: { top: number }): JSX.Element {
  const { at } = ticks({ from: 0, to: top }, 4);
  return (
    <div class="memory-scale" aria-hidden="true" style={{ height: `${AREAS_PX}px` }}>
      {at.map((one) => (
        <span key={one} style={{ bottom: `${(one / top) * 100}%` }}>
          {bytes(one)}
        </span>
      ))}
    </div>
  );
}

function Drawing(props: {
  store: Store;
  state: MemoryState;
  device: MemoryDevice;
  grouping: MemoryGroups;
  width: number;
}): JSX.Element {
  const { state, device, grouping, width } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const window = state.window.value;
  const arrived = state.arrived.value;
  const group = state.group.value;
  const shade = theme.value;
  const [pointer, setPointer] = useState<number | null>(null);
  const pixels = Math.max(Math.round(width * devicePixelRatio), 1);
  const columns = useMemo(
    () => memoryColumns(state.shown(pixels), window, grouping.names.length, pixels),
    [window.from, window.to, pixels, grouping, arrived],
  );
  useLayoutEffect(() => {
    const color = reader();
    drawMemory(canvas.current!, {
      columns,
      width,
      top: topOf(device),
      order: stackingOf(grouping.by, grouping.names),
      colors: grouping.names.map((name, at) => color(memoryColor(grouping.by, name, at, group))),
      group,
      ground: color("lane"),
      line: color("text-dim"),
    });
  }, [columns, width, group, shade, device, grouping]);
  const place = (ns: number): number => ((ns - window.from) / (window.to - window.from)) * width;
  return (
    <>
      <div
        class="memory-plot"
        role="slider"
        aria-label={`Moment of ${device.id}'s memory`}
        aria-valuemin={0}
        aria-valuemax={state.end}
        aria-valuenow={state.time}
        aria-valuetext={`${duration(state.time)}: ${bytes(state.moment.value.value?.used_bytes ?? 0)} in use`}
        title="Click for what lives then; drag to move, turn the wheel with Ctrl to zoom"
        tabIndex={0}
        style={{ height: `${AREAS_PX}px` }}
        onKeyDown={(event) => press(state, event)}
        {...gesturesOf(state, window, width, setPointer)}
      >
        <canvas ref={canvas} aria-hidden="true" style={{ width: `${width}px`, height: `${AREAS_PX}px` }} />
        <Mark x={place(device.peak_ns)} width={width} name="peak" kind="peak" />
        {device.failures.map((one) => (
          <Mark key={one.time_ns} x={place(one.time_ns)} width={width} name="out of memory" kind="failure" />
        ))}
        <Mark x={place(state.time)} width={width} name="" kind="chosen" />
        {pointer !== null && (
          <Pointer {...{ columns, grouping, group, window, width }} time={pointer} />
        )}
      </div>
      <Times window={window} width={width} />
    </>
  ); // prettier-ignore
}

/** Reads colors of the style sheet, as they are in the theme on screen. */
export function reader(): (name: string) => string {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

function Mark(props: { x: number; width: number; name: string; kind: string }): JSX.Element | null {
  const { x, width, name, kind } = props;
  if (x < 0 || x > width) return null;
  const side = x > width - 90 ? "left" : "";
  return (
    <span class={`memory-mark ${kind} ${side}`} aria-hidden="true" style={{ left: `${x}px` }}>
      {name}
    </span>
  );
}

function Times({ window, width }: { window: Span; width: number }): JSX.Element {
  const { at, step } = ticks(window, Math.max(Math.floor(width / TICK_PX), 2));
  const scale = width / (window.to - window.from);
  return (
    <div class="memory-times" aria-hidden="true">
      {at
        .filter((ns) => (ns - window.from) * scale <= width - TICK_TEXT_PX)
        .map((ns) => (
          <span key={ns} style={{ left: `${(ns - window.from) * scale}px` }}>
            {tick(ns, step)}
          </span>
        ))}
    </div>
  );
}

/** What is in use at the pointer, the largest areas first. */
function Pointer(props: {
  columns: MemoryColumns;
  grouping: MemoryGroups;
  group: number | null;
  window: Span;
  width: number;
  time: number;
}): JSX.Element | null {
  const { columns, grouping, window, width, time } = props;
  const share = (time - window.from) / (window.to - window.from);
  const at = Math.min(
    Math.max(Math.floor(share * columns.most.length), 0),
    columns.most.length - 1,
  );
  const most = columns.most[at]!;
  if (Number.isNaN(most)) return null;
  const held = grouping.names
    .map((name, position) => ({ name, position, value: columns.held[position]![at]! }))
    .filter((one) => one.value > 0)
    .sort((a, b) => b.value - a.value)
    .slice(0, 5);
  const x = share * width;
  return (
    <>
      <span class="memory-mark pointer" aria-hidden="true" style={{ left: `${x}px` }} />
      <div
        class="memory-tip"
        aria-hidden="true"
        style={x < width / 2 ? { left: `${x + 10}px` } : { right: `${width - x + 10}px` }}
      >
        <b>{bytes(most)}</b> at {duration(time)}
        <ul>
          {held.map((one) => (
            <li key={one.position}>
              <Swatch by={grouping.by} name={one.name} position={one.position} group={props.group} />
              <span class="name-text">{groupName(grouping.by, one.name)}</span>
              <span class="number">{bytes(one.value)}</span>
            </li>
          ))}
        </ul>
      </div>
    </>
  ); // prettier-ignore
}

export function Swatch(props: {
  by: string;
  name: string;
  position: number;
  /** The group that stands out. */
  group?: number | null;
}): JSX.Element {
  const { by, name, position, group = null } = props;
  const color = `var(--${memoryColor(by, name, position, group)})`;
  return <span class="swatch" aria-hidden="true" style={{ background: color }} />;
}

/** The areas with what they hold at the chosen moment's column; a click lets one stand out. */
function Legend(props: {
  state: MemoryState;
  device: MemoryDevice;
  grouping: MemoryGroups;
}): JSX.Element {
  const { state, grouping } = props;
  const shown = stackingOf(grouping.by, grouping.names);
  const order = grouping.by === "kind" ? shown.reverse() : shown;
  return (
    <ul class="memory-legend" aria-label="Areas">
      {order.map((position) => {
        const name = grouping.names[position]!;
        const on = state.group.value === position;
        return (
          <li key={position}>
            <button
              type="button"
              aria-pressed={on}
              title={`${name || groupName(grouping.by, name)}: show this area alone`}
              onClick={() => state.set({ group: on ? null : position })}
            >
              <Swatch by={grouping.by} name={name} position={position} group={state.group.value} />
              <span class="name-text">{groupName(grouping.by, name)}</span>
            </button>
          </li>
        );
      })}
    </ul>
  );
}

/** The moment goes left and right, the axis nearer and further. */
function press(state: MemoryState, event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const window = state.window.peek();
  const step = (window.to - window.from) * STEP * (event.shiftKey ? 10 : 1);
  const go = (time: number): void => {
    const to = Math.round(Math.min(Math.max(time, 0), state.end));
    state.goTo(to);
  };
  const zoom = (factor: number): void => state.show(zoomed(window, state.time, factor, state.end));
  const act: Record<string, () => void> = {
    ArrowLeft: () => go(state.time - step),
    ArrowRight: () => go(state.time + step),
    Home: () => go(window.from),
    End: () => go(window.to),
    "+": () => zoom(ZOOM_STEP),
    "=": () => zoom(ZOOM_STEP),
    "-": () => zoom(1 / ZOOM_STEP),
    "0": () => state.showAll(),
  };
  if (!act[event.key]) return;
  act[event.key]!();
  event.preventDefault();
  event.stopPropagation();
}

function gesturesOf(
  state: MemoryState,
  window: Span,
  width: number,
  setPointer: (time: number | null) => void,
): JSX.HTMLAttributes<HTMLDivElement> {
  const begun = useRef<{ x: number; window: Span; moved: boolean } | null>(null);
  const scale = (window.to - window.from) / Math.max(width, 1);
  const timeAt = (event: MouseEvent & { currentTarget: HTMLDivElement }): number =>
    window.from + (event.clientX - event.currentTarget.getBoundingClientRect().left) * scale;
  const point = (time: number | null): void => {
    setPointer(time);
    pointerTime.value = time;
  };
  return {
    onPointerDown: (event) => {
      if (event.button === 0) begun.current = { x: event.clientX, window, moved: false };
    },
    onPointerMove: (event) => {
      const from = begun.current;
      const by = from ? from.x - event.clientX : 0;
      if (!from || (!from.moved && Math.abs(by) < DRAG_PX)) return point(timeAt(event));
      if (!from.moved) event.currentTarget.setPointerCapture(event.pointerId);
      from.moved = true;
      point(null);
      state.show(shifted(from.window, by * scale, state.end));
    },
    onPointerUp: (event) => {
      const moved = begun.current?.moved ?? true;
      begun.current = null;
      if (!moved) state.set({ moment: Math.round(Math.max(timeAt(event), 0)) });
    },
    onPointerCancel: () => (begun.current = null),
    onPointerLeave: () => point(null),
    onDblClick: () => state.showAll(),
    onWheel: (event) => {
      const across = event.shiftKey ? event.deltaY : event.deltaX;
      if (event.ctrlKey || event.metaKey)
        state.show(zoomed(window, timeAt(event), 1.2 ** (-event.deltaY / 50), state.end));
      else if (across) state.show(shifted(window, across * scale, state.end));
      else return;
      event.preventDefault();
    },
  };
}

/** A share of what is in use, where anything is. */
export function shareOf(part: number, whole: number): string {
  return whole > 0 ? percent(part / whole) : "–";
}
