import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { WatchAnswer, UnusualSteps } from "../../api/watch_types";
import { grouped, milliseconds, spoken } from "../../base/format";
import { shifted, type Span } from "../../model/span";
import { clock, clockTicks, OVERLAPS, PARTS, topOf, type WatchedSteps } from "../../model/watched";
import { readPalette } from "../../render/palette";
import { drawRun, LANE_PX, linesOf, yOf, type Lane, type RunScene } from "../../render/watched";
import { isOf, type WatchStore } from "../../state/watch";
import { theme } from "../../state/theme";
import { useWidth } from "../../widgets/width";
import { useOverview } from "../../widgets/overview";

const HEIGHT_PX = 230;
const OVERVIEW_PX = 26;
const TICK_PX = 90;
/** A drag shorter than this is a click, px. */
const DRAG_PX = 4;
/** The time below the pointer; null where it is elsewhere. */
export const pointer = signal<number | null>(null);

/** The whole run from left to right, or the part that somebody zoomed to. */
export function Strip({ store }: { store: WatchStore }): JSX.Element {
  const [room, width] = useWidth<HTMLDivElement>();
  const { steps } = store;
  const window = store.window.value;
  const lanes = useMemo(() => lanesOf(store), [store.answer.value, store.version.value]);
  const scene = useScene(store, width, window, HEIGHT_PX, lanes);
  const top = topOf(steps, steps.columns(window, width));
  return (
    <section class="watch-strip" aria-label="Steps of the run">
      <div class="watch-gutter" aria-hidden="true">
        {linesOf(top).map((ms) => (
          <span key={ms} class="watch-ms" style={{ top: `${yOf(ms, top, HEIGHT_PX)}px` }}>
            {milliseconds(ms)}
          </span>
        ))}
        {lanes.map((lane, at) => (
          <span key={lane.id} class="watch-lane" style={{ top: `${HEIGHT_PX + at * LANE_PX}px` }}>
            {lane.name}
          </span>
        ))}
      </div>
      <div class="watch-room" ref={room} {...useGestures(store, width)}>
        <RunCanvas store={store} scene={scene} />
        <Tip store={store} width={width} />
      </div>
      <span class="watch-length dim">{spoken((window.to - window.from) / 1e9)}</span>
      <Ruler window={window} width={width} />
      <span class="watch-length dim">whole run</span>
      <Overview store={store} width={width} />
    </section>
  );
}

function useScene(
  store: WatchStore,
  width: number,
  window: Span,
  height: number,
  lanes: readonly Lane[],
): RunScene {
  const answer = store.answer.value;
  const { mark, step } = store.view.value;
  const { steps } = store;
  const palette = useMemo(() => readPalette(document.documentElement), [theme.value]);
  const slow = useMemo(
    () => answer.slow.map((one) => placesOf(steps, one)),
    [answer, store.version.value],
  );
  const shown = store.slow.value;
  const chosen = shown && !shown.numbers.length ? [...placesOf(steps, shown).marks] : [];
  if (step !== null && steps.length) chosen.push(spanOf(steps, step, step));
  return { steps, answer, window, width, height, lanes, palette, mark, chosen, slow };
}

function spanOf(steps: WatchedSteps, first: number, last: number): Span {
  return { from: steps.begin[steps.placeOf(first)]!, to: steps.endOf(steps.placeOf(last)) };
}

/** Where slow steps are; those of one cause that are apart have a mark each. */
function placesOf(steps: WatchedSteps, slow: UnusualSteps): RunScene["slow"][number] {
  const apart = slow.numbers.length > 0;
  if (!steps.length) return { apart, marks: [] };
  const marks = slow.numbers.map((step) => spanOf(steps, step, step));
  return { apart, marks: apart ? marks : [spanOf(steps, slow.first, slow.last)] };
}

/** What there is anything of. */
function lanesOf({ answer, steps }: WatchStore): Lane[] {
  const { slow, device, recordings } = answer.value;
  const names = [
    ...PARTS.slice(3).map(([field, , name]): [string, string] => [field, name]),
    ...OVERLAPS,
  ];
  const fields = names.filter(([field]) => field !== "cpu" && steps.has(field));
  return [
    ...(slow.length ? [{ id: "slow", name: "slow steps" }] : []),
    ...fields.map(([id, name]) => ({ id, name })),
    ...(device.length ? [{ id: "device", name: "device clock" }] : []),
    ...(recordings.length ? [{ id: "recordings", name: "recordings" }] : []),
  ];
}

