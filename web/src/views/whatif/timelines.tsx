import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { WhatIf } from "../../api/whatif_types";
import { duration, plural, words } from "../../base/format";
import {
  lengthOf,
  neighbour,
  rectangleAt,
  rowsOf,
  SIDES,
  ticks,
  type Row,
  type Side,
  type Spot,
} from "../../model/rectangles";
import { drawRectangles, ROW_PX } from "../../render/rectangles";
import { theme } from "../../state/theme";

/** Threads that work less than this share of the time are shown on demand. */
const HARDLY = 0.01;
const REACH_PX = 2;
const TICK_PX = 80;
const TICK_TEXT_PX = 48;
const TITLES: Record<Side, string> = { before: "Measured", after: "Predicted" };

/** The steps as measured above, as predicted below, on one scale of time. */
export function Timelines({ timeline }: { timeline: WhatIf["timeline"] }): JSX.Element {
  const every = useSignal(false);
  const all = useMemo(() => rowsOf(timeline), [timeline]);
  const busy = useMemo(() => rowsOf(timeline, HARDLY), [timeline]);
  const rows = every.value ? all : busy;
  const length = lengthOf(timeline);
  const [spot, setSpot] = useState<Spot | null>(null);
  const [width, setWidth] = useState(0);
  const room = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => setSpot(null), [timeline, every.value]);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setWidth(Math.floor(room.current!.clientWidth)));
    observer.observe(room.current!);
    return () => observer.disconnect();
  }, []);
  return (
    <div
      class="whatif-timelines"
      role="group"
      aria-label="Measured and predicted timeline; arrow keys walk them"
      tabIndex={0}
      onKeyDown={(event) => {
        if (!event.key.startsWith("Arrow")) return;
        event.preventDefault();
        event.stopPropagation();
        setSpot(neighbour(timeline, rows, spot, event.key));
      }}
      onPointerLeave={() => setSpot(null)}
    >
      {SIDES.map((side) => (
        <One key={side} {...{ timeline, side, rows, width, spot }} onSpot={setSpot} />
      ))}{" "}
      {/* prettier-ignore */}
      <div class="whatif-row">
        <span />
        <div class="whatif-axis" ref={room} aria-hidden="true">
          {ticks(length, Math.max(Math.floor(width / TICK_PX), 2))
            .filter((us) => us <= length * (1 - TICK_TEXT_PX / width))
            .map((us) => (
              <span key={us} style={{ left: `${(us / length) * 100}%` }}>
                {us ? duration(us * 1000) : "0"}
              </span>
            ))}
        </div>
      </div>
      <p class="whatif-spot" aria-live="polite">
        {spot ? told(timeline, rows, spot) : <Legend timeline={timeline} />}
      </p>
      {all.length > busy.length && (
        <button type="button" class="link" onClick={() => (every.value = !every.value)}>
          {every.value
            ? "Leave out threads that hardly work"
            : `Show ${plural(all.length - busy.length, "thread")} more, with hardly any work`}
        </button>
      )}
    </div>
  );
}

function One(props: {
  timeline: WhatIf["timeline"];
  side: Side;
  rows: Row[];
  width: number;
  spot: Spot | null;
  onSpot: (spot: Spot | null) => void;
}): JSX.Element {
  const { timeline, side, rows, width, spot } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const shade = theme.value;
  const mine = spot?.side === side ? spot : null;
  useLayoutEffect(() => {
    if (width) drawRectangles(canvas.current!, { timeline, side, rows, width, spot: mine });
  }, [timeline, rows, width, mine, shade]);
  const meet = (event: PointerEvent): void => {
    const scale = lengthOf(timeline) / width;
    const row = Math.floor(event.offsetY / ROW_PX);
    const inside = rows[row]?.[side] ?? [];
    const index = rectangleAt(timeline[side], inside, event.offsetX * scale, REACH_PX * scale);
    props.onSpot(index < 0 ? null : { side, row, index });
  };
  const length = duration(timeline[side].length_us * 1000);
  const several = new Set(rows.map((one) => one.thread.rank)).size > 1;
  return (
    <figure data-side={side}>
      <figcaption class="pane-heading">
        {TITLES[side]}{" "}
        <span class="dim">
          {length}
          {side === "before" ? ", as replayed" : ""}
        </span>
      </figcaption>
      <div class="whatif-row">
        <ul class="whatif-threads">
          {rows.map((row, number) => (
            <li key={number} style={{ height: `${ROW_PX}px` }} title={row.thread.name}>
              {several ? `${row.thread.rank}: ` : ""}
              {row.thread.name}
            </li>
          ))}
        </ul>
        <canvas
          ref={canvas}
          role="img"
          aria-label={`${TITLES[side]}: ${length} on ${plural(rows.length, "thread")}`}
          style={{ width: `${width}px`, height: `${rows.length * ROW_PX}px` }}
          onPointerMove={meet}
        />
      </div>
    </figure>
  );
}

/** The colours of the stages there are. */
function Legend({ timeline }: { timeline: WhatIf["timeline"] }): JSX.Element {
  const stages = new Set([...timeline.before.stage, ...timeline.after.stage]);
  return (
    <>
      {[...stages].map((stage) => (
        <span key={stage} class="whatif-stage">
          <span class={`swatch c-${stage}`} aria-hidden="true" /> {words(stage)}
        </span>
      ))}
    </>
  );
}

/** A rectangle in words. */
function told(timeline: WhatIf["timeline"], rows: Row[], { side, row, index }: Spot): string {
  const drawn = timeline[side];
  const tasks = drawn.tasks[index]!;
  const parts = [
    `${TITLES[side]}, ${rows[row]?.thread.name ?? ""}`,
    drawn.name[index]! + (tasks > 1 ? ` and ${plural(tasks - 1, "more task")}` : ""),
    words(drawn.stage[index]!),
    `${duration(drawn.duration_us[index]! * 1000)} from ${duration(drawn.start_us[index]! * 1000)} on`,
  ];
  return parts.join(" · ");
}
