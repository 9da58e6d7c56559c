import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { duration, plural } from "../../base/format";
import { spansOf, type RowSpan } from "../../model/sql";
import { textMeasure } from "../../render/canvas2d";
import { fitted, FONT_SMALL } from "../../render/fitted";
import type { Palette } from "../../render/palette";
import type { AxisState } from "../../state/axis";
import type { Store } from "../../state/store";
import { resultOf } from "../query";
import { gutter } from "./scene";
import { chooseEvent } from "./tracks";

const LINE_PX = 15;
const REACH_PX = 2;

interface Props {
  store: Store;
  axis: AxisState;
  width: number;
  palette: Palette;
}

/** The rows of the query as a track: those that have a start and a length. */
export function QueryLane({ store, axis, width, palette }: Props): JSX.Element | null {
  const canvas = useRef<HTMLCanvasElement>(null);
  const over = useSignal<RowSpan | null>(null);
  const { sql, sqlTrack } = store.view.value;
  const result = sqlTrack ? resultOf(store).value.value : null;
  const spans = useMemo(() => (result ? (spansOf(sql, result) ?? []) : []), [result]);
  const lines = spans.reduce((most, one) => Math.max(most, one.line + 1), 1);
  const { from, to } = axis.window.value;
  const scale = width / (to - from);
  useLayoutEffect(() => {
    if (canvas.current) draw(canvas.current, { spans, from, scale, width, lines, palette });
  }, [spans, from, to, width, palette]);
  if (!result) return null;
  const meet = (event: MouseEvent): RowSpan | null => {
    const [at, line] = [from + event.offsetX / scale, Math.floor(event.offsetY / LINE_PX)];
    const near = (one: RowSpan): boolean =>
      one.line === line && one.from - REACH_PX / scale <= at && one.to + REACH_PX / scale >= at;
    return spans.filter(near).at(-1) ?? null;
  };
  const shown = over.value;
  return (
    <div class="query-lane">
      <span class="dim" style={{ width: `${gutter.value}px` }}>
        query
      </span>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${plural(spans.length, "row")} of the query`}
        title={shown ? `${shown.name} ${duration(shown.to - shown.from)}`.trim() : ""}
        style={{ width: `${width}px`, height: `${lines * LINE_PX}px` }}
        onPointerMove={(event) => (over.value = meet(event))}
        onPointerLeave={() => (over.value = null)}
        onClick={(event) => {
          const row = meet(event)?.event;
          if (typeof row === "number") chooseEvent(store, row);
        }}
      />
    </div>
  );
}

interface Scene {
  spans: RowSpan[];
  from: number;
  scale: number;
  width: number;
  lines: number;
  palette: Palette;
}

function draw(
  canvas: HTMLCanvasElement,
  { spans, from, scale, width, lines, palette }: Scene,
): void {
  const context = fitted(canvas, width, lines * LINE_PX, { alpha: false });
  const measure = textMeasure(FONT_SMALL);
  context.fillStyle = palette.rowBackground;
  context.fillRect(0, 0, width, lines * LINE_PX);
  context.font = FONT_SMALL;
  context.textBaseline = "middle";
  for (const one of spans) {
    const x = Math.max((one.from - from) * scale, 0);
    const end = Math.min((one.to - from) * scale, width);
    if (end < 0 || x > width) continue;
    const y = one.line * LINE_PX;
    context.fillStyle = palette.dim;
    context.fillRect(x, y + 1, Math.max(end - x - 0.5, 1), LINE_PX - 2);
    if (one.name && measure(one.name) + 6 > end - x) continue;
    context.fillStyle = palette.background;
    context.fillText(one.name, x + 3, y + LINE_PX / 2);
  }
}
