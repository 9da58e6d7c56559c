import { useSignal, type Signal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Axis } from "../../api/types";
import { plural } from "../../base/format";
import { beforePaint } from "../../base/frame";
import { stepOf } from "../../base/path";
import type { Level } from "../../model/level";
import { launchesOf } from "../../model/launches";
import { listedCounters } from "../../model/counters";
import type { Span } from "../../model/span";
import { listed, shortNameOf, sideOf, unlisted, type Listing } from "../../model/tracks";
import { readPalette, type Palette } from "../../render/palette";
import type { Scene } from "../../render/renderer";
import { axisOf, type AxisState } from "../../state/axis";
import type { Store } from "../../state/store";
import { theme } from "../../state/theme";
import { ErrorLine } from "../../widgets/answer";
import { AreaBand } from "./area_band";
import { CounterLane, counterSide } from "./counters";
import { useGestures } from "./gestures";
import { walk } from "./keys";
import { Legend } from "./legend";
import { deviceChip, LevelView } from "./level";
import { Arrows, arrowsOf, launchArrows, openedIn, type Arrow, type Shown } from "./lines";
import { MarkerLine } from "./marker";
import { NoteLane, NoteLines } from "./note_lane";
import { PairLanes } from "./pair";
import { OverviewStrip } from "./overview_strip";
import { StepStrip } from "./step_strip";
import { QueryLane } from "./query_lane";
import { Ruler } from "./ruler";
import { gutter, gutterFor, hover, hovered, made, pixelRatio, type Made } from "./scene";
import { LevelTables } from "./table";
import { sentence, Tooltip } from "./tooltip";
import { TimelineTools } from "./tools";
import { TrackView } from "./tracks";

const NO_LEVELS: Level[] = [];
/** The lowest level keeps its large canvases when another becomes the lowest. */
const LOWEST = "lowest";

/** One time axis: the levels down to the one that is open, and the tracks as they were recorded. */
export function Timeline({ store }: { store: Store }): JSX.Element {
  const { error, value } = store.levels.value;
  const place = store.place.value;
  return (
    <section class="timeline" aria-label="Timeline" aria-busy={store.levels.value.loading}>
      <TimelineTools store={store} />
      {error && <ErrorLine text={error} />}
      {error && !value && <GoToTrace store={store} />}
      <Stack store={store} />
      <p class="unseen" role="status" aria-live="polite">
        {place ? sentence(place.level, place.index) : ""}
      </p>
      <Tooltip store={store} />
    </section>
  );
}

/** The way on from a place that this trace does not have, as of an old link. */
function GoToTrace({ store }: { store: Store }): JSX.Element {
  const start = store.overview.value.value?.start ?? "";
  return (
    <p class="note">
      <button type="button" onClick={() => store.open(start)}>
        Go to the trace
      </button>
    </p>
  );
}

function Stack({ store }: { store: Store }): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const width = useSignal(0);
  const arrows = useSignal<Arrow[]>([]);
  const axis = axisOf(store);
  const over = store.view.value.over !== "";
  const levels = over ? NO_LEVELS : (store.levels.value.value ?? NO_LEVELS);
  const window = axis.window.value;
  const palette = usePalette();
  const scenes = useScenes(store, levels, width.value, window, palette);
  const gestures = useGestures(store, axis, width.value);
  const about = axis.about.value.value;
  const [place, partners] = [store.place.value, store.partners.value.value];
  const { chosen, asTable } = store.view.value;
  const details = chosen ? store.details.value.value : null;
  const rank = stepOf(store.view.value.path ?? "")?.rank ?? store.overview.value.value?.rank ?? 0;
  const { every } = store.view.value;
  const [pinned, folded, arrived] = [axis.pinned.value, axis.folded.value, axis.arrived.value];
  const device = deviceChip(store);
  const labels = useMemo(
    () => (about ? labelsOf(device, about, { rank, every, pinned }) : []),
    [device, about, rank, every, pinned],
  );
  useLayoutEffect(() => followSize(frame.current!, width, labels), [labels.join()]);
  useLayoutEffect(() => {
    hover.value = hovered.value = null; // the pointer is on something else now, which its next move tells
  }, [window.from, window.to]);
  useLayoutEffect(() => {
    const draw = (): void => {
      if (asTable) return;
      const shown = place ? measure(frame.current!, scenes, levels) : [];
      const between = place ? arrowsOf(place, partners ?? [], shown) : [];
      const launches = launchArrows(frame.current!, axis, launchesOf(details), width.value);
      if (between.length + launches.length + arrows.peek().length)
        arrows.value = [...between, ...launches];
    };
    return beforePaint(draw);
  }, [place, partners, details, window, width.value, about, rank, every, pinned, folded, arrived, ...scenes]); // prettier-ignore

  // What all ranks do has the time of the axis; steps side by side do not.
  const several = (store.overview.value.value?.ranks.length ?? 0) > 1;
  const strip = <StepStrip store={store} axis={axis} width={width.value} palette={palette} />;
  return (
    <>
      {about && width.value > 0 && (
        <div class="axis-head">
          {!several && strip}
          <OverviewStrip
            {...{ store, axis }}
            width={width.value}
            palette={palette}
            track={overviewTrack(about, rank)}
          />
          {several && strip}
          <Ruler {...{ store, axis }} width={width.value} />
          <NoteLane store={store} axis={axis} width={width.value} />
          <QueryLane {...{ store, axis, palette }} width={width.value} />
        </div>
      )}
      {asTable && <LevelTables store={store} />}
      <div
        class={asTable ? "stack behind" : "stack"}
        ref={frame}
        tabIndex={0}
        role="group"
        aria-label="Timeline: arrow keys walk the levels, Enter opens, Escape goes up, W A S D zoom and move the axis, t shows a table"
        data-from={Math.round(window.from)}
        data-to={Math.round(window.to)}
        onKeyDown={(event) => walk(store, event)}
        {...gestures}
      >
        <div class="stack-inner" hidden={asTable}>
          {scenes.map((scene, depth) => (
            <LevelView
              key={depth < scenes.length - 1 ? depth : LOWEST}
              store={store}
              level={levels[depth]!}
              depth={depth}
              scene={scene}
            />
          ))}
          {over && about && width.value > 0 && (
            <PairLanes {...{ store, axis, palette }} width={width.value} />
          )}
          {!over && about && width.value > 0 && (
            <Tracks
              {...{ store, axis, about, palette }}
              {...{ rank, every, pinned }}
              width={width.value}
            />
          )}
          <NoteLines store={store} axis={axis} width={width.value} />
          <MarkerLine {...{ store, window }} width={width.value} left={gutter.value} />
          <AreaBand store={store} width={width.value} />
          {!over && <Arrows arrows={arrows} />}
        </div>
      </div>
      <Legend levels={levels} about={about} />
    </>
  );
}

