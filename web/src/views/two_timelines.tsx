import { useSignal, type Signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { duration, plural, tick, words } from "../base/format";
import {
  lengthOf,
  neighbor,
  rectangleAt,
  rowsOf,
  SIDES,
  type Row,
  type Side,
  type Spot,
  type TwoTimelines,
} from "../model/rectangles";
import { between, shifted, showing, ticks, within, zoomed, type Span } from "../model/span";
import { drawRectangles, ROW_PX } from "../render/rectangles";
import { theme } from "../state/theme";

/** Threads that work less than this share of the time are shown on demand. */
const HARDLY = 0.01;
const REACH_PX = 2;
const TICK_PX = 90;
const TICK_TEXT_PX = 60;
/** A drag shorter than this is a click. */
const DRAG_PX = 4;
const STEP = 2;
/** What each timeline is called, and what is said after its length. */
export type Titles = Record<Side, { name: string; note: string }>;

/** A stage that stands out in both timelines, and how to choose another. */
export interface ChosenStage {
  stage: string | null;
  onChoose: (stage: string | null) => void;
}

/** Two timelines below each other on one scale of time; `zoom` is for both. */
export function Timelines(props: {
  timeline: TwoTimelines;
  titles: Titles;
  /** Of both together. */
  label: string;
  /** Whether they differ; else one of them is shown. */
  changed: boolean;
  zoom: Signal<Span | null>;
  /** Where stages can be chosen. */
  chosen?: ChosenStage;
}): JSX.Element {
  const { timeline, zoom, titles, chosen } = props;
  const every = useSignal(false);
  const all = useMemo(() => rowsOf(timeline), [timeline]);
  const busy = useMemo(() => rowsOf(timeline, HARDLY), [timeline]);
  const rows = useMemo(() => {
    const found = every.value ? all : busy;
    return props.changed ? found : found.map((one) => ({ ...one, after: [] }));
  }, [all, busy, every.value, props.changed]);
  const length = lengthOf(timeline);
  const span = within(zoom.value ?? { from: 0, to: length }, length);
  const [spot, setSpot] = useState<Spot | null>(null);
  const [marked, setMarked] = useState<Span | null>(null);
  const [width, setWidth] = useState(0);
  const room = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => setSpot(null), [timeline, every.value]);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setWidth(Math.floor(room.current!.clientWidth)));
    observer.observe(room.current!);
    return () => observer.disconnect();
  }, []);
  const show = (to: Span | null): void => {
    zoom.value = to && to.to - to.from < length ? to : null;
  };
  const walk = (to: Spot | null): void => {
    setSpot(to);
    if (!to) return;
    const start = timeline[to.side].start_us[to.index]!;
    if (zoom.value)
      show(showing(span, start, start + timeline[to.side].duration_us[to.index]!, length));
  };
  const nearer = (factor: number): void => {
    const start = spot ? timeline[spot.side].start_us[spot.index]! : (span.from + span.to) / 2;
    show(zoomed(span, start, factor, length));
  };
  const choose = ({ side, index }: Spot): void => {
    const stage = timeline[side].stage[index] ?? null;
    chosen?.onChoose(stage === chosen.stage ? null : stage);
  };
  const press = (event: KeyboardEvent): void => {
    if (event.target instanceof HTMLButtonElement && event.key === "Enter") return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow")) walk(neighbor(timeline, rows, spot, event.key));
    else if (event.key === "+" || event.key === "=") nearer(STEP);
    else if (event.key === "-") nearer(1 / STEP);
    else if (event.key === "Enter" && chosen && spot) choose(spot);
    else if (event.key === "0" || (event.key === "Escape" && zoom.value)) show(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div
      class="whatif-timelines"
      role="group"
      aria-label={`${props.label}: arrow keys walk them, + and − zoom, 0 shows all`}
      tabIndex={0}
      onKeyDown={press}
      onPointerLeave={() => setSpot(null)}
    >
      {SIDES.filter((side) => props.changed || side === "before").map((side) => (
        <One
          key={side}
          {...{ timeline, titles, side, rows, width, span, marked, spot }}
          stage={chosen?.stage ?? null}
          onChoose={choose}
          onSpot={setSpot}
          onMarked={setMarked}
          onShow={show}
        >
          {side === "before" && <Zoom whole={zoom.value === null} onNearer={nearer} onAll={() => show(null)} />}
        </One>
      ))}
      <div class="whatif-row">
        <span />
        <div class="whatif-axis" ref={room} aria-hidden="true">
          {width > 0 && <Axis span={span} width={width} />}
        </div>
      </div>
      {chosen && (
        <div class="stage-choice" role="group" aria-label="Stages">
          <Legend timeline={timeline} chosen={chosen} />
        </div>
      )}
      <p class="whatif-spot" aria-live="polite">
        {spot
          ? described(timeline, titles, rows, spot)
          : !chosen && <Legend timeline={timeline} chosen={chosen} />}
      </p>
      {all.length > busy.length && (
        <button type="button" class="link" onClick={() => (every.value = !every.value)}>
          {every.value
            ? "Hide nearly idle threads"
            : `Show ${plural(all.length - busy.length, "thread")} more, with hardly any work`}
        </button>
      )}
    </div>
  ); // prettier-ignore
}

