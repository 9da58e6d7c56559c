import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { TrackRow } from "../../api/types";
import { plural } from "../../base/format";
import { rounded, type Span } from "../../model/span";
import { sliceAt, type SliceHit } from "../../model/tiles";
import { foldedAtFirst, shortNameOf, sideOf } from "../../model/tracks";
import { isFound } from "../../model/search_hits";
import { textMeasure } from "../../render/canvas2d";
import { FONT_SMALL } from "../../render/fitted";
import type { Palette } from "../../render/palette";
import { drawTrack, LINE_PX } from "../../render/tracks";
import type { AxisState } from "../../state/axis";
import { hitsOnScreen } from "../../state/search";
import type { Store } from "../../state/store";
import { HitMarks } from "./hit_marks";
import { gutter, hovered } from "./scene";

const SLACK_PX = 3;

export interface TrackProps {
  store: Store;
  axis: AxisState;
  track: TrackRow;
  width: number;
  palette: Palette;
  device: string;
  /** Whether a dragged area is of this track among others. */
  marked: boolean;
}

/** A thread, a stream or the idle time of a device, where it was recorded. */
export function TrackView(props: TrackProps): JSX.Element {
  const { axis, track, width, palette, device } = props;
  const about = axis.about.value.value!;
  const folded = axis.folded.value.get(track.id) ?? foldedAtFirst(about, track);
  const lines = folded ? 1 : track.depths;
  const chosen = props.store.details.value.value?.event ?? -1;
  const height = lines * LINE_PX;
  const hit = (event: MouseEvent): SliceHit | null =>
    slicedAt(axis, track.id, event, width, folded ? track.depths : 0);
  return (
    <div class={`track track-${track.kind} ${props.marked ? "marked" : ""}`} data-track={track.id} style={{ height: `${height + 3}px` }}>
      <div class="track-name" style={{ width: `${gutter.value - 4}px` }} title={track.name}>
        {track.depths > 1 ? (
          <button
            type="button"
            class="twist"
            aria-expanded={!folded}
            aria-label={`${folded ? "Open" : "Close"} ${track.name}`}
            onClick={() => axis.fold(track.id, !folded)}
          >
            {folded ? "▸" : "▾"}
          </button>
        ) : (
          <span class="twist" />
        )}
        <span class="side">{sideOf(track.kind, track.device, device)}</span>
        <span class="row-which">{shortNameOf(track.name)}</span>
        <Pin axis={axis} track={track} />
      </div>
      <div
        class="track-bars"
        style={{ left: `${gutter.value}px`, width: `${width}px`, height: `${height}px` }}
        onPointerMove={(event) => {
          const found = hit(event);
          hovered.value = found && { hit: found, track, x: event.clientX, y: event.clientY };
        }}
        onPointerLeave={() => (hovered.value = null)}
        onClick={(event) => {
          const found = hit(event);
          if (found && found.event >= 0) chooseEvent(props.store, found.event);
          else if (found && track.kind === "idle") showCpu(props.store, axis, track.rank, found);
        }}
        onDblClick={(event) => {
          const found = hit(event);
          if (found) axis.show(roomy(found.start, found.end));
        }}
      >
        <TrackCanvas {...{ store: props.store, axis, track, width, palette, lines, chosen }} />
        <HitMarks store={props.store} window={axis.window.value} width={width} track={track.id} />
      </div>
    </div>
  ); // prettier-ignore
}

interface CanvasProps {
  store: Store;
  axis: AxisState;
  track: TrackRow;
  width: number;
  palette: Palette;
  lines: number;
  chosen: number;
}

/** The slices of a track: all of it that changes while the axis moves. */
function TrackCanvas(props: CanvasProps): JSX.Element {
  const { store, axis, track, width, palette, lines, chosen } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const window = axis.window.value;
  const arrived = axis.arrived.value;
  const hits = hitsOnScreen(store);
  const isHit = useMemo(() => hits && isFound(hits), [hits]);
  useLayoutEffect(() => {
    const measure = textMeasure(FONT_SMALL);
    const pieces = axis.shown(track.id, window, width * devicePixelRatio);
    axis.drawn.set(track.id, pieces);
    drawTrack(canvas.current!, { pieces, window, width, lines, palette, kind: track.kind, chosen, isHit, measure }); // prettier-ignore
  }, [window.from, window.to, width, lines, palette, arrived, chosen, isHit, track.id]);
  useLayoutEffect(() => () => void axis.drawn.delete(track.id), [track.id]);
  return (
    <canvas
      ref={canvas}
      role="img"
      aria-label={`${track.name}: ${plural(track.slices, "slice")}`}
      style={{ width: `${width}px`, height: `${lines * LINE_PX}px` }}
    />
  );
}

function Pin({ axis, track }: { axis: AxisState; track: TrackRow }): JSX.Element {
  const pinned = axis.pinned.value.includes(track.id);
  return (
    <button
      type="button"
      class="pin"
      aria-pressed={pinned}
      aria-label={`${pinned ? "Unpin" : "Pin"} ${track.name}`}
      title={pinned ? "Back to its place" : "Keep above the others"}
      onClick={() => axis.pin(track.id)}
    >
      {pinned ? "★" : "☆"}
    </button>
  );
}

/** A part of the axis with some room around it. */
export function roomy(start: number, end: number, share = 0.1): Span {
  const rim = Math.max((end - start) * share, 1);
  return { from: start - rim, to: end + rim };
}

/** Chooses the operation that holds an event; nothing of the timeline moves. */
export function chooseEvent(store: Store, event: number): void {
  void store.goWhere(async (client) => {
    const place = await client.placeOf(event);
    if (!place.path) throw new Error("This slice is outside all steps.");
    return { chosen: place.path, subject: null, file: "", area: null };
  });
}

/** What the CPU did while a device idled: its statistics, or in a file what it ran halfway. */
function showCpu(store: Store, axis: AxisState, rank: number, { start, end }: SliceHit): void {
  const threads = (axis.about.value.value?.tracks ?? []).filter(
    (one) => one.kind === "cpu" && one.rank === rank,
  );
  const tracks = threads.map((one) => one.id);
  if (store.host.live) return store.set({ area: { ...rounded({ from: start, to: end }), tracks } });
  for (const one of threads)
    for (let depth = one.depths - 1; depth >= 0; depth--) {
      const found = sliceAt(axis.drawn.get(one.id) ?? [], depth, (start + end) / 2, 0);
      if (found && found.event >= 0) return chooseEvent(store, found.event);
    }
}

/** The slice below a point; on a closed track the innermost one. */
function slicedAt(
  axis: AxisState,
  track: string,
  event: MouseEvent,
  width: number,
  folded: number,
): SliceHit | null {
  const [pieces, window] = [axis.drawn.get(track) ?? [], axis.window.peek()];
  const scale = (window.to - window.from) / width;
  const time = window.from + event.offsetX * scale;
  const depth = Math.floor(event.offsetY / LINE_PX);
  if (!folded) return sliceAt(pieces, depth, time, SLACK_PX * scale);
  for (let inner = folded - 1; inner >= 0; inner--) {
    const found = sliceAt(pieces, inner, time, 0);
    if (found) return found;
  }
  return null;
}
