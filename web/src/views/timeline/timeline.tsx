import { useSignal, type Signal } from "@preact/signals";
import { Fragment, type JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Level } from "../../model/level";
import { readPalette } from "../../render/palette";
import type { Scene } from "../../render/renderer";
import type { Store } from "../../state/store";
import { theme } from "../../state/theme";
import { ErrorLine } from "../../widgets/answer";
import { walk } from "./keys";
import { LevelView } from "./level";
import { Arrows, arrowsOf, Lead, openedIn, type Arrow, type Shown } from "./lines";
import { GUTTER, made, pixelRatio, type Made } from "./scene";
import { LevelTables } from "./table";
import { sentence, Tooltip } from "./tooltip";
import { TimelineTools } from "./tools";

const NO_LEVELS: Level[] = [];

/** The multi-scale timeline: levels from the steps down, each fitted to the width. */
export function Timeline({ store }: { store: Store }): JSX.Element {
  const { error } = store.levels.value;
  const place = store.place.value;
  return (
    <section class="timeline" aria-label="Timeline" aria-busy={store.levels.value.loading}>
      <TimelineTools store={store} />
      {error && <ErrorLine text={error} />}
      {store.view.value.asTable ? <LevelTables store={store} /> : <Stack store={store} />}
      <p class="unseen" role="status" aria-live="polite">
        {place ? sentence(place.level, place.index) : ""}
      </p>
      <Tooltip store={store} />
    </section>
  );
}

function Stack({ store }: { store: Store }): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const width = useSignal(0);
  const height = useSignal(0);
  const arrows = useSignal<Arrow[]>([]);
  const levels = store.levels.value.value ?? NO_LEVELS;
  const scenes = useScenes(store, levels, width.value);
  useLayoutEffect(() => followSize(frame.current!, width, height), []);
  const [place, partners] = [store.place.value, store.partners.value.value ?? []];
  useLayoutEffect(() => {
    const shown = place ? measure(frame.current!, scenes, levels) : [];
    arrows.value = place ? arrowsOf(place, partners, shown) : [];
  });
  const { path } = store.view.value;
  const tall = scenes.reduce((sum, one) => sum + one.layout.height, 0);
  useLayoutEffect(() => showLevel(frame.current!, path ?? ""), [path, levels, height.value, tall]);

  return (
    <div
      class="stack"
      ref={frame}
      tabIndex={0}
      role="group"
      aria-label="Levels: arrow keys walk them, Enter opens, Escape goes up, t shows a table"
      onKeyDown={(event) => walk(store, event)}
    >
      <div class="stack-inner">
        {scenes.map((scene, depth) => (
          <Fragment key={depth}>
            {depth > 0 && (
              <Lead
                scene={scenes[depth - 1]!}
                opened={openedIn(levels[depth - 1]!, levels[depth]!.path)}
                width={width.value}
              />
            )}
            <LevelView store={store} level={levels[depth]!} depth={depth} scene={scene} />
          </Fragment>
        ))}
        {scenes.length > 0 && scenes.length < 3 && (
          <p class="stack-hint">
            Click an operation to see what is inside it. <kbd>?</kbd> lists the keys.
          </p>
        )}
        <Arrows arrows={arrows} />
      </div>
    </div>
  );
}

/** The levels laid out for a width; none before there is one. */
function useScenes(store: Store, levels: Level[], width: number): Scene[] {
  const kept = useRef<Made[]>([]);
  const [shade, ratio] = [theme.value, pixelRatio.value];
  const palette = useMemo(() => readPalette(document.documentElement), [shade, ratio]);
  const place = store.place.value;
  const shown = width > 0 ? levels : NO_LEVELS;
  kept.current = shown.map((level, depth) =>
    made(kept.current[depth], {
      level,
      width,
      palette,
      hits: store.hits.value?.get(level.path) ?? null,
      searching: store.view.value.text !== "",
      chosen: place?.level === level ? place.index : -1,
    }),
  );
  return kept.current.map((one) => one.scene);
}

/** Tells the room for bars now and whenever it changes, once a frame. */
function followSize(frame: HTMLElement, width: Signal<number>, height: Signal<number>): () => void {
  const observer = new ResizeObserver(() => {
    pixelRatio.value = devicePixelRatio;
    width.value = Math.max(Math.floor(frame.clientWidth - GUTTER - 16), 50);
    height.value = frame.clientHeight;
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

/** Scrolls the lowest level into sight, and as much above it as there is room for. */
function showLevel(frame: HTMLElement, path: string): void {
  const level = [...frame.querySelectorAll<HTMLElement>(".level")].find(
    (one) => one.dataset.level === path,
  );
  if (!level) return;
  const bottom = level.offsetTop + level.offsetHeight + 12;
  if (bottom > frame.scrollTop + frame.clientHeight) frame.scrollTop = bottom - frame.clientHeight;
  if (level.offsetTop < frame.scrollTop) frame.scrollTop = level.offsetTop - 8;
}