function Axis({ span, width }: { span: Span; width: number }): JSX.Element {
  const { at, step } = ticks(span, Math.max(Math.floor(width / TICK_PX), 3));
  const place = (us: number): number => (us - span.from) / (span.to - span.from);
  return (
    <>
      {at
        .filter((us) => place(us) <= 1 - TICK_TEXT_PX / width)
        .map((us) => (
          <span key={us} style={{ left: `${place(us) * 100}%` }}>
            {tick(us * 1000, step * 1000)}
          </span>
        ))}
    </>
  );
}

function Zoom(props: {
  whole: boolean;
  onNearer: (factor: number) => void;
  onAll: () => void;
}): JSX.Element {
  return (
    <span class="whatif-zoom">
      <button type="button" class="chip" aria-label="Nearer" title="Nearer (+); or drag over a part, or turn the wheel with Ctrl" onClick={() => props.onNearer(STEP)}>
        +
      </button>
      <button type="button" class="chip" aria-label="Further" title="Further (−)" disabled={props.whole} onClick={() => props.onNearer(1 / STEP)}>
        −
      </button>
      <button type="button" class="chip" title="All of it (0, or a double click)" disabled={props.whole} onClick={props.onAll}>
        All
      </button>
    </span>
  ); // prettier-ignore
}

interface OneProps {
  timeline: TwoTimelines;
  titles: Titles;
  side: Side;
  rows: Row[];
  width: number;
  span: Span;
  marked: Span | null;
  spot: Spot | null;
  stage: string | null;
  onChoose: (spot: Spot) => void;
  onSpot: (spot: Spot | null) => void;
  onMarked: (span: Span | null) => void;
  onShow: (span: Span | null) => void;
  children: ComponentChildren;
}

function One(props: OneProps): JSX.Element {
  const { timeline, titles, side, rows, width, span, marked, spot, stage } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const shade = theme.value;
  const mine = spot?.side === side ? spot : null;
  useLayoutEffect(() => {
    if (width) drawRectangles(canvas.current!, { timeline, side, rows, width, span, marked, spot: mine, stage });
  }, [timeline, rows, width, span.from, span.to, marked, mine, stage, shade]); // prettier-ignore
  const length = duration(timeline[side].length_us * 1000);
  const several = new Set(rows.map((one) => one.thread.rank)).size > 1;
  return (
    <figure data-side={side}>
      <figcaption class="pane-heading whatif-head">
        <span>
          {titles[side].name}{" "}
          <span class="dim">
            {length}
            {titles[side].note}
          </span>
        </span>
        {props.children}
      </figcaption>
      <div class="whatif-row">
        <ul class="whatif-threads">
          {rows.map((row, number) => (
            <li key={number} style={{ height: `${ROW_PX}px` }} title={row.thread.name}>
              {several ? `${row.thread.rank}: ` : ""}
              {row.thread.name.replace(/^thread /, "")}
            </li>
          ))}
        </ul>
        <canvas
          ref={canvas}
          role="img"
          aria-label={`${titles[side].name}: ${length} on ${plural(rows.length, "thread")}`}
          style={{ width: `${width}px`, height: `${rows.length * ROW_PX}px` }}
          {...pointing(props)}
        />
      </div>
    </figure>
  );
}