function Tracks(props: {
  store: Store;
  axis: AxisState;
  about: Axis;
  palette: Palette;
  width: number;
  rank: number;
  every: boolean;
  pinned: readonly string[];
}): JSX.Element {
  const { store, axis, about, palette, width, rank, every, pinned } = props;
  const listing: Listing = { rank, every, pinned };
  const tracks = listed(about, listing);
  const counters = listedCounters(about, listing);
  const rest = unlisted(about, tracks) + about.counters.length - counters.length;
  const marked = store.view.value.area?.tracks ?? [];
  return (
    <div class="tracks" role="group" aria-label="Tracks">
      {tracks.map((track) => (
        <TrackView
          key={track.id}
          {...{ store, axis, track, width, palette }}
          device={deviceChip(store)}
          marked={marked.length < tracks.length && marked.includes(track.id)}
        />
      ))}
      {counters.map((counter) => (
        <CounterLane
          key={counter.id}
          {...{ axis, counter, width, palette }}
          device={deviceChip(store)}
        />
      ))}
      {rest > 0 && !listing.every && (
        <button type="button" class="chip more" onClick={() => store.set({ every: true })}>
          {plural(rest, "more track")}
        </button>
      )}
    </div>
  );
}

/** The stages of a rank's steps; without any, its busiest track. */
function overviewTrack(about: Axis, rank: number): Axis["tracks"][number] | undefined {
  const mine = about.tracks.filter((one) => one.rank === rank);
  return mine.find((one) => one.kind === "stages") ?? mine[0];
}

function usePalette(): Palette {
  const [shade, ratio] = [theme.value, pixelRatio.value];
  return useMemo(() => readPalette(document.documentElement), [shade, ratio]);
}

/** The levels laid out for a width and what is visible; none before there is one. */
function useScenes(
  store: Store,
  levels: Level[],
  width: number,
  window: Span,
  palette: Palette,
): Scene[] {
  const kept = useRef<Made[]>([]);
  const place = store.place.value;
  const shown = width > 0 ? levels : NO_LEVELS;
  kept.current = shown.map((level, depth) =>
    made(kept.current[depth], {
      level,
      width,
      from: window.from,
      to: window.to,
      strip: depth < levels.length - 1 ? openedIn(level, levels.at(-1)!.path) : null,
      palette,
      hits: store.hits.value?.get(level.path) ?? null,
      searching: store.view.value.text !== "",
      chosen: place?.level === level ? place.index : -1,
    }),
  );
  return kept.current.map((one) => one.scene);
}

/** What stands before the tracks and the counters. */
function labelsOf(device: string, about: Axis, listing: Listing): string[] {
  return [
    ...listed(about, listing).map(
      (one) => `${sideOf(one.kind, one.device, device)} ${shortNameOf(one.name)}`,
    ),
    ...listedCounters(about, listing).map((one) => `${counterSide(one, device)} ${one.short}`),
  ];
}

/** Tells the room for bars now and whenever it changes, once a frame. */
function followSize(
  frame: HTMLElement,
  width: Signal<number>,
  labels: readonly string[],
): () => void {
  const observer = new ResizeObserver(() => {
    pixelRatio.value = devicePixelRatio;
    gutter.value = gutterFor(frame.clientWidth, labels);
    width.value = Math.max(Math.floor(frame.clientWidth - gutter.value - 16), 50);
  });
  observer.observe(frame);
  return () => observer.disconnect();
}

/** Where each level's canvas begins in the stack. */
function measure(frame: HTMLElement, scenes: Scene[], levels: Shown["level"][]): Shown[] {
  const inner = frame.firstElementChild as HTMLElement;
  const above = inner.getBoundingClientRect().top;
  return [...inner.querySelectorAll<HTMLElement>(".level-rows")].flatMap((rows, at) => {
    const [level, scene] = [levels[at], scenes[at]];
    return level && scene ? [{ level, scene, top: rows.getBoundingClientRect().top - above }] : [];
  });
}
