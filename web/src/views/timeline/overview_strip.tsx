import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { TrackRow } from "../../api/types";
import { duration } from "../../base/format";
import type { Span } from "../../model/span";
import type { Palette } from "../../render/palette";
import { drawTrack, LINE_PX } from "../../render/tracks";
import type { AxisState } from "../../state/axis";
import type { Store } from "../../state/store";
import { HitMarks } from "./hit_marks";
import { MarkerLine } from "./marker";
import { gutter } from "./scene";
import { useOverview } from "../../widgets/overview";

/** The whole trace in one strip, with the visible part: a drag or a click moves it. */
export function OverviewStrip(props: {
  store: Store;
  axis: AxisState;
  width: number;
  palette: Palette;
  track: TrackRow | undefined;
}): JSX.Element {
  const { store, axis, width, palette, track } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const whole: Span = { from: 0, to: axis.end };
  const window = axis.window.value;
  const arrived = axis.arrived.value;
  useLayoutEffect(() => {
    if (!track) return;
    const pieces = axis.shown(track.id, whole, width * devicePixelRatio);
    const measure = (): number => Infinity; // no names: most are dimmed, and those of the window are below
    drawTrack(canvas.current!, { pieces, window: whole, width, lines: 1, palette, kind: track.kind, chosen: -1, isHit: null, measure }); // prettier-ignore
  }, [track, width, palette, arrived, whole.to]);
  const { left, size, drag } = useOverview(canvas, width / whole.to, window, (span) =>
    axis.show(span),
  );
  return (
    <div class="overview-strip">
      <span class="dim" style={{ width: `${gutter.value}px` }} title="The whole trace">
        {gutter.value < 120 ? "" : "trace "}
        {duration(axis.about.value.value?.end_ns ?? whole.to)}
      </span>
      <div class="overview-room" style={{ width: `${width}px`, height: `${LINE_PX}px` }} {...drag}>
        <canvas
          ref={canvas}
          role="img"
          aria-label={`Overview: ${duration(window.from)} to ${duration(window.to)} of ${duration(whole.to)} are visible`}
          style={{ width: `${width}px`, height: `${LINE_PX}px` }}
        />
        <span
          class="overview-window"
          aria-hidden="true"
          style={{ left: `${left}px`, width: `${size}px` }}
        />
        <HitMarks {...{ store, width }} window={whole} />
        <MarkerLine {...{ store, width }} window={whole} />
      </div>
    </div>
  );
}