function RunCanvas({ store, scene }: { store: WatchStore; scene: RunScene }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { steps, width, height, lanes } = scene;
  useLayoutEffect(() => drawRun(canvas.current!, scene));
  const { step } = store.view.value;
  const place = step === null || !steps.length ? -1 : steps.placeOf(step);
  const text =
    place < 0
      ? "no step chosen"
      : `step ${grouped(steps.number[place]!)}: ${milliseconds(steps.wallMs[place]!)}`;
  return (
    <canvas
      ref={canvas}
      role="slider"
      tabIndex={0}
      aria-label="Steps by time"
      aria-valuemin={steps.number[0]}
      aria-valuemax={Math.max(steps.last, 0)}
      aria-valuenow={step ?? steps.number[0]}
      aria-valuetext={text}
      style={{ width: `${width}px`, height: `${height + lanes.length * LANE_PX}px` }}
      onKeyDown={(event) => {
        if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
        if (event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
        store.walk(event.key === "ArrowRight" ? 1 : -1);
        event.preventDefault();
        event.stopPropagation();
      }}
    />
  );
}

/** A drag moves the axis, with Shift it zooms to an area; the wheel zooms, with Shift it moves. */
function useGestures(store: WatchStore, width: number): JSX.HTMLAttributes<HTMLDivElement> {
  const begun = useRef<{ x: number; window: Span; area: boolean; moved: boolean } | null>(null);
  const scale = (span: Span): number => (span.to - span.from) / Math.max(width, 1);
  const timeAt = (event: MouseEvent): number => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    return store.window.peek().from + (event.clientX - box.left) * scale(store.window.peek());
  };
  return {
    onPointerDown: (event) => {
      if (event.button > 1) return;
      const window = store.window.peek();
      begun.current = { x: event.clientX, window, area: event.shiftKey, moved: false };
    },
    onPointerMove: (event) => {
      pointer.value = timeAt(event);
      const from = begun.current;
      if (!from || (!from.moved && Math.abs(event.clientX - from.x) < DRAG_PX)) return;
      if (!from.moved) event.currentTarget.setPointerCapture(event.pointerId);
      from.moved = true;
      if (!from.area)
        store.show(shifted(from.window, (from.x - event.clientX) * scale(from.window), store.end));
    },
    onPointerUp: (event) => {
      const from = begun.current;
      begun.current = null;
      if (!from) return;
      if (!from.moved) chooseAt(store, timeAt(event), width);
      else if (from.area) {
        const times = [
          timeAt(event) - (event.clientX - from.x) * scale(from.window),
          timeAt(event),
        ];
        store.show({ from: Math.min(...times), to: Math.max(...times) });
      }
    },
    onPointerCancel: () => (begun.current = null),
    onPointerLeave: () => (pointer.value = null),
    onDblClick: () => store.set({ window: null }),
    onWheel: (event) => {
      const window = store.window.peek();
      const across = event.shiftKey ? event.deltaY : event.deltaX;
      const isWhole = store.view.peek().window === null;
      if (across) store.show(shifted(window, across * scale(window), store.end));
      else if (isWhole && event.deltaY > 0)
        return; // the page scrolls
      else store.zoom(1.2 ** (-event.deltaY / 50), timeAt(event));
      event.preventDefault();
    },
  };
}

/** Chooses a slow step that is hardly missed, or else the longest of those below the pointer. */
function chooseAt(store: WatchStore, ns: number, width: number): void {
  const { steps } = store;
  const below = columnAt(store, ns, width);
  if (!below) return;
  const window = store.window.peek();
  const pixel = (window.to - window.from) / width;
  const [from, to] = [steps.placeAt(ns - pixel), steps.placeAt(ns + pixel)];
  const near = store.answer.value.slow
    .flatMap((one) => one.numbers)
    .map((one) => steps.placeOf(one));
  store.choose(near.find((place) => place >= from && place <= to) ?? below.worst);
}

/** The steps that are drawn below the pointer; none before the first. */
function columnAt({ steps, window }: WatchStore, ns: number, width: number) {
  if (!steps.length || ns < steps.begin[0]!) return undefined;
  const at = steps.placeAt(ns);
  const shown = steps.columns(window.value, width);
  return shown.find(({ from, last }) => from <= at && at <= last);
}