/** A drag marks what is then zoomed to; else the pointer tells what it is on. */
function pointing(props: OneProps): JSX.HTMLAttributes<HTMLCanvasElement> {
  const { timeline, side, rows, width, span, marked } = props;
  const length = lengthOf(timeline);
  const scale = (span.to - span.from) / Math.max(width, 1);
  const time = (event: MouseEvent): number => span.from + event.offsetX * scale;
  const begun = useRef<number | null>(null);
  const meet = (event: PointerEvent): Spot | null => {
    const row = Math.floor(event.offsetY / ROW_PX);
    const index = rectangleAt(timeline[side], rows[row]?.[side] ?? [], time(event), REACH_PX * scale);
    return index < 0 ? null : { side, row, index };
  }; // prettier-ignore
  return {
    onPointerDown: (event) => {
      if (event.button !== 0) return;
      event.currentTarget.setPointerCapture(event.pointerId);
      begun.current = time(event);
    },
    onPointerMove: (event) => {
      if (begun.current === null) props.onSpot(meet(event));
      else props.onMarked(between(begun.current, time(event), length));
    },
    onPointerUp: (event) => {
      const from = begun.current;
      begun.current = null;
      props.onMarked(null);
      if (from === null) return;
      const spot = meet(event);
      if (marked && Math.abs(time(event) - from) >= DRAG_PX * scale)
        props.onShow(between(from, time(event), length));
      else if (spot) props.onChoose(spot);
    },
    onPointerCancel: () => {
      begun.current = null;
      props.onMarked(null);
    },
    onDblClick: () => props.onShow(null),
    onWheel: (event) => {
      const across = event.shiftKey ? event.deltaY : event.deltaX;
      if (event.ctrlKey) props.onShow(zoomed(span, time(event), 1.2 ** (-event.deltaY / 50), length));
      else if (across && size(span) < length) props.onShow(shifted(span, across * scale, length));
      else return;
      event.preventDefault();
    },
  }; // prettier-ignore
}

function size({ from, to }: Span): number {
  return to - from;
}

/** The colors of the stages there are, as buttons where stages can be chosen. */
function Legend(props: { timeline: TwoTimelines; chosen: ChosenStage | undefined }): JSX.Element {
  const { timeline, chosen } = props;
  const stages = new Set([...timeline.before.stage, ...timeline.after.stage]);
  return (
    <>
      {[...stages].map((stage) => {
        const named = (
          <>
            <span class={`swatch c-${stage}`} aria-hidden="true" /> {stageName(stage)}
          </>
        );
        if (!chosen || stage === null)
          return (
            <span key={stage} class="whatif-stage">
              {named}
            </span>
          );
        const is = stage === chosen.stage;
        return (
          <button
            key={stage}
            type="button"
            class="chip"
            aria-pressed={is}
            onClick={() => chosen.onChoose(is ? null : stage)}
          >
            {named}
          </button>
        );
      })}
    </>
  );
}

function stageName(stage: string | null): string {
  return stage === null ? "no stage" : words(stage);
}

/** A rectangle in words. */
function described(
  timeline: TwoTimelines,
  titles: Titles,
  rows: Row[],
  { side, row, index }: Spot,
): string {
  const drawn = timeline[side];
  const tasks = drawn.tasks[index]!;
  const parts = [
    `${titles[side].name}, ${rows[row]?.thread.name ?? ""}`,
    drawn.name[index]! + (tasks > 1 ? ` and ${plural(tasks - 1, "more task")}` : ""),
    stageName(drawn.stage[index] ?? null),
    `${duration(drawn.duration_us[index]! * 1000)} from ${duration(drawn.start_us[index]! * 1000)} on`,
  ];
  return parts.join(" · ");
}