function Ruler({ window, width }: { window: Span; width: number }): JSX.Element {
  const { at, step } = clockTicks(window, Math.max(Math.floor(width / TICK_PX), 2));
  const scale = width / (window.to - window.from);
  return (
    <div class="watch-ruler" aria-hidden="true">
      {at
        .filter((ns) => (ns - window.from) * scale <= width - TICK_PX / 2)
        .map((ns) => (
          <span key={ns} style={{ left: `${(ns - window.from) * scale}px` }}>
            {clock(ns, step)}
          </span>
        ))}
    </div>
  );
}

/** All of the run, with the visible part: a drag or a click moves it. */
function Overview({ store, width }: { store: WatchStore; width: number }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const whole = { from: 0, to: store.end };
  const scene = useScene(store, width, whole, OVERVIEW_PX, []);
  useLayoutEffect(() => drawRun(canvas.current!, { ...scene, mark: "", chosen: [] }));
  const window = store.window.value;
  const { left, size, drag } = useOverview(canvas, width / whole.to, window, (span) =>
    store.show(span),
  );
  return (
    <div class="watch-overview" {...drag}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`Overview: ${spoken((window.to - window.from) / 1e9)} of ${spoken(whole.to / 1e9)} are visible`}
        style={{ width: `${width}px`, height: `${OVERVIEW_PX}px` }}
      />
      <span class="overview-window" style={{ left: `${left}px`, width: `${size}px` }} />
    </div>
  );
}

/** What is below the pointer. */
function Tip({ store, width }: { store: WatchStore; width: number }): JSX.Element | null {
  const ns = pointer.value;
  const window = store.window.value;
  const { steps } = store;
  const column = ns === null ? undefined : columnAt(store, ns, width);
  if (ns === null || !column) return null;
  const { from, last, median, worst } = column;
  const left = ((ns - window.from) / (window.to - window.from)) * width;
  const number = (place: number): string => grouped(steps.number[place]!);
  const slow = store.answer.value.slow.find((one) => isOf(one, steps.number[worst]!));
  return (
    <p class={`watch-tip${left > width / 2 ? " left" : ""}`} style={{ left: `${left}px` }}>
      <strong>
        {last > from ? `Steps ${number(from)} to ${number(last)}` : `Step ${number(from)}`}
      </strong>{" "}
      <span class="dim">at {clock(ns, (window.to - window.from) / width)}</span>
      <br />
      {last > from
        ? `median ${milliseconds(steps.wallMs[median]!)}, longest ${milliseconds(steps.wallMs[worst]!)} (step ${number(worst)})`
        : milliseconds(steps.wallMs[worst]!)}
      {partsText(steps, worst)}
      {slow && <span class="watch-tip-part difference-more">slow: {slow.cause}</span>}
    </p>
  );
}

function partsText(steps: WatchedSteps, place: number): JSX.Element[] {
  const names = [...PARTS.map(([field, , name]): [string, string] => [field, name]), ...OVERLAPS];
  return names
    .filter(([field]) => field !== "cpu" && steps.share(field, place) >= 0.01)
    .map(([field, name]) => (
      <span key={field} class="watch-tip-part">
        {name} {milliseconds(steps.ms(field, place))}
      </span>
    ));
}

/** What the colors say, for what there is. */
export function Legend({
  answer,
  steps,
}: {
  answer: WatchAnswer;
  steps: WatchedSteps;
}): JSX.Element {
  const parts = PARTS.filter(([field]) => steps.isSeen(field));
  return (
    <p class="legend" aria-label="Legend">
      {parts.map(([field, stage, name]) => (
        <span key={field} class="legend-entry">
          <span class={`swatch c-${stage}`} aria-hidden="true" />
          {name}
        </span>
      ))}
      <span class="legend-entry">
        <span class="swatch c-none" aria-hidden="true" />
        {parts.length ? "the rest, with the forward pass" : "a step; its parts are not known"}
      </span>
      <span class="legend-entry">
        <span class="heat-ramp" aria-hidden="true" />
        pale: the longest step of a column; strong: its median one
      </span>
      {answer.facts.on_device && (
        <span class="legend-entry">times are the CPU's, not the device's</span>
      )}
    </p>
  );
}
